"""A quantized file is accepted once it has run: on real images, beside FP32, with ONNX Runtime's optimizations and without them.

Without them the Q/DQ graph is computed as it is written; with them integer kernels run. Both should be equally far from FP32. Where
the optimized graph is much further (layers that an optimizer quantized by itself, kernels that saturate), the file says one thing
and a service gets another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import QuantizationError
from octavo.runtime.noise import distance, sqnr_db
from octavo.runtime.rows import matched_rows, rows_of
from octavo.runtime.session import Session
from octavo.runtime.spilled import Spill

__all__ = ["GROSS", "NOTABLE", "Accepted", "accept"]

# dB that the optimized graph may lie below the written one: more is an error; more than this is a warning; either
# beyond what chance makes of few values (`_CHANCE`).
GROSS, NOTABLE = 6.0, 1.0
# Beyond this many dB no difference matters: an output that is hardly quantized may lose a hundred to another order of sums.
_FINE = 40.0
# Of two noises of one size, each over n values, one is larger than the other by chance: by this over the root of n in dB, twice the
# standard deviation. Two logits on four images are eight values.
_CHANCE = 2 * 20 / np.log(10)
# Bytes of one graph's outputs on all images that are set aside in a file.
_SET_ASIDE = 512 << 20
_WAY_OUT = "keep the layers before it in float (`int8.keep_float` in params.yaml), try another `int8.method`, or use fp16"

Outputs = Mapping[str, np.ndarray]


@dataclass
class Accepted:
    """What the runs showed.

    Attributes:
        images: how many there were.
        sqnr_db: of the optimized graph against FP32, by output; without those that hold no value (no box) on any image.
        written_db: of the graph as written against FP32.
        written_level: the optimization level that stands for the graph as written.
        off_on_db: of the optimized graph against the written one.
        off_on_max: their largest absolute difference.
        agreement: share of positions at which both have the same class; None where outputs are no class scores.
        warnings: what a reader should know.
    """

    images: int
    sqnr_db: dict[str, float] = field(default_factory=dict)
    written_db: dict[str, float] = field(default_factory=dict)
    off_on_db: dict[str, float] = field(default_factory=dict)
    off_on_max: dict[str, float] = field(default_factory=dict)
    written_level: str = "off"
    agreement: float | None = None
    warnings: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """For a manifest."""
        found = {key: value for key, value in vars(self).items() if key != "warnings" and value is not None}
        return found | {"warnings": list(self.warnings)}


def accept(
    reference: str | Path | bytes,
    quantized: str | Path | bytes,
    samples: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    *,
    name: str,
    written_level: str = "off",
    compared: Sequence[str] = (),
    classes: int | None = None,
    selecting: bool = False,
    entries: Mapping[str, str] | None = None,
) -> Accepted:
    """Run a quantized graph and refuse it where it breaks.

    Args:
        reference: FP32, as it runs.
        quantized: as it runs.
        samples: (what the image is, feeds), at least one.
        name: what errors call the quantized graph.
        written_level: the optimization level that computes the graph as it is written: `off`, unless integer operators in it are
            not exact there on this machine (`octavo.runtime.entries.exact_from`).
        compared: the outputs by which the graphs are compared; all where empty.
        classes: the axis of the outputs that class scores lie along; None where there are none.
        entries: session entries that the quantized graph runs with; those of this machine where None.
        selecting: as `selects` (octavo.graph.selection) says of FP32: outputs may differ wildly for no reason, which is no error.

    Raises:
        QuantizationError: an output is missing, not finite or of another dtype or shape than FP32's, or the optimized graph is more
            than `GROSS` dB further from FP32 than the graph as written, and than chance makes of few values.
        ModelRunError: a graph does not load or run.
    """
    if not samples:
        raise QuantizationError(f"{name}: there is no image to run it on", "raise `calibrate.samples`")
    truth, fast = _Runs(samples, reference), _Runs(samples, quantized, name=name, entries=entries)
    plain = _Runs(samples, quantized, name=name, optimization=written_level, entries=entries)
    sums = _Sums(classes, selecting)
    for (where, _), expected, got, written in zip(samples, truth.results, fast.results, plain.results, strict=True):
        _check(expected, got, truth, name, where)
        _check(expected, written, truth, f"{name} without optimizations", where)
        sums.add(*({output: found[output] for output in compared or truth.outputs} for found in (expected, got, written)))
    found = Accepted(len(samples), written_level=written_level)
    found.warnings += sums.nothing(len(samples))
    for output in filter(sums.values.get, sums.signal):
        found.sqnr_db[output], found.written_db[output], found.off_on_db[output] = sums.db(output)
        found.off_on_max[output] = float(f"{sums.largest[output]:.4g}")
    found.agreement = round(float(np.mean(sums.same)), 4) if sums.same else None
    for output, on in found.sqnr_db.items():
        lost = min(min(found.written_db[output], _FINE) - min(on, _FINE), sums.usual(output))
        chance = _CHANCE / np.sqrt(max(sums.values[output], 1))
        said = f"{on:.1f} dB from FP32 when optimized, {found.written_db[output]:.1f} dB as written"
        if lost > GROSS + chance and not selecting:
            raise QuantizationError(
                f"{name}: ONNX Runtime's optimized graph is not the one in the file: {output!r} is {said}", _WAY_OUT
            )
        if lost > NOTABLE + chance:
            found.warnings.append(f"output {output!r} is {said}")
    return found


class _Runs:
    """A graph on each image. Its outputs go into a file, unless they are huge, and its session with them: not three graphs, nor
    what they put out, lie in memory at once.

    Args:
        samples, model: as for `accept`.
        options: of `Session`.

    Attributes:
        results: output name to array, of each image.
    """

    def __init__(self, samples: Sequence[tuple[str, Mapping[str, np.ndarray]]], model: str | Path | bytes, **options: Any) -> None:
        # It runs a few times: what one run freed is not kept for the next.
        session = Session(model, arena=False, **options)
        self.outputs, self.input_shapes, self.output_shapes = session.outputs, session.input_shapes, session.output_shapes
        first = session.run(samples[0][1])
        self.results: Iterable[Outputs] = chain([first], (session.run(feeds) for _, feeds in samples[1:]))
        if len(samples) * sum(value.nbytes for value in first.values()) <= _SET_ASIDE:
            spill = Spill()
            # Copies: an array that ONNX Runtime hands out keeps all the memory of its session.
            self.results = [spill.put({output: value.copy() for output, value in found.items()}) for found in self.results]


class _Sums:
    """Running sums over images, by output."""

    def __init__(self, classes: int | None, selecting: bool) -> None:
        self.classes, self.selecting = classes, selecting
        self.signal: dict[str, float] = {}
        self.noise: dict[str, np.ndarray] = {}
        self.written: dict[str, float] = {}
        self.largest: dict[str, float] = {}
        self.values: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self.same: list[float] = []
        # Of graphs that choose rows: by output, of each image sums of squares of each row's noise, optimized and written. The two
        # may find other numbers of boxes.
        self.by_row: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}

    def add(self, expected: Outputs, got: Outputs, written: Outputs) -> None:
        for output, value in expected.items():
            # Rows without a box may be there as zeros.
            self.told[output] = self.told.get(output, 0) + int(np.count_nonzero(value))
        pairs = [(expected, got), (expected, written), (written, got)]
        if self.selecting:
            # Rows by rank: whichever comes first, each is held against its counterpart.
            pairs = [matched_rows(*pair) for pair in pairs]
        axis = rows_of(expected) if self.selecting else None
        for output, value in expected.items():
            values = [(one[output], other[output]) for one, other in pairs]
            # A number of boxes that depends on the values, or indices: no distance is defined.
            if all(one.shape == other.shape for one, other in values) and np.issubdtype(value.dtype, np.floating):
                self._add(output, values)
                if axis is not None and value.size:
                    for rows, pair in zip(self.by_row.setdefault(output, ([], [])), values, strict=False):
                        rows.append(_row_noise(*pair, axis))

    def usual(self, output: str) -> float:
        """How many dB the usual row, the median one, loses by optimizations; no bound where a graph does not choose rows.

        Where noise exchanges rows the few that are in others' places make most of it, and which these are the last bit decides:
        D-FINE's boxes of 5 times 4 images lost .6 to 2.3 dB so, the median one -.3 to .5, and on FP32's choices none does.
        """
        if output not in self.by_row:
            return np.inf
        one, other = (np.concatenate(rows) for rows in self.by_row[output])
        if not (one.size and other.size):
            return 0.0
        one, other = np.median(one), np.median(other)
        return sqnr_db(one, other) if one > other else 0.0

    def _add(self, output: str, pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
        found = [distance(*pair) for pair in pairs]
        (a, b), _, (c, d) = pairs
        self.values[output] = self.values.get(output, 0) + (a.size if any(value.any() for value in (a, b, c, d)) else 0)
        self.signal[output] = self.signal.get(output, 0.0) + found[0].first
        self.written[output] = self.written.get(output, 0.0) + found[2].first
        self.noise[output] = self.noise.get(output, np.zeros(3)) + np.array([each.noise for each in found])
        self.largest[output] = max(self.largest.get(output, 0.0), found[2].largest)
        axis = self.classes
        if axis is not None and a.ndim > axis and a.shape[axis] > 1:
            self.same.append(float((b.argmax(axis) == c.argmax(axis)).mean()))

    def nothing(self, images: int) -> list[str]:
        """Of outputs with no value to compare: two empty sets of boxes are equal, and that says nothing of the file."""
        empty = [output for output, count in self.values.items() if not count]
        there = [output for output in empty if self.told[output]]
        none = [output for output in empty if not self.told[output]]
        found = []
        if there:
            found.append(f"{_quoted(there)}: FP32 finds something on {images} images, this file on none: nothing is compared")
        if none:
            found.append(
                f"{_quoted(none)}: FP32 itself finds nothing on {images} images, and nothing is compared there; take images on "
                "which it finds something, or correct `input:` (scale, mean, std)"
            )
        return found

    def db(self, output: str) -> tuple[float, float, float]:
        """Optimized against FP32, written against FP32, optimized against written."""
        signals = (self.signal[output], self.signal[output], self.written[output])
        one, two, three = (round(sqnr_db(signal, noise), 2) for signal, noise in zip(signals, self.noise[output], strict=True))
        return one, two, three


def _row_noise(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    """Sums of squares of the difference of each row, float64, of [1, rows, ...] or [rows, ...]."""
    return np.array([distance(*pair).noise for pair in zip(np.moveaxis(first, axis, 0), np.moveaxis(second, axis, 0), strict=True)])


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _check(expected: Outputs, got: Outputs, truth: _Runs, name: str, where: str) -> None:
    varying = {dim for shape in truth.input_shapes.values() for dim in shape if isinstance(dim, str)}
    for output, value in expected.items():
        if output not in got:
            raise QuantizationError(f"{name}: has no output {output!r}, which FP32 has", "use another `int8.format`")
        other = got[output]
        declared = truth.output_shapes[output]
        same = value.ndim == other.ndim and all(
            mine == theirs or (len(declared) == value.ndim and not isinstance(dim, int) and dim not in varying)
            for mine, theirs, dim in zip(value.shape, other.shape, declared, strict=False)
        )
        if value.dtype != other.dtype or not same:
            raise QuantizationError(
                f"{name}: output {output!r} is {other.dtype} {list(other.shape)} on {where}, FP32's is {value.dtype} "
                f"{list(value.shape)}",
                "use another `int8.format`, or keep the last layers in float (`int8.keep_float` in params.yaml)",
            )
        if np.issubdtype(other.dtype, np.floating) and np.isfinite(value).all() and not np.isfinite(other).all():
            bad = "NaN" if np.isnan(other).any() else "infinity"
            raise QuantizationError(f"{name}: output {output!r} holds {bad} on {where}, FP32's does not", _WAY_OUT)
