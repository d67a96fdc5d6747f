"""Class scores of one image and the order that they put classes in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import DataError
from octavo.params.grammar import Classification
from octavo.tasks.outputs import Outputs

__all__ = ["Ranking", "are_shares", "class_scores"]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Classification.

    Attributes:
        scores: float, one a class, as the graph puts them out (logits, unless it ends in a softmax).
    """

    scores: np.ndarray

    def best(self, count: int = 5) -> list[int]:
        """Class indices by falling score; equal ones by index, as validation ranks them."""
        return np.argsort(-self.scores, kind="stable")[:count].tolist()


def class_scores(outputs: Outputs, task: Classification) -> np.ndarray:
    """One image's class scores.

    Args:
        outputs: output name to array; the logits are 1 x classes (trailing dimensions of 1 are allowed).
        task: says which output, where there are several.

    Returns:
        float, 1-D, one score a class.

    Raises:
        DataError: no such output, several and none named, or its shape is not that of one image's scores.
    """
    name = task.output or next(iter(outputs))
    if name not in outputs or (task.output is None and len(outputs) > 1):
        raise DataError(
            f"which output holds the class scores? the graph has {', '.join(outputs)}",
            "name it: `task: {name: classification, output: ...}`",
        )
    scores = outputs[name].reshape(outputs[name].shape[0], -1)
    shape = list(outputs[name].shape)
    if scores.shape == (1, 1):
        raise DataError(
            f"output {name!r} of shape {shape} is one score; class scores are one a class",
            "where one score tells two classes apart, export both: [1 - p, p] of a probability p, [0, z] of a logit z",
        )
    if scores.shape[0] != 1 or scores.shape[1] < 2:
        raise DataError(f"output {name!r} of shape {shape} is not one image's class scores", "check `task`")
    return scores[0]


def are_shares(scores: np.ndarray) -> bool:
    """Whether one image's class scores are shares of 1 already, as a graph that ends in a softmax puts them out."""
    return bool(scores.min() >= 0 and abs(scores.astype(np.float64).sum() - 1) < 1e-3)
