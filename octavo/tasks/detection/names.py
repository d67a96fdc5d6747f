"""Class names of detectors, by the index that the model has for a class."""

from __future__ import annotations

from octavo.params.grammar import Detection

__all__ = ["COCO80", "COCO91", "NAMED", "class_names"]

# COCO's categories in the order of their ids, which most detectors number 0..79 (https://cocodataset.org/#explore).
_LIST = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign, parking meter,
bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase,
frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle,
wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake,
chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven,
toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush
"""
COCO80 = tuple(name.strip() for name in _LIST.split(","))

# Ids of COCO's paper that its data does not use.
_UNUSED = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})


def _with_gaps() -> tuple[str, ...]:
    names = iter(COCO80)
    return ("__background__", *("N/A" if index in _UNUSED else next(names) for index in range(1, 91)))


# torchvision's and TensorFlow's: the index is COCO's own category id; what stands for no class matches nothing (`Classes`).
COCO91 = _with_gaps()
# What `task.classes` may say instead of a list; TFLite's detectors leave the background out.
NAMED = {"coco80": COCO80, "coco90": COCO91[1:], "coco91": COCO91}


def class_names(task: Detection) -> tuple[str, ...] | None:
    """The model's class names in the order of its class index; None where params.yaml does not give them (`task.classes`)."""
    return NAMED[task.classes] if isinstance(task.classes, str) else task.classes
