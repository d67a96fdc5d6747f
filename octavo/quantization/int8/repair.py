"""Which layers go back to float: the least latency for the noise that has to go.

Noise of single roundings adds up at the heads (they are small and nearly independent), so what a set of float layers leaves can be
told without running it: the sum over the tensors that are still quantized and the weights that are still rounded. From "all INT8",
moves are made one after the other, each time the one that removes the most noise for the latency it costs, until the sum is under
the bound. A move gives back one layer, all layers that read one tensor, or these and the layer that makes it: a tensor is only free
of rounding when nobody around it is INT8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.units import Unit, readers

__all__ = ["Trade", "give_back"]

# Moves are looked for around the tensors with the most noise.
_LOOKED_AT = 24
# Latency that a move costs at least, in the unit of `price`: it keeps the ratio finite.
_FREE = 1e-6


class Trade:
    """Noise and latency of a placement, predicted.

    Args:
        draft: the network, with what it decides about placements.
        noise: of each unit alone (`sensitivity.unit_noise`).
        price: latency of a placement (the units that are INT8), any unit of time.
    """

    def __init__(self, draft: Draft, noise: Mapping[str, float], price: Callable[[set[Unit]], float]) -> None:
        self.model, self.units, self.noise_of, self.price = draft.model, draft.units, noise, price
        self.placed, self.quantized = draft.placed, draft.quantized
        self.makers = {value: unit for unit in self.units for value in unit.outputs}
        self.by_node = {node: unit for unit in self.units for node in unit.nodes}

    def left(self, int8: set[Unit]) -> dict[str, float]:
        """Noise by tensor or unit name that a placement still has."""
        found: dict[str, float] = {}
        for value in self.quantized([unit for unit in self.units if unit in int8]):
            maker = self.makers.get(value)
            key = maker.name if maker is not None else value.name
            found[key] = self.noise_of.get(key, 0.0)
        for unit in int8:
            if unit.kind == "linear":
                found.setdefault(unit.name, self.noise_of.get(unit.name, 0.0))
        return found


def give_back(trade: Trade, bound: float) -> list[dict[str, str]]:
    """Choose the layers that go back to float.

    Args:
        trade: what is known of the network.
        bound: noise-to-signal ratio that may be left, as predicted.

    Returns:
        The moves in the order in which they pay: each the nodes that it gives back, with the reason.
    """
    given: dict[str, str] = {}
    moves: list[dict[str, str]] = []
    int8 = {unit for unit, reason in trade.placed(given).items() if not reason}
    left, latency = trade.left(int8), trade.price(int8)
    while sum(left.values()) > bound:
        best = None
        for move in _moves(trade, left, int8):
            tried = given | {unit.main.name: "" for unit in move}
            then = {unit for unit, reason in trade.placed(tried).items() if not reason}
            noise, price = trade.left(then), trade.price(then)
            gain = sum(left.values()) - sum(noise.values())
            # What goes below the bound is worth nothing more.
            useful = min(gain, sum(left.values()) - bound)
            rate = useful / max(price - latency, _FREE)
            if gain > 0 and (best is None or rate > best[0]):
                best = (rate, move, then, noise, price, gain)
        if best is None:
            break
        _, move, int8, noise, price, gain = best
        reason = f"repair: {gain / sum(left.values()):.0%} of the noise that was left came through here"
        moves.append({unit.main.name: reason for unit in move})
        given |= moves[-1]
        left, latency = noise, price
    return moves


def _moves(trade: Trade, left: Mapping[str, float], int8: set[Unit]) -> list[tuple[Unit, ...]]:
    by_name = {unit.name: unit for unit in trade.units}
    worst = sorted(left, key=lambda name: (-left[name], name))[:_LOOKED_AT]
    moves: dict[tuple[Unit, ...], None] = {}
    for name in worst:
        unit = by_name.get(name)
        values = unit.outputs if unit is not None else [v for v in trade.model.graph.inputs if v.name == name]
        consumers = tuple(dict.fromkeys(found for value in values for found in _weighted_behind(trade, value, int8)))
        makers = tuple(dict.fromkeys(_weighted_before(trade, unit, int8))) if unit is not None else ()
        for move in (makers, consumers, makers + consumers):
            if move:
                moves[tuple(dict.fromkeys(move))] = None
    return list(moves)


def _weighted_behind(trade: Trade, value: ir.Value, int8: set[Unit]) -> list[Unit]:
    """INT8 layers that read a tensor, looking through INT8 units without weights."""
    found = []
    for reader in readers(value):
        unit = trade.by_node.get(reader)
        if unit is None or unit not in int8:
            continue
        if unit.kind == "linear":
            found.append(unit)
        else:
            found += [unit for output in unit.outputs for unit in _weighted_behind(trade, output, int8)]
    return list(dict.fromkeys(found))


def _weighted_before(trade: Trade, unit: Unit, int8: set[Unit]) -> list[Unit]:
    """INT8 layers that make a unit's values, looking back through INT8 units without weights (one step for each)."""
    if unit.kind == "linear":
        return [unit] if unit in int8 else []
    found = []
    for value in unit.inputs:
        maker = trade.makers.get(value)
        if maker is not None and maker in int8 and maker.kind in ("linear", "silu", "prelu", "LeakyRelu"):
            found += _weighted_before(trade, maker, int8)
    return found
