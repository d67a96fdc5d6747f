"""How far a quantized network is from FP32, measured where it decides: at the outputs of its last weighted layers, its heads.

Behind the heads stands arithmetic that both networks share (softmax, box decoding, resizing), in which one large coordinate would
drown the scores. By what noise is held against there is one judge for heads of any kind (`head_judge.py`) and one for detectors
(`objects.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Self
from weakref import ref

import numpy as np
import onnx_ir as ir

from octavo.graph.io import copied
from octavo.graph.passes.kernels.mish_by_exp import MishByExpPass
from octavo.runtime.lanes import in_lanes
from octavo.runtime.mapped import session_of
from octavo.runtime.noise import sqnr_db
from octavo.runtime.tensors import drop_unneeded

__all__ = ["Judge", "db_of", "with_outputs"]


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy of a graph that puts out these tensors and nothing else, its Mish written as INT8's files write it in float."""
    copy = copied(model)
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(values[name] for name in names)
    # ONNX Runtime would run the rest, too: half a second an image, where boxes are suppressed class by class.
    drop_unneeded(copy.graph)
    MishByExpPass()(copy)
    return copy


def db_of(noise: float) -> float:
    """SQNR in dB of a noise-to-signal ratio, as manifests have it."""
    return round(sqnr_db(1.0, noise), 2)


class Judge(ABC):
    """Holds FP32 on some images against a quantized graph, by what both have at their heads.

    Args:
        model: FP32, as prepared for INT8.
        heads: names of the tensors to compare.
        samples: feeds, batch dimension 1.

    Attributes:
        attends: whether some places of heads count more than others (`attended`).
        apart: how many samples, the last ones, have to do by themselves as well as all together (`with_apart`).
    """

    attends = False
    apart = 0
    # FP32's results on each sample.
    _true: list[Any]

    def __init__(self, model: ir.Model, heads: Sequence[str], samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.heads = list(heads)
        self.samples = list(samples)
        # Not to keep a form of the network that nobody else holds any more.
        self._of = ref(model)
        self._hold(self._results(model, {}))

    def on(self, model: ir.Model, samples: Sequence[Mapping[str, np.ndarray]]) -> Self:
        """The same measure, held against another form of the float network: equalized ones differ by what their bounds cut off.

        What is known of the same form's answers is not asked for again.
        """
        other = self.with_apart(0)
        other.samples, other._of = list(samples), ref(model)
        other._hold(other._results(model, self._known() if self._of() is model else {}))
        return other

    def only(self, places: Sequence[int]) -> Self:
        """The same measure on some of its samples."""
        other = self.with_apart(0)
        other.samples, other._true = [self.samples[place] for place in places], [self._true[place] for place in places]
        return other

    def with_apart(self, apart: int) -> Self:
        """The same measure, by which the last `apart` samples make as much noise as all if they make more (`total`)."""
        other = copy(self)
        other.apart = apart
        return other

    @property
    def tells_signal(self) -> bool:
        """Whether `signal_by_image` is known, and little enough to hold for some dozen images."""
        return False

    def signal_by_image(self) -> list[float]:
        """How far FP32's heads on each sample lie from what they mostly are, as a share of what `noise` is held against."""
        raise TypeError(f"{type(self).__name__} does not tell it")

    def damped(self) -> Self:
        """The same measure, but noise on samples with more signal than others counts less, where signal is told."""
        return self

    def undamped(self, by_image: Sequence[float]) -> list[float]:
        """Noise of each sample as it is without `damped`."""
        return list(by_image)

    def attended(self) -> dict[str, list[np.ndarray]]:
        """Of heads of which not all places count alike, how much each does: by head, for each sample, with one channel."""
        return {}

    @abstractmethod
    def _hold(self, results: Iterator[Mapping[str, np.ndarray]]) -> None:
        """Take in FP32's heads on each sample."""

    def _known(self) -> dict[int, Mapping[str, np.ndarray]]:
        """FP32's heads, as far as they are held as they are: by the feeds' identity."""
        return {}

    @abstractmethod
    def noises(self, results: Iterable[Mapping[str, np.ndarray]]) -> Iterator[float]:
        """The noise of each image, as soon as its heads are there."""

    def noise_by_image(self, results: Iterable[Mapping[str, np.ndarray]]) -> list[float]:
        """What `noise` is the mean of: the noise of each image."""
        return list(self.noises(results))

    def _results(self, model: ir.Model, known: Mapping[int, Mapping[str, np.ndarray]]) -> Iterator[Mapping[str, np.ndarray]]:
        others = [feeds for feeds in self.samples if id(feeds) not in known]
        ran = self._ran(model, others) if others else iter(())
        return (known[id(feeds)] if id(feeds) in known else next(ran) for feeds in self.samples)

    def _ran(self, model: ir.Model, samples: Sequence[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        session = session_of(with_outputs(model, self.heads), threads=1, memory_pattern=False)
        # Copies: an array that ONNX Runtime hands out keeps all the memory of its session.
        return in_lanes(lambda feeds: {name: value.copy() for name, value in session.run(feeds).items()}, samples)

    def noise(self, results: Sequence[Mapping[str, np.ndarray]]) -> float:
        """Mean noise over images.

        Args:
            results: the heads on the first `len(results)` samples.
        """
        return float(np.mean(self.noise_by_image(results)))

    def judge(self, quantized: ir.Model) -> float:
        """Noise of a graph that puts out the heads, on all samples."""
        return self.total(self.judge_by_image(quantized))

    def total(self, by_image: Sequence[float]) -> float:
        """What the noise of all samples comes to: its mean, or that of the samples held `apart`, undamped, if it is more."""
        mean = float(np.mean(by_image))
        return max(mean, float(np.mean(self.undamped(by_image)[-self.apart :]))) if self.apart else mean

    def judge_by_image(self, quantized: ir.Model) -> list[float]:
        """Noise of a graph that puts out the heads, on each sample."""
        return self.noise_by_image(self._run(quantized))

    def judge_below(self, quantized: ir.Model, mean: float, weights: Sequence[float]) -> list[float] | None:
        """As `judge_by_image`, or None: as `noise_below`."""
        return self.noise_below(self._run(quantized), mean, weights)

    def noise_below(
        self, results: Iterable[Mapping[str, np.ndarray]], mean: float, weights: Sequence[float] | None = None
    ) -> list[float] | None:
        """As `noise_by_image`; None as soon as the samples so far tell that noise is no less than `mean` on average over all.

        Args:
            results: the heads on all samples; what follows is not asked for then.
            mean: a noise-to-signal ratio.
            weights: how much each sample counts; all alike without.
        """
        weights = [1.0] * len(self.samples) if weights is None else weights
        by_image: list[float] = []
        for noise in self.noises(results):
            by_image.append(noise)
            # NaN is not below either.
            if not np.dot(by_image, weights[: len(by_image)]) < mean * sum(weights):
                return None
        return by_image

    def _run(self, quantized: ir.Model) -> Iterator[dict[str, np.ndarray]]:
        session = session_of(quantized, threads=1, memory_pattern=False)
        return in_lanes(lambda feeds: session.run(feeds, self.heads), self.samples)
