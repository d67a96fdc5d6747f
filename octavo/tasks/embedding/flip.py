"""Flip averaging: the vector of an image is the mean of its own and its mirror's, before its length is made 1.

What the network sees in calibration and quantization is not mirrored: it is one network, run twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from octavo.params.grammar import Embedding, Input
from octavo.tasks.embedding.decode import output_of

__all__ = ["Flipped", "Runs", "answering", "mirrored"]


class Runs(Protocol):
    """What is used of `octavo.runtime.session.Session`."""

    name: str
    inputs: list[str]
    outputs: list[str]
    input_shapes: dict[str, list[Any]]
    output_shapes: dict[str, list[Any]]
    input_types: dict[str, str]

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Run once."""

    def run_finite(self, feeds: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
        """Run once and refuse NaN and infinity."""


def mirrored(tensor: np.ndarray, spec: Input) -> np.ndarray:
    """A preprocessed image, or a batch of them, mirrored left and right; contiguous."""
    return np.ascontiguousarray(tensor[..., ::-1] if spec.layout == "nchw" else tensor[..., ::-1, :])


class Flipped:
    """A session that answers with the mean of an image's and its mirror's vector; other outputs are those of the image alone.

    Args:
        session: of the network; attributes that are not told here are its own.
        task: says which output is the vector.
        spec: the model's `input:` block.
        image_input: the graph input that takes the image.
    """

    def __init__(self, session: Runs, task: Embedding, spec: Input, image_input: str) -> None:
        self.session = session
        self.task = task
        self.spec = spec
        self.image_input = image_input

    def __getattr__(self, name: str) -> Any:
        # Not for what is looked up before __init__ (copying, unpickling).
        if name == "session":
            raise AttributeError(name)
        return getattr(self.session, name)

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """As `Session.run`, in two runs."""
        return self._mean(self.session.run(feeds, outputs), lambda mirror: self.session.run(mirror, outputs), feeds)

    def run_finite(self, feeds: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
        """As `Session.run_finite`, in two runs."""
        return self._mean(
            self.session.run_finite(feeds, where), lambda mirror: self.session.run_finite(mirror, f"{where}, mirrored"), feeds
        )

    def _mean(self, found: dict[str, np.ndarray], again: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.task.output is not None and self.task.output not in found:
            return found  # asked for others alone
        name = output_of(found, self.task)
        other = again({**feeds, self.image_input: mirrored(feeds[self.image_input], self.spec)})[name]
        return {**found, name: ((found[name].astype(np.float64) + other) / 2).astype(found[name].dtype)}


def answering(sessions: Mapping[str, Runs], task: Any, spec: Input, image_input: str) -> dict[str, Any]:
    """Sessions as `task` reads the network: flipped where it says so, as they are for every other task."""
    flip = isinstance(task, Embedding) and task.flip
    return {name: Flipped(one, task, spec, image_input) if flip else one for name, one in sessions.items()}
