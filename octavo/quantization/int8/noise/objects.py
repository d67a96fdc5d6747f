"""How far a quantized detector is from FP32, measured where it decides: at the boxes and scores that it is sure of.

Nearly all positions of a detector's heads are background, and of the rest only the anchor that found an object has a box that
anyone reads. YOLOv5n's heads have 20 dB of SQNR and 24 with hardly a difference in its boxes, because what is rounded near the
heads (their weights, what they read) shows where responses are strong. So the heads' values are decoded by the graph's own tail,
and rows, which stand where they stood, are compared: a row counts by its score.

The noise of a row is the share of AP that it is expected to cost: of 1 - IoU, and of how far the score's logit moved, the square
where they are small, which small independent roundings add up, and a straight line from there on. AP asks for IoUs up to .95, so
that it hangs on boxes; a few scores that move far cost little of it, since right and wrong objects lie far apart. The factors are
those that AP showed: docs/int8.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.protos import leading_to, names_read, part_of
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.judge import Judge, with_outputs
from octavo.quantization.int8.noise.places import Places
from octavo.runtime.mapped import session_of
from octavo.runtime.session import Session

__all__ = ["BoxReader", "ObjectJudge", "judge_of"]

# From one image's outputs, and its feeds, to (corners n x 4, scores n x c); None where rows do not keep their places.
BoxReader = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], tuple[np.ndarray, np.ndarray] | None]

# The share of AP that a lost box costs, and that squares of small errors of logits do; up to where both errors count as squares,
# and from where on a logit that moves costs no more.
BOX, SCORE = 0.6, 0.4
_BOX_BEND, _SCORE_BEND, _FAR = 0.05, 0.1, 4.0
# Rows below this score count for nothing; logits are those of scores within these bounds, beyond which ranks hardly change.
SURE = 0.1
_LEAST, _MOST = 1e-3, 1 - 1e-3
# Sums of scores of sure rows: of few objects nothing can be said, and a network that is sure of every place has not been trained.
_ENOUGH, _SHARE = 20.0, 0.1


def judge_of(
    model: ir.Model,
    heads: Sequence[ir.Value],
    samples: Sequence[Mapping[str, np.ndarray]],
    boxes: BoxReader | None = None,
    *,
    together: bool = False,
) -> Judge:
    """The judge of a network: of objects, where its outputs can be read as boxes and there are some on these images, else of heads.

    Args:
        model: FP32, as prepared for INT8.
        heads: the tensors to compare, or to decode.
        samples: feeds, batch dimension 1.
        boxes: reads the graph's outputs.
        together: of `HeadJudge`.
    """
    names = [value.name for value in heads]
    tail = _Tail.of(model, names) if boxes is not None else None
    if tail is not None:
        judge = ObjectJudge(model, names, samples, tail, boxes)
        if judge.sees_objects:
            return judge
    return HeadJudge(model, names, samples, together=together)


@dataclass(frozen=True)
class _Rows:
    """One image's rows: corners, and of each the class that it is surest of, and its score."""

    corners: np.ndarray
    classes: np.ndarray
    best: np.ndarray


