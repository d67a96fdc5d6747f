"""What was decided for each FP32 node, held against what ONNX Runtime's optimized graph runs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from octavo.graph.operators import JOINS, MOVES
from octavo.quantization.decisions import Decision, as_records
from octavo.quantization.origins import WEIGHTED, Origins
from octavo.runtime.kernels import KINDS, RunNode

__all__ = ["Executed", "executed"]

# Nodes that keep others out of integer kernels and stand for none (`int8.writing.kept_float`, `ProtectFloatPass`).
_GUARD = ".guard"
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
    origins = Origins(model, {decision.node: decision.reason for decision in decisions})
    kernels: dict[str, list[RunNode]] = defaultdict(list)
    counts: Counter[tuple[str, str]] = Counter()
    for node in run:
        guards = node.op_type == "LeakyRelu" and node.name.endswith(_GUARD)
        origin = None if guards else origins.origin(node)
        # Transposes that nobody wrote, or that were written around a Conv, lead to channels-last kernels and back.
        leads = node.op_type == "Transpose" and (origin is None or origin.op_type == "Conv")
        kind = "border" if leads else node.kind
        counts[kind, node.op_type] += 1
        if origin is not None and kind != "border":
            kernels[origin.name or ""].append(node)

    found = [
        _Found(decision, *origins.kernel(decision.node, kernels), _is_alike(decision, origins.nodes.get(decision.node), kernels))
        for decision in decisions
    ]
    layers = [each for each in found if each.decided == "int8" and each.decision.op_type in WEIGHTED]
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
        [
            each.decision.node
            for each in found
            if each.decision.op_type in WEIGHTED and not each.kernels and each.decision.node in origins.nodes
        ],
    )


def _any(counts: Counter[tuple[str, str]], kind: str) -> bool:
    return any(k == kind for k, _ in counts)


@dataclass(frozen=True)
class _Found:
    """A decision and the kernels that do it: of the node itself, or (`into`) of the neighbour that it was fused into.

    `alike` says that an integer kernel of a node that was decided float rounds nothing more (`_is_alike`).
    """

    decision: Decision
    kernels: list[RunNode]
    into: str = ""
    alike: bool = False

    @property
    def decided(self) -> str:
        return self.decision.arithmetic or self.decision.precision

    @property
    def is_layer(self) -> bool:
        """Whether the node is a layer, or a BatchNormalization that became one of integers, as no layer takes it in."""
        became = any(kernel.kind == "int8" and re.search(WEIGHTED["Conv"], kernel.op_type) for kernel in self.kernels)
        norm = self.decision.op_type == "BatchNormalization" and not self.into
        return self.decision.op_type in WEIGHTED or (norm and became)

    @property
    def computing(self) -> list[RunNode]:
        """Those of the kernels that do it. Around these its values may be moved; and what an anchor decoder computes behind a
        layer is written in parts that have the layer's name before theirs (`RowsOfAnchorsPass`).
        """
        family = re.compile(WEIGHTED.get(self.decision.op_type, WEIGHTED["Conv"] if self.is_layer else ""))
        own = [kernel for kernel in self.kernels if family.search(kernel.op_type)]
        own = own or self.kernels
        return [kernel for kernel in own if kernel.op_type not in _AROUND] or own

    @property
    def main(self) -> RunNode | None:
        return next(iter(self.computing), None)

    @property
    def unexpected(self) -> bool:
        """A fused node's kernel is its neighbour's business, but for layers: their weights decide it."""
        if self.main is None or (self.into and self.decision.op_type not in WEIGHTED):
            return False
        if self.decided == "int8":
            # A layer that writes float (`heads.pixel_heads`) has its values moved in float.
            looked = self.computing if self.is_layer else self.kernels
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


def _is_alike(decision: Decision, node: ir.Node | None, kernels: Mapping[str, Sequence[RunNode]]) -> bool:
    """Whether a node does the same on codes as on what they stand for.

    It moves values or chooses among them, or it reads or makes 8-bit integers in FP32, as a Cast of a uint8 image does; or it
    multiplies two tensors that come as codes, and nobody asked for float.
    """
    values = (*node.inputs, *node.outputs) if node is not None else ()
    integers = any(value is not None and value.dtype in (ir.DataType.INT8, ir.DataType.UINT8) for value in values)
    own = {kernel.op_type for kernel in kernels.get(decision.node, ())} - _ALIKE
    constant = any(ir.convenience.get_const_tensor(value) is not None for value in values if value is not None)
    product = decision.op_type == "MatMul" and bool(own) and own <= _OF_CODES and not constant
    return integers or decision.op_type in _ALIKE | _CHOOSES or (product and not decision.reason.startswith(_NAMED))
