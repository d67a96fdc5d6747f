"""What exporters spell out with Erf or Tanh becomes Gelu again."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.errors import SourceError
from octavo.graph.io import copied
from octavo.graph.passes.arithmetic import is_op, number, replace_last, scaled
from octavo.graph.passes.cleaning.opset_up import OpsetUpPass, ir_version_for
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import GraphPass

__all__ = ["GeluPass", "spells_gelu", "with_gelu"]

# The opset that brought Gelu.
_OPSET = 20
# Constants are written with six digits or more.
_CLOSE = 1e-5
# The weight of x^3 in Tanh's approximation.
_CUBED = 0.044715


class GeluPass(GraphPass):
    """Rewrite `x / 2 * (1 + Erf(x / sqrt(2)))` as Gelu (arXiv 1606.08415), and its approximation as that by Tanh:
    `x / 2 * (1 + Tanh(sqrt(2 / pi) * (x + .044715 * x^3)))`.

    ONNX Runtime makes one kernel of the five nodes where they stand in a float graph. Behind an INT8 layer each of the two that
    read x has a DequantizeLinear of its own there, and they run one by one (docs/int8-forms.md has what that takes). That of Tanh,
    nine nodes, it does not know where x^3 is two products, and integer kernels would round each of them.

    1. In whatever order the products stand, and the constants with them; those are float32 scalars.
    2. Nothing but what is rewritten reads what lies between, and x has the rank of the result.
    3. A model below opset 20 is left alone.

    The result keeps the last node's name and that of its output. Exact up to float rounding.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node went."""
        if (model.opset_imports.get("") or 0) < _OPSET:
            return ir.passes.PassResult(model, False)
        modified = False
        # The outermost product first: those within belong to it.
        for node in reversed(list(model.graph)):
            found = _curved(model, node) if node.graph is not None else None
            if found is not None:
                value, bend = found
                replace_last(
                    model, node, ir.node("Gelu", [value], {"approximate": "tanh"} if bend == "Tanh" else {}, name=node.name)
                )
                modified = True
        return ir.passes.PassResult(model, modified)


def with_gelu(model: ir.Model) -> ir.Model:
    """A copy at an opset that has Gelu, where the graph spells one out; itself where not, or where it cannot be converted.

    Conversion puts functions in the place of operators (`OpsetUpPass`), and bodies of custom operators are functions.
    """
    if model.functions or not spells_gelu(model):
        return model
    raised = copied(model)
    try:
        OpsetUpPass(_OPSET)(raised)
    except SourceError:
        return model
    raised.ir_version = max(raised.ir_version, ir_version_for(raised, _OPSET))
    GeluPass()(raised)
    return raised


def spells_gelu(model: ir.Model) -> bool:
    """Whether `GeluPass` would find one, were the opset high enough."""
    return any(_curved(model, node) is not None for node in model.graph)


def _curved(model: ir.Model, node: ir.Node) -> tuple[ir.Value, str] | None:
    """The x whose Gelu a node puts out, and the operator that it is made of."""
    if not is_op(node, "Mul") and not is_op(node, "Div"):
        return None
    factors, constant = _factors(model, node)
    for place, sum_ in enumerate(factors):
        found = _one_and_bend(model, sum_) if len(factors) == 2 else None
        if found is None:
            continue
        value, size, bend = found
        same = value is factors[1 - place] and value.shape is not None and node.outputs[0].shape is not None
        if same and len(value.shape) == len(node.outputs[0].shape) and np.isclose(constant * size, 0.5, rtol=_CLOSE, atol=0):
            return value, bend
    return None


def _factors(model: ir.Model, node: ir.Node) -> tuple[list[ir.Value], float]:
    """What a tree of products multiplies: values, and all constants as one."""
    product = scaled(node)
    if product is not None:
        inner, constant = product
        found = _inner_factors(model, inner)
        return found[0], found[1] * constant
    if not is_op(node, "Mul"):
        return [node.outputs[0]], 1.0
    parts = [_inner_factors(model, value) for value in node.inputs]
    return [value for values, _ in parts for value in values], math.prod(constant for _, constant in parts)


def _inner_factors(model: ir.Model, value: ir.Value) -> tuple[list[ir.Value], float]:
    maker = value.producer()
    if maker is None or not is_private(model, value) or not (is_op(maker, "Mul") or is_op(maker, "Div")):
        return [value], 1.0
    return _factors(model, maker)


def _one_and_bend(model: ir.Model, value: ir.Value) -> tuple[ir.Value, float, str] | None:
    """(x, c, operator) of `c + c Erf(x / sqrt(2))` or `c + c Tanh(...)`."""
    sum_ = value.producer()
    if not is_op(sum_, "Add") or not is_private(model, value):
        return None
    for place in (0, 1):
        one, bent, size = number(sum_.inputs[1 - place]), sum_.inputs[place], 1.0
        product = scaled(bent.producer())
        if product is not None and is_private(model, bent):
            bent, size = product
        bend = bent.producer()
        if one is None or bend is None or bend.op_type not in _INSIDE or not is_private(model, bent):
            continue
        inner = bend.inputs[0]
        if not is_private(model, inner) or not np.isclose(one, size, rtol=_CLOSE, atol=0):
            return None
        found = _INSIDE[bend.op_type](model, inner)
        return None if found is None else (found, one, bend.op_type)
    return None


def _in_erf(model: ir.Model, value: ir.Value) -> ir.Value | None:  # noqa: ARG001
    product = scaled(value.producer())
    return product[0] if product is not None and np.isclose(product[1], math.sqrt(0.5), rtol=_CLOSE, atol=0) else None


def _in_tanh(model: ir.Model, value: ir.Value) -> ir.Value | None:
    """The x of `sqrt(2 / pi) * (x + .044715 * x^3)`, or of `sqrt(2 / pi) * x * (1 + .044715 * x^2)`."""
    factors, constant = _factors(model, value.producer())
    sum_ = factors[-1].producer() if len(factors) in (1, 2) else None
    if not is_op(sum_, "Add"):
        sum_ = factors[0].producer() if len(factors) == 2 else None
    if not is_op(sum_, "Add") or not is_private(model, sum_.outputs[0]):
        return None
    if not np.isclose(constant, math.sqrt(2 / math.pi), rtol=_CLOSE, atol=0):
        return None
    outside = [factor for factor in factors if factor is not sum_.outputs[0]]
    for place in (0, 1):
        plain, power = sum_.inputs[1 - place], sum_.inputs[place]
        powers, size = _inner_factors(model, power)
        powers = [base for factor in powers for base in _bases(model, factor)]
        if not np.isclose(size, _CUBED, rtol=_CLOSE, atol=0) or len(set(powers)) != 1:
            continue
        (value,) = set(powers)
        if (outside, len(powers), plain) == ([], 3, value) or (outside == [value] and len(powers) == 2 and number(plain) == 1):
            return value
    return None


def _bases(model: ir.Model, value: ir.Value) -> list[ir.Value]:
    """What a power multiplies."""
    maker = value.producer()
    if is_op(maker, "Pow") and is_private(model, value) and number(maker.inputs[1]) in (2, 3):
        return [maker.inputs[0]] * int(number(maker.inputs[1]))
    return [value]


_INSIDE = {"Erf": _in_erf, "Tanh": _in_tanh}
