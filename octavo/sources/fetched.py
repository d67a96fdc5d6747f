"""What every kind of source hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.graph.custom_ops import CustomOps

__all__ = ["Fetched", "Reference"]

# Preprocessed input [batch, ...] float32 -> output name to array, as the original framework computes it.
Reference = Callable[[np.ndarray], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Fetched:
    """An FP32 model, cleaned and saved as `model.onnx`.

    Attributes:
        model: the graph; its weights may still be mapped from the source file.
        input_name: the graph input that takes the image.
        output_names: the graph outputs, in order.
        reference: the original framework's outputs for the same input; None where the source is ONNX itself.
        notes: what was changed on the way, one plain line each.
        custom_ops: the operators in it that ONNX Runtime lacks; their bodies lie beside the model.
    """

    model: ir.Model
    input_name: str
    output_names: tuple[str, ...]
    reference: Reference | None = None
    notes: list[str] = field(default_factory=list)
    custom_ops: CustomOps = field(default_factory=CustomOps)
