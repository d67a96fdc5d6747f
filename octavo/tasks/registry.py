"""Which score is a task's: one registry line each.

A task's score (`octavo.tasks.score.Score`) takes one image's outputs at a time and gives the task's metrics. Tasks without an entry
are validated by fidelity alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.images.dataset import Classes
from octavo.images.preprocess import preprocess
from octavo.params.grammar import Classification, Detection, Embedding, Input, Segmentation
from octavo.tasks.classification import ClassificationScore
from octavo.tasks.detection.plugin import Plugin, plugin_of
from octavo.tasks.detection.score import DetectionScore
from octavo.tasks.embedding.score import EmbeddingScore
from octavo.tasks.outputs import Outputs
from octavo.tasks.score import Score
from octavo.tasks.segmentation.score import SegmentationScore

__all__ = ["SCORES", "answer_to_grey", "compared_outputs", "model_classes", "plugin_behind"]

SCORES: dict[str, type[Score]] = {
    "classification": ClassificationScore,
    "detection": DetectionScore,
    "embedding": EmbeddingScore,
    "segmentation": SegmentationScore,
}


def plugin_behind(task: Any, spec: Input, run: Callable[[np.ndarray], Outputs], ends: Sequence[ir.Node]) -> Plugin | None:
    """How a graph is read that is cut before a detector's suppression; None of other tasks and of other operators.

    Args:
        task: the model's `task:` block.
        spec: its `input:` block.
        run: FP32, from a preprocessed image; it runs once on an even grey.
        ends: the operators that it is cut before.
    """
    return plugin_of(ends, *answer_to_grey(spec, run), task) if ends and isinstance(task, Detection) else None


def model_classes(
    task: Any,
    spec: Input,
    run: Callable[[np.ndarray], Outputs],
    scored: Sequence[str] | None = (),
    plugin: Plugin | None = None,
) -> Classes:
    """What FP32's outputs say of the model's classes, before an image is opened: it runs once on an even grey.

    Args:
        task: the model's `task:` block.
        spec: its `input:` block.
        run: FP32, from a preprocessed image.
        scored: outputs that the task's score gets, all where empty; None where there is no score.
        plugin: how they are read where the graph is cut before its suppression.

    Raises:
        DataError: the outputs are not those of the task.
    """
    if task.name not in SCORES or scored is None:
        return Classes()
    outputs, size = answer_to_grey(spec, run)
    chosen = {name: outputs[name] for name in scored} if scored else outputs
    return SCORES[task.name].classes(task, chosen, size, *([plugin] if plugin else []))


def answer_to_grey(spec: Input, run: Callable[[np.ndarray], Outputs]) -> tuple[Outputs, tuple[int, int]]:
    """What a graph puts out for an even grey, and the (rows, columns) of that tensor."""
    grey = np.full((*spec.size, 3), 128, np.uint8)
    # Of a warp: onto itself.
    image = preprocess(grey, spec, spec.template)
    rows, columns = image.shape[2:] if spec.layout == "nchw" else image.shape[1:3]
    return run(image), (rows, columns)


def compared_outputs(task: Any) -> list[str]:
    """The outputs that fidelity is about, where the task names them; empty for all.

    Features beside class scores, or heads that serve training alone, would be most of a cosine over all outputs.
    """
    if isinstance(task, Segmentation):
        return [head.output for head in task.each.values() if head.output is not None]
    return [task.output] if isinstance(task, Classification | Embedding) and task.output is not None else []
