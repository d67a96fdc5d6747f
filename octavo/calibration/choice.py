"""The ranges that a recipe chooses: its method for all tensors, and `int8.ranges` for those it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from octavo.calibration.ranges import tensor_range
from octavo.calibration.statistics import Statistics
from octavo.calibration.tensor import TensorStatistics
from octavo.errors import CalibrationError
from octavo.params.grammar import Int8, TensorRange
from octavo.params.patterns import matches, near

__all__ = ["chosen_ranges", "named_tensors", "overridden"]

Function = Callable[[np.ndarray], np.ndarray]


def chosen_ranges(
    statistics: Statistics,
    recipe: Int8,
    names: Iterable[str] | None = None,
    behind: Mapping[str, Function] | None = None,
) -> dict[str, tuple[float, float]]:
    """Ranges with the overrides of `int8.ranges` applied.

    An override holds for every tensor that shares its histogram (an alias and its source), because they share a QuantizeLinear:
    naming a Conv's output or that of the ReLU behind it is the same. A name goes before a shell pattern, then the order of
    params.yaml counts.

    Args:
        statistics: of the model.
        recipe: the `int8:` block.
        names: tensors wanted; those that calibration did not see are left out. None: all that hold values.
        behind: tensor name to the activation that all its readers apply first (`tensor_range`).

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
        tensor = statistics.tensors[name]
        # One that was looked at again since, because exact rewriting changed it, has a range of its own.
        key = source if tensor.counts is statistics.tensors[source].counts else name
        if key not in by_source:
            wanted = recipe.ranges[overrides[source]] if source in overrides else None
            by_source[key] = _range(tensor, wanted, recipe, (behind or {}).get(name))
        found[name] = by_source[key]
    return found


def overridden(statistics: Statistics, recipe: Int8) -> dict[str, str]:
    """Tensors that `int8.ranges` speaks of, each with the name or pattern there that counts.

    Raises:
        CalibrationError: it names no tensor.
    """
    sources = _overrides(statistics, recipe)
    of = {name: statistics.aliases.get(name, name) for name in statistics.tensors}
    return {name: sources[source] for name, source in of.items() if source in sources}


def named_tensors(statistics: Statistics, patterns: Iterable[str], setting: str) -> dict[str, str]:
    """The tensors that a setting means: those that its patterns fit, and all that share a histogram with one of them.

    Args:
        statistics: of the model.
        patterns: tensor names or shell patterns.
        setting: where they stand in params.yaml, for the error.

    Returns:
        Tensor name to the first pattern that means it.

    Raises:
        CalibrationError: a pattern names no calibrated tensor.
    """
    sources: dict[str, str] = {}
    for pattern in patterns:
        for name in _matched(pattern, statistics, setting):
            sources.setdefault(statistics.aliases.get(name, name), pattern)
    of = {name: statistics.aliases.get(name, name) for name in statistics.tensors}
    return {name: sources[source] for name, source in of.items() if source in sources}


def _matched(pattern: str, statistics: Statistics, setting: str) -> list[str]:
    found = matches(pattern, statistics.tensors)
    if not found:
        raise CalibrationError(
            f"`{setting}` names {pattern!r}, and no calibrated tensor has this name or pattern",
            near(pattern, statistics.tensors) or f"its tensors are named like {', '.join(list(statistics.tensors)[:4])}",
        )
    return found


def _overrides(statistics: Statistics, recipe: Int8) -> dict[str, str]:
    """Tensor that was read to the name or pattern of `int8.ranges` that counts for it."""
    exact: dict[str, str] = {}
    fitting: dict[str, str] = {}
    for pattern in recipe.ranges:
        for name in _matched(pattern, statistics, "int8.ranges"):
            (exact if name == pattern else fitting).setdefault(statistics.aliases.get(name, name), pattern)
    return fitting | exact


def _range(tensor: TensorStatistics, wanted: TensorRange | None, recipe: Int8, behind: Function | None) -> tuple[float, float]:
    if wanted is not None and wanted.bounds is not None:
        low, high = min(wanted.bounds[0], 0.0), max(wanted.bounds[1], 0.0)
        return (-max(-low, high), max(-low, high)) if recipe.symmetric else (low, high)
    # `auto` is resolved where it can be measured; by itself it means mse.
    method = (wanted and wanted.method) or (recipe.method if recipe.method != "auto" else "mse")
    percentile = (wanted and wanted.percentile) or recipe.percentile
    return tensor_range(tensor, method, percentile=percentile, symmetric=recipe.symmetric, behind=behind)
