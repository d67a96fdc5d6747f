"""Graphs that end in TensorRT's EfficientNMS_TRT (its plugin's README): the number of boxes, boxes, scores, classes.

The plugin leaves corners as it reads them, and TensorRT's samples for TensorFlow's detectors (samples/python/efficientdet and
tensorflow_object_detection_api, create_onnx.py) have y before x, which chosen boxes do not tell: `task.decoder` does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size
from octavo.tasks.detection.shares import in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]


def _parts(outputs: Outputs) -> tuple[int, np.ndarray, np.ndarray, np.ndarray] | None:
    """(how many, boxes, scores, classes), told apart by shape and type; None where they are others."""
    values = [value for value in outputs.values() if value.ndim >= 2 and value.shape[0] == 1]
    boxes = [value[0] for value in values if value.ndim == 3 and value.shape[2] == 4]
    if len(values) != 4 or len(values) != len(outputs) or len(boxes) != 1:
        return None
    flat = [value[0] for value in values if value.ndim == 2]
    scores = [value for value in flat if np.issubdtype(value.dtype, np.floating)]
    whole = sorted((value for value in flat if np.issubdtype(value.dtype, np.integer)), key=len)
    if len(scores) != 1 or len(whole) != 2 or len(whole[0]) != 1 or not len(boxes[0]) == len(scores[0]) == len(whole[1]):
        return None
    return int(whole[0][0]), boxes[0], scores[0], whole[1]


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    return _parts(outputs) is not None


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001
    count, boxes, scores, classes = _parts(outputs)
    return Boxes.of(boxes[:count], scores[:count], classes[:count]).taken(np.nan_to_num(scores[:count], nan=0.0) > least)


def _decode_turned(outputs: Outputs, size: Size, least: float) -> Boxes:
    found = _decode(outputs, size, least)
    return replace(found, xyxy=found.xyxy[:, [1, 0, 3, 2]])


_UPRIGHT = Family(
    name="efficientnms",
    networks="exports that end in EfficientNMS_TRT",
    layout="1 x 1 number of boxes, 1 x k x 4 boxes (corners, pixels of the input), 1 x k scores, 1 x k classes",
    fits=_fits,
    decode=_decode,
    overlaps=False,
)
_TURNED = replace(
    _UPRIGHT,
    name="efficientnms-yx",
    networks="TensorFlow's detectors with EfficientNMS_TRT, by TensorRT's samples",
    layout="as efficientnms, with y before x",
    fits=lambda _, __: False,
    allows=_fits,
    decode=_decode_turned,
)
FAMILIES = (*in_both_units(_UPRIGHT), *in_both_units(_TURNED))
