"""What FP16 graphs are held against: FP32's tensors, with FP32's choices, on samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import onnx_ir as ir

from octavo.graph.selection import choosing, held
from octavo.quantization.choices import with_choices
from octavo.quantization.fp16.convert import Fp16Result, convert
from octavo.quantization.fp16.measure import Loss, compare
from octavo.quantization.fp16.plan import Faults
from octavo.quantization.fp16.watched import joined, pooled, watched
from octavo.quantization.regions import few_of
from octavo.runtime.tensors import drop_unneeded, float_activations, read_tensors

__all__ = ["Proof", "halves", "ratio"]

# Samples that the graph runs on with a stretch of it in float16.
_FEW = 2


@dataclass(frozen=True)
class Proof:
    """What FP16 graphs are held against, and on what.

    Attributes:
        reference: FP32.
        judged: without the nodes that choose among values: what lies behind a choice is compared on FP32's, because with one
            other row, or a pixel further, no value behind it is the same.
        choosers: names of these nodes.
        feeds: of `judged`.
        watched: the tensors of `judged` that decide, and the names that they are judged under.
        keep_io: as for `convert`.
        thinned: few regions stand for all in `feeds` (`octavo.quantization.regions`).
    """

    reference: ir.Model
    judged: ir.Model
    choosers: list[str]
    feeds: list[dict[str, np.ndarray]]
    watched: dict[str, str]
    keep_io: bool
    thinned: bool
    _faults: Faults = field(default_factory=dict, repr=False)
    _values: dict[tuple[tuple[str, ...], tuple[int, ...]], list[dict[str, np.ndarray]]] = field(default_factory=dict, repr=False)
    _leading: dict[tuple[str, ...], ir.Model] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, reference: ir.Model, feeds: list[dict[str, np.ndarray]], *, keep_io: bool, thins: bool = True) -> Self:
        """Of a prepared FP32 graph and feeds of it; of few of its regions where all are dear and `thins`."""
        choosers = choosing(reference, before_layers=False, whole_numbers=True)
        judged = held(reference, choosers)
        decide = watched(judged, [value.name or "" for value in reference.graph.outputs], joined(reference, choosers))
        few = few_of(reference, judged, choosers, feeds) if thins else None
        fed = with_choices(reference, choosers, feeds, chosen_by=few)
        return cls(reference, judged, choosers, fed, decide, keep_io, few is not None)

    def convert(self, kept: Mapping[str, str]) -> Fp16Result:
        """FP16 with these nodes in float32."""
        return convert(self.reference, keep_io=self.keep_io, keep_float=kept, faults=self._faults)

    def losses(self, result: Fp16Result) -> dict[str, Loss]:
        """Of the tensors that decide."""
        return self._compare(held(result.model, self.choosers, self.reference), self.feeds, self.watched)

    def inner_losses(self, result: Fp16Result) -> dict[str, Loss]:
        """Of all tensors that both graphs have."""
        half = held(result.model, self.choosers, self.reference)
        there = {value.name for node in half.graph for value in node.outputs} | {value.name for value in half.graph.inputs}
        return compare(self.judged, half, self.feeds, [name for name in float_activations(self.judged) if name in there])

    def alone(
        self, result: Fp16Result, kept: Mapping[str, str], failing: Mapping[str, Loss], nodes: Sequence[str]
    ) -> dict[str, float]:
        """Noise-to-signal ratio at tensors that fail, on the samples that fail most, where of a result's float16 nodes these alone
        stay float16.
        """
        others = dict.fromkeys(set(halves(result)) - set(nodes), "not looked at") | dict(kept)
        half = held(self.convert(others).model, self.choosers, self.reference)
        parts = [part for part, name in self.watched.items() if name in failing]
        places = _loudest_samples(failing.values())
        few = [self.feeds[place] for place in places]
        return {name: ratio(loss) for name, loss in self._compare(half, few, parts, self._known(parts, places)).items()}

    def _known(self, names: Sequence[str], places: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """What FP32 has for some tensors on the samples at some places: the same for every stretch."""
        computed = tuple(name for name in names if name not in {value.name for value in self.judged.graph.inputs})
        key = (computed, tuple(places))
        if key not in self._values:
            found = {str(place): {} for place in places}
            feeds = [(str(place), self.feeds[place]) for place in places]
            for place, values in read_tensors(self.judged, computed, lambda: feeds, optimization="off", what="FP32"):
                found[place] |= values
            self._values[key] = list(found.values())
        return self._values[key]

    def _compare(
        self,
        half: ir.Model,
        feeds: Sequence[dict[str, np.ndarray]],
        names: Iterable[str],
        known: Sequence[dict[str, np.ndarray]] | None = None,
    ) -> dict[str, Loss]:
        """Of `half`, which is changed, only what leads to these tensors is looked at: what chooses class by class is long."""
        wanted = tuple(names)
        if wanted not in self._leading:
            self._leading[wanted] = _leading_to(self.judged.clone(), wanted)
        return pooled(compare(self._leading[wanted], _leading_to(half, wanted), feeds, wanted, known), self.watched)


def halves(result: Fp16Result) -> list[str]:
    """Names of the nodes in float16, in the graph's order."""
    return [decision.node for decision in result.decisions if decision.precision == "fp16"]


def _leading_to(model: ir.Model, names: Collection[str]) -> ir.Model:
    """A graph that puts out these tensors alone, in place; inputs stay inputs."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.clear()
    model.graph.outputs.extend(values[name] for name in names if name in values)
    drop_unneeded(model.graph)
    return model


def _loudest_samples(losses: Iterable[Loss]) -> list[int]:
    """The few samples that make most of the noise, each tensor's against its signal: on one where a network finds nothing (a mask
    of 1e-9) nothing is left in float16, whichever nodes compute in it.
    """
    shares = np.sum([np.array(loss.noises) / (loss.signal or 1.0) for loss in losses], axis=0)
    return sorted(np.argsort(-shares, kind="stable")[:_FEW].tolist())


def ratio(loss: Loss) -> float:
    """Noise to signal."""
    return 10 ** (-loss.sqnr_db / 10)
