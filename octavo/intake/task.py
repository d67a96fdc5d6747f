"""Guesses at the `task:` block: which output answers, which family of detectors it is of, what its classes are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from pydantic import TypeAdapter

from octavo.errors import DataError
from octavo.graph.outputs import classes_told_apart
from octavo.intake.exported import exported_names
from octavo.params.grammar import Task
from octavo.tasks.detection import family_of
from octavo.tasks.segmentation.decode import class_count, layout_of, logits_of
from octavo.tasks.segmentation.told import as_told

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
        told: keys of a segmentation network that `export` tells as well, so that params.yaml need not say them.
    """

    keys: dict[str, Any]
    why: dict[str, str] = field(default_factory=dict)
    family: str | None = None
    classes: int | None = None
    names: tuple[str, ...] | None = None
    told: dict[str, Any] = field(default_factory=dict)

    def block(self) -> Any:
        """The block that they make."""
        return TypeAdapter(Task).validate_python(self.told | self.keys)


def guessed_task(task: str, outputs: Outputs, size: tuple[int, int], model: ir.Model) -> TaskGuess:
    """From what the network puts out, and what its exporter wrote beside it.

    Args:
        task: `classification`, `detection`, `segmentation` or `embedding`.
        outputs: of one image.
        size: (height, width) of the input.
        model: the graph, cleaned, with the file's properties.

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
        names = exported_names(model.metadata_props)
        found.names = names if names and found.classes in (None, len(names)) else None
        return found
    fits = _maps if task == "segmentation" else _vector
    fitting = {name: value for name, value in outputs.items() if fits(value, task)}
    if not fitting:
        shapes = ", ".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in outputs.items())
        wanted = "1 x classes x rows x columns, or 1 x rows x columns whole numbers" if task == "segmentation" else "1 x n, n > 1"
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
    elif task == "segmentation":
        _of_maps(found, name, outputs, size, model)
    return found


def _of_maps(found: TaskGuess, name: str, outputs: Outputs, size: tuple[int, int], model: ir.Model) -> None:
    """Fill in what the output with the class maps says of them."""
    value = outputs[name]
    if value.dtype.kind == "f" and layout_of(value.shape[1:], size) is None:
        found.keys["layout"] = "nchw"
        found.why["layout"] = f"{list(value.shape)} fits nchw and nhwc as well as each other"
    maps = as_told(found.block(), model, outputs, size)
    found.told = {key: getattr(maps, key) for key in ("layout", "threshold")}
    found.classes = class_count(logits_of(outputs, maps, size))
    produced = {each.name: each for each in model.graph.outputs}
    if found.classes is None and name in produced:
        found.classes = classes_told_apart(produced[name])


def _vector(value: np.ndarray, task: str) -> bool:  # noqa: ARG001 - one signature for both
    return value.shape[:1] == (1,) and value.ndim >= 2 and value.size == max(value.shape) and value.size > 1


def _maps(value: np.ndarray, task: str) -> bool:  # noqa: ARG001
    if value.shape[:1] != (1,):
        return False
    return value.ndim == 4 or (value.ndim == 3 and value.dtype.kind in "biu")
