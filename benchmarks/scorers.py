"""One scorer a task: it takes raw outputs image by image and ends in the task's metric and the fidelity to FP32."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from PIL import Image

from metrics import ChannelNoise, ConfusionMatrix, verification_auc
from octavo.images.dataset import Item
from octavo.params import grammar
from octavo.params.grammar import Input
from octavo.runtime.noise import cosine
from octavo.tasks.detection import FAMILIES
from octavo.tasks.detection.ap import average_precision
from octavo.tasks.detection.boxes import Boxes, suppressed
from octavo.tasks.detection.score import DetectionScore

__all__ = ["Classification", "Detection", "Embedding", "Faces", "Scorer", "Segmentation"]

Outputs = Mapping[str, np.ndarray]


class Scorer:
    """Base: signal to noise of the raw outputs; a task adds its own metric.

    Attributes:
        metric: the key of `result` that must be kept.
        kept: how `metric` is held against FP32: `ratio` of the two values, or `value` where FP32 itself has 1.
    """

    metric = "sqnr_db"
    kept = "ratio"

    def __init__(self) -> None:
        self.noise = ChannelNoise()

    def update(self, item: Item, reference: Outputs, outputs: Outputs) -> None:
        """Add one image: FP32's outputs and the variant's (for FP32 itself, the same)."""
        self.noise.update(reference, outputs)
        self.score(item, reference, outputs)

    def score(self, item: Item, reference: Outputs, outputs: Outputs) -> None:
        """What the task needs of one image."""

    def result(self) -> dict[str, float]:
        """Metrics over all images so far."""
        return self.task() | self.noise.metrics()

    def task(self) -> dict[str, float]:
        """The task's own metrics."""
        return {}


class Classification(Scorer):
    """Top-1 on labelled images, and agreement of the predicted class with FP32's on all."""

    metric = "top1"

    def __init__(self) -> None:
        super().__init__()
        self.right: list[bool] = []
        self.same: list[bool] = []

    def score(self, item: Item, reference: Outputs, outputs: Outputs) -> None:
        """One image's logits."""
        name = next(iter(reference))
        expected, found = int(reference[name].argmax()), int(outputs[name].argmax())
        self.same.append(expected == found)
        if item.label is not None:
            self.right.append(found == item.label)

    def task(self) -> dict[str, float]:
        """`top1`, `agreement`."""
        return {"top1": float(np.mean(self.right)) if self.right else float("nan"), "agreement": float(np.mean(self.same))}


class Detection(Scorer):
    """COCO AP, and boxes held against FP32's.

    Args:
        spec: the network's preprocessing.
        iou: the threshold of NMS.
    """

    metric = "ap"

    def __init__(self, spec: Input, iou: float) -> None:
        super().__init__()
        # FP32's boxes are scored beside the variant's: `match_f1` compares the two.
        self.found, self.truth = (DetectionScore(grammar.Detection(name="detection", iou=iou), spec) for _ in range(2))

    def score(self, item: Item, reference: Outputs, outputs: Outputs) -> None:
        """One photo's boxes."""
        self.truth.update(reference, reference, item)
        self.found.update(outputs, reference, item)

    def task(self) -> dict[str, float]:
        """`ap`, `ap50`, `match_f1`."""
        figures = self.found.metrics(self.truth)
        return {name: figures[name] for name in ("ap", "ap50", "match_f1") if name in figures}


