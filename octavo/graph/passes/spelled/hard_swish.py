"""What other tools spell out as Add, Clip, Mul and Div becomes HardSigmoid and HardSwish again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op, number, replace_last, scaled
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import GraphPass

__all__ = ["SWISH", "HardSwishPass", "hard_sigmoid_of"]

# Constants are written with six digits or more.
_CLOSE = 1e-5
# alpha and beta of the HardSigmoid in a HardSwish.
SWISH = (1 / 6, 0.5)
# The opset that brought HardSwish.
_OPSET = 14


def hard_sigmoid_of(node: ir.Node) -> tuple[float, float]:
    """Alpha and beta of a HardSigmoid, or of that within a HardSwish."""
    if node.op_type == "HardSwish":
        return SWISH
    alpha, beta = (node.attributes[name].as_float() if name in node.attributes else None for name in ("alpha", "beta"))
    return 0.2 if alpha is None else alpha, 0.5 if beta is None else beta


@dataclass(frozen=True)
class _Gate:
    """`factor * HardSigmoid(value; alpha, beta)`."""

    value: ir.Value
    alpha: float
    beta: float
    factor: float = 1.0


class HardSwishPass(GraphPass):
    """Rewrite `x * HardSigmoid(x)` as HardSwish, and both where the HardSigmoid is `Clip(x + a, 0, b) / b`.

    MobileNetV3 and PP-LCNet come like that from Paddle and older exporters. ONNX Runtime runs HardSwish within the Conv before it,
    and its four parts one by one; INT8 has a form for it (`octavo.quantization.int8.writing.coded_forms`).

    1. All constants are float32 scalars; a and b are positive, the Clip begins at zero.
    2. The division by b stands behind the Clip or behind the product, and may be a product with 1 / b.
    3. HardSwish has alpha 1/6 and beta 1/2 (to 1e-5); any other product stays a Mul behind a HardSigmoid.
    4. Nothing but what is rewritten reads what lies between; a model below opset 14 is left alone.

    The result keeps the last node's name and that of its output. Exact up to float rounding.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node went."""
        if (model.opset_imports.get("") or 0) < _OPSET:
            return ir.passes.PassResult(model, False)
        # Products first: a division behind one belongs to it.
        found = [_as_swish(model, node) for node in reversed(list(model.graph))]
        found += [_as_gate(model, node) for node in reversed(list(model.graph))]
        return ir.passes.PassResult(model, any(found))


def _as_swish(model: ir.Model, node: ir.Node) -> bool:
    if node.graph is None:
        return False
    found = _product(model, node.outputs[0])
    if found is None or not _fits(found, node) or not np.allclose([found.alpha, found.beta], SWISH, rtol=_CLOSE, atol=0):
        return False
    replace_last(model, node, ir.node("HardSwish", [found.value], name=node.name))
    return True


def _as_gate(model: ir.Model, node: ir.Node) -> bool:
    if node.graph is None or node.op_type == "HardSigmoid":
        return False
    found = _gate(model, node.outputs[0])
    if found is None or not _fits(found, node):
        return False
    replace_last(model, node, ir.node("HardSigmoid", [found.value], {"alpha": found.alpha, "beta": found.beta}, name=node.name))
    return True


def _fits(found: _Gate, node: ir.Node) -> bool:
    """Whether the gate is all that a node puts out, of the same rank: constants may add dimensions."""
    before, after = found.value.shape, node.outputs[0].shape
    ranks = before is not None and after is not None and len(before) == len(after)
    return ranks and bool(np.isclose(found.factor, 1, rtol=_CLOSE, atol=0))


def _product(model: ir.Model, value: ir.Value) -> _Gate | None:
    """A gate times what it reads, and maybe a constant."""
    node = value.producer()
    product = scaled(node)
    if product is not None:
        inner, factor = product
        found = _product(model, inner) if is_private(model, inner) else None
        return None if found is None else replace(found, factor=found.factor * factor)
    if is_op(node, "Mul"):
        for place in (0, 1):
            found = _gate(model, node.inputs[place]) if is_private(model, node.inputs[place]) else None
            if found is not None and found.value is node.inputs[1 - place]:
                return found
    return None


def _gate(model: ir.Model, value: ir.Value) -> _Gate | None:
    node = value.producer()
    if is_op(node, "HardSigmoid"):
        return _Gate(node.inputs[0], *hard_sigmoid_of(node))
    product = scaled(node)
    if product is not None:
        inner, factor = product
        found = _gate(model, inner) if is_private(model, inner) else None
        return None if found is None else replace(found, factor=found.factor * factor)
    if not is_op(node, "Clip") or len(node.inputs) < 3 or not is_private(model, node.inputs[0]):
        return None
    low, high = (number(bound) for bound in node.inputs[1:3])
    sum_ = node.inputs[0].producer()
    if low != 0 or high is None or not 0 < high < np.inf or not is_op(sum_, "Add"):
        return None
    for place in (0, 1):
        shift = number(sum_.inputs[1 - place])
        if shift is not None and 0 < shift < np.inf and number(sum_.inputs[place]) is None:
            return _Gate(sum_.inputs[place], 1 / high, shift / high, high)
    return None
