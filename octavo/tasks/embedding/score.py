"""The evidence of an embedding: vectors held against FP32's, and what they tell of pairs of images where identities are known."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import cv2
import numpy as np

from octavo.images.dataset import Classes, Item
from octavo.params.grammar import Embedding, Input
from octavo.tasks.embedding.decode import vector_of
from octavo.tasks.embedding.pairs import PairTable, pairs_of
from octavo.tasks.embedding.resampled import Areas
from octavo.tasks.embedding.verification import (
    FARS,
    area,
    best_accuracy,
    equal_error_rate,
    folds_of,
    nearest,
    roc,
    similarities,
    tar_at,
)
from octavo.tasks.outputs import Outputs
from octavo.tasks.score import Panel, Shown

__all__ = ["EmbeddingScore"]


class EmbeddingScore:
    """Vectors of one variant, image by image; see `octavo.tasks.score.Score`.

    Attributes:
        task: the model's `task`.
        items: the images so far.
        vectors: float32, D, of each.
        cosines, errors: of each image, cosine to FP32's vector and mean absolute difference from it.
    """

    metric = "auc"
    to_fp32 = ("cosine_p1", "mean_abs_diff", "neighbours")
    agrees = "cosine_p1"
    drop = "auc_drop"
    doubted = None
    needs = None
    by_size = ()
    least = 50

    def __init__(self, task: Embedding, spec: Input) -> None:  # noqa: ARG002 - one signature for all tasks
        self.task = task
        self.items: list[Item] = []
        self.vectors: list[np.ndarray] = []
        self.cosines: list[float] = []
        self.errors: list[float] = []

    @classmethod
    def classes(cls, task: Embedding, outputs: Outputs, size: tuple[int, int]) -> Classes:  # noqa: ARG003
        """None, whatever the labels: identities are no classes of the model. That there is one vector is looked at."""
        vector_of(outputs, task)
        return Classes()

    @property
    def labelled(self) -> int:
        """Images of which it is known who they are or how they pair; none where no genuine or no impostor pair comes of it."""
        return sum(item.label is not None or item.pairs is not None for item in self.items) if all(self._pairs.counts) else 0

    @property
    def units(self) -> int:
        """Identities among the pairs: images of one are no independent draws."""
        return len(self._identities) if self.labelled else 0

    def update(self, outputs: Outputs, reference: Outputs, item: Item) -> None:
        """Add one image: the variant's outputs, FP32's on the same image, and the image with its identity where it has one."""
        vector, truth = (vector_of(each, self.task).astype(np.float64) for each in (outputs, reference))
        lengths = np.linalg.norm(vector) * np.linalg.norm(truth)
        alike = float(np.clip(vector @ truth / lengths, -1, 1)) if lengths > 0 else float(vector.any() == truth.any())
        self.items.append(item)
        self.vectors.append(vector.astype(np.float32))
        self.cosines.append(alike)
        self.errors.append(float(np.abs(vector - truth).mean()))
        for made in ("_pairs", "_scores", "_identities", "_areas", "_nearest"):
            self.__dict__.pop(made, None)

    def about(self) -> dict[str, Any]:
        """`genuine_pairs`, `impostor_pairs` and `identities`; `pairs` where not all of them are compared; `flip`."""
        found: dict[str, Any] = {"flip": "mean of the image's and its mirror's vector"} if self.task.flip else {}
        if not self.labelled:
            return found
        genuine, impostor = self._pairs.counts
        found |= {"genuine_pairs": genuine, "impostor_pairs": impostor, "identities": self.units}
        words = [
            f"{count:,} of {possible:,} {kind} pairs, drawn by a seed"
            for count, possible, kind in zip((genuine, impostor), self._pairs.possible, ("genuine", "impostor"), strict=True)
            if count < possible
        ]
        if self._pairs.left_out:
            words.append(f"{self._pairs.left_out:,} listed pairs left out, of which an image is not among these")
        return found | ({"pairs": "; ".join(words)} if words else {})

    def metrics(self, reference: EmbeddingScore) -> dict[str, float]:
        """Figures over all images.

        Of pairs, where there are both kinds: `auc`, `eer`, `accuracy` (thresholds of other folds) and `tar_<FAR>` as far down as
        there are impostor pairs, 1/FAR or more; `rank1`, the share of images, of identities with several, whose nearest other image
        is of the same identity: of a list of pairs there is none. Always: `cosine_p1` (a hundredth of the images has less) and
        `mean_abs_diff` of the vectors to FP32's, and `neighbours`, the share of images whose nearest other image is FP32's.
        """
        found: dict[str, float] = {}
        if self.labelled:
            same, scores = self._pairs.same, self._scores
            far, tar, _ = self.curve()
            found |= {"auc": area(far, tar), "eer": equal_error_rate(far, tar)}
            fold = self._pairs.fold if self._pairs.fold is not None else folds_of(same)
            accuracy = None if fold is None else best_accuracy(scores, same, fold)
            if accuracy is not None:
                found["accuracy"] = accuracy
            found |= {key: tar_at(far, tar, bound) for key, bound in FARS.items() if self._pairs.counts[1] * bound >= 1 - 1e-9}
            if all(item.pairs is None for item in self.items):
                found["rank1"] = self._rank1()
        found |= {"cosine_p1": float(np.percentile(self.cosines, 1)), "mean_abs_diff": float(np.mean(self.errors))}
        if len(self.items) > 1:
            found["neighbours"] = float(np.mean(self._nearest[0] == reference._nearest[0]))
        return found

    def curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ROC curve: FAR, TAR and thresholds, from (0, 0) to (1, 1)."""
        return roc(self._scores, self._pairs.same)

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """`auc` of resamples of the identities; see `octavo.tasks.embedding.resampled`."""
        return self._areas.resampled(counts)

    def row(self, place: int) -> dict[str, Any]:
        """`nearest`: the most alike other image, and its `similarity`."""
        if len(self.items) < 2:
            return {}
        places, values = self._nearest
        return {"nearest": self.items[places[place]].name, "similarity": round(float(values[place]), 6)}

    def likeness(self, reference: EmbeddingScore, place: int) -> float:  # noqa: ARG002 - the cosine is to FP32
        """Cosine of one image's vector to FP32's."""
        return self.cosines[place]

    @property
    def views(self) -> tuple[EmbeddingScore]:
        """Itself: one row a picture. Its own images, FP32's, are the gallery that every variant is looked up in."""
        return (self,)

    def first_panels(self, shown: Shown, outputs: Outputs) -> list[Panel]:  # noqa: ARG002
        """The photo under its name."""
        return [(shown.item.name, shown.photo)]

    def panels(self, shown: Shown, outputs: Outputs, reference: Outputs) -> list[Panel]:
        """The image that is nearest among FP32's vectors, under whether it is of the same identity, or FP32's answer."""
        others = [place for place, item in enumerate(self.items) if item.name != shown.item.name]
        if not others:
            return [("no other image", shown.photo)]
        gallery = np.stack([self.vectors[place] for place in others]).astype(np.float64)
        mine, theirs = (gallery @ vector_of(each, self.task).astype(np.float64) for each in (outputs, reference))
        found = self.items[others[int(mine.argmax())]]
        alike = "as FP32" if mine.argmax() == theirs.argmax() else "not as FP32"
        if shown.item.label is not None and found.label is not None:
            alike = "same" if shown.item.label == found.label else "another"
        return [(f"nearest {mine.max():.3f}, {alike}: {found.name}", _fitted(found.read(), shown.photo.shape[:2]))]

    @cached_property
    def _pairs(self) -> PairTable:
        return pairs_of(self.items)

    @cached_property
    def _scores(self) -> np.ndarray:
        return similarities(np.stack(self.vectors), self._pairs.first, self._pairs.second)

    @cached_property
    def _identities(self) -> np.ndarray:
        """Labels of the images that pairs are made of, each once."""
        labels = np.array([-1 if item.label is None else item.label for item in self.items], np.int64)
        return np.unique(labels[np.concatenate([self._pairs.first, self._pairs.second])])

    @cached_property
    def _areas(self) -> Areas:
        labels = np.array([-1 if item.label is None else item.label for item in self.items], np.int64)
        first, second = (np.searchsorted(self._identities, labels[ends]) for ends in (self._pairs.first, self._pairs.second))
        return Areas(self._scores, self._pairs.same, first, second)

    @cached_property
    def _nearest(self) -> tuple[np.ndarray, np.ndarray]:
        return nearest(np.stack(self.vectors))

    def _rank1(self) -> float:
        places = [place for place, item in enumerate(self.items) if item.label is not None]
        labels = np.array([self.items[place].label for place in places])
        whole = len(places) == len(self.items)
        found, _ = self._nearest if whole else nearest(np.stack([self.vectors[place] for place in places]))
        kinds, sizes = np.unique(labels, return_counts=True)
        probes = np.isin(labels, kinds[sizes > 1])
        return float((labels[found] == labels)[probes].mean())


def _fitted(photo: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A photo made as large as fits, on white."""
    scale = min(shape[0] / photo.shape[0], shape[1] / photo.shape[1])
    rows, columns = (max(1, min(side, round(length * scale))) for side, length in zip(shape, photo.shape[:2], strict=True))
    canvas = np.full((*shape, 3), 255, np.uint8)
    top, left = (shape[0] - rows) // 2, (shape[1] - columns) // 2
    resized = cv2.resize(photo, (columns, rows), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    canvas[top : top + rows, left : left + columns] = resized
    return canvas
