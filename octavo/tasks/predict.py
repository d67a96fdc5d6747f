"""From one image's outputs to what a caller asked for, by the functions that validation scores with. One line a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.images.frame import Frame
from octavo.params.grammar import Classification, Detection, Embedding, Input, Segmentation
from octavo.tasks.detection import FAMILIES, Boxes, Reading, detect
from octavo.tasks.embedding.decode import vector_of
from octavo.tasks.outputs import Outputs
from octavo.tasks.ranking import Ranking, class_scores
from octavo.tasks.segmentation.decode import classes_of_pixels

__all__ = ["Boxes", "ClassMaps", "Prediction", "Predictor", "Ranking", "predictor"]


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


# The last is an embedding's: float32, 1-D.
Prediction = Ranking | Boxes | ClassMaps | np.ndarray
# From one image's outputs and its (rows, columns).
Predictor = Callable[[Outputs, tuple[int, int]], Prediction]


def predictor(task: Any, spec: Input, decoder: str | None = None) -> Predictor:
    """What turns one image's outputs, and the image's rows and columns, into a prediction on the image.

    Args:
        task: the model's `task:` block.
        spec: its `input:` block.
        decoder: the family of detectors that validation read FP32's outputs as; by the first outputs that come where None.

    Raises (the function that comes back):
        DataError: the outputs are not those of the task.
    """
    return _PREDICTORS[task.name](task, spec, decoder)


def _classification(task: Classification, _spec: Input, _decoder: str | None) -> Predictor:
    return lambda outputs, _photo: Ranking(class_scores(outputs, task))


def _detection(task: Detection, spec: Input, decoder: str | None) -> Predictor:
    known, reading = FAMILIES[decoder] if decoder else None, Reading(task.decoder)

    def boxes(outputs: Outputs, photo: tuple[int, int]) -> Boxes:
        frame = Frame.of(*photo, spec)
        return detect(outputs, known or reading.of(frame.input, outputs), frame, task)

    return boxes


def _segmentation(task: Segmentation, spec: Input, _decoder: str | None) -> Predictor:
    def maps(outputs: Outputs, photo: tuple[int, int]) -> ClassMaps:
        frame = Frame.of(*photo, spec)
        return ClassMaps({name: classes_of_pixels(outputs, head, frame) for name, head in task.each.items()})

    return maps


def _embedding(task: Embedding, _spec: Input, _decoder: str | None) -> Predictor:
    return lambda outputs, _photo: vector_of(outputs, task)


_PREDICTORS: dict[str, Callable[[Any, Input, str | None], Predictor]] = {
    "classification": _classification,
    "detection": _detection,
    "embedding": _embedding,
    "segmentation": _segmentation,
}
