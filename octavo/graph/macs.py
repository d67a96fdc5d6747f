"""Multiply-accumulates and parameters of a graph's layers, quantized or not.

Counted is what multiplies and sums: convolutions, products of matrices, attention, recurrent layers. Elementwise arithmetic,
normalization, pooling and resizing are left out, as in the figures that papers give ("0.39 G multiply-adds").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from octavo.graph.operators import REARRANGES
from octavo.graph.readable import Shape

__all__ = ["Layer", "layers_of", "macs_in", "macs_of", "parameters", "stored_in"]

_ONNX, _CONTRIB = ("", "ai.onnx"), "com.microsoft"
# Where a layer reads its data and its weights, where that is not input 0 and input 1.
_OPERANDS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "QGemm": (0, 3)}
_CONVS = frozenset({"Conv", "ConvInteger", "DeformConv", "FusedConv", "NhwcFusedConv", "QLinearConv"})
_PRODUCTS = frozenset({"DynamicQuantizeMatMul", "FusedMatMul", "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul"})
_GEMMS = frozenset({"FusedGemm", "Gemm", "QGemm"})
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ATTENTIONS = frozenset({"Attention", "MultiHeadAttention", "QAttention"})
_LAYERS = _CONVS | _PRODUCTS | _GEMMS | _ATTENTIONS | {"ConvTranspose", "Einsum", "GroupQueryAttention", "MatMulNBits", *_GATES}
# What a constant is read through before a layer gets it: restoring codes, types and axes, and copies for layers that share it.
# A Gather or a Slice is none of these: it reads a table, which are parameters where they are read.
_RESTORES = REARRANGES | {"Cast", "DequantizeLinear", "Mul", "Split", "Sub", "Tile"}
# Scales and zero points say what codes mean, and are nobody's parameters: their places.
_MEANINGS = {
    "DequantizeLinear": (1, 2),
    "QuantizeLinear": (1, 2),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QGemm": (1, 2, 4, 5, 7, 8),
    "ConvInteger": (2, 3),
    "MatMulInteger": (2, 3),
    "MatMulIntegerToFloat": (2, 3, 4, 5),
    "DynamicQuantizeMatMul": (2, 3),
    "MatMulNBits": (2, 3),
    "QAttention": (3, 4, 6, 7),
}
_NORMS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "PRelu", "RMSNormalization"}
    | {"SimplifiedLayerNormalization", "SkipLayerNormalization"}
)
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_CODES = frozenset(
    {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT16, ir.DataType.UINT16}
)


@dataclass(frozen=True)
class Layer:
    """A node that multiplies and sums.

    Attributes:
        node: in the graph that was asked.
        macs: for the given shapes; None where they are not known, or it is of a branch or loop that may not run.
        constants: the initializers of its weights and biases, and how many elements of them are parameters.
        weights: the initializer that its weights lie in; None where it multiplies two activations.
    """

    node: ir.Node
    macs: int | None
    constants: Mapping[ir.Value, int]
    weights: ir.Value | None

    @property
    def parameters(self) -> int:
        """Weights and biases, in elements; what several layers share counts for each."""
        return sum(self.constants.values())


def layers_of(model: ir.Model, shapes: Mapping[str, Shape]) -> list[Layer]:
    """The layers in graph order, those of branches and loops behind the node that holds them.

    Args:
        model: as `octavo.graph.readable.readable` gives it.
        shapes: of its tensors.
    """
    main = set(model.graph)
    found = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type not in _LAYERS or node.domain not in (*_ONNX, _CONTRIB):
            continue
        macs = macs_of(node, lambda value: None if value is None else shapes.get(value.name or "")) if node in main else None
        constants = {one: _elements(node, one) for one in map(stored_in, _weights_of(node)) if one is not None}
        place = _OPERANDS.get(node.op_type, (0, 1))[1]
        weights = stored_in(node.inputs[place]) if len(node.inputs) > place else None
        if weights is None and node.op_type == "MatMul":
            weights = stored_in(node.inputs[0])
        found.append(Layer(node, macs, constants, weights))
    return found


def macs_of(node: ir.Node, shape: Callable[[ir.Value | None], Shape | None]) -> int | None:
    """Multiply-accumulates of one layer; None where the sizes that they follow from are not known.

    Args:
        node: with an op type that counts.
        shape: of a tensor, None where it is not known.
    """
    counts = {
        **dict.fromkeys(_CONVS, _conv),
        **dict.fromkeys(_PRODUCTS, _product),
        **dict.fromkeys(_GEMMS, _gemm),
        **dict.fromkeys(_GATES, _recurrent),
        **dict.fromkeys(_ATTENTIONS, _attention),
        "ConvTranspose": _transposed,
        "Einsum": _einsum,
        "MatMulNBits": _few_bits,
    }
    count = counts.get(node.op_type)
    try:
        return None if count is None else int(count(node, shape))
    except (_UnknownError, IndexError, KeyError):
        return None


def macs_in(nodes: Iterable[ir.Node], shape: Callable[[ir.Value], Shape | None]) -> int:
    """Multiply-accumulates of some nodes, as far as the sizes that they follow from are known.

    Args:
        nodes: of any kind.
        shape: of a tensor, None where it is not known.
    """
    return sum(macs_of(node, lambda value: None if value is None else shape(value)) or 0 for node in nodes)


def parameters(model: ir.Model) -> int:
    """What training set: constants of layers, norms and slopes, and vectors that are added or multiplied; in elements.

    Scales and zero points, shapes, lone numbers, and tables (grids, anchors) that only arithmetic reads are none.

    Args:
        model: as `readable` gives it.
    """
    found: dict[int, int] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in _LAYERS:
            for value in filter(None, map(stored_in, _weights_of(node))):
                found[id(value)] = _elements(node, value)
            continue
        takes = node.op_type in _NORMS or node.op_type in _ARITHMETIC or (node.op_type == "Gather" and _is_table(node))
        for value in filter(None, map(stored_in, node.inputs)) if takes and node.op_type not in _RESTORES - _ARITHMETIC else ():
            sizes = list(value.shape or ())
            vector = sum(size != 1 for size in sizes) == 1
            if value.dtype in _FLOATS and (node.op_type not in _ARITHMETIC or (vector and not _restores_weights(node))):
                found.setdefault(id(value), math.prod(sizes))
    return sum(found.values())


def stored_in(value: ir.Value | None) -> ir.Value | None:
    """The initializer that a constant is computed from (its codes, where it is quantized); None for what depends on inputs."""
    if value is None:
        return None
    if value.is_initializer():
        return value
    node = value.producer()
    if node is None or node.op_type not in _RESTORES or node.domain not in (*_ONNX, _CONTRIB):
        return None
    found = [stored_in(one) for one in node.inputs if one is not None]
    if not found or any(one is None for one in found):
        return None
    return max(found, key=lambda one: math.prod(one.shape or ()))


class _UnknownError(Exception):
    """A size that nothing tells."""


def _weights_of(node: ir.Node) -> list[ir.Value | None]:
    """Inputs that may be weights or biases: all but what says what codes mean."""
    meanings = _MEANINGS.get(node.op_type, ())
    return [value for place, value in enumerate(node.inputs) if place not in meanings]


def _elements(node: ir.Node, value: ir.Value) -> int:
    if value.dtype in (ir.DataType.INT64, ir.DataType.BOOL) or value.shape is None:
        return 0
    if node.op_type == "MatMulNBits":
        return node.attributes["K"].as_int() * node.attributes["N"].as_int() if value.dtype in _CODES else 0
    return math.prod(value.shape)


def _restores_weights(node: ir.Node) -> bool:
    """Whether a node restores codes: all that it reads is constant, or taken at run time with the codes of a layer's data."""
    makers = [value.producer() for value in node.inputs if value is not None and stored_in(value) is None]
    return all(maker is not None and maker.op_type == "DynamicQuantizeLinear" for maker in makers)


