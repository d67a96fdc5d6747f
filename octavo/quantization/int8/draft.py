"""A network on its way to INT8: its units, its statistics, and what a placement with them comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.calibration.choice import overridden
from octavo.calibration.collector import collect
from octavo.calibration.statistics import Statistics
from octavo.graph.passes.fold_batch_norm import FoldBatchNormPass
from octavo.graph.passes.mean_to_pool import MeanToPoolPass
from octavo.params.grammar import Int8
from octavo.quantization.int8.correction import mean_shift
from octavo.quantization.int8.equalization import equalize
from octavo.quantization.int8.placement import place
from octavo.quantization.int8.qparams import QParams
from octavo.quantization.int8.scales import quantized_tensors, scales_of
from octavo.quantization.int8.units import Unit, units_of
from octavo.quantization.int8.weights import Codes, codes_of
from octavo.quantization.int8.writer import write_qdq

__all__ = ["Draft", "Plan", "prepared"]

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """Everything that the file is written from.

    Attributes:
        reasons: each unit, and why it stays float ("" for INT8).
        scales: of each quantized tensor.
        codes: of each weighted INT8 unit, by its node's name.
        corrected: how many biases took a mean shift back.
    """

    reasons: dict[Unit, str]
    scales: dict[str, QParams]
    codes: dict[str, Codes]
    corrected: int

    @property
    def int8(self) -> list[Unit]:
        """The INT8 units, in topological order."""
        return [unit for unit, reason in self.reasons.items() if not reason]


def prepared(model: ir.Model) -> ir.Model:
    """A copy of an FP32 graph, rewritten exactly into what has integer kernels."""
    ready = ir.from_proto(ir.to_proto(model))
    MeanToPoolPass()(ready)
    FoldBatchNormPass()(ready)
    return ready


class Draft:
    """One way to quantize one network.

    Args:
        model: FP32 as `prepared` gives it.
        statistics: of the calibration images.
        recipe: the `int8:` block; its method is one of `octavo.calibration.ranges.METHODS`.
        kept: node name to the pattern of `keep_float` that names it.
        samples: feeds of some calibration images, for tensors that the statistics do not know; may be empty.
        equalized: scale channels first (`equalization`); needs `samples`.
    """

    def __init__(
        self,
        model: ir.Model,
        statistics: Statistics,
        recipe: Int8,
        kept: Mapping[str, str],
        samples: Sequence[Feeds] = (),
        *,
        equalized: bool = False,
    ) -> None:
        self.model = ir.from_proto(ir.to_proto(model)) if equalized else model
        self.recipe, self.kept, self.samples = recipe, dict(kept), list(samples)
        self.units = units_of(self.model)
        self.statistics = statistics
        self.bits = 7 if recipe.target == "cpu-no-vnni" else 8
        changed: list[str] = []
        if equalized:
            changed = equalize(self.model, self.units, set(self._int8({})), statistics)
        self.equalized = len(changed)
        self._scales: dict[str, QParams] = {}
        self._codes: dict[str, Codes] = {}
        self._observe(changed)

    def plan(self, given: Mapping[str, str] | None = None) -> Plan:
        """Scales, codes and corrected biases.

        Args:
            given: nodes given back to float: name to reason.
        """
        reasons = place(self.units, self.kept, given)
        int8 = [unit for unit, reason in reasons.items() if not reason]
        tensors = quantized_tensors(int8)
        scales = scales_of(int8, tensors, self.statistics, self.recipe, {})
        # Elsewhere a tensor may be a head, with a scale for each channel: what was chosen for one scale does not hold there.
        scales |= {name: chosen for name, chosen in self._scales.items() if name in scales and not scales[name].by_channel}
        codes, corrected = {}, 0
        for unit in int8:
            if unit.kind != "linear":
                continue
            chosen = self._codes.get(unit.main.name)
            if chosen is not None:
                codes[unit.main.name] = replace(chosen)
                corrected += self.recipe.correction == "bias" and unit.main.op_type != "MatMul"
                continue
            code = codes_of(unit.main, per_channel=self.recipe.per_channel, bits=self.bits)
            shift = self._shift(unit, code) if self.recipe.correction == "bias" else None
            if shift is not None:
                code.bias = ((0.0 if code.bias is None else code.bias.astype(np.float64)) - shift).astype(np.float32)
                corrected += 1
            codes[unit.main.name] = code
        return Plan(reasons, scales, codes, corrected)

    def with_choices(self, scales: Mapping[str, QParams], codes: Mapping[str, Codes]) -> Draft:
        """The same draft with scales of some tensors and codes of some layers (by its node's name) taken as given."""
        other = copy(self)
        other._scales, other._codes = dict(scales), dict(codes)
        return other

    @property
    def fixed(self) -> set[str]:
        """Tensors whose range the recipe gives."""
        return overridden(self.statistics, self.recipe)

    def written(self, plan: Plan, heads: Sequence[str] | None = None) -> ir.Model:
        """The QDQ graph of a plan; with `heads`, one that puts these tensors out instead of the graph's outputs."""
        outputs = list(self.model.graph.outputs)
        try:
            if heads is not None:
                values = {value.name: value for node in self.model.graph for value in node.outputs}
                self.model.graph.outputs.clear()
                self.model.graph.outputs.extend(values[name] for name in heads)
            return write_qdq(self.model, self.units, set(plan.int8), plan.scales, plan.codes)
        finally:
            self.model.graph.outputs.clear()
            self.model.graph.outputs.extend(outputs)

    def _int8(self, given: Mapping[str, str]) -> list[Unit]:
        return [unit for unit, reason in place(self.units, self.kept, given).items() if not reason]

    def _shift(self, unit: Unit, code: Codes) -> np.ndarray | None:
        tensor = self.statistics.tensors.get(unit.inputs[0].name or "")
        means = tensor.means() if tensor is not None else None
        return None if means is None else mean_shift(unit.main, code.restored, means)

    def _observe(self, changed: list[str]) -> None:
        """Statistics of tensors that exact rewriting made or changed; those of other tensors hold as they are."""
        if not self.samples:
            return
        wanted = quantized_tensors(self._int8({}))
        missing = [value.name for value in wanted if value.name in changed or value.name not in self.statistics.tensors]
        if not missing:
            return
        seen = collect(self.model, lambda: ((f"sample {i}", dict(feeds)) for i, feeds in enumerate(self.samples)), tensors=missing)
        self.statistics = Statistics({**self.statistics.tensors, **seen.tensors})
