"""The placement that is cheapest for the noise it makes: a minimum cut.

Every unit is float or INT8. What a placement costs is a sum of terms of one unit (its time in either form, the noise of its
rounded weights) and of one tensor: a border where its maker is float and a reader INT8 (Q), or the other way round (DQ), and
the noise of rounding it where anybody around it is INT8 (of what a layer puts out for an activation on its rows, and of what a
product of matrices puts out, where a reader is). All of them are submodular, so that the cheapest of the 2^n placements is a
minimum cut of a graph with a node for each unit and each tensor (Kolmogorov and Zabih, "What Energy Functions Can Be Minimized via
Graph Cuts?", 2004); no order of greedy moves has to be found. Noise of single roundings adds up at the heads: they are small and
nearly independent.

Time plus `weight` times noise, for growing weights, gives placements worth having. No weight gives those above the line between two
others, and these may lie far apart. Where single roundings are held to make somewhat more or less noise than they do, other
placements are the cheapest, and many of them are fair ones by the true noise, too. Of all that are found those are kept for which
none is both faster and closer to FP32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.pricing.cut import SINK, SOURCE, Cut
from octavo.quantization.int8.pricing.price import Prices, reads
from octavo.quantization.int8.structure.rows import row_activations
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.noise import sqnr_db

__all__ = ["Noise", "Trade"]

# Placements looked for at most, with noise as it is and each time it is taken for something else.
_MOST = 40
# How often noise is taken for more or less than it is, and by how much: the standard deviation of its logarithm. Near 22 dB
# neighbours then lie at most .6 dB apart where noise as it is, and to the power .75, left 3.2 (YOLOv5n); the first placement
# predicted good enough is priced 2 % lower there, 4 % on MobileFaceNet, 1 % on CGNet, the same on NanoDet-m.
_TIMES, _SPREAD = 5, 0.6


@dataclass(frozen=True)
class Noise:
    """Noise-to-signal ratio at the heads, of one rounding alone.

    Attributes:
        tensors: of each tensor that can be quantized, by name.
        weights: of each weighted unit's weights, by its name.
        copies: tensors that their INT8 maker only copies codes into: rounding them costs where that maker is float.
        reads: by tensor and unit, of tensors that only layers read, and several of them: what of the tensor's noise each of them
            passes on. A layer in float behind a float maker passes none.
    """

    tensors: Mapping[str, float]
    weights: Mapping[str, float]
    copies: frozenset[str] = frozenset()
    reads: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def rows(self, units: Iterable[Unit]) -> list[dict[str, object]]:
        """A record for each rounding, in the order of the units.

        Returns:
            Dictionaries of `index`, `layer` (the unit's name), `rounds` ("weights", or the tensor's name) and `sqnr_db`.
        """
        found: list[tuple[str, str, float]] = []
        seen: set[str] = set()
        for unit in units:
            for value in (*unit.inputs, *unit.inner, *unit.outputs):
                if value.name == unit.outputs[0].name and unit.name in self.weights:
                    found.append((unit.name, "weights", self.weights[unit.name]))
                if value.name in self.tensors and value.name not in seen and value.name not in self.copies:
                    maker = value.producer()
                    found.append((unit.name if maker is not None else value.name, value.name, self.tensors[value.name]))
                seen.add(value.name)
        return [
            {"index": index, "layer": layer, "rounds": rounds, "sqnr_db": round(sqnr_db(1.0, noise), 2)}
            for index, (layer, rounds, noise) in enumerate(found)
        ]


class Trade:
    """Time against noise.

    Args:
        reasons: every unit of the graph, in topological order, and why it must stay float ("" where it need not).
        prices: of these units.
        noise: of single roundings; what is missing makes none.
        chained: units without weights are INT8 only behind INT8 units (but for those that join what must be float), and what
            INT8 units put out is rounded whoever reads it, as around ONNX Runtime's kernels; else a tensor is rounded where an INT8
            unit reads it.
    """

    def __init__(self, reasons: Mapping[Unit, str], prices: Prices, noise: Noise | None = None, *, chained: bool = True) -> None:
        self.reasons, self.prices, self.chained = dict(reasons), prices, chained
        self.noise = noise or Noise({}, {})
        self.makers = {value: unit for unit in reasons for value in unit.outputs}
        # What a layer puts out is not rounded where only a float activation reads it, on its rows, nor what a product does where no
        # reader is INT8.
        self.on_rows = row_activations(reasons) if chained else {}
        self.bare = {value for unit in self.on_rows for value in unit.inputs}
        self.bare |= {value for unit in reasons if unit.is_product for value in unit.outputs}
        self._told: dict[ir.Value, list[tuple[float, list[Unit]]]] = {}
        self.readers: dict[ir.Value, list[Unit]] = {}
        for unit in reasons:
            for value in unit.inputs:
                self.readers.setdefault(value, []).append(unit)

    def noise_of(self, int8: set[Unit]) -> float:
        """What a placement makes, as predicted."""
        # In the graph's order: a set's differs from process to process, and with it the last bits of a sum.
        total = sum(self.own_noise(unit, int8) for unit in self.reasons if unit in int8)
        return total + sum(self._passed_on(value, int8) for value in self.readers if self.makers.get(value) not in int8)

    def own_noise(self, unit: Unit, int8: set[Unit]) -> float:
        """The part of `noise_of` that is of an INT8 unit's own roundings: of its weights, and of what it holds and puts out."""
        return self.noise.weights.get(unit.name, 0.0) + sum(
            self._passed_on(value, int8) if not self.chained or value in self.bare else self.noise.tensors.get(value.name, 0.0)
            for value in (*unit.inner, *unit.outputs)
            if value.name not in self.noise.copies
        )

    def beside(self, unit: Unit) -> list[Unit]:
        """The units that make what a unit reads, and those that read what it puts out."""
        makers = [self.makers[value] for value in unit.inputs if value in self.makers]
        return makers + [reader for value in unit.outputs for reader in self.readers.get(value, ())]

    def _parts(self, value: ir.Value) -> list[tuple[float, list[Unit]]]:
        """A tensor's noise, by which of its readers it is passed on."""
        # Placements are predicted by the hundred.
        if value not in self._told:
            self._told[value] = self._parted(value)
        return self._told[value]

    def _parted(self, value: ir.Value) -> list[tuple[float, list[Unit]]]:
        found = self.readers.get(value, [])
        parts = [self.noise.reads.get((value.name or "", reader.name)) for reader in found]
        if not parts or any(part is None for part in parts):
            return [(self.noise.tensors.get(value.name, 0.0), found)]
        return [(part, [reader]) for part, reader in zip(parts, found, strict=True) if part is not None]

    def _passed_on(self, value: ir.Value, int8: set[Unit]) -> float:
        """What rounding makes of a tensor where it is only rounded for those who read it in INT8."""
        return sum(noise for noise, readers in self._parts(value) if not int8.isdisjoint(readers))

    def cheapest(self, weight: float) -> set[Unit]:
        """The INT8 units of the placement with the least time plus `weight` (ms) times noise; of several, the one with the most."""
        side = self._cut.side(weight)
        return {unit for unit, reason in self.reasons.items() if not reason and self._cut.node(unit) in side}

    @cached_property
    def _cut(self) -> Cut:
        """What each decision costs in time and in noise, whatever these are worth: placements by the dozen are looked for in it."""
        cut = Cut()
        node, edge = cut.node, cut.edge
        for unit, reason in self.reasons.items():
            place = node(unit)
            if reason:
                edge(place, SINK, None)
                continue
            in_float, in_int8 = self.prices.units[unit]
            noise = self.noise.weights.get(unit.name, 0.0) + sum(self.noise.tensors.get(value.name, 0.0) for value in unit.inner)
            edge(SOURCE, place, in_float)
            edge(place, SINK, in_int8, noise)
            for other in self._needed(unit):
                edge(place, node(other), None)
            if unit.kind != "linear" and self.chained:
                # A maker that is float whatever comes is one that a unit may join; where all are, it is a Concat that is rounded
                # in parts for the layers that read it (`structure.placement`).
                behind = [self._behind(value) for value in unit.inputs if value in self.makers]
                able = [other for other in behind if not self.reasons[other]]
                for other in able if able or not behind else self.readers[unit.outputs[0]]:
                    edge(place, node(other), None)
        for value in dict.fromkeys([*self.makers, *self.readers]):
            maker, found = self.makers.get(value), self.readers.get(value, [])
            border = 0.0
            if value.name in self.noise.copies:
                border = self.noise.tensors.get(value.name, 0.0)
            else:
                for place, (noise, readers) in enumerate(self._parts(value)):
                    rounded = node(("rounded", value, place))
                    for around in [*readers, maker] if maker is not None and self.chained and value not in self.bare else readers:
                        edge(node(around), rounded, None)
                    edge(rounded, SINK, 0.0, noise)
            for reader in found:
                edge(node(reader), node(("codes", value)), None)
                if maker is not None:
                    edge(node(maker), node(reader), self.prices.dequantize[value] * reads(reader, value))
            if found:
                edge(node(("codes", value)), SINK if maker is None else node(maker), self.prices.quantize[value], border)
            if value in self.prices.moving:
                layer, (there, back) = node(self._behind(value)), self.prices.moving[value]
                edge(node(("codes", value)), layer, there)
                for reader in found:
                    edge(layer, node(reader), back)
        return cut

    def _behind(self, value: ir.Value) -> Unit:
        """The unit that has to be INT8 where units without weights read a tensor's codes: an activation's layer, if it has one."""
        maker = self.makers[value]
        return self.on_rows.get(maker, maker)

    def _needed(self, unit: Unit) -> list[Unit]:
        """The units that have to be INT8 with this one: of those that its price needs, the ones that can be."""
        needed = self.prices.needs.get(unit, ())
        able = [other for other in needed if not self.reasons[other]]
        # Behind heads that stay float nothing can hold it; where no weights can be INT8 it had better be float itself.
        return able if any(other.kind == "linear" for other in able) else list(needed)

    def placements(self, bound: float) -> list[set[Unit]]:
        """Those worth having, from the fastest on, each with less noise than the one before.

        Args:
            bound: noise below which no more are looked for.
        """
        trades = [self, *(self._blurred(seed) for seed in range(_TIMES))]
        found = [entry for trade in trades for entry in trade._hull(bound)]
        priced = [(self.prices.of(units), self.noise_of(units), units) for units in found]
        front: list[tuple[float, float, set[Unit]]] = []
        for entry in sorted(priced, key=lambda entry: entry[:2]):
            if not front or entry[1] < front[-1][1]:
                front.append(entry)
        return [units for _, _, units in front]

    def _blurred(self, seed: int) -> Trade:
        """The same, with each rounding's noise a little off."""
        random = np.random.Generator(np.random.PCG64(seed))
        tensors, weights = (
            {name: float(np.exp(_SPREAD * random.standard_normal())) for name in noises}
            for noises in (self.noise.tensors, self.noise.weights)
        )
        noise = Noise(
            {name: noise * tensors[name] for name, noise in self.noise.tensors.items()},
            {name: noise * weights[name] for name, noise in self.noise.weights.items()},
            self.noise.copies,
            {key: noise * tensors[key[0]] for key, noise in self.noise.reads.items()},
        )
        return Trade(self.reasons, self.prices, noise, chained=self.chained)

    def _hull(self, bound: float) -> list[set[Unit]]:
        """The placements that are cheapest for some weight."""
        first = self.cheapest(0.0)
        found = [(self.prices.of(first), self.noise_of(first), first)]
        ends = (self.prices.of(set()), 0.0, set())
        self._between(found[0], ends, bound, found)
        return [units for _, _, units in found]

    def _between(self, fast: tuple, close: tuple, bound: float, found: list[tuple]) -> None:
        """Add the placements between two; the line between two of them has the weight at which both are as good."""
        open_ends = [(fast, close)]
        while open_ends and len(found) < _MOST:
            fast, close = open_ends.pop(0)
            if fast[1] <= bound or fast[1] - close[1] <= 1e-12:
                continue
            weight = max(close[0] - fast[0], 0.0) / (fast[1] - close[1])
            units = self.cheapest(weight)
            middle = (self.prices.of(units), self.noise_of(units), units)
            better = middle[0] + weight * middle[1] < (fast[0] + weight * fast[1]) * (1 - 1e-6)
            if not better or units in (fast[2], close[2]):
                continue
            found.append(middle)
            open_ends += [(fast, middle), (middle, close)]
