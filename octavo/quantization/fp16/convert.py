"""FP32 graph to FP16 graph by the schema of each node; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.quantization.decisions import Decision
from octavo.quantization.fp16.fusions import ScaleOfQueriesPass, SquareOfNormPass, TurnedBatchPass
from octavo.quantization.fp16.plan import Faults, decide, make_plan
from octavo.quantization.fp16.prepare import prepare
from octavo.quantization.fp16.rewrite import rewrite

__all__ = ["Fp16Result", "convert"]


@dataclass(frozen=True)
class Fp16Result:
    """A converted graph and how it came about.

    Attributes:
        model: the FP16 graph.
        decisions: one for each node of the FP32 graph but Constants.
        sqnr_db: float output (before an output of integers, the nearest float tensor) to its SQNR against FP32 on the samples,
            every float16 tensor rounded as a GPU rounds it; empty where nothing was run (`convert`).
        warnings: what a user should see: outputs that are further from FP32 than may be.
    """

    model: ir.Model
    decisions: list[Decision]
    sqnr_db: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def convert(
    model: ir.Model, *, keep_io: bool = True, keep_float: Mapping[str, str] | None = None, faults: Faults | None = None
) -> Fp16Result:
    """Convert a graph.

    Weights are rounded to nearest even. A node whose constants float16 cannot hold stays float32, as do ops without float16 in
    their schema, custom ops, calls of model-local functions and control flow with all that is inside it.

    Args:
        model: FP32; it is not changed.
        keep_io: graph inputs and outputs stay float32, each with one Cast; else they become float16. Names stay in both cases.
        keep_float: node name to the reason why it stays float32.
        faults: of the model's constants, as far as is known; see `make_plan`.

    Raises:
        QuantizationError: the model is already quantized, a weight is NaN or infinite, or `keep_float` names a node that is not
            there.
    """
    kept = dict(keep_float or {})
    copy = prepare(model)
    missing = sorted(kept.keys() - {node.name for node in copy.graph})
    if missing:
        raise QuantizationError(
            f"the graph has no node {missing[0]!r} to keep in float32", "check `fp16.keep_float` in params.yaml"
        )
    plan = make_plan(copy, kept, keep_io=keep_io, faults=faults)
    rewrite(copy, plan, keep_io=keep_io)
    decisions = [decide(node, planned) for node, planned in plan.items() if node.op_type != "Constant"]
    for each in (ScaleOfQueriesPass(), TurnedBatchPass(), SquareOfNormPass()):
        each(copy)
    return Fp16Result(copy, decisions)
