"""The ranges that a recipe chooses: its method for all tensors, and `int8.ranges` for those it names."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.calibration.ranges import tensor_range
from octavo.calibration.statistics import Statistics
from octavo.errors import CalibrationError
from octavo.params.grammar import Int8, TensorRange
from octavo.params.patterns import matches, near

__all__ = ["chosen_ranges"]


def chosen_ranges(statistics: Statistics, recipe: Int8, names: Iterable[str] | None = None) -> dict[str, tuple[float, float]]:
    """Ranges with the overrides of `int8.ranges` applied.

    An override holds for every tensor that shares its histogram (an alias and its source), because they share a QuantizeLinear:
    naming a Conv's output or that of the ReLU behind it is the same. A name goes before a shell pattern, then the order of
    params.yaml counts.

    Args:
        statistics: of the model.
        recipe: the `int8:` block.
        names: tensors wanted; those that calibration did not see are left out. None: all that hold values.

    Returns:
        Tensor name to (low, high) with low <= 0 <= high, in the order of `names`.

    Raises:
        CalibrationError: `int8.ranges` names no tensor, or a wanted tensor was empty on every calibration image.
    """
    overrides = _overrides(statistics, recipe)
    if names is None:
        names = [name for name, tensor in statistics.tensors.items() if tensor.values]
    found: dict[str, tuple[float, float]] = {}
    by_source: dict[str, tuple[float, float]] = {}
    for name in names:
        if name not in statistics.tensors:
            continue
        source = statistics.aliases.get(name, name)
        if source not in by_source:
            by_source[source] = _range(statistics, source, overrides.get(source), recipe)
        found[name] = by_source[source]
    return found


def _overrides(statistics: Statistics, recipe: Int8) -> dict[str, TensorRange]:
    """Tensor that was read to what `int8.ranges` asks for it."""
    exact: dict[str, TensorRange] = {}
    fitting: dict[str, TensorRange] = {}
    for pattern, wanted in recipe.ranges.items():
        matched = matches(pattern, statistics.tensors)
        if not matched:
            raise CalibrationError(
                f"`int8.ranges` names {pattern!r}, and no calibrated tensor has this name or pattern",
                near(pattern, statistics.tensors) or f"its tensors are named like {', '.join(list(statistics.tensors)[:4])}",
            )
        for name in matched:
            (exact if name == pattern else fitting).setdefault(statistics.aliases.get(name, name), wanted)
    return fitting | exact


def _range(statistics: Statistics, name: str, wanted: TensorRange | None, recipe: Int8) -> tuple[float, float]:
    if wanted is not None and wanted.bounds is not None:
        low, high = min(wanted.bounds[0], 0.0), max(wanted.bounds[1], 0.0)
        return (-max(-low, high), max(-low, high)) if recipe.symmetric else (low, high)
    method = (wanted and wanted.method) or recipe.method
    percentile = (wanted and wanted.percentile) or recipe.percentile
    return tensor_range(statistics.tensors[name], method, percentile=percentile, symmetric=recipe.symmetric)
