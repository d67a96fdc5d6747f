"""What is minimised: the distance to FP32's answers, which needs no labels, and the task's own loss where there are some."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F  # noqa: N812 - its usual name

from octavo.images.masks import VOID

__all__ = ["LABELLED", "distillation", "floats", "relative_error"]

Outputs = Mapping[str, torch.Tensor]


def floats(outputs: Outputs) -> dict[str, torch.Tensor]:
    """The outputs that a loss can be of: class indices and the like carry no gradient."""
    return {name: value for name, value in outputs.items() if value.is_floating_point()}


def distillation(task: str, student: Outputs, teacher: Outputs) -> torch.Tensor:
    """How far the student's outputs are from the teacher's, the mean over the outputs.

    classification: the squared error of logits over the teacher's, each image's mean taken out, which softmax does not see either.
    A sure answer's probabilities hardly say anything about the other classes; its logits do, and few images are enough (compared
    at length by Kim et al. 2021, https://arxiv.org/abs/2105.08919; measured here: docs/qat.md). segmentation: KL divergence of the
    class probabilities (Hinton 2015, https://arxiv.org/abs/1503.02531, at temperature 1), a mean over positions; of one class, in
    both: of its sigmoid. embedding: 1 - cosine. Others (boxes and scores of detectors): the squared error over the teacher's
    variance, feature by feature, as SQNR is.

    Args:
        task: its name.
        student, teacher: output name to [N, ...].

    Returns:
        A scalar.
    """
    measure = _DISTANCES.get(task, _relative)
    teacher = floats(teacher)
    return torch.stack([measure(student[name], value.detach()) for name, value in teacher.items()]).mean()


def _divergence(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    if teacher.ndim < 2 or teacher.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(student, teacher.sigmoid()) - _entropy(teacher)
    return F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True).sum(1).mean()


def _logits(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    if teacher.ndim < 2 or teacher.shape[1] == 1:
        return _divergence(student, teacher)
    student, teacher = (value - value.mean(1, keepdim=True) for value in (student, teacher))
    return (student - teacher).square().sum() / teacher.square().sum().clamp(min=1e-6)


def _entropy(teacher: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(teacher, teacher.sigmoid())


def _angle(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    return (1 - F.cosine_similarity(student.flatten(1), teacher.flatten(1))).mean()


def _relative(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Squared error over the teacher's variance, feature by feature: boxes in pixels must not drown scores of 0..1."""
    if teacher.ndim < 2:
        return (student - teacher).square().mean() / teacher.var().clamp(min=1e-6)
    # N x features x places, but of three axes the longer one is places: YOLOv5 puts out N x 25200 x 85.
    axis = 2 if teacher.ndim == 3 and teacher.shape[1] > teacher.shape[2] else 1
    over = tuple(other for other in range(teacher.ndim) if other != axis)
    error = (student - teacher).square().mean(over)
    return (error / teacher.var(over, unbiased=False).clamp(min=1e-6)).mean()


def relative_error(student: Outputs, teacher: Outputs) -> torch.Tensor:
    """Noise to signal, the mean over features and outputs, whatever the task; a scalar."""
    return torch.stack([_relative(student[name], value) for name, value in floats(teacher).items()]).mean()


_DISTANCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "classification": _logits,
    "segmentation": _divergence,
    "embedding": _angle,
}


def _classes(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy; logits [N, classes], labels int64 [N], below 0 where an image has none."""
    return F.cross_entropy(logits, labels, ignore_index=VOID) if (labels != VOID).any() else logits.sum() * 0


def _pixels(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every pixel that counts; logits [N, classes, rows, columns] of any size, masks int64 of the input's."""
    if not (masks != VOID).any():
        return logits.sum() * 0
    logits = F.interpolate(logits, size=masks.shape[1:], mode="bilinear", align_corners=False)
    if logits.shape[1] == 1:
        counts = masks != VOID
        return F.binary_cross_entropy_with_logits(logits[:, 0][counts], masks[counts].to(logits.dtype))
    return F.cross_entropy(logits, masks, ignore_index=VOID)


# Tasks whose labels can be trained on: (outputs of one head, labels) to a scalar. Of others the labels are for `validate` alone.
LABELLED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"classification": _classes, "segmentation": _pixels}
