"""Which kernel of ONNX Runtime's optimized graph an FP32 node became, or was taken into, told by names.

ONNX Runtime keeps a node's name, or gives what it makes of it a name from which the node can be told: `Conv_3_token_17` for a
QLinearConv made from Conv_3, `y_nchwc` for a Conv in blocked layout that writes y. Ours are `<tensor or node>.<what>`. What has no
node of its own was fused into a neighbour's kernel, or computed while loading; that is looked for, and said where it is not found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from octavo.graph.nodes import ends_ahead
from octavo.graph.operators import JOINS
from octavo.graph.passes.cleaning.computed_once import repeated
from octavo.runtime.kernels import RunNode

__all__ = ["WEIGHTED", "Origins"]

# Layers, and the op types of kernels that they may become.
WEIGHTED = {"Conv": "Conv|Gemm", "ConvTranspose": "Conv|Gemm", "Gemm": "Gemm|MatMul", "MatMul": "MatMul|Gemm"}
_MADE = re.compile(
    r"(_nchwc|_token_\d+|_pre_q|/MatMulAddFusion|/(GemmSum|GemmTranspose|MatMulScale|MatmulTranspose|QuickGelu)Fusion/)$"
)
# What ONNX Runtime calls a Transpose that it has made itself, as exporters and we call one that has no name.
_TURN = "Transpose"
# May stand behind the Conv that reads it (`PoolBehindConvPass`), and writes what that one's BatchNormalization does.
_POOL = "AveragePool"
# ONNX Runtime takes these into the kernel of the node that they read; Max and Min as the Relu or Clip that they are to us.
_FUSES = frozenset(
    {
        *("Add", "BatchNormalization", "Clip", "Div", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul", "Relu"),
        *("Sigmoid", "Sub", "Tanh"),
        # Of Gemm alone.
        *("Elu", "Softplus", "Softsign", "ThresholdedRelu"),
    }
)
# Of which exporters write several where one would do.
_BOUNDS = frozenset({"Clip", "Max", "Min", "Relu"})
# Kernels of which exporters spell out the parts (one of those, where there are several), the parts, and which may be the last.
_LAST = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sub"})
_OF_SEVERAL = (
    (
        frozenset({"BiasGelu", "Gelu", "LayerNormalization", "SkipLayerNormalization"}),
        frozenset({"Add", "Cast", "Div", "Erf", "Mul", "Pow", "ReduceMean", "Sqrt", "Sub", "Tanh"}),
    ),
    # Mish, looked up on codes or by Exp in float.
    (frozenset({"GatherElements", "Mul"}), frozenset({"Mul", "Softplus", "Tanh"})),
    # A PRelu has a Max of codes, and of float values a Relu.
    (frozenset({"LeakyRelu", "Max", "PRelu", "QLinearLeakyRelu", "Relu"}), _LAST | {"Abs", "Clip", "Neg", "Relu"}),
)
# Kernels of integer products that take a bias in as well: they add it in float.
_WITH_BIAS = frozenset({"DynamicQuantizeMatMul", "MatMulIntegerToFloat"})


class Origins:
    """Which nodes of an optimized graph are made from which of FP32's.

    Args:
        model: FP32, each node with a name of its own.
        reasons: those of its nodes' decisions, by name.

    Attributes:
        nodes: FP32's, by name.
    """

    def __init__(self, model: ir.Model, reasons: Mapping[str, str]) -> None:
        self._reasons = reasons
        self.nodes = {node.name or "": node for node in model.graph}
        self._makers = {value.name or "": node for node in model.graph for value in node.outputs}
        # ONNX Runtime computes once what a graph computes twice, and calls it after either.
        self._doubles: dict[str, list[ir.Node]] = {}
        for node, first in repeated(model.graph):
            alike = self._doubles.setdefault(first.name or "", [first])
            alike.append(node)
            self._doubles[node.name or ""] = alike

    def origin(self, node: RunNode) -> ir.Node | None:
        """The FP32 node that a node of the optimized graph was made from."""
        names = _names(node.name)
        # Blocked layout names nodes after the tensor that they write, everything else after the node.
        tables = (self._makers, self.nodes) if node.name.endswith("_nchwc") else (self.nodes, self._makers)
        own = names[-1].split(".")
        # Ours are longer than the name that they begin with.
        names += [".".join(own[:length]) for length in range(len(own) - 1, 0, -1)]
        for name in names:
            for table in tables:
                if name in table and not name == node.op_type == _TURN:
                    return _pool_before(table[name]) if node.op_type == _POOL else table[name]
        # `y.raw`: what writes y before it is rounded.
        written = (name for output in node.outputs for name in (*_names(output), output.removesuffix(".raw")))
        return next((self._makers[name] for name in written if name in self._makers), None)

    def kernel(self, name: str, kernels: dict[str, list[RunNode]]) -> tuple[list[RunNode], str]:
        """(kernels of a node, whose they are where the node has none)."""
        node, own = self.nodes.get(name), kernels.get(name)
        if own:
            # What a product and its bias became is named after the tensor that they make, which is the bias's.
            biased = node is not None and node.op_type == "Add" and all(kernel.op_type in _WITH_BIAS for kernel in own)
            makers = [value.producer() for value in node.inputs if value is not None] if biased else []
            return own, next((maker.name or "" for maker in makers if maker is not None and maker.op_type in WEIGHTED), "")
        if node is None:
            return [], ""
        run = self._that_runs(node, kernels)
        if run is not node:
            return kernels[run.name or ""], run.name or ""
        before = _before(node)
        readers = self._readers(node.outputs[0], kernels) if len(node.outputs) == 1 else []
        # A float SiLU is one kernel with the name of its product.
        hosts = [kernel for reader in readers for kernel in kernels.get(reader.name or "", []) if kernel.op_type == "QuickGelu"]
        if node.op_type == "Sigmoid" and hosts:
            return hosts, readers[0].name or ""
        whole = self._whole(node, kernels)
        if whole is not None:
            return kernels[whole.name or ""], whole.name or ""
        if node.op_type in _FUSES and before is not None and before.op_type in (*WEIGHTED, *_BOUNDS, "Add", "BatchNormalization"):
            return self._behind(before, kernels)
        family, part, value = WEIGHTED.get(node.op_type), "", node.outputs[0]
        while family and (reader := _one_of(readers, kernels)) is not None:
            if reader.op_type in JOINS:
                # What cuts a Concat goes before it, into the layer of each part (`CutBeforeConcatPass`).
                part = rf"\.part{list(reader.inputs).index(value)}(?!\d)"
            own = kernels.get(reader.name or "", [])
            hosts = [kernel for kernel in own if re.search(family, kernel.op_type) and re.search(part, kernel.name)]
            if hosts:
                return hosts, reader.name or ""
            value = reader.outputs[0]
            readers = self._readers(value, kernels)
        return [], ""

    def _that_runs(self, node: ir.Node, kernels: Mapping[str, Sequence[RunNode]]) -> ir.Node:
        """The one of the nodes that do what a node does which has kernels; the node itself where none or it has."""
        alike = [] if kernels.get(node.name or "") else self._doubles.get(node.name or "", [])
        return next((double for double in alike if kernels.get(double.name or "")), node)

    def _readers(self, value: ir.Value, kernels: Mapping[str, Sequence[RunNode]]) -> list[ir.Node]:
        """The nodes that read a value, one of those that do the same."""
        found: dict[str, ir.Node] = {}
        for use in value.uses():
            alike = self._doubles.get(use.node.name or "", [use.node])
            found.setdefault(alike[0].name or "", self._that_runs(use.node, kernels))
        return list(found.values())

    def _whole(self, node: ir.Node, kernels: Mapping[str, list[RunNode]]) -> ir.Node | None:
        """The last of several nodes that one kernel was made of, this one among them: it has the name, and all paths lead there.

        One decision was made for all of them, which tells them from a bias or factor that the layer before has taken in.
        """
        for made, parts in _OF_SEVERAL:
            ends = ends_ahead(node, lambda one, parts=parts: bool(kernels.get(one.name or "")) or one.op_type not in parts)
            end = ends[0] if len(ends) == 1 else node
            own = {kernel.op_type for kernel in kernels.get(end.name or "", ())}
            alike = self._reasons.get(end.name or "") == self._reasons.get(node.name or "")
            if own & made and alike and end.op_type in parts & _LAST:
                return end
        return None

    def _behind(self, node: ir.Node | None, kernels: dict[str, list[RunNode]]) -> tuple[list[RunNode], str]:
        while node is not None:
            if kernels.get(node.name or ""):
                return kernels[node.name or ""], node.name or ""
            node = _before(node) if node.op_type in _FUSES else None
        return [], ""


def _names(name: str) -> list[str]:
    """A name in an optimized graph, and what is left of it when ONNX Runtime's ends are taken off one by one."""
    names = [name]
    while _MADE.search(names[-1]):
        names.append(_MADE.sub("", names[-1]))
    return names


