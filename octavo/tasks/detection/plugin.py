"""Reading a graph that is cut before an operator that suppresses boxes (a plugin without a body): as that operator would go on.

TensorRT's EfficientNMS_TRT and BatchedNMS_TRT, MMDeploy's TRTBatchedNMS and their kin read boxes and scores, and say by attributes
what they make of them. Spellings differ (`iou_threshold`, `iouThreshold`), meanings do not (NVIDIA/TensorRT,
plugin/efficientNMSPlugin and plugin/batchedNMSPlugin).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.params.grammar import Detection
from octavo.tasks.detection.boxes import CANDIDATES, Boxes, corners, suppressed
from octavo.tasks.detection.candidates import Candidates, as_rows, centre_and_size
from octavo.tasks.detection.family import Family, Size, are_scores, sigmoid
from octavo.tasks.detection.shares import in_both_units, y_first
from octavo.tasks.outputs import Outputs

__all__ = ["Plugin", "plugin_of"]

# What an attribute is called, without case and underscores.
_SCORE = ("scorethreshold", "confthreshold", "confidencethreshold")
_IOU = ("iouthreshold", "nmsthreshold")
_MOST = ("maxoutputboxes", "keeptopk", "maxdetections", "maxtotalsize")
_EACH = ("topk", "pretopk")
_KEPT = ("maxoutputboxesperclass", "maxoutputsizeperclass")
_BACKGROUND = ("backgroundclass", "backgroundlabelid")
_SIGMOID = ("scoreactivation", "confsigmoid")
_CENTRED = ("boxcoding", "centerpointbox")
_AGNOSTIC = ("classagnostic",)
_NORMALISED = ("isnormalized",)
# Suppression keeps what overlaps by its bound, the plugins do not.
_HAIR = 1e-7
# Of fewer boxes chance may move one axis farther than the other.
_GRID = 1000


@dataclass(frozen=True)
class Plugin:
    """How a graph is read that ends before such an operator.

    Attributes:
        reads: the tensors that the operator reads, which the graph puts out.
        families: in pixels and in shares of the input; the first outputs with boxes tell which.
    """

    reads: tuple[str, ...]
    families: tuple[Family, ...]


def plugin_of(nodes: Iterable[ir.Node], outputs: Outputs, size: Size, task: Detection) -> Plugin | None:
    """The first of some operators that suppresses boxes.

    Args:
        nodes: what the graph is cut before.
        outputs: of the cut graph, on some image.
        size: (rows, columns) of the network's input.
        task: its score, IoU and number of boxes count where the operator has no word for them.

    Returns:
        None where none reads boxes and their scores: two tensors with a row for each box, by its attributes or by their values.
    """
    for node in nodes:
        suppression = _Suppression.of(node, outputs, size, task)
        if suppression is not None:
            return Plugin(suppression.reads, in_both_units(suppression.family(node.op_type)))
    return None


@dataclass(frozen=True)
class _Suppression:
    """What one operator does.

    Attributes:
        boxes, scores: tensors that the graph puts out: n x (1 or c) x 4, and n x c or c x n.
        anchors: what boxes are corrections to, n x 4, or the tensor that is; None where they are boxes.
        turned: whether scores are c x n.
        centred: whether boxes are centre and size, else two corners.
        logits: whether the sigmoid of scores counts.
        background: the class that never counts; None where all do.
        least: score from which a box counts.
        iou: of two boxes that overlap so much, the lower one goes.
        most: boxes that come out, at most.
        each: boxes of a class that are looked at, at most; None where there is no bound.
        kept: boxes of a class that come out, at most; None where there is no bound.
        agnostic: whether a box goes for one of another class, too.
        whole: whether sides are counted in whole pixels, both ends included.
        y_first: whether y stands before x, as in TensorFlow's graphs; suppression does not ask.
    """

    boxes: str
    scores: str
    anchors: str | np.ndarray | None
    turned: bool
    centred: bool
    logits: bool
    background: int | None
    least: float
    iou: float
    most: int
    each: int | None
    kept: int | None
    agnostic: bool
    whole: bool
    y_first: bool = False

    @classmethod
    def of(cls, node: ir.Node, outputs: Outputs, size: Size, task: Detection) -> _Suppression | None:
        told = {name.lower().replace("_", ""): attribute.value for name, attribute in node.attributes.items()}
        named = [value.name for value in node.inputs if value is not None and value.name in outputs]
        # Thresholds and counts are no boxes.
        read = {name: outputs[name] for name in named if outputs[name].ndim > 1 and outputs[name].size}
        found = Candidates.told(read, size)
        pair = _pair(read) if _one(told, _IOU) is not None else (found.boxes, found.scores) if found else None
        if pair is None:
            return None
        boxes, scores = (as_rows(read[name]) for name in pair)
        alike = found is not None and (found.boxes, found.scores) == pair
        sigmoids, centred, background = (_one(told, names) for names in (_SIGMOID, _CENTRED, _BACKGROUND))
        if background is None and alike:
            background = found.background
        read_as = cls(
            *pair,
            anchors=_anchors(node, pair, read, len(boxes)),
            turned=len(scores) != len(boxes),
            centred=bool(centre_and_size(boxes[:, :4], size) if centred is None else centred),
            logits=not are_scores(scores) if sigmoids is None else bool(sigmoids),
            background=background if background is not None and background >= 0 else None,
            least=_or(_one(told, _SCORE), task.score),
            iou=_or(_one(told, _IOU), task.iou),
            most=_positive(_one(told, _MOST)) or task.max_detections,
            each=_positive(_one(told, _EACH)),
            kept=_positive(_one(told, _KEPT)),
            agnostic=bool(_one(told, _AGNOSTIC)),
            whole=_one(told, _NORMALISED) == 0,
        )
        return replace(read_as, y_first=len(boxes) >= _GRID and y_first(read_as._corners(outputs)[:, 0], size))

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.boxes, self.scores, *([self.anchors] if isinstance(self.anchors, str) else []))

    def family(self, op_type: str) -> Family:
        """In whatever unit boxes are."""
        return Family(
            name=f"{op_type}-cut",
            networks=f"graphs that are cut before {op_type}",
            layout=f"what {op_type} reads: {' and '.join(self.reads)}",
            fits=lambda outputs, _: set(self.reads) <= set(outputs),
            decode=self._decode,
            overlaps=False,
            classes=lambda outputs, _: self._scores(outputs).shape[1],
            background=self.background == 0,
        )

    def _scores(self, outputs: Outputs) -> np.ndarray:
        """Of one image, a row for each box and a column for each class."""
        scores = as_rows(outputs[self.scores])
        return scores.T if self.turned else scores

    def _decode(self, outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG002 - one signature for all families
        scores = np.nan_to_num(self._scores(outputs).astype(np.float64), nan=-np.inf)
        scores = sigmoid(scores) if self.logits else scores
        place, kind = np.nonzero(scores >= self.least)
        counts = kind != (-1 if self.background is None else self.background)
        place, kind = place[counts], kind[counts]
        looked_at = _best_of_each(scores[place, kind], kind, self.each)
        place, kind = place[looked_at], kind[looked_at]
        xyxy = self._corners(outputs)
        found = Boxes.of(xyxy[place, kind if xyxy.shape[1] > 1 else 0], scores[place, kind], kind)
        most = self.most if self.kept is None else len(found)
        found = suppressed(found.best(CANDIDATES), self.iou - _HAIR, most, across=self.agnostic, whole=self.whole)
        place = _best_of_each(found.scores, found.classes, self.kept)[: self.most]
        return found.taken(place[found.scores[place] > least])

    def _corners(self, outputs: Outputs) -> np.ndarray:
        """Of each box, those of all classes or of each, float64: n x (1 or c) x 4."""
        boxes = as_rows(outputs[self.boxes]).astype(np.float64)
        boxes = boxes.reshape(len(boxes), boxes.shape[1] // 4, 4)
        if self.anchors is not None:
            anchors = outputs[self.anchors] if isinstance(self.anchors, str) else self.anchors
            boxes = _moved(boxes, anchors.astype(np.float64).reshape(-1, 1, 4), centred=self.centred)
        first, second = boxes.reshape(-1, 2, 2).transpose(1, 0, 2)
        if self.centred:
            found = corners(first, second)
        else:
            # Corners may come in either order.
            found = np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)
        return (found[:, [1, 0, 3, 2]] if self.y_first else found).reshape(boxes.shape)


def _moved(boxes: np.ndarray, anchors: np.ndarray, *, centred: bool) -> np.ndarray:
    """Corrections to anchors as boxes of the same coding (`octavo.graph.custom_ops.efficient_nms` has the rule)."""
    if not centred:
        first, second = (np.minimum(each[..., :2], each[..., 2:]) for each in (boxes, anchors))
        low = first + second
        first, second = (np.maximum(each[..., :2], each[..., 2:]) for each in (boxes, anchors))
        return np.concatenate([low, first + second], axis=-1)
    middle = boxes[..., :2] * anchors[..., 2:] + anchors[..., :2]
    return np.concatenate([middle, anchors[..., 2:] * np.exp(np.minimum(boxes[..., 2:], 50.0))], axis=-1)


def _pair(read: Mapping[str, np.ndarray]) -> tuple[str, str] | None:
    """The first tensor of boxes, and the first other one that has scores for them: in this order operators have them."""
    for name, value in read.items():
        if value.ndim < 3 or value.shape[-1] != 4:
            continue
        count = as_rows(value).shape[0]
        for other, scores in read.items():
            rows = as_rows(scores)
            if other != name and rows.size > 1 and count in rows.shape and as_rows(value).shape[1] in (4, 4 * rows.size // count):
                return name, other
    return None


def _anchors(node: ir.Node, pair: tuple[str, str], read: Mapping[str, np.ndarray], count: int) -> str | np.ndarray | None:
    for value in node.inputs:
        if value is None or value.name in pair:
            continue
        tensor = ir.convenience.get_const_tensor(value)
        shape = read[value.name].shape if value.name in read else tuple(tensor.shape) if tensor is not None else ()
        if len(shape) > 1 and shape[-1] == 4 and np.prod(shape) == 4 * count:
            return value.name if value.name in read else tensor.numpy()
    return None


def _best_of_each(scores: np.ndarray, kind: np.ndarray, most: int | None) -> np.ndarray:
    """Places of at most so many of each class, the surest; ascending."""
    if most is None:
        return np.arange(len(kind))
    order = np.lexsort((np.arange(len(kind)), -scores, kind))
    ranked = kind[order]
    rank = np.arange(len(order)) - np.searchsorted(ranked, ranked)
    return np.sort(order[rank < most])


def _one(told: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((told[name] for name in names if name in told and isinstance(told[name], (int, float))), None)


def _or(value: float | None, other: float) -> float:
    return other if value is None else float(value)


def _positive(value: float | None) -> int | None:
    """None of what stands for no bound (0, -1)."""
    return int(value) if value is not None and value > 0 else None
