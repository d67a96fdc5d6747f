"""Annotated boxes of one image, as every reader of detection data hands them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Objects"]


@dataclass(frozen=True, eq=False)
class Objects:
    """Ground truth of one image; an image without objects has arrays of length 0.

    Attributes:
        xyxy: float64, n x 4, corners in pixels of the image as it is read (EXIF orientation applied).
        classes: int64, n; the model's own class index.
        crowd: bool, n; a region of many objects (COCO's `iscrowd`): what is found in it is neither right nor wrong.
        area: float64, n, square pixels; COCO's `area` where the file has it, which tells small from medium and large.
    """

    xyxy: np.ndarray
    classes: np.ndarray
    crowd: np.ndarray
    area: np.ndarray

    @classmethod
    def of(
        cls,
        xyxy: Sequence[Sequence[float]],
        classes: Sequence[int],
        crowd: Sequence[bool] | None = None,
        area: Sequence[float] | None = None,
    ) -> Objects:
        """From plain lists; without `crowd` none is one, without `area` it is the box's."""
        boxes = np.asarray(xyxy, np.float64).reshape(-1, 4)
        sides = boxes[:, 2:] - boxes[:, :2]
        return cls(
            boxes,
            np.asarray(classes, np.int64).reshape(-1),
            np.zeros(len(boxes), bool) if crowd is None else np.asarray(crowd, bool).reshape(-1),
            sides.prod(axis=1) if area is None else np.asarray(area, np.float64).reshape(-1),
        )

    def __len__(self) -> int:
        return len(self.classes)