def _is_table(node: ir.Node) -> bool:
    return node.inputs[0] is not None and node.inputs[0].is_initializer() and len(node.inputs[0].shape or ()) == 2


def _sizes(value: ir.Value | None, shape: Callable[[ir.Value | None], Shape | None]) -> tuple[int, ...]:
    sizes = shape(value)
    if sizes is None and value is not None and value.is_initializer() and value.shape is not None:
        sizes = tuple(value.shape)
    if sizes is None or any(not isinstance(size, int) for size in sizes):
        raise _UnknownError
    return sizes


def _operands(node: ir.Node, shape: Callable) -> tuple[tuple[int, ...], tuple[int, ...]]:
    first, second = _OPERANDS.get(node.op_type, (0, 1))
    return _sizes(node.inputs[first], shape), _sizes(node.inputs[second], shape)


def _int(node: ir.Node, name: str, default: int = 0) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _conv(node: ir.Node, shape: Callable) -> int:
    """Each value written sums over a kernel's channels and places: weights are outputs x (channels / groups) x kernel."""
    place = 1 if node.op_type != "QLinearConv" else 3
    return math.prod(_sizes(node.outputs[0], shape)) * math.prod(_sizes(node.inputs[place], shape)[1:])


def _transposed(node: ir.Node, shape: Callable) -> int:
    """Each value read is spread by a kernel: weights are inputs x (channels / groups) x kernel."""
    data, weights = _operands(node, shape)
    return math.prod(data) * math.prod(weights[1:])


