"""Guesses at the `input:` block: what networks of a kind are mostly trained with, corrected by what the graph itself shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from octavo.intake.inputs import ImageInput
from octavo.intake.normalisation import Inside
from octavo.params.grammar import Input
from octavo.tasks.detection.shares import SUFFIX

__all__ = ["NORMALISATIONS", "Guessed", "for_colour", "guessed", "tried_instead"]

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
# (x - mean) / std of pixels that were divided by `scale` (255 unless it stands there).
NORMALISATIONS: dict[str, dict[str, Any]] = {
    "0..1": {},
    "0..255": {"scale": 1},
    "0..255 less ImageNet's mean": {"scale": 1, "mean": [123.675, 116.28, 103.53]},
    "ImageNet mean and std": IMAGENET,
    "-1..1": {"scale": 1, "mean": [127.5], "std": [127.5]},
}
_FACES = {"scale": 1, "mean": [127.5], "std": [128]}
# As OpenCV resizes, in which most detectors' training code is written, and TensorFlow: pixels between those that are sampled count
# for nothing. A few images do not tell it from Pillow's; on 128 photos NanoDet-m's AP is .318 with Pillow's, .327 with OpenCV's.
_PLAIN = {"antialias": False}
_GREY = {"rule": "letterbox", "align": "centre", "pad": 114, **_PLAIN}
_STRETCH = {"rule": "stretch", **_PLAIN}
# Detectors: resize, normalisation, colour, and whose habit it is.
_FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    **{
        name: (_GREY, {}, "rgb", "YOLO networks of this layout take 0..1, letterboxed in grey")
        for name in (
            *("efficientnms", "yolov5", "yolov7-end2end", "yolov8", "yolov8-apart", "yolov8-levels", "yolov8-obb", "yolov8-rows"),
            "yolov10",
        )
    },
    **{
        name: ({**_GREY, "align": "top-left"}, {"scale": 1}, "bgr", "YOLOX takes BGR pixels 0..255, letterboxed at the top left")
        for name in ("yolox", "yolox-decoded")
    },
    "nanodet": (
        {**_GREY, "pad": 0},
        {"scale": 1, "mean": [103.53, 116.28, 123.675], "std": [57.375, 57.12, 58.395]},
        "bgr",
        "NanoDet takes BGR pixels less ImageNet's mean, letterboxed in black",
    ),
    # `keep_ratio: False` in its configurations.
    "nanodet-plus": (
        _STRETCH,
        {"scale": 1, "mean": [103.53, 116.28, 123.675], "std": [57.375, 57.12, 58.395]},
        "bgr",
        "NanoDet-Plus takes BGR pixels less ImageNet's mean, stretched",
    ),
    "yolov3-keras": (
        {**_GREY, "pad": 128, "antialias": True, "resample": "bicubic"},
        {},
        "rgb",
        "Keras' YOLOv3 takes 0..1, letterboxed in grey by Pillow, bicubic",
    ),
    "yolov4": (_STRETCH, {}, "rgb", "pytorch-YOLOv4 takes 0..1, stretched"),
    "rtdetr": ({"rule": "stretch"}, {}, "rgb", "RT-DETR and D-FINE take 0..1, stretched by Pillow"),
    "rtdetr-chosen": (_STRETCH, {}, "rgb", "ultralytics' RT-DETR takes 0..1, stretched"),
    # They were trained on photos of any shape, which a graph of one size is fed stretched.
    "detr": ({"rule": "stretch"}, IMAGENET, "rgb", "DETR and YOLOS take ImageNet's mean and std"),
    "torchvision": ({"rule": "stretch"}, {}, "rgb", "torchvision's detectors take 0..1 and normalise in the graph"),
    "torchvision-shares": (
        _STRETCH,
        {"scale": 1, "mean": [123, 117, 104]},
        "rgb",
        "lufficc's SSD takes pixels less 123, 117, 104, stretched",
    ),
    "ssd-raw": (_STRETCH, {"scale": 1, "mean": [123, 117, 104]}, "rgb", "SSD with VGG takes pixels less 123, 117, 104, stretched"),
    "paddle": (
        {**_STRETCH, "resample": "bicubic"},
        {},
        "rgb",
        "PaddleDetection stretches, bicubic; RT-DETR and PP-YOLOE+ take 0..1, PicoDet and older PP-YOLOE ImageNet's mean and std",
    ),
    "retinaface": (
        {**_GREY, "pad": 0, "align": "top-left"},
        {"scale": 1, "mean": [104, 117, 123]},
        "bgr",
        "RetinaFace takes BGR pixels less 104, 117, 123, of photos as large as they are: letterboxed where the size is given",
    ),
    "scrfd": (
        {**_GREY, "pad": 0, "align": "top-left"},
        {"scale": 1, "mean": [127.5], "std": [128]},
        "rgb",
        "insightface's detectors take (x - 127.5) / 128, letterboxed at the top left in black",
    ),
    "yunet": (_STRETCH, {"scale": 1}, "bgr", "YuNet takes BGR pixels 0..255, stretched where the size is given"),
    "ssd": (_STRETCH, {"scale": 1, "mean": [127], "std": [128]}, "rgb", "SSD's kin take (x - 127) / 128, stretched"),
    **dict.fromkeys(
        ("tensorflow", "tflite", "ssd-yx"),
        (_STRETCH, NORMALISATIONS["-1..1"], "rgb", "TensorFlow's detectors stretch, and mostly take -1..1"),
    ),
}
# PaddleDetection's exports and TensorFlow's say nothing of which of their networks they are.
_FIRM = frozenset(_FAMILIES) - {"paddle", "tensorflow", "tflite", "ssd-yx", "ssd-raw", "torchvision-shares"}
# Shorter side over crop, as most classifiers are evaluated: 256 for 224, 342 for 299.
_CROP = 0.875


@dataclass
class Guessed:
    """A value for each key of `input:`, and why.

    Attributes:
        keys: `size`, `resize`, `crop`, `colour`, `scale`, `mean`, `std`, `layout`, `dtype`, those that differ from the defaults.
        why: the key that a comment stands at, to what it was concluded from.
        settled: the graph itself says what pixels it takes: trying others would be of no use.
        label: what the normalisation is called.
        firm: the family of networks is known, and takes this: only labels speak against it. (On blood cells, of which it knows
            none, YOLOv5n's boxes are steadier under another normalisation than its own.)
    """

    keys: dict[str, Any]
    why: dict[str, str] = field(default_factory=dict)
    settled: bool = False
    label: str = ""
    firm: bool = False

    def block(self) -> Input:
        """The block that they make."""
        return Input.model_validate(self.keys)

    def with_normalisation(self, label: str, keys: Mapping[str, Any], colour: str) -> Guessed:
        """The same with other numbers."""
        rest = {key: value for key, value in self.keys.items() if key not in ("scale", "mean", "std", "colour")}
        found = rest | ({"colour": colour} if colour != "rgb" or self.keys.get("colour") == "bgr" else {}) | dict(keys)
        return Guessed(found, dict(self.why), self.settled, label, self.firm)


def guessed(
    task: str, family: str | None, image: ImageInput, size: tuple[int, int], *, found: Inside | None, outputs: Sequence[ir.Value]
) -> Guessed:
    """The first guess.

    Args:
        task: `classification`, `detection`, `segmentation` or `embedding`.
        family: of a detector.
        image: the graph's input.
        size: (height, width).
        found: what the graph does to pixels itself.
        outputs: the graph's; their names tell of TensorFlow.
    """
    # Boxes, scores and labels, chosen by the graph, are of RT-DETR and its kin; MMDeploy's are boxes and labels.
    family = "rtdetr" if family == "chosen" and len(outputs) == 3 else family
    family = family if family is None or family in _FAMILIES else family.removesuffix(SUFFIX)
    resize, numbers, colour, habit, label = _by_kind(task, family, image, size, outputs)
    keys: dict[str, Any] = {"size": list(size), "resize": resize}
    if resize["rule"] == "shorter":
        keys["crop"] = "center"
    # Of a photo 48 of 219 rows would be left for 48x192.
    stretched = task == "classification" and resize["rule"] == "stretch"
    why = {"resize": "a crop that is not square would leave little of most photos" if stretched else habit}
    settled = False
    if image.dtype == "uint8":
        numbers, label, settled = {"scale": 1}, "raw pixels", True
        keys["dtype"] = "uint8"
        why["scale"] = "the input is uint8: raw pixels, which the graph normalises itself"
    elif found is not None and found.pixels:
        numbers, label = ({"scale": 1}, "0..255") if found.pixels == "0..255" else ({}, "0..1")
        settled = True
        why["scale"] = f"the graph begins with {', '.join(found.nodes)}, whose numbers are for pixels of {found.pixels}"
        colour = "bgr" if found.bgr else colour
    elif found is not None:
        why["scale"] = f"{habit}; but the graph begins with {', '.join(found.nodes)}, whose numbers do not tell what it takes"
    else:
        why["scale"] = habit
    if image.channels == 1:
        colour, numbers = "gray", {key: value if key == "scale" else _mean_of(value) for key, value in numbers.items()}
        why["colour"] = "the input has one channel"
    if image.layout == "nhwc":
        keys["layout"] = "nhwc"
        why["layout"] = "the input's last dimension is the channels"
    if colour != "rgb":
        keys["colour"] = colour
        why.setdefault("colour", "the means that the graph subtracts rise, as ImageNet's do in BGR" if settled else habit)
    return Guessed(keys | numbers, why, settled, label, firm=settled or family in _FIRM)


def tried_instead(first: Guessed) -> list[Guessed]:
    """Other normalisations worth a try, none where the graph settles them."""
    if first.settled:
        return []
    colour = first.keys.get("colour", "rgb")
    own = {key: first.keys[key] for key in ("scale", "mean", "std") if key in first.keys}
    return [
        first.with_normalisation(label, for_colour(numbers, colour), colour)
        for label, numbers in NORMALISATIONS.items()
        if for_colour(numbers, colour) != own
    ]


def _by_kind(
    task: str, family: str | None, image: ImageInput, size: tuple[int, int], outputs: Sequence[ir.Value]
) -> tuple[dict[str, Any], dict[str, Any], str, str, str]:
    """(resize, normalisation, colour, habit, the normalisation's name)."""
    if task == "detection" and family in _FAMILIES:
        resize, numbers, colour, habit = _FAMILIES[family]
        return dict(resize), dict(numbers), colour, habit, next((k for k, one in NORMALISATIONS.items() if one == numbers), family)
    if task == "detection":
        return dict(_GREY), {}, "rgb", "most detectors take 0..1, letterboxed in grey", "0..1"
    if task == "segmentation":
        return {"rule": "stretch"}, dict(IMAGENET), "rgb", "most segmentation networks are trained so", "ImageNet mean and std"
    if task == "embedding" and max(size) <= 128:
        habit = "face networks of 112 pixels take (x - 127.5) / 128 of an aligned face"
        return {"rule": "stretch"}, dict(_FACES), "rgb", habit, "(x - 127.5) / 128"
    if task == "embedding":
        return {"rule": "stretch"}, dict(IMAGENET), "rgb", "most embedding networks are trained so", "ImageNet mean and std"
    rule = {"rule": "shorter", "to": max(round(max(size) / _CROP), *size)} if size[0] == size[1] else {"rule": "stretch"}
    if image.layout == "nhwc" or any(":" in (name or "") for name in (image.name, *(value.name for value in outputs))):
        return rule, dict(NORMALISATIONS["-1..1"]), "rgb", "TensorFlow's classifiers mostly take -1..1", "-1..1"
    return rule, dict(IMAGENET), "rgb", "most classifiers are trained so", "ImageNet mean and std"


def for_colour(numbers: Mapping[str, Any], colour: str) -> dict[str, Any]:
    """The numbers in the order of the channels."""
    if colour == "gray":
        return {key: value if key == "scale" else _mean_of(value) for key, value in numbers.items()}
    return {key: value[::-1] if colour == "bgr" and isinstance(value, list) else value for key, value in numbers.items()}


def _mean_of(values: Any) -> list[float]:
    return [round(sum(values) / len(values), 4)]
