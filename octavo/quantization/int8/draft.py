"""A network on its way to INT8: its units, its statistics, and what a placement with them comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from octavo.calibration.choice import named_tensors, overridden
from octavo.calibration.collector import collect
from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.io import copied
from octavo.graph.names import added_apart
from octavo.params.grammar import Int8
from octavo.quantization.int8.numbers.equalization import equalize
from octavo.quantization.int8.numbers.layer_codes import LayerCodes
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.scales import ranges_of, scales_of
from octavo.quantization.int8.numbers.shifts import Attended, Known, before_heads, rounding_shifts
from octavo.quantization.int8.numbers.stored import store_weights
from octavo.quantization.int8.numbers.sums16 import peaks_of_layers
from octavo.quantization.int8.numbers.weights import Codes
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.structure.emptiness import crashing_when_empty, without_range
from octavo.quantization.int8.structure.heads import map_heads, pixel_heads
from octavo.quantization.int8.structure.rows import activated
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import Unit, units_of
from octavo.quantization.int8.writing.layouts import LAYOUTS
from octavo.runtime.shapes import images_within
from octavo.runtime.tensors import drop_unneeded, return_unheld

__all__ = ["SHIFTED", "Draft"]

# Bytes of tensors on which the shifts of rounded activations are measured, and images at most. Where images are large four say as
# much as eight (YOLOv5n, CGNet; NanoDet-m, a fifth of their size, loses .4 dB with four).
_SHIFTS, SHIFTED = 1.4e9, 8
# Methods that cut no high values off. With others the mean shift is that of a few cut values, and taking it back from all of them
# costs .4 dB (EfficientNet-Lite0 and MobileNetV2 with percentile).
_UNCUT = frozenset({"minmax", "peaks"})

Feeds = Mapping[str, np.ndarray]


class Draft:
    """One way to quantize one network.

    Args:
        model: FP32 as `prepared` gives it.
        statistics: of the calibration images.
        recipe: the `int8:` block; its method is one of `octavo.calibration.ranges.METHODS`. With `bits16` the model's opset is 21.
        kept: node name to the pattern of `keep_float` that names it.
        samples: feeds of some calibration images, for tensors that the statistics do not know; may be empty.
        exponents: how far channels are equalized first, by stream (`equalization`); needs `samples`.
        by_channel: what only depthwise Convs read has a scale for each channel, where the target can.
        attended: of heads how much each place counts on each sample (`Judge.attended`).
        picture: the network answers with a picture, which 8 bits hold: its last Convs may be INT8.

    Attributes:
        attended: of what heads read how much each place counts on each sample.
        growth: of each channel, float32, of the tensors that equalizing changed, by name.

    Raises:
        CalibrationError: `bits16` names no calibrated tensor.
        QuantizationError: `bits16` names tensors of which none is quantized.
    """

    def __init__(
        self,
        model: ir.Model,
        statistics: Statistics,
        recipe: Int8,
        kept: Mapping[str, str],
        samples: Sequence[Feeds] = (),
        *,
        exponents: Mapping[str, float] | None = None,
        by_channel: bool = False,
        attended: Attended | None = None,
        picture: bool = False,
    ) -> None:
        self.model = model
        if exponents:
            self.model = copied(model)
        self.recipe, self.kept, self.samples = recipe, dict(kept), list(samples)
        self.by_channel, self.picture = by_channel, picture
        self.target = target_of(recipe.target)
        self.layout = LAYOUTS[self.target.layout]
        self.units = self._units()
        self._attended = attended or {}
        self.attended = before_heads(self.units, self._attended)
        self.statistics = statistics
        wide = named_tensors(statistics, recipe.bits16, "int8.bits16")
        self.unsafe = crashing_when_empty(self.units) | without_range(self.units, statistics)
        self.wide = self._sixteen(wide)
        self.growth = equalize(self.model, self.units, statistics, exponents) if exponents else {}
        self._scales: dict[str, QParams] = {}
        self._codes: dict[str, Codes] = {}
        self._observe(self.growth)
        self.unsafe |= without_range(self.units, self.statistics)
        # A tensor's own range is the same in every placement.
        self._ranges: dict[str, tuple[float, float]] = {}
        # So is what its rounding shifts, where the same tensors are rounded around it.
        self._shifts: Known = {}

    def plan(self, given: Mapping[str, str] | None = None, stored: Set[str] = frozenset()) -> Plan:
        """Scales, codes and corrected biases.

        Args:
            given: nodes given back to float: name to reason.
            stored: nodes whose weights are int8 in the file though they compute in float, where they do.
        """
        reasons = self.placed(given)
        int8 = [unit for unit, reason in reasons.items() if not reason]
        tensors = self.quantized(int8)
        new = [value for value in tensors if value.name not in self._ranges]
        self._ranges |= ranges_of(new, self.statistics, self.recipe)
        scales = scales_of(int8, tensors, self.statistics, self.recipe, self.wide, known=self._ranges, by_channel=self.by_channel)
        # Elsewhere a tensor may be a head, with a scale for each channel: what was chosen for one scale does not hold there.
        scales |= {name: chosen for name, chosen in self._scales.items() if name in scales and not scales[name].by_channel}
        shifts = {}
        if self.recipe.correction == "bias" and not self.cuts_peaks:
            samples = self.samples[: images_within(self.model, SHIFTED, _SHIFTS)]
            shifts = rounding_shifts(self.model, self.units, scales, samples, known=self._shifts, attended=self.attended)
        layers = LayerCodes(self.recipe, self.statistics, self._codes, self.peaks(int8, scales))
        codes, taken, corrected = {}, {}, 0
        for unit in int8:
            if unit.kind == "linear":
                name = unit.main.name
                codes[name], rounding, is_corrected = layers.of(unit, shifts.get(unit.inputs[0].name or ""))
                corrected += is_corrected
                if rounding is not None:
                    taken[name] = rounding
        in_file = {unit.main.name: layers.stored(unit) for unit, reason in reasons.items() if reason and unit.main.name in stored}
        return Plan(reasons, scales, codes, corrected, taken, in_file)

    def with_choices(self, scales: Mapping[str, QParams], codes: Mapping[str, Codes]) -> Draft:
        """The same draft with scales of some tensors and codes of some layers (by its node's name) taken as given."""
        other = copy(self)
        other._scales, other._codes = dict(scales), dict(codes)
        return other

    def cut_by(self, recipe: Int8) -> Draft:
        """The same draft with ranges cut as another recipe says and none of them taken as given; what is given of layers stays."""
        other = copy(self)
        other.recipe = recipe
        other._scales, other._ranges = {}, {}
        return other

    def cut_as(self, draft: Draft) -> Draft:
        """The same draft with ranges cut as another one has them, of a tensor or of each channel."""
        other = self.cut_by(draft.recipe)
        other.by_channel = draft.by_channel
        return other

    def rescaled(self, scales: Mapping[str, QParams]) -> Draft:
        """The same draft with scales of some more tensors taken as given."""
        return self.with_choices({**self._scales, **scales}, self._codes)

    def scales_by(self, recipe: Int8, plan: Plan) -> dict[str, QParams]:
        """The scales of a plan's tensors, each by itself, where ranges are cut as another recipe says and none is given."""
        tensors = self.quantized(plan.int8)
        ranges = ranges_of(tensors, self.statistics, recipe)
        return scales_of(plan.int8, tensors, self.statistics, recipe, self.wide, known=ranges, by_channel=self.by_channel)

    def equalized_by(self, exponents: Mapping[str, float], most: int | None = None) -> Draft:
        """The same draft with channels equalized, and nothing taken as given; it looks at `most` samples where not at all."""
        samples = self.samples[:most]
        given = {"exponents": exponents, "by_channel": self.by_channel, "attended": self._attended, "picture": self.picture}
        return Draft(self.model, self.statistics, self.recipe, self.kept, samples, **given)

    def peaks(self, int8: Iterable[Unit], scales: Mapping[str, QParams]) -> dict[str, np.ndarray]:
        """Of layers whose products the target's kernels saturate, the largest code of each input channel, by node."""
        return peaks_of_layers(int8, scales, self.statistics) if self.target.saturates else {}

    def require_ranges(self) -> None:
        """Refuse an override that would do nothing.

        Raises:
            CalibrationError: `int8.ranges` names no calibrated tensor.
            QuantizationError: it names tensors of which none is quantized.
        """
        self._meant("int8.ranges", self.recipe.ranges, overridden(self.statistics, self.recipe))

    @property
    def fixed(self) -> set[str]:
        """Tensors whose range the recipe gives, or the table that they come out of: Tanh with another step is float."""
        tables = {unit.outputs[0].name or "" for unit in self.units if unit.kind == "Tanh"}
        return tables | set(overridden(self.statistics, self.recipe))

    @property
    def cuts_peaks(self) -> bool:
        """Whether ranges may leave the largest values out."""
        return self.recipe.method not in _UNCUT

    def written(self, plan: Plan, heads: Sequence[str] | None = None) -> ir.Model:
        """The QDQ graph of a plan; with `heads`, one that puts these tensors out instead of the graph's outputs."""
        # What was written before is a graph that mostly nobody holds any more.
        return_unheld(self.model)
        outputs = list(self.model.graph.outputs)
        try:
            if heads is not None:
                values = {value.name: value for node in self.model.graph for value in node.outputs}
                self.model.graph.outputs.clear()
                self.model.graph.outputs.extend(values[name] for name in heads)
            result = self.layout.write(self.model, self.units, set(plan.int8), plan.scales, plan.codes, kept=self.kept)
            with added_apart(result):
                store_weights(result, plan.stored)
            if heads is not None:
                drop_unneeded(result.graph)
            return result
        finally:
            self.model.graph.outputs.clear()
            self.model.graph.outputs.extend(outputs)

    def placed(self, given: Mapping[str, str] | None = None) -> dict[Unit, str]:
        """Each unit, and why it stays float; arguments as in `plan`."""
        stay = self.recipe.float_heads and self.target.layout == "kernels" and not self.picture
        heads = map_heads(self.units) if stay else {}
        return self.layout.place(self.units, self.kept, heads | self.unsafe | dict(given or {}), self.target)

    def quantized(self, int8: Iterable[Unit]) -> list[ir.Value]:
        """The tensors that are quantized when these units are INT8."""
        return self.layout.tensors(int8, self.target)

    def _units(self) -> list[Unit]:
        units = units_of(self.model)
        # Around kernels a layer's output is rounded, but for these; laid before inputs, heads write float by themselves.
        over_pixels = self.recipe.float_heads and self.target.layout == "kernels"
        heads = pixel_heads(units) if over_pixels else set()
        units = [replace(unit, writes_float=True) if unit in heads else unit for unit in units]
        return activated(units) if self.target.layout == "kernels" else units

    def _int8(self, given: Mapping[str, str]) -> list[Unit]:
        return [unit for unit, reason in self.placed(given).items() if not reason]

    def _sixteen(self, wide: Mapping[str, str]) -> dict[str, int]:
        quantized = self._meant("int8.bits16", self.recipe.bits16, wide)
        return {name: 16 for name in wide if name in quantized}

    def _meant(self, setting: str, patterns: Iterable[str], named: Mapping[str, str]) -> set[str]:
        """Names of the tensors that are quantized where everything is INT8; each pattern has to mean one of them.

        Args:
            setting: where the patterns stand in params.yaml.
            patterns: tensor names or shell patterns.
            named: tensor name to the pattern that means it.
        """
        quantized = {value.name for value in self.quantized(self._int8({}))} if named else set()
        for pattern in patterns:
            if not any(meant == pattern and name in quantized for name, meant in named.items()):
                raise QuantizationError(
                    f"`{setting}` names {pattern!r}, and no tensor of this name or pattern is quantized",
                    "take it out: these tensors are float already (the manifest says why), part of another layer, or named by an "
                    "earlier pattern",
                )
        return quantized

    def _observe(self, changed: Mapping[str, np.ndarray]) -> None:
        """Statistics of tensors that exact rewriting made or changed; those of other tensors hold as they are."""
        if not self.samples:
            return
        wanted = self.quantized(self._int8({}))
        missing = [value.name for value in wanted if value.name in changed or value.name not in self.statistics.tensors]
        if not missing:
            return
        seen = collect(
            self.model, lambda: ((f"sample {place}", dict(feeds)) for place, feeds in enumerate(self.samples)), tensors=missing
        )
        for name, growth in changed.items():
            if name in seen.tensors and name in self.statistics.tensors:
                # These are of some images, and the extremes of all are known.
                seen.tensors[name] = seen.tensors[name].reaching(self.statistics.tensors[name], growth)
        before = self.statistics
        self.statistics = Statistics({**before.tensors, **seen.tensors}, before.origin, before.aliases)