class ObjectJudge(Judge):
    """Expected share of AP lost; made by `judge_of`."""

    attends = True

    def __init__(
        self,
        model: ir.Model,
        heads: Sequence[str],
        samples: Sequence[Mapping[str, np.ndarray]],
        tail: _Tail,
        boxes: BoxReader,
    ) -> None:
        self._tail, self._boxes = tail, boxes
        self._weight = 0.0
        # By the heads' shapes; what is made of the same judge for other images shares it.
        self._places: dict[tuple[tuple[int, ...], ...], Places] = {}
        super().__init__(model, heads, samples)

    @property
    def sees_objects(self) -> bool:
        """Whether there is enough to judge by: objects, and background."""
        if not all(self._true):
            return False
        sure = sum(int((rows.best > SURE).sum()) for rows in self._true)
        return self._weight * len(self._true) >= _ENOUGH and sure <= _SHARE * sum(len(rows.best) for rows in self._true)

    def _hold(self, results: Iterator[Mapping[str, np.ndarray]]) -> None:
        self._true, self._shapes = [], set()
        for heads, feeds in zip(results, self.samples, strict=True):
            self._shapes.add(tuple(np.shape(heads[name]) for name in self.heads))
            found = self._read(heads, feeds)
            self._true.append(_Rows(found[0], *_best(found[1])) if found is not None else None)
        if not self._weight:
            # What an image has to lose, on average over all images: some of them are held against that, too.
            held = [float(rows.best[rows.best > SURE].sum(dtype=np.float64)) for rows in self._true if rows is not None]
            self._weight = float(np.mean(held or [0.0]))

    def attended(self) -> dict[str, list[np.ndarray]]:
        """Each place of a head counts by the scores of the sure rows that it makes."""
        rows = [rows for rows in self._true if rows is not None]
        if len(self._shapes) != 1 or len(rows) < len(self._true):
            # Images of several sizes.
            return {}
        (shapes,) = self._shapes
        if shapes not in self._places:
            feeds = self.samples[0]
            self._places[shapes] = Places.of(dict(zip(self.heads, shapes, strict=True)), lambda heads: self._read(heads, feeds))
        return self._places[shapes].weights([(each.best > SURE) * each.best for each in rows])

    def noises(self, results: Iterable[Mapping[str, np.ndarray]]) -> Iterator[float]:
        """Expected share of AP lost by each image, of what all have on average."""
        for true, got, feeds in zip(self._true, results, self.samples, strict=False):
            yield self._lost(true, *self._read(got, feeds))

    def _read(self, heads: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
        return self._boxes(self._tail.outputs(heads, feeds), feeds)

    def _lost(self, true: _Rows, corners: np.ndarray, scores: np.ndarray) -> float:
        classes, best = _best(scores)
        sure = np.nonzero(np.maximum(true.best, best) > SURE)[0]
        before = true.best[sure]
        # Where noise made an object of background, no class was sure: the surest of both are compared.
        kept = before > SURE
        after = np.where(kept, np.nan_to_num(scores[sure, np.where(kept, true.classes[sure], classes[sure])]), best[sure])
        apart = _logit(after) - _logit(before)
        off = 1 - _iou(true.corners[sure], corners[sure])
        boxes = BOX * _huber(off, _BOX_BEND) / _huber(np.float64(1), _BOX_BEND)
        lost = boxes + SCORE * _huber(np.minimum(np.abs(apart), _FAR), _SCORE_BEND)
        return float((np.maximum(before, best[sure]) * lost).sum(dtype=np.float64) / self._weight)


def _best(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row the class with the largest score, and that score; NaN is none."""
    if not np.isfinite(scores).all():
        # Copies are what takes time here: of 25200 rows of 80 classes 3 ms, for each image of each rounding.
        scores = np.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0)
    classes = scores.argmax(axis=1)
    return classes, np.take_along_axis(scores, classes[:, None], axis=1)[:, 0]


def _logit(scores: np.ndarray) -> np.ndarray:
    inside = np.clip(scores.astype(np.float64), _LEAST, _MOST)
    return np.log(inside / (1 - inside))


def _huber(error: np.ndarray, bend: float) -> np.ndarray:
    """Square of errors up to `bend`, and the straight line that goes on from there (Huber, 1964)."""
    inside = np.minimum(error, bend)
    return inside * (2 * error - inside)


def _iou(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of each pair, 0 where a corner is no number."""
    size = np.minimum(one[:, 2:], other[:, 2:]) - np.maximum(one[:, :2], other[:, :2])
    common = np.clip(size, 0, None).prod(axis=1, dtype=np.float64)
    areas = [np.clip(box[:, 2:] - box[:, :2], 0, None).prod(axis=1, dtype=np.float64) for box in (one, other)]
    return np.nan_to_num(common / np.maximum(areas[0] + areas[1] - common, 1e-9))


class _Tail:
    """What stands behind the heads, as a graph of its own: box decoding and the like, in float in every variant.

    Args:
        tail: the graph, from heads and sizes to the outputs, as ONNX Runtime loads it.
        sizes: names of the sizes of tensors that it reads; they follow from the image's.
        model: the whole float graph, which tells them.
    """

    def __init__(self, tail: bytes, sizes: Sequence[str], model: ir.Model) -> None:
        # Several images are decoded at once, where single roundings are measured.
        self._session = Session(tail, threads=1)
        self._heads = [name for name in self._session.inputs if name not in sizes]
        self._sizes = list(sizes)
        self._sized = session_of(with_outputs(model, sizes)) if sizes else None
        self._known: dict[tuple[tuple[int, ...], ...], dict[str, np.ndarray]] = {}

    @classmethod
    def of(cls, model: ir.Model, heads: Sequence[str]) -> _Tail | None:
        """None where the outputs depend on other values than those of heads."""
        proto = ir.to_proto(model)
        graph = proto.graph
        # Sizes of what stands behind the heads may follow from their values (suppressed boxes): these the tail takes itself.
        behind = set(heads)
        for node in graph.node:
            if not behind.isdisjoint(names_read(node)):
                behind.update(node.output)
        shapes = {node.output[0] for node in graph.node if node.op_type == "Shape"} - behind
        given = {*heads, *shapes}
        nodes = leading_to([node for node in graph.node if not set(node.output) <= given], [out.name for out in graph.output])
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in names_read(node) if name and name not in made)
        read |= dict.fromkeys(out.name for out in graph.output if out.name not in made)
        constants = {tensor.name: tensor for tensor in graph.initializer}
        known = {value.name: value for value in (*graph.value_info, *graph.output)}
        inputs = [name for name in read if name not in constants]
        if not given.issuperset(inputs) or not known.keys() >= set(inputs) or shapes.issuperset(inputs):
            return None
        held = [constants[name] for name in read if name in constants]
        part = part_of(proto, nodes, [known[name] for name in inputs], [out.name for out in graph.output], held)
        return cls(part, [name for name in inputs if name in shapes], model)

    def outputs(self, heads: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The graph's outputs on one image, from the values of its heads."""
        return self._session.run({**{name: heads[name] for name in self._heads}, **self._of_image(feeds)})

    def _of_image(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The sizes, which all images of one size share."""
        if self._sized is None:
            return {}
        key = tuple(np.shape(feeds[name]) for name in self._sized.inputs)
        if key not in self._known:
            self._known[key] = {name: value.copy() for name, value in self._sized.run(feeds, self._sizes).items()}
        return self._known[key]
