"""What FP32 tells of how its outputs are read, or why they cannot be: known before anything is calibrated or quantized."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from octavo.errors import OctavoError
from octavo.images.dataset import refuse_other_names
from octavo.params.grammar import ModelSpec, Segmentation
from octavo.tasks.outputs import Outputs
from octavo.tasks.registry import SCORES, answer_to_grey
from octavo.tasks.segmentation.told import as_told

__all__ = ["as_read"]


def as_read(spec: ModelSpec, model: ir.Model, run: Callable[[np.ndarray], Outputs]) -> tuple[ModelSpec, list[str]]:
    """The params with what is told of class maps (`octavo.tasks.segmentation.told`), and what `validate` is going to refuse.

    Args:
        spec: the model's block.
        model: FP32. A graph that runs only as far as an operator without a body has other outputs, and is not read.
        run: it, from a preprocessed image.
    """
    own = [value.name for value in model.graph.outputs]
    try:
        outputs, size = answer_to_grey(spec.input, run)
        if not set(own) <= set(outputs):
            return spec, []
        outputs = {name: outputs[name] for name in own}
        if isinstance(spec.task, Segmentation):
            spec = spec.model_copy(update={"task": as_told(spec.task, model, outputs, size)})
        refuse_other_names(SCORES[spec.task.name].classes(spec.task, outputs, size))
    except OctavoError as error:
        problem = error.problem.splitlines()[0].removesuffix("; known:")
        return spec, [f"validate is going to refuse this model: {problem}; {error.mend}"]
    return spec, []
