"""The graph as units: the groups of nodes that run as one integer kernel, or that are given back to float together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import TAKES_CUT, cut_behind, mish_of, only_reader, origin, silu_of
from octavo.graph.operators import MOVES, REARRANGES
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.qdq import number_of
from octavo.graph.passes.spelled.hard_swish import hard_sigmoid_of
from octavo.quantization.int8.structure.curves import curve_of

__all__ = [
    "ACTIVATIONS",
    "BOUNDED",
    "CARRIERS",
    "COMBINERS",
    "COMPOSED",
    "CUTS",
    "EXTREMES",
    "ONE_SCALE",
    "Unit",
    "affine_of",
    "constant",
    "decodes_boxes",
    "is_depthwise",
    "is_weighted",
    "units_of",
]

# Values pass through unchanged, so that input and output share one scale. Gather, Tile and Expand are none: they often read the
# floats of a table or a vector, and have no codes to carry on.
CARRIERS = (REARRANGES - {"Identity"}) | {"MaxPool", "Pad", "Resize", "Slice", "Split"}
# Kernels with a scale of their own for each input and the output.
COMBINERS = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"})
# Units whose integer form is made of other kernels.
COMPOSED = frozenset({"Tanh", "affine", "curve", "hard_sigmoid", "hard_swish", "prelu", "silu"})
# What cuts values and follows nothing that takes it in: on codes it is their Max and Min.
CUTS = frozenset({"Clip", "Relu"})
# The larger or smaller of parts of one tensor: codes have the order of what they stand for.
EXTREMES = frozenset({"Max", "Min"})
# Units whose outputs have the scale of their input.
ONE_SCALE = CARRIERS | CUTS | EXTREMES | {"prelu"}
# Units whose inner tensor, or else output, has this range whatever comes. Of Tanh a step is 1/127, as its integer form has it.
BOUNDED = dict.fromkeys(("Sigmoid", "hard_sigmoid", "silu"), (0.0, 1.0)) | {"Tanh": (-1.0, 128 / 127)}
# Units that bend each value by itself.
ACTIVATIONS = COMPOSED | CUTS | {"Gelu", "HardSigmoid", "LeakyRelu", "Sigmoid"}
# Numbers that say where a box lies.
_COORDINATES = 4


@dataclass(frozen=True, eq=False)
class Unit:
    """Nodes that share one precision.

    Attributes:
        name: that of its first node.
        kind: `linear` (Conv, Gemm or MatMul with constant weights), `silu` (Sigmoid and Mul), `prelu` (a constant
            slope a channel, or one in all), `hard_swish`, `hard_sigmoid` (rising, above 0 at 0), `curve` (Mish, ELU and others of
            `structure.curves`), `affine` (one factor above 0 and one shift for all values: Mul and Add, or one of them), or the op
            type of its only node. A Relu, or a Clip with constant bounds, that is its producer's only reader folds into the unit.
        nodes: in topological order.
        inputs: float32 tensors that it reads from outside, each once; constants left out.
        outputs: tensors that it hands on.
        inner: tensors between its nodes that need a scale of their own in int8.
        writes_float: in int8, its kernel puts out float: a Gemm over pixels (`heads.pixel_heads`).
        activation: nodes of the activation that alone reads what it puts out, where these may compute in float on what it then
            writes (`structure.rows`).
    """

    name: str
    kind: str
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    inner: tuple[ir.Value, ...] = ()
    writes_float: bool = False
    activation: tuple[ir.Node, ...] = ()

    @property
    def main(self) -> ir.Node:
        """Its first node: the one with the weights, where there are any."""
        return self.nodes[0]

    @property
    def is_product(self) -> bool:
        """Whether it is a Gemm or MatMul of weights: in int8 its kernels put out float where no codes are read, at no cost.

        A Relu or Clip behind it cuts floats then, where the network ends. Not so before other float nodes: ONNX Runtime runs a
        Gemm or MatMul in float there.
        """
        alone = len(self.nodes) == 1 or self.outputs[0].is_graph_output()
        return self.kind == "linear" and self.main.op_type in ("Gemm", "MatMul") and alone


def units_of(model: ir.Model) -> list[Unit]:
    """Group the nodes of the main graph.

    Args:
        model: FP32; each node has a name of its own.

    Returns:
        The units in topological order; every node is in exactly one.
    """
    taken: set[ir.Node] = set()
    units = []
    for node in model.graph:
        if node in taken:
            continue
        nodes, kind, inner = [node], node.op_type, ()
        if is_weighted(node):
            kind = "linear"
        elif node.op_type == "PRelu" and _one_slope_a_channel(node):
            kind = "prelu"
        elif node.op_type == "HardSwish":
            kind = "hard_swish"
        elif node.op_type == "HardSigmoid" and min(hard_sigmoid_of(node)) > 0:
            kind = "hard_sigmoid"
        elif curve_of(node) is not None:
            nodes, kind = list(mish_of(node) or nodes), "curve"
        steps = _affine(node)
        if steps is not None:
            nodes, kind = list(steps), "affine"
        product = silu_of(node)
        if product is not None:
            nodes, kind, inner = [node, product], "silu", (node.outputs[0],)
        folded = cut_behind(nodes[-1]) if nodes[-1].op_type in TAKES_CUT else None
        if folded is not None:
            nodes.append(folded)
        taken.update(nodes)
        members = set(nodes)
        reads = dict.fromkeys(
            value
            for member in nodes
            for value in member.inputs
            if value is not None and value.producer() not in members and value.dtype == ir.DataType.FLOAT and not constant(value)
        )
        units.append(Unit(node.name or "", kind, tuple(nodes), tuple(reads), tuple(nodes[-1].outputs), inner))
    return units


def affine_of(unit: Unit) -> tuple[float, float]:
    """Factor and shift of an `affine` unit."""
    steps = [node for node in unit.nodes if node.op_type in ("Mul", "Add")]
    numbers = {node.op_type: next(number for value in node.inputs if (number := number_of(value)) is not None) for node in steps}
    return numbers.get("Mul", 1.0), numbers.get("Add", 0.0)


def is_weighted(node: ir.Node) -> bool:
    """Whether a node is a layer: one with an integer kernel that multiplies constant float32 weights.

    Constants that decode boxes (`decodes_boxes`) make no layer: the layers before them are the last ones.
    """
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return False
    weights = node.inputs[1]
    if not constant(weights) or weights.dtype != ir.DataType.FLOAT or constant(node.inputs[0]):
        return False
    if len(node.inputs) > 2 and node.inputs[2] is not None and not constant(node.inputs[2]):
        return False
    if decodes_boxes(node):
        return False
    if node.op_type == "Gemm":
        if len(node.inputs) > 2 and node.inputs[2] is not None and any(size != 1 for size in list(node.inputs[2].shape or ())[:-1]):
            return False  # a bias for each row is no bias of a kernel
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        return not settings.get("transA", 0) and settings.get("alpha", 1.0) == 1.0 and settings.get("beta", 1.0) == 1.0
    return node.op_type == "Conv" or (weights.shape is not None and len(weights.shape) == 2)


def decodes_boxes(node: ir.Node) -> bool:
    """Whether a Conv, Gemm or MatMul with constant weights is part of the decoding of boxes.

    - The mean of a distribution: it makes one number of what a Softmax gives (Distribution Focal Loss, arXiv 2006.04388; YOLOv8 to
      YOLO12, PP-YOLOE, PicoDet, D-FINE). Its input rounded to 1/255 moves an edge by a pixel.
    - A product of rows of at most four coordinates with at most four columns, of whatever rank and as whichever operator: centres
      and sizes to corners. As the last layer it would be all that the network is judged by, and the grid's offsets would count as
      signal.
    """
    return _is_mean_of_distribution(node) or _turns_coordinates(node)


def _is_mean_of_distribution(node: ir.Node) -> bool:
    sizes = list(node.inputs[1].shape or ())
    transposed = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int()
    if not sizes or sizes[0 if node.op_type == "Conv" or transposed else -1] != 1:
        return False
    source = origin(node.inputs[0], MOVES)
    return source is not None and is_op(source.producer(), "Softmax")


def _turns_coordinates(node: ir.Node) -> bool:
    rows, weights = node.inputs[0].shape, node.inputs[1].shape
    if rows is None or weights is None or not all(isinstance(size, int) for size in weights):
        return False
    if node.op_type == "Conv":
        # Along rows, which lie behind their coordinates.
        return len(rows) == 3 and list(weights) == [_COORDINATES, _COORDINATES, 1]
    if node.op_type == "MatMul" and len(rows) == 3:
        return len(weights) == 2 and all(size <= _COORDINATES for size in weights)
    # A single row is a vector, and a layer.
    return (len(rows) > 2 or rows[0] != 1) and list(weights) == [_COORDINATES, _COORDINATES]


def constant(value: ir.Value | None) -> bool:
    """Whether a value is known before the graph runs."""
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def is_depthwise(node: ir.Node) -> bool:
    """Whether a node is a Conv each of whose output channels reads one input channel."""
    groups = node.attributes["group"].as_int() if node.op_type == "Conv" and "group" in node.attributes else 1
    return groups > 1 and node.inputs[1] is not None and node.inputs[1].shape is not None and node.inputs[1].shape[1] == 1


def readers(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that read a value."""
    return (use.node for use in value.uses())


