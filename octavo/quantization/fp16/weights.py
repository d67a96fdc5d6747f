"""What float16 does to a constant tensor: measured, and refused where it is too much; nothing is clamped or floored.

float16 (IEEE 754 binary16) reaches 65504, keeps 11 significant bits down to 2^-14 and loses one for each halving below, until
2^-25, which rounds to zero.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.errors import QuantizationError

__all__ = ["LARGEST", "NORMAL", "SMALLEST", "is_dead_weight", "to_half", "weight_fault"]

LARGEST = 65504.0
SMALLEST = 2.0**-24
NORMAL = 2.0**-14
# Relative L2 error from which a tensor counts as damaged. Rounding of normal numbers stays below 2^-11; four times that is
# only reached where a notable share of the tensor is subnormal or becomes zero.
DAMAGE = 2.0**-9
# Here infinity is a broken weight; in a mask, a Pad or a bound of Clip it is a value like any other, and exact in float16.
# fmt: off
WEIGHTED = frozenset((
    "BatchNormalization", "Conv", "ConvTranspose", "GRU", "Gemm", "InstanceNormalization", "LSTM", "LayerNormalization", "MatMul",
    "PRelu", "RNN",
))
# fmt: on


def weight_fault(name: str, tensor: ir.TensorProtocol, op_type: str, *, addend: bool = False) -> str:
    """Why a float32 constant cannot be float16; empty where it can.

    Args:
        name: the tensor's, for reasons and errors.
        op_type: of the node that reads it.
        addend: it is added to float16 values, so being small does no harm.

    Raises:
        QuantizationError: NaN, or infinity in a layer's weight.
    """
    array = tensor.numpy().astype(np.float32, copy=False)
    finite = np.isfinite(array)
    if not finite.all():
        broken = "NaN" if np.isnan(array).any() else "infinity" if op_type in WEIGHTED else ""
        if broken:
            raise QuantizationError(f"tensor {name!r} holds {broken}", "export the model again from sound weights")
        array = array[finite]
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST:
        return f"constant {name} reaches {largest:.6g}, float16 ends at 65504"
    if largest == 0 or addend:
        return ""
    # Scaled, so that squares of tiny values do not vanish.
    exact = array.ravel().astype(np.float64) / largest
    half = array.ravel().astype(np.float16)
    error = float(np.linalg.norm(half.astype(np.float64) / largest - exact) / np.linalg.norm(exact))
    if error <= DAMAGE:
        return ""
    lost = int(np.count_nonzero((half == 0) & (array.ravel() != 0)))
    return (
        f"constant {name} is too small for float16: relative L2 error {error:.2g}, {lost} of {array.size} values would become zero "
        f"(largest {largest:.3g})"
    )


def is_dead_weight(tensor: ir.TensorProtocol) -> bool:
    """Whether a layer's weight is so small that with any float16 input its whole output rounds to zero.

    Weight decay leaves such tensors behind (1e-40 in a published CGNet). In float16 they are zero, and that changes nothing.
    """
    largest = float(np.abs(tensor.numpy()).max(initial=0.0))
    return 0 < largest * tensor.size * LARGEST < SMALLEST / 2


def to_half(tensor: ir.TensorProtocol, name: str | None) -> ir.Tensor:
    """A float32 tensor rounded to float16, to nearest, ties to even."""
    return ir.Tensor(tensor.numpy().astype(np.float16), name=name)
