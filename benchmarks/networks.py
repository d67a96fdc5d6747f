"""The networks that quantization is measured on: file, images, preprocessing, and what their outputs are worth.

The data lies in one folder, given by `--data` or OCTAVO_BENCHMARK_DATA, with `models/`, `coco/`, `camvid/`, `faces/` and
`imagenet-samples/` in it; the classifiers are the pipeline's own (`models/<name>/fp32/model.onnx` below `--models`).
Calibration and validation images are disjoint by content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from octavo.errors import DataError, ParamsError
from octavo.images.dataset import Item, open_set, refuse_overlap
from octavo.images.decode import read_image
from octavo.images.preprocess import preprocess
from octavo.images.splits import pick
from octavo.params.grammar import ImageSet, Input
from octavo.runtime.session import Session
from scorers import Classification, Detection, Embedding, Faces, Scorer, Segmentation
from views import VIEWS, View

__all__ = ["CALIBRATION", "NETWORKS", "UNLESS_TOLD", "Network", "network"]

# Images that ranges are measured on, unless said otherwise.
CALIBRATION = 64
# mobilefacenet: (125, 113) of a 250x250 LFW photo comes to (55.9, 51.6) of the crop.
FACE_WARP = np.array([[0.88, 0.0, 55.9 - 0.88 * 125], [0.0, 0.88, 51.6 - 0.88 * 113]])


@dataclass(frozen=True)
class Network:
    """One network and its data.

    Attributes:
        name: its key.
        file: the FP32 ONNX file as its user gave it.
        spec: the preprocessing, as an `input:` block.
        sets: (calibration, validation) images.
        scorer: makes an empty scorer.
        warp: where given, a 2x3 affine map applied instead of the spec's resize.
    """

    name: str
    file: Path
    spec: Input
    sets: tuple[ImageSet, ImageSet]
    scorer: Callable[[], Scorer]
    warp: np.ndarray | None = None

    @property
    def task(self) -> str:
        """What stands as `task:` in params.yaml, as far as quantization asks: `embedding`, `detection` or `other`."""
        kind = getattr(self.scorer, "func", self.scorer)
        return "embedding" if kind is Embedding else "detection" if kind is Detection else "other"

    def items(self, part: str, limit: int | None = None) -> list[Item]:
        """The images of `calibration` or `validation`, at most `limit`, spread evenly over classes."""
        both = [
            open_set(images, f"{self.name}.{where}") for images, where in zip(self.sets, ("calibration", "validation"), strict=True)
        ]
        refuse_overlap(*(((item.name, item.sha256) for item in items) for items in both), "calibration", "validation")
        items = both[part == "validation"]
        return items if limit is None else pick(items, limit, 0)

    def read(self, item: Item, view: View = VIEWS[0]) -> tuple[Item, np.ndarray]:
        """(image with its shape, it as the network takes it: float32 with a batch dimension of 1), as a view has it."""
        photo = read_image(item.path)
        image, objects = view.image(photo), item.objects
        if objects is not None:
            item = replace(item, objects=view.objects(objects, photo.shape[:2]))
        shape = image.shape[:2]
        if self.warp is not None:
            height, width = self.spec.size
            image = cv2.warpAffine(image, self.warp, (width, height))
        return replace(item, shape=shape), preprocess(image, self.spec)

    def calibration(self, count: int = CALIBRATION) -> list[np.ndarray]:
        """Input tensors to calibrate on: `count`, or all of them where there are fewer."""
        return [self.read(item)[1] for item in self.items("calibration", count)]

    def validation(self, limit: int | None = None, views: Sequence[View] = VIEWS[:1]) -> Iterator[tuple[Item, np.ndarray]]:
        """(image, input tensor) to judge on, each of at most `limit` images in each view.

        Raises:
            ParamsError: several views of images that have no boxes: masks and identities are not seen in views.
        """
        items = self.items("validation", limit)
        if len(views) > 1 and any(item.objects is None for item in items):
            raise ParamsError(f"{self.name} is no detector, and views are of photos with boxes", "leave --views out")
        for view in views:
            for item in items:
                yield self.read(item, view)

    def input_name(self) -> str:
        """The graph input that takes the image."""
        return Session(self.file).inputs[0]


@dataclass(frozen=True)
class _Asked:
    name: str
    data: Path
    models: Path


def network(name: str, data: Path | None, models: Path = Path("models")) -> Network:
    """Describe a network.

    Args:
        name: a key of `NETWORKS`.
        data: the benchmark data's folder.
        models: the pipeline's models.

    Raises:
        ParamsError: no such network, or `data` is None.
        DataError: its FP32 file is not there.
    """
    if name not in NETWORKS:
        raise ParamsError(f"no network {name!r}", f"use one of: {', '.join(NETWORKS)}")
    if data is None:
        raise ParamsError("the benchmark data's folder is not given", "use --data FOLDER, or set OCTAVO_BENCHMARK_DATA")
    made = NETWORKS[name](asked=_Asked(name, data, models))
    if not made.file.is_file():
        raise DataError(f"{made.file}: no such file", "correct --data or --models; `dvc repro` makes the pipeline's own models")
    return made


def _letterbox(size: int, *, align: str = "centre", pad: int = 114) -> dict[str, Any]:
    return {"size": [size, size], "resize": {"rule": "letterbox", "antialias": False, "align": align, "pad": pad}}


def _halves(format_: str, path: Path, border: float) -> tuple[ImageSet, ImageSet]:
    return tuple(  # type: ignore[return-value]
        ImageSet(format=format_, path=str(path), split={"start": start, "stop": stop}) for start, stop in ((0, border), (border, 1))
    )


def _detector(file: str, spec: dict[str, Any], iou: float, *, asked: _Asked) -> Network:
    block = Input.model_validate(spec)
    sets = _halves("coco", asked.data / "coco", 0.5)
    return Network(asked.name, asked.data / "models" / file, block, sets, partial(Detection, block, iou))


def _road_scene(file: str, spec: dict[str, Any], scorer: Callable, *, asked: _Asked) -> Network:
    train, val = (ImageSet(format="folder", path=str(asked.data / "camvid" / part / "images")) for part in ("train", "val"))
    return Network(asked.name, asked.data / "models" / file, Input.model_validate(spec), (train, val), scorer)


def _face(file: str, spec: dict[str, Any], scorer: Callable, *, asked: _Asked, warp: np.ndarray | None = None) -> Network:
    sets = _halves("imagefolder", asked.data / "faces", 0.5)
    return Network(asked.name, asked.data / "models" / file, Input.model_validate(spec), sets, scorer, warp)


def _classifier(spec: dict[str, Any], *, asked: _Asked) -> Network:
    block = Input.model_validate({"size": [224, 224], "crop": "center", **spec})
    sets = _halves("imagefolder", asked.data / "imagenet-samples", 0.4)
    return Network(asked.name, asked.models / asked.name / "fp32" / "model.onnx", block, sets, Classification)


_YOLOX = _letterbox(416, align="top-left") | {"colour": "bgr", "scale": 1}
_NANODET = _letterbox(320, pad=0) | {"colour": "bgr", "scale": 1, "mean": [103.53, 116.28, 123.675], "std": [57.375, 57.12, 58.395]}
_CAMVID = {"size": [360, 480], "scale": 1, "mean": [105.6578, 103.3298, 99.6254]}
_ROAD = {"size": [360, 640], "resize": {"rule": "stretch", "antialias": False}}
_IMAGENET = {"resize": {"rule": "shorter", "to": 256}, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_LITE0 = {"resize": {"rule": "shorter", "to": 256, "resample": "bicubic"}, "scale": 1, "mean": [127], "std": [128]}
_FACE = {"size": [112, 112], "resize": {"rule": "none"}, "crop": "center", "scale": 1, "mean": [127.5], "std": [128]}
_RFB = {"size": [240, 320], "resize": {"rule": "stretch", "antialias": False}, "scale": 1, "mean": [127], "std": [128]}

# Preprocessing, outputs and NMS as the data folder's README states them.
NETWORKS: dict[str, Callable[..., Network]] = {
    "yolov5n": partial(_detector, "yolov5n.onnx", _letterbox(640), 0.65),
    "yolox_nano": partial(_detector, "yolox_nano_416.onnx", _YOLOX, 0.65),
    "nanodet_m": partial(_detector, "nanodet_m_320.onnx", _NANODET, 0.6),
    "cgnet": partial(_road_scene, "cgnet_camvid.onnx", _CAMVID, partial(Segmentation, 11)),
    "twinlitenet": partial(
        _road_scene, "twinlitenet_bdd_360x640.onnx", _ROAD, partial(Segmentation, 11, output="drivable_area", road=3)
    ),
    "mobilefacenet": partial(_face, "mobilefacenet_autotracking.onnx", _FACE, Embedding, warp=FACE_WARP),
    "facedet_rfb": partial(_face, "facedet_rfb_320.onnx", _RFB, partial(Faces, (240, 320))),
    "efficientnet_lite0": partial(_classifier, _LITE0),
    "mobilenet_v2": partial(_classifier, _IMAGENET),
}
UNLESS_TOLD = list(NETWORKS)
# Trained on COCO, weights under AGPL: `models/<name>.onnx` is ultralytics' own export (640x640), to be put there by hand.
NETWORKS |= {
    name: partial(_detector, f"{name}.onnx", _letterbox(640), 0.65) for name in ("yolov8n", "yolov10n", "yolo11n", "yolo26n")
}