class Segmentation(Scorer):
    """IoU against masks beside the images (`../masks/<stem>.png`), and the share of pixels classed as FP32 does.

    Args:
        classes: how many the masks tell apart; higher labels are void.
        output: the output that holds the classes; the first where None.
        road: where given, two-class outputs are held against this class alone.
    """

    metric = "iou"

    def __init__(self, classes: int, output: str | None = None, road: int | None = None) -> None:
        super().__init__()
        self.output, self.road = output, road
        self.void = classes
        self.matrix = ConfusionMatrix(2 if road is not None else classes)
        self.same: list[float] = []

    def score(self, item: Item, reference: Outputs, outputs: Outputs) -> None:
        """One photo's classes, brought to the mask's size by nearest neighbour where they differ."""
        name = self.output or next(iter(reference))
        expected, found = reference[name][0].argmax(axis=0), outputs[name][0].argmax(axis=0)
        self.same.append(float((expected == found).mean()))
        mask = np.asarray(Image.open(item.path.parents[1] / "masks" / f"{item.path.stem}.png"))
        if found.shape != mask.shape:
            found = cv2.resize(found.astype(np.uint8), mask.shape[::-1], interpolation=cv2.INTER_NEAREST)
        if self.road is not None:
            mask = np.where(mask >= self.void, self.void, mask == self.road)
        self.matrix.update(mask, found)

    def task(self) -> dict[str, float]:
        """`iou` (mean over classes, or the road's alone), `agreement` of pixels."""
        iou = self.matrix.mean_iou() if self.road is None else float(self.matrix.iou()[1])
        return {"iou": iou, "agreement": float(np.mean(self.same))}


class Embedding(Scorer):
    """Cosine to FP32's embedding, and the ROC AUC of telling people apart."""

    metric = "cosine_mean"
    kept = "value"

    def __init__(self) -> None:
        super().__init__()
        self.cosines: list[float] = []
        self.vectors: list[np.ndarray] = []
        self.people: list[int] = []

    def score(self, item: Item, reference: Outputs, outputs: Outputs) -> None:
        """One photo's embedding."""
        name = next(iter(reference))
        self.cosines.append(cosine([(reference[name], outputs[name])]))
        self.vectors.append(outputs[name].ravel())
        self.people.append(-1 if item.label is None else item.label)

    def task(self) -> dict[str, float]:
        """`cosine_mean`, `cosine_min`, `auc`; the last is NaN where all photos show one person, or each another."""
        pairs = len(set(self.people)) not in (1, len(self.people))
        return {
            "cosine_mean": float(np.mean(self.cosines)),
            "cosine_min": float(np.min(self.cosines)),
            "auc": verification_auc(np.stack(self.vectors), self.people) if pairs else float("nan"),
        }


class Faces(Scorer):
    """Faces found: the share of photos with one, and AP against FP32's own faces, there being no labels.

    Args:
        size: (height, width) of the input, which boxes are normalised by.
        sure: the score from which FP32's face counts as true.
    """

    metric = "ap"
    kept = "value"

    def __init__(self, size: tuple[int, int], sure: float = 0.7) -> None:
        super().__init__()
        self.size = size
        self.sure = sure
        self.truth: list[dict] = []
        self.found: list[dict] = []
        self.photos: list[bool] = []

    def _faces(self, outputs: Outputs, score: float) -> list[dict]:
        return _rows(suppressed(FAMILIES["ssd"].boxes(outputs, self.size, score), 0.3, 300), len(self.photos))

    def score(self, item: Item, reference: Outputs, outputs: Outputs) -> None:  # noqa: ARG002
        """One photo's faces."""
        self.truth += [
            {key: face[key] for key in ("image_id", "category_id", "bbox")} for face in self._faces(reference, self.sure)
        ]
        found = self._faces(outputs, 0.05)
        self.found += found
        self.photos.append(any(face["score"] > self.sure for face in found))

    def task(self) -> dict[str, float]:
        """`ap` and `ap50` against FP32's faces, `photos`: share with a face."""
        figures = average_precision(self.truth, self.found, range(len(self.photos))).figures
        return {"ap": figures["ap"], "ap50": figures["ap50"], "photos": float(np.mean(self.photos))}


def _rows(boxes: Boxes, image: int) -> list[dict]:
    """Boxes as COCO has detections; a class is the category of its index."""
    xywh = np.concatenate([boxes.xyxy[:, :2], boxes.xyxy[:, 2:] - boxes.xyxy[:, :2]], axis=1)
    return [
        {"image_id": image, "category_id": int(kind), "bbox": box, "score": float(score)}
        for box, score, kind in zip(xywh.tolist(), boxes.scores, boxes.classes, strict=True)
    ]
