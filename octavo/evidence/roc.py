"""ROC curves of all variants as rows for one plot."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.evidence.validation import Validation
from octavo.tasks.embedding.score import EmbeddingScore

__all__ = ["COLUMNS", "roc_rows"]

COLUMNS = ("variant", "fpr", "tpr")
# Points of one curve at most: a plot shows no more, and the file is reviewed in git.
POINTS = 200


def roc_rows(validation: Validation) -> list[dict[str, Any]]:
    """Points of each variant's curve, by growing false positive rate (FAR) and true positive rate (TAR).

    Args:
        validation: after its run.

    Returns:
        Rows of `COLUMNS`, the corners of each curve or evenly chosen ones, both ends among them; none of tasks without pairs.
    """
    rows = []
    for variant, score in validation.scores.items():
        if not isinstance(score, EmbeddingScore) or not score.labelled:
            continue
        fpr, tpr, _ = score.curve()
        # What lies on the line between its neighbours shows nothing.
        first, second = np.diff(fpr), np.diff(tpr)
        corner = np.concatenate([[True], first[:-1] * second[1:] != first[1:] * second[:-1], [True]])
        places = np.flatnonzero(corner)
        places = places[np.unique(np.linspace(0, len(places) - 1, min(POINTS, len(places))).round().astype(int))]
        rows += [{"variant": variant, "fpr": float(fpr[place]), "tpr": float(tpr[place])} for place in places]
    return rows
