"""What gates said, with the figure that each is about: read from the flat record of a model, judged by nobody again.

`validate` writes `<variant>.gate.<name>: pass | fail | inconclusive | no-labels` beside the figures; the bounds stand in
params.yaml. Whoever reports a gate (a release, `octavo gate`, a review) joins the three here, so that all of them use the same
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.layout import PARITY
from octavo.params.grammar import Gates

__all__ = ["FAIL", "INCONCLUSIVE", "PASS", "Verdict", "verdict", "verdicts"]

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
# Worst first: the order in which gates are listed.
ORDER = (FAIL, INCONCLUSIVE, "no-labels", PASS)
# The figure that a gate is about, by its key: of several the one that the task has. Its bound has the gate's name in params.yaml.
FIGURES = {
    "retained": ("retained",),
    "similarity": ("cosine_mean",),
    "similarity_min": ("cosine_min",),
    "auc_drop": ("auc_drop",),
    "agreement": ("agreement", "match_f1", "cosine_p1"),
    "size": ("size_ratio",),
}
# Gates that bound a figure from above.
AT_MOST = ("auc_drop", "size")
# Bounds that params.yaml does not set.
FIXED = {"size": 1.0, "parity": PARITY}
# Gates whose figure is in no metric: what is asked, and where to look.
ASKED = {
    "integer_layers": "every quantized layer in an integer kernel (`executed` in the manifest)",
    "parity": f"the trained network's answers on a share of {PARITY:g} (`parity` in the manifest)",
    "size": "no larger than FP32",
    "speed": "no slower than FP32 (the log of `validate` has the ratio)",
}
# Of `retained` without a figure.
NOTHING_TO_KEEP = "FP32's own metric is 0 or next to it, of which nothing can be kept"
# Of a gate that is inconclusive without an interval.
TOO_LITTLE = "of too little to pass by (`warning` in the record)"
# Records hold six digits: what differs by less cannot be told from equal.
RESOLUTION = 2e-6


@dataclass(frozen=True)
class Verdict:
    """One gate of one variant.

    Attributes:
        variant, gate: `int8`, `retained`.
        answer: `pass`, `fail`, `inconclusive` or `no-labels`, as `validate` wrote it.
        figure: the key of the figure that it is about; None where no record has it.
        value, low, high: that figure, and its 95 % interval where it is an estimate.
        bound: what params.yaml asks for; None where it is not a number, or not known.
        at_most: whether the bound is an upper one.
    """

    variant: str
    gate: str
    answer: str
    figure: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    at_most: bool = False

    @property
    def key(self) -> str:
        """As accuracy.json has it: `int8.gate.retained`."""
        return f"{self.variant}.gate.{self.gate}"

    @property
    def order(self) -> int:
        """For lists that begin with the worst; answers that nobody knows come right behind failures."""
        return ORDER.index(self.answer) if self.answer in ORDER else 0

    @property
    def measured(self) -> str:
        """The figure with its interval: `0.912 [0.880, 0.940]`, named where the gate does not name it; empty where unknown."""
        if self.value is None:
            # `validate` writes no ratio to nothing, and fails the gate for FP32's sake.
            return NOTHING_TO_KEEP if (self.gate, self.answer) == ("retained", FAIL) else TOO_LITTLE if self._of_little else ""
        name = "" if self.figure == self.gate else f"{self.figure} "
        interval = f" [{self._form(self.low)}, {self._form(self.high)}]" if self.low is not None and self.high is not None else ""
        return f"{name}{self._form(self.value)}{interval}" + (f" {TOO_LITTLE}" if self._of_little else "")

    @property
    def _of_little(self) -> bool:
        return self.gate == "agreement" and self.answer == INCONCLUSIVE

    @property
    def asked(self) -> str:
        """What was asked for: `0.99`, `at most 0.01`, or words; empty where it is not known."""
        if self.value is None and self.gate in ASKED:
            return ASKED[self.gate]
        if self.bound is None:
            return ""
        return f"{'at most ' if self.at_most else ''}{self.bound:g}"

    @property
    def outdated(self) -> bool:
        """Whether the answer cannot be one to this bound: params.yaml has changed since `validate` ran."""
        if self.value is None or self.bound is None or self.answer not in (PASS, FAIL, INCONCLUSIVE) or self._of_little:
            return False
        sign = -1 if self.at_most else 1
        over = sign * (self.value - self.bound)
        if abs(over) <= RESOLUTION:
            return False
        if (over > 0) != (self.answer == PASS):
            return True
        best = self.low if self.at_most else self.high
        if over > 0 or best is None or abs(best - self.bound) <= RESOLUTION:
            return False
        return (sign * (best - self.bound) > 0) != (self.answer == INCONCLUSIVE)

    def __str__(self) -> str:
        """`int8.gate.retained: fail: 0.912 [0.880, 0.940], asked for 0.99`."""
        told = ", ".join([*([self.measured] if self.measured else []), *([f"asked for {self.asked}"] if self.asked else [])])
        return f"{self.key}: {self.answer}" + (f": {told}" if told else "")

    def _form(self, value: float) -> str:
        """Three decimals, or as many as tell the figure from its bound: 0.98996 is not 0.990."""
        numbers = [one for one in (self.value, self.low, self.high) if one is not None]
        digits = next(
            (
                digits
                for digits in range(3, 6)
                if self.bound is None
                or all(one == self.bound or round(one, digits) != round(self.bound, digits) for one in numbers)
            ),
            6,
        )
        # Plus 0.0: a drop of nothing is no -0.000.
        return f"{round(value, digits) + 0.0:.{digits}f}"


def verdict(variant: str, gate: str, answer: object, figures: Mapping[str, Any], bounds: Gates | None) -> Verdict:
    """Join one answer with its figure and its bound.

    Args:
        answer: as `validate` wrote it.
        figures: of this variant, without its name before the keys; a manifest's `accuracy`.
        bounds: `validate.gates`, with `auto` already told by `Gates.of_task`; None where params.yaml cannot be read.
    """
    figure = next((key for key in FIGURES.get(gate, ()) if _number(figures.get(key)) is not None), None)
    ends = (_number(figures.get(f"{figure}_{end}")) for end in ("low", "high")) if figure else (None, None)
    bound = FIXED.get(gate, _number(getattr(bounds, gate, None)))
    return Verdict(
        variant, gate, str(answer), figure, _number(figures.get(figure)) if figure else None, *ends, bound, gate in AT_MOST
    )


def verdicts(accuracy: Mapping[str, Any], bounds: Gates | None, latency: Mapping[str, Any] | None = None) -> list[Verdict]:
    """All gates of a model, in the order of the record.

    Args:
        accuracy: as stage `validate` writes it.
        bounds: as in `verdict`.
        latency: as stage `benchmark` writes it, for the figure of gate `size`; may be missing.
    """
    found = []
    for key, answer in accuracy.items():
        variant, dot, gate = key.partition(".gate.")
        if dot:
            figures = {
                name.removeprefix(f"{variant}."): value
                for record in (latency or {}, accuracy)
                for name, value in record.items()
                if name.startswith(f"{variant}.")
            }
            found.append(verdict(variant, gate, answer, figures, bounds))
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
