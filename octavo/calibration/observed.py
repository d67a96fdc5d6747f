"""Which tensors calibration has to read: those that can get a QuantizeLinear, and none whose range another tensor already tells.

1. Read: a float32 activation that is an input or an output of an operator with an integer form (`INTEGER`).
2. Not read: what does not depend on the values of the graph's inputs (weights, constants, arithmetic on shapes).
3. Folded: a tensor whose only consumer is Relu, or Clip with constant bounds, is quantized with the range behind it (values
   outside would be clipped anyway); it becomes an alias of that output. Graph inputs and outputs are read as they are.
4. Moved: the output of an operator that only lays values out anew (`LAYOUT`) has the histogram of its input and becomes an alias of
   it, unless a Conv, ConvTranspose, Gemm or MatMul reads it: those need the means of *its* channels.

A tensor may be infinite (scores with -inf where attention is masked, RT-DETR's anchors with +inf outside of the image) where no
layer reads or writes it and it is no input or output of the graph: then it stays float. Elsewhere infinity is an error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.errors import CalibrationError
from octavo.graph.operators import REARRANGES, WEIGHTED

__all__ = ["INTEGER", "LAYOUT", "Observed", "may_be_infinite", "observed", "quantizable"]

# The range of what they make is that of what they read.
LAYOUT = REARRANGES | {"Dropout"}
_ARITHMETIC = frozenset({"Add", "BatchNormalization", "InstanceNormalization", "Mul", "Sub", "Sum", "Where"})
_NONLINEAR = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "PRelu", "Relu", "Sigmoid", "Softmax"})
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin"})
_PARTS = frozenset({"ArgMax", "Concat", "Expand", "Gather", "Pad", "Resize", "Slice", "Split", "Tile", "Upsample"})
# Operators that ONNX Runtime has an integer kernel for, or that pass integers on, or that fold into one that has.
INTEGER = WEIGHTED | (LAYOUT - {"Dropout", "Identity"}) | _ARITHMETIC | _NONLINEAR | _POOLS | _PARTS
_FOLDED = frozenset({"Clip", "Relu"})
# Their results tell sizes, not values.
_SIZES = frozenset({"Shape", "Size"})
# Operators with channels on axis 1, and with channels on the last axis; all others keep those of their first input.
_AXIS_1 = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "InstanceNormalization", "PRelu"})
_LAST_AXIS = frozenset({"LayerNormalization", "MatMul"})


@dataclass(frozen=True)
class Observed:
    """What to read of a graph.

    Attributes:
        tensors: names of the tensors to read, graph inputs first, then in topological order.
        aliases: name of a tensor that is not read to the name of the one in `tensors` whose range it has.
        axes: tensors whose channels are on the last axis, though their rank may be above two (-1).
        infinite: names of those in `tensors` that may be infinite.
    """

    tensors: list[str]
    aliases: dict[str, str] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    infinite: frozenset[str] = frozenset()


def quantizable(model: ir.Model) -> list[str]:
    """Names of the tensors that calibration reads, in topological order (`observed` without the aliases)."""
    return observed(model).tensors


def observed(model: ir.Model) -> Observed:
    """Choose the tensors that calibration reads.

    Args:
        model: the FP32 graph, with dtypes inferred; what lies inside subgraphs is left out.

    Raises:
        CalibrationError: no float32 tensor can be quantized.
    """
    values = _data(model)
    outputs = set(model.graph.outputs)
    names = {value: value.name for value in values if value.name and value.dtype == ir.DataType.FLOAT}
    wanted = [value for value in names if _touches_integer(value)]
    links: dict[ir.Value, ir.Value] = {}
    for value in wanted:
        source = _folded(value, outputs) or _moved(value)
        if source is not None and source in names:
            links[value] = source
    roots = {value: _root(value, links) for value in wanted}
    read = set(roots.values())
    tensors = [value for value in names if value in read]
    if not tensors:
        raise CalibrationError("the graph has no float32 tensor to calibrate", "an already quantized model needs no calibration")
    last = _last_axis(tensors, values)
    bound = {roots[value] for value in wanted if not _unbound(value)}
    return Observed(
        [names[value] for value in tensors],
        {names[value]: names[root] for value, root in roots.items() if value is not root},
        {names[value]: -1 for value in last},
        frozenset(names[value] for value in read - bound),
    )


def may_be_infinite(model: ir.Model, names: Collection[str]) -> frozenset[str]:
    """Those of some tensors of a graph that may be infinite."""
    made = [value for node in model.graph for value in node.outputs]
    return frozenset(value.name for value in made if value.name in names and _unbound(value))


def _unbound(value: ir.Value) -> bool:
    """Whether infinity in a tensor is no error: no layer reads or makes it, and the graph neither takes it in nor puts it out."""
    ends = value.producer() is None or value.is_graph_output()
    return not ends and not _is(value.producer(), WEIGHTED) and not any(_is(use.node, WEIGHTED) for use in value.uses())


def _data(model: ir.Model) -> list[ir.Value]:
    """Values that depend on the values of the graph's inputs, in topological order."""
    found = [value for value in model.graph.inputs if not value.is_initializer()]
    known = set(found)
    for node in model.graph:
        # The branches of If and Loop read values of the graph without naming them as inputs.
        has_body = any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values()
        )
        if node.op_type not in _SIZES and (has_body or any(value in known for value in node.inputs)):
            found += node.outputs
            known.update(node.outputs)
    return found


def _is(node: ir.Node | None, ops: frozenset[str]) -> bool:
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in ops


def _touches_integer(value: ir.Value) -> bool:
    return _is(value.producer(), INTEGER) or any(_is(use.node, INTEGER) for use in value.uses())


def _folded(value: ir.Value, outputs: set[ir.Value]) -> ir.Value | None:
    """The output of the one Relu or Clip behind the tensor, or None."""
    uses = value.uses()
    if value.producer() is None or value in outputs or len(uses) != 1:
        return None
    node, index = uses[0]
    if not _is(node, _FOLDED) or index != 0 or node.graph is not value.producer().graph:
        return None
    if any(bound is not None and ir.convenience.get_const_tensor(bound) is None for bound in node.inputs[1:]):
        return None
    return node.outputs[0]


def _moved(value: ir.Value) -> ir.Value | None:
    """The input of the layout operator that makes the tensor, or None."""
    if not _is(value.producer(), LAYOUT) or any(_is(use.node, WEIGHTED) for use in value.uses()):
        return None
    return value.producer().inputs[0]


def _root(value: ir.Value, links: dict[ir.Value, ir.Value]) -> ir.Value:
    while value in links:
        value = links[value]
    return value


def _last_axis(tensors: list[ir.Value], values: list[ir.Value]) -> list[ir.Value]:
    """Tensors whose channels are on the last axis: what MatMul reads or writes, and what follows it element by element."""
    axes: dict[ir.Value, int] = {}
    for value in values:
        node = value.producer()
        if _is(node, _AXIS_1):
            axes[value] = 1
        elif _is(node, _LAST_AXIS):
            axes[value] = -1
        elif node is not None and not _is(node, LAYOUT):
            axes[value] = next((axes[before] for before in node.inputs if before in axes), 1)
        readers = value.uses()
        if any(_is(use.node, _AXIS_1) and use.idx == 0 for use in readers):
            axes[value] = 1
        elif any(_is(use.node, _LAST_AXIS) and use.idx == 0 for use in readers):
            axes[value] = -1
    return [value for value in tensors if axes.get(value) == -1]
