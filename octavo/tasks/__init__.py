"""What a model's outputs mean: one module a task, one registry line each.

A task's score (`octavo.tasks.score.Score`) takes one image's outputs at a time and gives the task's metrics. Tasks without an entry
are validated by fidelity alone.
"""

from __future__ import annotations

from octavo.tasks.classification import ClassificationScore
from octavo.tasks.detection.score import DetectionScore
from octavo.tasks.score import Score
from octavo.tasks.segmentation.score import SegmentationScore

__all__ = ["SCORES"]

SCORES: dict[str, type[Score]] = {
    "classification": ClassificationScore,
    "detection": DetectionScore,
    "segmentation": SegmentationScore,
}
