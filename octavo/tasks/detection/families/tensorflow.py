"""TensorFlow's detectors as tf2onnx writes them: boxes with y before x, classes and scores as floats, and how many there are.

TensorFlow's Object Detection API (https://github.com/tensorflow/models, exporter_lib_v2.py) names its outputs, and numbers classes
from 1. TFLite's operator TFLite_Detection_PostProcess numbers them from 0; which of its outputs is which only their values tell.
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size, are_scores
from octavo.tasks.detection.shares import in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]

_BOXES, _SCORES, _CLASSES, _COUNT = "detection_boxes", "detection_scores", "detection_classes", "num_detections"


def _named(outputs: Outputs) -> tuple[int, np.ndarray, np.ndarray, np.ndarray] | None:
    """(how many, boxes, scores, classes) by the API's names; beside them exports may have raw boxes and scores of all classes."""
    # A frozen graph's tensors are `detection_boxes:0`.
    known = {name.split(":")[0]: value for name, value in outputs.items()}
    if not {_BOXES, _SCORES, _CLASSES} <= known.keys():
        return None
    boxes, scores, classes = (known[name] for name in (_BOXES, _SCORES, _CLASSES))
    if boxes.ndim != 3 or boxes.shape[::2] != (1, 4) or not scores.shape == classes.shape == boxes.shape[:2]:
        return None
    # Without their number: rows that hold no box have a score of 0.
    count = known.get(_COUNT, np.array(boxes.shape[1]))
    return (int(count.item()), boxes[0], scores[0], classes[0]) if count.size == 1 else None


def _unnamed(outputs: Outputs) -> tuple[int, np.ndarray, np.ndarray, np.ndarray] | None:
    """The same of four outputs, told apart by shape and values; None where they are others."""
    if len(outputs) != 4 or _named(outputs) is not None:
        return None
    counts = [value for value in outputs.values() if value.size == 1 and value.ndim <= 1]
    boxes = [value for value in outputs.values() if value.ndim == 3 and value.shape[::2] == (1, 4)]
    flat = [value for value in outputs.values() if value.ndim == 2 and value.dtype.kind == "f"]
    if len(counts) != 1 or len(boxes) != 1 or len(flat) != 2 or any(value.shape != boxes[0].shape[:2] for value in flat):
        return None
    # Where nothing is found all are zeros.
    scores, classes = sorted((value[0] for value in flat), key=_is_whole)
    return (int(counts[0].item()), boxes[0][0], scores, classes) if are_scores(scores) and _is_whole(classes) else None


def _is_whole(values: np.ndarray) -> bool:
    return bool((values == np.rint(values)).all())


def _family(name: str, networks: str, layout: str, *, background: bool) -> Family:
    parts = _named if background else _unnamed

    def decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001 - one signature for all families
        count, boxes, scores, classes = parts(outputs)
        found = Boxes.of(boxes[:count, [1, 0, 3, 2]], scores[:count], np.rint(np.nan_to_num(classes[:count])))
        return found.taken(np.nan_to_num(found.scores, nan=0.0) > least)

    return Family(
        name=name,
        networks=networks,
        layout=layout,
        fits=lambda outputs, _: parts(outputs) is not None,
        decode=decode,
        overlaps=False,
        background=background,
    )


FAMILIES = (
    *in_both_units(
        _family(
            "tensorflow",
            "TensorFlow's Object Detection API",
            "detection_boxes 1 x k x 4 (corners, y before x, pixels of the input), detection_scores and detection_classes (floats, "
            "from 1) 1 x k, num_detections",
            background=True,
        )
    ),
    *in_both_units(
        _family(
            "tflite",
            "TFLite detectors with TFLite_Detection_PostProcess",
            "of any name 1 x k x 4 boxes (corners, y before x, pixels of the input), 1 x k classes (floats, from 0), 1 x k scores, "
            "their number",
            background=False,
        )
    ),
)