def _pool_before(node: ir.Node) -> ir.Node:
    """The pool whose mean comes to a node by a Conv and what is fused into that one; the node itself where there is none."""
    before: ir.Node | None = node
    while before is not None and before.op_type in _FUSES | {"Conv"}:
        before = _before(before)
    return before if before is not None and before.op_type == _POOL else node


def _before(node: ir.Node) -> ir.Node | None:
    """What makes a node's first input, or the first that is no constant."""
    read = next((value for value in node.inputs if value is not None and ir.convenience.get_const_tensor(value) is None), None)
    return read.producer() if read is not None else None


def _one_of(readers: Sequence[ir.Node], kernels: Mapping[str, Sequence[RunNode]]) -> ir.Node | None:
    """The node that a layer may have become one with: what reads it, or where all that reads it is the parts of one activation that
    an exporter spelled out, the last of these.

    ONNX Runtime puts factors of channels into a Conv across the Transposes of NHWC graphs.
    """
    if len(readers) > 1:
        spelled = set().union(*(parts for _, parts in _OF_SEVERAL))
        ends = [ends_ahead(one, lambda each: bool(kernels.get(each.name or "")) or each.op_type not in spelled) for one in readers]
        readers = list(dict.fromkeys(end for found in ends for end in found))
        if len(readers) > 1 or readers[0].op_type not in _LAST:
            return None
    if not readers:
        return None
    reader = readers[0]
    moved = reader.op_type == _TURN and not kernels.get(reader.name or "")
    return reader if moved or reader.op_type in JOINS or _goes_into_a_layer(reader) else None


def _goes_into_a_layer(node: ir.Node) -> bool:
    """Whether ONNX Runtime may take a node into the layer before it: a PRelu of one slope too, and a custom operator's body."""
    return node.op_type in _FUSES or node.op_type == "PRelu" or node.domain not in ("", "ai.onnx")
