"""Names of what a model tells apart, in the order of its indices."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from octavo.params.grammar import Classification, Detection, Segmentation
from octavo.tasks.detection.names import class_names

__all__ = ["labels_of"]


def labels_of(task: Any) -> tuple[str, ...] | dict[str, tuple[str, ...]] | None:
    """Class names of a `task:` block.

    Returns:
        None where params.yaml does not give them, or there are none (embeddings); of a segmentation network with several heads a
        map from head to names, of the heads that have them.
    """
    if isinstance(task, Classification):
        return _imagenet1k() if task.classes == "imagenet1k" else task.classes
    if isinstance(task, Detection):
        return class_names(task)
    if isinstance(task, Segmentation):
        return {name: head.classes for name, head in task.heads.items() if head.classes} or None if task.heads else task.classes
    return None


@cache
def _imagenet1k() -> tuple[str, ...]:
    """ILSVRC-2012's classes in the order of their synsets, as torchvision names them; `crane` and `maillot` stand twice."""
    return tuple(resources.files("octavo.tasks").joinpath("imagenet1k.txt").read_text(encoding="utf-8").splitlines())
