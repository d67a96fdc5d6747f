"""How many of the boxes that FP32 is sure of are still found, where a detector chooses rows for further layers to look at.

While placements are measured FP32's choices are fed to both networks (`octavo.graph.selection.held`): noise tells how exact layers
are on the same queries or regions, and nothing of whether these are chosen again. Where many scores lie close to the last one that
is chosen, little noise exchanges rows, and a box goes with each: an RT-DETRv2 of random weights has 20.4 dB at its heads and finds
95 % of FP32's boxes on FP32's queries, 85 % on its own. So the whole graph runs here, and what it finds is paired with what FP32
finds. Rows are exchanged in proportion to how far scores move, which is the root of noise: a share of boxes counts by its square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from octavo.runtime.lanes import in_lanes
from octavo.runtime.mapped import session_of
from octavo.runtime.shapes import images_within

__all__ = ["Found", "SureBoxes", "found_of"]

# Boxes of FP32 that a share of them says something from, and those from which on more would say the same.
_ENOUGH, _MANY = 50, 400
# Images on which they are looked for: where fewer are held out, calibration images as well, whose scores lie as close.
_IMAGES = 16
# Multiplications of their runs for which many are looked for; beyond them as many times fewer do, down to enough. A run of Faster
# R-CNN v2 (153e9) takes 3.4 processor seconds, and as much again or more for each placement that comes near.
_MACS = 1.5e11
# What a share of boxes counts as is twice its square: as many of FP32's boxes are missing as others are there in their place. 20 dB
# are 7 %, and 18 dB, the least that detectors are let down to (`noise.fidelity`), 9 %.
_BOTH = 2.0


class SureBoxes(Protocol):
    """What reads the boxes that count, FP32's first, and pairs them."""

    def read(self, outputs: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> Any:
        """Those of one image, by its outputs and feeds; something that has a length."""

    def pairs(self, mine: Any, theirs: Any) -> int:
        """How many of one image's are the same boxes in two variants."""


class Found:
    """Pairs boxes of the whole graph with FP32's; made by `found_of`.

    Args:
        model: FP32, as it came in.
        samples: feeds of some images, of which as many are taken as have boxes enough.
        boxes: reads outputs.
        whole: from what was written of a placement to the file's graph, in place.
        macs: multiplications that the graph makes of an image, as far as they are known.
    """

    def __init__(
        self,
        model: ir.Model,
        samples: Sequence[Mapping[str, np.ndarray]],
        boxes: SureBoxes,
        whole: Callable[[ir.Model], ir.Model],
        *,
        macs: int = 0,
    ) -> None:
        self._boxes, self._whole = boxes, whole
        self._samples, self._true = [], []
        session = session_of(model, threads=1)
        for feeds, outputs in zip(samples, in_lanes(session.run, samples), strict=True):
            self._samples.append(feeds)
            self._true.append(boxes.read(outputs, feeds))
            share = min(1.0, _MACS / max(1, macs * len(self._true)))
            if sum(map(len, self._true)) >= max(_ENOUGH, _MANY * share):
                break

    @property
    def tells(self) -> bool:
        """Whether FP32 finds enough on these images."""
        return sum(map(len, self._true)) >= _ENOUGH

    def f1(self, made: ir.Model) -> float:
        """The share of the boxes of both that have a partner, over all images: `match_f1` of metrics/<model>/accuracy.json.

        Args:
            made: as written of a placement; it becomes the whole graph.
        """
        session = session_of(self._whole(made), threads=1)
        found = list(in_lanes(lambda feeds: self._boxes.read(session.run(feeds), feeds), self._samples))
        pairs = sum(self._boxes.pairs(mine, theirs) for mine, theirs in zip(found, self._true, strict=True))
        return 2 * pairs / sum(map(len, [*found, *self._true]))

    @staticmethod
    def noise(f1: float) -> float:
        """The noise-to-signal ratio that boxes without a partner count as."""
        return _BOTH * (1 - f1) ** 2


def found_of(
    model: ir.Model,
    held_out: Sequence[Mapping[str, np.ndarray]],
    calibration: Sequence[Mapping[str, np.ndarray]],
    boxes: SureBoxes | None,
    whole: Callable[[ir.Model], ir.Model],
    *,
    macs: int = 0,
) -> Found | None:
    """None where outputs are not read as boxes, or FP32 finds too few.

    Args:
        model, boxes, whole, macs: as for `Found`.
        held_out: feeds of images that ranges were not made from.
        calibration: feeds of images that they were made from.
    """
    if boxes is None:
        return None
    samples = [*held_out, *calibration][: images_within(model, max(len(held_out), _IMAGES))]
    found = Found(model, samples, boxes, whole, macs=macs)
    return found if found.tells else None
