"""Classification: Top-1 and Top-5 where there are labels, agreement with FP32 and KL of the class scores on every image."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.images.dataset import Classes, Item
from octavo.params.grammar import Classification, Input
from octavo.tasks.labels import labels_of
from octavo.tasks.outputs import Outputs
from octavo.tasks.ranking import are_shares, class_scores
from octavo.tasks.score import Panel, Shown

__all__ = ["ClassificationScore"]

# Of shares that a graph puts out: less counts as this. float16 has nothing smaller above 0.
LEAST = 2.0**-24


class ClassificationScore:
    """Scores of one variant, image by image; see `octavo.tasks.score.Score`.

    Attributes:
        task: the model's `task`.
        predictions: Top-1 class of every image.
        right1, right5: for labelled images, whether the label is the best, or among the best five; None for the others.
        unsummed: of each image, whether FP32's scores lie in 0..1 and are no shares of 1, as those of a Sigmoid.
    """

    metric = "top1"
    to_fp32 = ("agreement", "kl")
    agrees = "agreement"
    drop = None
    doubted = None
    needs = None
    by_size = ()
    least = 0

    def __init__(self, task: Classification, spec: Input) -> None:  # noqa: ARG002 - one signature for all tasks
        self.task = task
        self.predictions: list[int] = []
        self.right1: list[bool | None] = []
        self.right5: list[bool | None] = []
        self.divergences: list[float] = []
        self.unsummed: list[bool] = []

    @classmethod
    def classes(cls, task: Classification, outputs: Outputs, size: tuple[int, int]) -> Classes:  # noqa: ARG003
        """As many as there are scores, and their names from params.yaml."""
        return Classes(len(class_scores(outputs, task)), labels_of(task), scored=True)

    @property
    def labelled(self) -> int:
        """Images with a label."""
        return sum(right is not None for right in self.right1)

    @property
    def units(self) -> int:
        """Labelled images."""
        return self.labelled

    def update(self, outputs: Outputs, reference: Outputs, item: Item) -> None:
        """Add one image: the variant's outputs, FP32's on the same image, and the image with its label where it has one."""
        scores, truth = class_scores(outputs, self.task), class_scores(reference, self.task)
        # Stable: equal scores rank by class index on every machine.
        best = np.argsort(-scores, kind="stable")[:5]
        self.predictions.append(int(best[0]))
        self.right1.append(None if item.label is None else bool(best[0] == item.label))
        self.right5.append(None if item.label is None else bool(item.label in best))
        self.divergences.append(_kl(truth, scores))
        self.unsummed.append(bool(truth.min() >= 0 and truth.max() <= 1 and not are_shares(truth)))

    def about(self) -> dict[str, str]:
        """`warning`: where the best class alone says little of the network."""
        warnings = []
        if self.unsummed and all(self.unsummed):
            warnings.append(
                "FP32's class scores lie in 0..1 and do not sum to 1: where a network gives an image several labels (a Sigmoid), "
                "what is said of the best class says nothing of the others; `cosine_mean` and `sqnr_db` are about all scores"
            )
        if len(self.predictions) > 1 and len({*self.predictions}) == 1:
            warnings.append(
                f"FP32 calls all {len(self.predictions)} images class {self.predictions[0]}: `agreement` tells no variants apart; "
                "check `input` and the images"
            )
        return {"warning": "; ".join(warnings)} if warnings else {}

    def metrics(self, reference: ClassificationScore) -> dict[str, float]:
        """`top1` and `top5` (where there are labels), `agreement` of Top-1 with FP32, and the mean `kl` in nats."""
        found: dict[str, float] = {}
        if self.labelled:
            found["top1"] = float(np.mean([right for right in self.right1 if right is not None]))
            found["top5"] = float(np.mean([right for right in self.right5 if right is not None]))
        found["agreement"] = float(np.mean(np.equal(self.predictions, reference.predictions)))
        found["kl"] = float(np.mean(self.divergences))
        return found

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """`top1` of resamples of the labelled images."""
        right = np.array([right for right in self.right1 if right is not None], np.float64)
        return counts @ right / counts.sum(axis=1)

    def row(self, place: int) -> dict[str, Any]:
        """`prediction`: the Top-1 class."""
        return {"prediction": self.predictions[place]}

    def likeness(self, reference: ClassificationScore, place: int) -> float:
        """exp(-KL) of one image's class distribution, and 1 less where the Top-1 class is not FP32's.

        Of two classes that FP32 finds nearly as likely a rounding changes which is named, and next to nothing of the distribution.
        """
        changed = self.predictions[place] != reference.predictions[place]
        return float(np.exp(-self.divergences[place])) - changed

    @property
    def views(self) -> tuple[ClassificationScore]:
        """Itself: one row a picture."""
        return (self,)

    def first_panels(self, shown: Shown, outputs: Outputs) -> list[Panel]:  # noqa: ARG002
        """The photo under its label."""
        return [] if shown.item.label is None else [(f"label {shown.item.label}", shown.photo)]

    def panels(self, shown: Shown, outputs: Outputs, reference: Outputs) -> list[Panel]:
        """The photo under the Top-1 class, and whether that is right, or FP32's where there is no label."""
        expected, (mine, theirs) = shown.item.label, (int(class_scores(one, self.task).argmax()) for one in (outputs, reference))
        if expected is not None:
            return [(f"class {mine}, {'right' if mine == expected else 'wrong'}", shown.photo)]
        return [(f"class {mine}, {'as FP32' if mine == theirs else 'not as FP32'}", shown.photo)]


def _kl(reference: np.ndarray, other: np.ndarray) -> float:
    """KL(reference || other) of class distributions in nats: the softmax of the scores, unless FP32's are shares of 1 already."""
    shares = are_shares(reference)
    log_p, log_q = (_log_shares(scores.astype(np.float64), shares=shares) for scores in (reference, other))
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def _log_shares(scores: np.ndarray, *, shares: bool) -> np.ndarray:
    logits = np.log(np.maximum(scores, LEAST)) if shares else scores - scores.max()
    return logits - np.log(np.exp(logits).sum())
