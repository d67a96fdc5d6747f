"""Guesses at the `task:` block: which output answers, which family of detectors it is of, what its classes are called."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from octavo.errors import DataError
from octavo.params.grammar import Task
from octavo.tasks.detection import family_of

__all__ = ["TaskGuess", "guessed_task"]

Outputs = Mapping[str, np.ndarray]


@dataclass
class TaskGuess:
    """A value for each key of `task:`, and why.

    Attributes:
        keys: `name` and what differs from the defaults.
        why: key to what it was concluded from.
        family: of a detector.
        classes: how many classes the outputs tell apart; None where they do not say.
        names: of a detector's classes, as the file's exporter wrote them; None where it did not, or not of so many.
    """

    keys: dict[str, Any]
    why: dict[str, str] = field(default_factory=dict)
    family: str | None = None
    classes: int | None = None
    names: tuple[str, ...] | None = None

    def block(self) -> Any:
        """The block that they make."""
        return TypeAdapter(Task).validate_python(self.keys)


def guessed_task(task: str, outputs: Outputs, size: tuple[int, int], metadata: Mapping[str, str] | None = None) -> TaskGuess:
    """From what the network puts out, and what its exporter wrote beside it.

    Args:
        task: `classification`, `detection`, `segmentation` or `embedding`.
        outputs: of one image.
        size: (height, width) of the input.
        metadata: the file's properties.

    Raises:
        DataError: the outputs are not those of the task; their shapes are named.
    """
    if task == "detection":
        family = family_of(outputs, size)
        found = TaskGuess({"name": task}, family=family.name)
        # Where nothing was found on this image, the unit of boxes is for those to tell on which something is.
        if family.tells is None or family.tells(outputs, size):
            found.keys["decoder"] = family.name
            found.why["decoder"] = f"the outputs are laid out as those of {family.networks}"
        found.classes = None if family.classes is None else family.classes(outputs, size)
        names = _exported_names(metadata or {})
        found.names = names if names and found.classes in (None, len(names)) else None
        return found
    fits = _maps if task == "segmentation" else _vector
    fitting = {name: value for name, value in outputs.items() if fits(value, task)}
    if not fitting:
        shapes = ", ".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in outputs.items())
        wanted = "1 x classes x rows x columns, or 1 x rows x columns whole numbers" if task == "segmentation" else "1 x n"
        raise DataError(f"no output is that of {task} ({wanted}): {shapes}", "is `--task` the right one?")
    # Whole maps before auxiliary ones, and of equal ones the first.
    name = max(fitting, key=lambda one: fitting[one].size) if len(fitting) > 1 else next(iter(fitting))
    found = TaskGuess({"name": task})
    if len(outputs) > 1:
        found.keys["output"] = name
        found.why["output"] = f"the graph also puts out {', '.join(one for one in outputs if one != name)}"
        if task == "segmentation" and len(fitting) > 1:
            found.why["output"] += "; `task.heads` has several at once"
    value = fitting[name]
    if task == "classification":
        found.classes = value.size
    elif task == "segmentation" and value.ndim == 4:
        found.classes = max(2, value.shape[1])
    return found


def _exported_names(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    """Ultralytics' exports say of each class what it is called: `names`, a Python dictionary of index to name."""
    try:
        names = ast.literal_eval(metadata.get("names", ""))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    if not isinstance(names, dict) or set(names) != set(range(len(names))):
        return None
    listed = tuple(str(names[index]) for index in range(len(names)))
    return listed if len(set(listed)) == len(listed) else None


def _vector(value: np.ndarray, task: str) -> bool:  # noqa: ARG001 - one signature for both
    return value.shape[:1] == (1,) and value.ndim >= 2 and value.size == max(value.shape) and value.size > 1


def _maps(value: np.ndarray, task: str) -> bool:  # noqa: ARG001
    if value.shape[:1] != (1,):
        return False
    return value.ndim == 4 or (value.ndim == 3 and bool(np.issubdtype(value.dtype, np.integer)))