def _product(node: ir.Node, shape: Callable) -> int:
    data, _ = _operands(node, shape)
    inner = data[-2] if _int(node, "transA") and len(data) > 1 else data[-1]
    return math.prod(_sizes(node.outputs[0], shape)) * inner


def _gemm(node: ir.Node, shape: Callable) -> int:
    data, weights = _operands(node, shape)
    return math.prod(data) * (weights[0] if _int(node, "transB") else weights[1])


def _few_bits(node: ir.Node, shape: Callable) -> int:
    return math.prod(_sizes(node.inputs[0], shape)) * _int(node, "N")


def _einsum(node: ir.Node, shape: Callable) -> int:
    """Over all indices at once, and once less than there are operands, as one is not multiplied."""
    terms = node.attributes["equation"].as_string().replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, value in zip(terms, node.inputs, strict=True):
        found = _sizes(value, shape)
        before, dots, behind = term.partition("...")
        middle = len(found) - len(before) - len(behind)
        # Numbered from the last: dimensions behind dots broadcast.
        names = [*before, *(f"...{place}" for place in range(middle, 0, -1) if dots), *behind]
        for name, size in zip(names, found, strict=True):
            sizes[name] = max(sizes.get(name, 1), size)
    return math.prod(sizes.values()) * (len(terms) - 1)


def _attention(node: ir.Node, shape: Callable) -> int:
    """The two products of attention, and the projection before them where the operator holds it (com.microsoft's Attention)."""
    query = _sizes(node.inputs[0], shape)
    if node.op_type != "MultiHeadAttention" and node.domain == _CONTRIB:
        batch, rows, width = query
        hidden = _sizes(node.inputs[1], shape)[1]
        return batch * rows * width * hidden + 2 * batch * rows * rows * (hidden // 3)
    key, value = (_sizes(one, shape) for one in node.inputs[1:3])
    if len(query) == 4:
        batch, heads, rows, width = query
        return batch * heads * rows * key[-2] * (width + value[-1])
    batch, rows, width = query
    columns = (
        value[-1]
        if node.op_type == "MultiHeadAttention"
        else _int(node, "q_num_heads") * (value[-1] // _int(node, "kv_num_heads", 1))
    )
    return batch * rows * key[1] * (width + columns)


def _recurrent(node: ir.Node, shape: Callable) -> int:
    """For each step and direction: gates x hidden x (inputs + hidden)."""
    data, weights, recurrence = (_sizes(value, shape) for value in node.inputs[:3])
    return data[0] * data[1] * (math.prod(weights) + math.prod(recurrence))