def _one_slope_a_channel(node: ir.Node) -> bool:
    """Whether PRelu's slopes are constant and differ between channels only; they broadcast from the last axis backwards."""
    value, slopes = node.inputs[0], node.inputs[1]
    if not constant(slopes) or value.shape is None or slopes.shape is None:
        return False
    sizes = list(slopes.shape)
    channel = len(sizes) - len(value.shape) + 1
    return all(size == 1 or place == channel for place, size in enumerate(sizes))


def _affine(node: ir.Node) -> tuple[ir.Node, ...] | None:
    """A Mul or Add of an activation and a number, and the Add of another that is all that reads the Mul."""
    number = _number_of(node)
    if number is None or not np.isfinite(number) or (node.op_type == "Mul" and number <= 0):
        return None
    behind = only_reader(node.outputs[0]) if node.op_type == "Mul" else None
    if behind is not None and behind.op_type == "Add" and behind.graph is node.graph:
        shift = _number_of(behind)
        if shift is not None and np.isfinite(shift):
            return node, behind
    return (node,)


def _number_of(node: ir.Node) -> float | None:
    """The constant of a Mul or Add with a float32 activation, where it is one number for all values."""
    if node.op_type not in ("Add", "Mul") or node.domain not in ("", "ai.onnx"):
        return None
    for place in (0, 1):
        value, number = node.inputs[place], number_of(node.inputs[1 - place])
        if number is not None and not constant(value):
            same = value.shape is not None and node.outputs[0].shape is not None and len(value.shape) == len(node.outputs[0].shape)
            return number if same and value.dtype == ir.DataType.FLOAT else None
    return None
