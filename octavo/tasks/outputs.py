"""What a graph puts out for one image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.params.grammar import Classification, Segmentation

__all__ = ["Outputs", "class_axis"]

# Output name to array, batch dimension 1.
Outputs = Mapping[str, np.ndarray]


def class_axis(task: Any) -> int | None:
    """The axis of a graph's outputs that class scores lie along; None where a task has none, or not one for all its heads."""
    if isinstance(task, Classification):
        return 1
    if not isinstance(task, Segmentation):
        return None
    axes = {3 if head.layout == "nhwc" else 1 for head in task.each.values()}
    return axes.pop() if len(axes) == 1 else None
