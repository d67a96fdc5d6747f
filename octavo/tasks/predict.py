"""From one image's outputs to what a caller asked for, by the functions that validation scores with. One line a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.images.frame import Frame
from octavo.params.grammar import Classification, Detection, Segmentation
from octavo.tasks.detection import FAMILIES, Boxes, detect, family_of
from octavo.tasks.outputs import Outputs
from octavo.tasks.ranking import Ranking, class_scores
from octavo.tasks.segmentation.decode import class_map, logits_of

__all__ = ["Boxes", "ClassMaps", "Prediction", "Predictor", "Ranking", "decoder_of", "predictor"]


@dataclass(frozen=True, eq=False)
class ClassMaps:
    """Segmentation.

    Attributes:
        maps: head to int16, rows x columns of the photo: each pixel's class, -1 where a crop cut the photo off. The one head of a
            task without `heads` is named "".
    """

    maps: Mapping[str, np.ndarray]

    @property
    def classes(self) -> np.ndarray:
        """The map of the only head.

        Raises:
            ValueError: there are several.
        """
        (only,) = self.maps.values()
        return only


# Of embeddings: float32, 1-D.
Prediction = Ranking | Boxes | ClassMaps | np.ndarray
Predictor = Callable[[Outputs, Frame], Prediction]


def predictor(task: Any, decoder: str | None = None) -> Predictor:
    """What turns one image's outputs, and the frame that the photo lay in, into a prediction on the photo.

    Args:
        task: the model's `task:` block.
        decoder: the family of detectors that validation read FP32's outputs as; by the first outputs that come where None.

    Raises (the function that comes back):
        DataError: the outputs are not those of the task.
    """
    return _PREDICTORS[task.name](task, decoder)


def decoder_of(task: Any, outputs: Outputs, frame: Frame) -> str | None:
    """The family that a detector's outputs are read as; None for other tasks."""
    return family_of(outputs, frame.input, task.decoder).name if isinstance(task, Detection) else None


def _classification(task: Classification, _: str | None) -> Predictor:
    return lambda outputs, _frame: Ranking(class_scores(outputs, task))


def _detection(task: Detection, decoder: str | None) -> Predictor:
    families = [FAMILIES[decoder]] if decoder else []

    def boxes(outputs: Outputs, frame: Frame) -> Boxes:
        if not families:
            families.append(family_of(outputs, frame.input, task.decoder))
        return detect(outputs, families[0], frame, task)

    return boxes


def _segmentation(task: Segmentation, _: str | None) -> Predictor:
    heads = task.each
    return lambda outputs, frame: ClassMaps({name: class_map(logits_of(outputs, head), frame) for name, head in heads.items()})


_PREDICTORS: dict[str, Callable[[Any, str | None], Predictor]] = {
    "classification": _classification,
    "detection": _detection,
    "segmentation": _segmentation,
}
