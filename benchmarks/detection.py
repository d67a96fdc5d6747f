"""From a detector's raw outputs to boxes in the photo's pixels: decoders, class-wise NMS, and the way back from a letterbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np

from octavo.params.grammar import Input

__all__ = ["Boxes", "Letterbox", "decode_nanodet", "decode_yolov5", "decode_yolox", "detect", "nms"]

SCORE = 0.001
# What reaches NMS at most: a broken model scores everything, and NMS is quadratic.
CANDIDATES = 30_000
MOST = 300


@dataclass(frozen=True)
class Boxes:
    """`xyxy`: boxes x 4, corners in pixels of the network's input; `scores`: boxes x classes."""

    xyxy: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class Letterbox:
    """Where `octavo.images.preprocess` put a photo inside the network's input.

    Attributes:
        scale: input pixels per photo pixel, (x, y); they differ by the rounding of the resized sides.
        offset: the photo's top left corner in the input, (x, y).
        size: the photo's (width, height).
    """

    scale: tuple[float, float]
    offset: tuple[int, int]
    size: tuple[int, int]

    @classmethod
    def of(cls, rows: int, columns: int, spec: Input) -> Letterbox:
        """For a photo of rows x columns pixels under a spec whose rule is `letterbox`."""
        height, width = spec.size
        factor = min(height / rows, width / columns)
        inner = max(1, round(rows * factor)), max(1, round(columns * factor))
        top, left = (0, 0) if spec.resize.align == "top-left" else ((height - inner[0]) // 2, (width - inner[1]) // 2)
        return cls((inner[1] / columns, inner[0] / rows), (left, top), (columns, rows))

    def back(self, xyxy: np.ndarray) -> np.ndarray:
        """Boxes from input pixels to photo pixels, clipped to the photo."""
        moved = (xyxy - np.tile(self.offset, 2)) / np.tile(self.scale, 2)
        return np.clip(moved, 0, np.tile(self.size, 2))


def _corners(centre: np.ndarray, size: np.ndarray) -> np.ndarray:
    return np.concatenate([centre - size / 2, centre + size / 2], axis=1)


def decode_yolov5(outputs: Mapping[str, np.ndarray]) -> Boxes:
    """1 x n x 85 of decoded cx, cy, w, h in pixels, objectness, 80 class scores."""
    (rows,) = next(iter(outputs.values())).astype(np.float32)
    return Boxes(_corners(rows[:, :2], rows[:, 2:4]), rows[:, 4:5] * rows[:, 5:])


def decode_yolox(outputs: Mapping[str, np.ndarray], size: int, strides: tuple[int, ...] = (8, 16, 32)) -> Boxes:
    """1 x n x 85 of undecoded boxes, rows by stride, then y, then x: centre = (xy + grid) * stride, size = exp(wh) * stride."""
    (rows,) = next(iter(outputs.values())).astype(np.float32)
    grids, steps = [], []
    for stride in strides:
        side = size // stride
        y, x = np.mgrid[:side, :side]
        grids.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full((side * side, 1), stride))
    step = np.concatenate(steps).astype(np.float32)
    # exp of a broken output overflows; such a box is as wide as anything needs to be.
    extent = np.exp(np.minimum(rows[:, 2:4], 10)) * step
    return Boxes(_corners((rows[:, :2] + np.concatenate(grids)) * step, extent), rows[:, 4:5] * rows[:, 5:])


def decode_nanodet(
    outputs: Mapping[str, np.ndarray], size: int, strides: tuple[int, ...] = (8, 16, 32), classes: int = 80, bins: int = 8
) -> Boxes:
    """Per stride [n*n, classes] scores and [n*n, 4 * bins] distances, told apart by shape: distance = softmax expectation * stride.

    Generalized Focal Loss (https://arxiv.org/abs/2006.04388); sides are left, top, right, bottom of the cell's centre.
    """
    boxes, scores = [], []
    for stride in strides:
        side = size // stride
        score, raw = (
            next(value for value in outputs.values() if value.shape[-2:] == (side * side, width)) for width in (classes, 4 * bins)
        )
        raw = raw.reshape(-1, 4, bins).astype(np.float32)
        weight = np.exp(raw - raw.max(axis=2, keepdims=True))
        distance = (weight @ np.arange(bins, dtype=np.float32)) / weight.sum(axis=2) * stride
        y, x = np.mgrid[:side, :side]
        centre = (np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) * stride
        boxes.append(np.concatenate([centre - distance[:, :2], centre + distance[:, 2:]], axis=1))
        scores.append(score.reshape(-1, classes).astype(np.float32))
    return Boxes(np.concatenate(boxes), np.concatenate(scores))


def nms(boxes: Boxes, iou: float, *, score: float = SCORE, most: int = MOST) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class-wise non-maximum suppression (OpenCV's); a box may come back under several classes.

    Returns:
        Boxes n x 4 (corners), scores n, classes n; by falling score, at most `most`.
    """
    scores = np.nan_to_num(boxes.scores, nan=0.0)
    place, kind = np.nonzero(scores > score)
    value = scores[place, kind]
    if len(value) > CANDIDATES:
        best = np.argsort(-value, kind="stable")[:CANDIDATES]
        place, kind, value = place[best], kind[best], value[best]
    if not len(value):
        return np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64)
    xyxy = np.nan_to_num(boxes.xyxy[place].astype(np.float64))
    xywh = np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], axis=1)
    # Class by class: OpenCV's batched form compares every pair of boxes, whatever their classes.
    survivors = []
    for one in np.unique(kind):
        members = np.flatnonzero(kind == one)
        survivors.append(
            members[np.asarray(cv2.dnn.NMSBoxes(xywh[members], value[members].astype(np.float32), score, iou), np.int64)]
        )
    kept = np.concatenate(survivors)
    kept = kept[np.argsort(-value[kept], kind="stable")][:most]
    return xyxy[kept], value[kept], kind[kept].astype(np.int64)


def detect(boxes: Boxes, iou: float, box: Letterbox, image: int) -> list[dict]:
    """NMS, then COCO detections in the photo's pixels."""
    xyxy, scores, classes = nms(boxes, iou)
    xyxy = box.back(xyxy)
    return [
        {"image_id": image, "category_id": int(c), "bbox": [*map(float, (b[0], b[1], b[2] - b[0], b[3] - b[1]))], "score": float(s)}
        for b, s, c in zip(xyxy, scores, classes, strict=True)
    ]
