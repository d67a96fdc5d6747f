"""What was decided for each FP32 node, held against what ONNX Runtime's optimized graph runs.

ONNX Runtime keeps a node's name, or gives what it makes of it a name from which the node can be told: `Conv_3_token_17` for a
QLinearConv made from Conv_3, `y_nchwc` for a Conv in blocked layout that writes y. Ours are `<tensor or node>.<what>`. What has no
node of its own was fused into a neighbour's kernel, or computed while loading; that is looked for, and said where it is not found.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from octavo.graph.nodes import ends_ahead
from octavo.graph.operators import JOINS, MOVES
from octavo.quantization.decisions import Decision, as_records
from octavo.runtime.kernels import KINDS, RunNode

__all__ = ["Executed", "executed"]

_MADE = re.compile(
    r"(_nchwc|_token_\d+|_pre_q|/MatMulAddFusion|/(GemmSum|GemmTranspose|MatMulScale|MatmulTranspose|QuickGelu)Fusion/)$"
)
# What ONNX Runtime calls a Transpose that it has made itself, as exporters and we call one that has no name.
_TURN = "Transpose"
# Nodes that keep others out of integer kernels and stand for none (`int8.writing.kept_float`, `ProtectFloatPass`).
_GUARD = ".guard"
_WEIGHTED = {"Conv": "Conv|Gemm", "ConvTranspose": "Conv|Gemm", "Gemm": "Gemm|MatMul", "MatMul": "MatMul|Gemm"}
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
        frozenset({"Add", "Cast", "Div", "Erf", "Mul", "Pow", "ReduceMean", "Sqrt", "Sub"}),
    ),
    # Mish, looked up on codes or by Exp in float.
    (frozenset({"GatherElements", "Mul"}), frozenset({"Mul", "Softplus", "Tanh"})),
    # A PRelu has a Max of codes, and of float values a Relu.
    (frozenset({"LeakyRelu", "Max", "PRelu", "QLinearLeakyRelu", "Relu"}), _LAST | {"Abs", "Clip", "Neg", "Relu"}),
)
# Kernels of integer products that take a bias in as well: they add it in float.
_WITH_BIAS = frozenset({"DynamicQuantizeMatMul", "MatMulIntegerToFloat"})
# The same values whether they are moved as codes or as floats: moving them before a DequantizeLinear changes nothing.
_ALIKE = MOVES | JOINS | {"MaxPool", "Pad", "Resize", "Upsample", "Where"}
# What brings values to a kernel and away from it; codes become places in a table by a Cast, from which GatherElements takes others.
_AROUND = (_ALIKE | {"Cast"}) - {"GatherElements"}
# Products of codes, whose sums are exact: more so than those of the floats that they stand for.
_OF_CODES = frozenset({"MatMulIntegerToFloat", "QLinearMatMul"})
# Reasons of what a user names: that is to compute in float, whatever integers would lose.
_NAMED = "keep_float: "
# And the same choice: codes have the order of the values that they stand for.
_CHOOSES = frozenset({"ArgMax", "ArgMin", "ReduceMax", "ReduceMin", "TopK"})


@dataclass(frozen=True)
class Executed:
    """Decisions beside what runs.

    Attributes:
        nodes: the decisions as records; `runs` (a kind of `octavo.runtime.kernels.KINDS`) and `kernel` (its op type) where a kernel
            was found, `fused_into` (that kernel's own node) where the node has none of its own.
        counts: nodes of the optimized graph: kind to op type to number.
        layers: layers (Conv, Gemm, MatMul) that were decided to compute in int8.
        integer: how many of them really became integer kernels.
        unexpected: decided int8 and run in float, or the other way round: `node`, `op_type`, `decided`, `runs`, `kernel`.
        unresolved: names of layers of which no kernel was found.
    """

    nodes: list[dict[str, Any]]
    counts: dict[str, dict[str, int]]
    layers: int
    integer: int
    unexpected: list[dict[str, str]]
    unresolved: list[str]

    def record(self) -> dict[str, Any]:
        """For a manifest, all but the nodes."""
        return {
            "kernels": self.counts,
            "int8_layers": self.layers,
            "int8_layers_integer": self.integer,
            "unexpected": self.unexpected,
            "unresolved": self.unresolved,
        }


def executed(model: ir.Model, decisions: Sequence[Decision], run: Iterable[RunNode]) -> Executed:
    """Find each node of the FP32 graph in the optimized graph of its quantized form.

    Args:
        model: FP32, each node with a name of its own.
        decisions: for its nodes, by name; for others they are passed on as they are.
        run: the optimized graph.
    """
    run = list(run)
    places = _Places(model, {decision.node: decision.reason for decision in decisions})
    kernels: dict[str, list[RunNode]] = defaultdict(list)
    counts: Counter[tuple[str, str]] = Counter()
    for node in run:
        guards = node.op_type == "LeakyRelu" and node.name.endswith(_GUARD)
        origin = None if guards else places.origin(node)
        # Transposes that nobody wrote, or that were written around a Conv, lead to channels-last kernels and back.
        leads = node.op_type == "Transpose" and (origin is None or origin.op_type == "Conv")
        kind = "border" if leads else node.kind
        counts[kind, node.op_type] += 1
        if origin is not None and kind != "border":
            kernels[origin.name or ""].append(node)

    found = [_Found(decision, *places.kernel(decision.node, kernels), places.is_alike(decision, kernels)) for decision in decisions]
    layers = [each for each in found if each.decided == "int8" and each.decision.op_type in _WEIGHTED]
    return Executed(
        [record | each.record() for record, each in zip(as_records(decisions), found, strict=True)],
        {
            kind: {op: counts[kind, op] for op in sorted(op for k, op in counts if k == kind)}
            for kind in KINDS
            if _any(counts, kind)
        },
        len(layers),
        sum(each.main is not None and each.main.kind == "int8" for each in layers),
        [each.surprise() for each in found if each.unexpected],
        [each.decision.node for each in found if each.decision.op_type in _WEIGHTED and not each.kernels and places.knows(each)],
    )


def _any(counts: Counter[tuple[str, str]], kind: str) -> bool:
    return any(k == kind for k, _ in counts)


@dataclass(frozen=True)
class _Found:
    """A decision and the kernels that do it: of the node itself, or (`into`) of the neighbour that it was fused into.

    `alike` says that an integer kernel of a node that was decided float rounds nothing more (`_Places.is_alike`).
    """

    decision: Decision
    kernels: list[RunNode]
    into: str = ""
    alike: bool = False

    @property
    def decided(self) -> str:
        return self.decision.arithmetic or self.decision.precision

    @property
    def computing(self) -> list[RunNode]:
        """Those of the kernels that do it. Around these its values may be moved; and what an anchor decoder computes behind a
        layer is written in parts that have the layer's name before theirs (`RowsOfAnchorsPass`).
        """
        family = re.compile(_WEIGHTED.get(self.decision.op_type, ""))
        own = [kernel for kernel in self.kernels if family.search(kernel.op_type)]
        own = own or self.kernels
        return [kernel for kernel in own if kernel.op_type not in _AROUND] or own

    @property
    def main(self) -> RunNode | None:
        return next(iter(self.computing), None)

    @property
    def unexpected(self) -> bool:
        """A fused node's kernel is its neighbour's business, but for layers: their weights decide it."""
        if self.main is None or (self.into and self.decision.op_type not in _WEIGHTED):
            return False
        if self.decided == "int8":
            # A layer that writes float (`heads.pixel_heads`) has its values moved in float.
            looked = self.computing if self.decision.op_type in _WEIGHTED else self.kernels
            return any(kernel.kind in ("float", "fp16") for kernel in looked)
        if self.decided == "float":
            return not self.alike and all(kernel.kind == "int8" for kernel in self.kernels)
        return False

    def record(self) -> dict[str, str]:
        if self.main is None:
            return {}
        return {"runs": self.main.kind, "kernel": self.main.op_type} | ({"fused_into": self.into} if self.into else {})

    def surprise(self) -> dict[str, str]:
        odd = next((kernel for kernel in (*self.computing, *self.kernels) if kernel.kind != self.decided), self.main)
        return {
            "node": self.decision.node,
            "op_type": self.decision.op_type,
            "decided": self.decided,
            "runs": odd.kind,
            "kernel": odd.op_type,
        }


class _Places:
    """Where the nodes of an FP32 graph went; `reasons` are those of their decisions, by name."""

    def __init__(self, model: ir.Model, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons
        self.nodes = {node.name or "": node for node in model.graph}
        self.makers = {value.name or "": node for node in model.graph for value in node.outputs}

    def knows(self, found: _Found) -> bool:
        """Whether the decision's node is in this graph; those of a cut-off part are not."""
        return found.decision.node in self.nodes

    def is_alike(self, decision: Decision, kernels: Mapping[str, Sequence[RunNode]]) -> bool:
        """Whether a node does the same on codes as on what they stand for.

        It moves values or chooses among them, or it reads or makes 8-bit integers in FP32, as a Cast of a uint8 image does; or it
        multiplies two tensors that come as codes, and nobody asked for float.
        """
        node = self.nodes.get(decision.node)
        values = (*node.inputs, *node.outputs) if node is not None else ()
        integers = any(value is not None and value.dtype in (ir.DataType.INT8, ir.DataType.UINT8) for value in values)
        own = {kernel.op_type for kernel in kernels.get(decision.node, ())} - _ALIKE
        constant = any(ir.convenience.get_const_tensor(value) is not None for value in values if value is not None)
        product = decision.op_type == "MatMul" and bool(own) and own <= _OF_CODES and not constant
        return integers or decision.op_type in _ALIKE | _CHOOSES or (product and not decision.reason.startswith(_NAMED))

    def origin(self, node: RunNode) -> ir.Node | None:
        """The FP32 node that a node of the optimized graph was made from."""
        names = _names(node.name)
        # Blocked layout names nodes after the tensor that they write, everything else after the node.
        tables = (self.makers, self.nodes) if node.name.endswith("_nchwc") else (self.nodes, self.makers)
        own = names[-1].split(".")
        # Ours are longer than the name that they begin with.
        names += [".".join(own[:length]) for length in range(len(own) - 1, 0, -1)]
        for name in names:
            for table in tables:
                if name in table and not name == node.op_type == _TURN:
                    return table[name]
        return next((self.makers[name] for output in node.outputs for name in _names(output) if name in self.makers), None)

    def kernel(self, name: str, kernels: dict[str, list[RunNode]]) -> tuple[list[RunNode], str]:
        """(kernels of a node, whose they are where the node has none)."""
        node, own = self.nodes.get(name), kernels.get(name)
        if own:
            # What a product and its bias became is named after the tensor that they make, which is the bias's.
            biased = node is not None and node.op_type == "Add" and all(kernel.op_type in _WITH_BIAS for kernel in own)
            makers = [value.producer() for value in node.inputs if value is not None] if biased else []
            return own, next((maker.name or "" for maker in makers if maker is not None and maker.op_type in _WEIGHTED), "")
        if node is None:
            return [], ""
        before = _before(node)
        readers = [use.node for use in node.outputs[0].uses()] if len(node.outputs) == 1 else []
        # A float SiLU is one kernel with the name of its product.
        hosts = [kernel for reader in readers for kernel in kernels.get(reader.name or "", []) if kernel.op_type == "QuickGelu"]
        if node.op_type == "Sigmoid" and hosts:
            return hosts, readers[0].name or ""
        whole = self._whole(node, kernels)
        if whole is not None:
            return kernels[whole.name or ""], whole.name or ""
        if node.op_type in _FUSES and before is not None and before.op_type in (*_WEIGHTED, *_BOUNDS, "Add", "BatchNormalization"):
            return self._behind(before, kernels)
        family, part, value = _WEIGHTED.get(node.op_type), "", node.outputs[0]
        while family and (reader := _one_of(readers, kernels)) is not None:
            if reader.op_type in JOINS:
                # What cuts a Concat goes before it, into the layer of each part (`CutBeforeConcatPass`).
                part = rf"\.part{list(reader.inputs).index(value)}(?!\d)"
            own = kernels.get(reader.name or "", [])
            hosts = [kernel for kernel in own if re.search(family, kernel.op_type) and re.search(part, kernel.name)]
            if hosts:
                return hosts, reader.name or ""
            value = reader.outputs[0]
            readers = [use.node for use in value.uses()]
        return [], ""

    def _whole(self, node: ir.Node, kernels: Mapping[str, list[RunNode]]) -> ir.Node | None:
        """The last of several nodes that one kernel was made of, this one among them: it has the name, and all paths lead there.

        One decision was made for all of them, which tells them from a bias or factor that the layer before has taken in.
        """
        for made, parts in _OF_SEVERAL:
            ends = ends_ahead(node, lambda one, parts=parts: bool(kernels.get(one.name or "")) or one.op_type not in parts)
            end = ends[0] if len(ends) == 1 else node
            own = {kernel.op_type for kernel in kernels.get(end.name or "", ())}
            alike = self.reasons.get(end.name or "") == self.reasons.get(node.name or "")
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
