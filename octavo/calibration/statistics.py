"""What `calibrate` saves: per-tensor statistics that merge exactly, and the hashes of what they were made from."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo.calibration.histogram import BINS, bin_counts, not_finite
from octavo.errors import CalibrationError
from octavo.files import read_json, replace_dir, write_json

__all__ = ["Statistics", "TensorStatistics"]

# Sums are kept as integers in units of 2**-20, because floating-point addition depends on the order.
_UNIT = 2.0**20
_LIMIT = 2.0**62 / _UNIT


@dataclass
class TensorStatistics:
    """Statistics of one float tensor over all images.

    Attributes:
        low, high: exact minimum and maximum (float32 values); +inf and -inf while nothing was seen.
        counts: int64 of 65536, the histogram of `octavo.calibration.histogram`.
        sums: int64 per channel, in units of 2**-20: each image's sum, rounded; None where the tensor has no channel axis.
        values: number of values seen; `per_channel` of them in each channel.
        per_channel: number of values a channel.
    """

    low: float = float("inf")
    high: float = float("-inf")
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    sums: np.ndarray | None = None
    values: int = 0
    per_channel: int = 0

    def update(self, name: str, value: np.ndarray, where: str) -> None:
        """Add one image's tensor.

        Args:
            name: the tensor's name, for errors.
            value: float32; axis 1 is the channel axis of 3-D and larger tensors, the last axis of 2-D ones.
            where: the image, for errors.

        Raises:
            CalibrationError: a value is NaN or infinite, or its channel count changed.
        """
        if value.size == 0:
            return
        counts = bin_counts(value)
        if not_finite(counts):
            raise CalibrationError(
                f"tensor {name!r} holds {not_finite(counts)} NaN or infinite values on {where}",
                "check the weights and `input:` (scale, mean, std) in params.yaml",
            )
        self.counts += counts
        self.low = min(self.low, float(value.min()))
        self.high = max(self.high, float(value.max()))
        self.values += value.size
        if value.ndim >= 2:
            axis = 1 if value.ndim >= 3 else value.ndim - 1
            others = tuple(place for place in range(1, value.ndim) if place != axis)
            # One image at a time: what is rounded must not depend on the batch an image came in.
            sums = np.array([image.sum(axis=tuple(place - 1 for place in others), dtype=np.float64) for image in value])
            self._add_sums(name, sums, value.size // value.shape[axis])

    def _add_sums(self, name: str, sums: np.ndarray, per_channel: int) -> None:
        if np.abs(sums).max() > _LIMIT:
            raise CalibrationError(f"tensor {name!r} has values too large to sum exactly", "check `input:` (scale) in params.yaml")
        fixed = np.rint(sums * _UNIT).astype(np.int64).sum(axis=0)
        if self.sums is not None and self.sums.shape != fixed.shape:
            # A layout whose axis 1 is no channel axis (NHWC, sequences of changing length) has no per-channel means.
            self.sums, self.per_channel = np.zeros(0, np.int64), 0
        elif self.sums is None:
            self.sums, self.per_channel = fixed, per_channel
        else:
            self.sums, self.per_channel = self.sums + fixed, self.per_channel + per_channel

    def means(self) -> np.ndarray | None:
        """Per-channel means as float64, or None where the tensor has no fixed channel axis."""
        if self.sums is None or not self.sums.size or not self.per_channel:
            return None
        return self.sums.astype(np.float64) / _UNIT / self.per_channel

    def merge(self, other: TensorStatistics) -> TensorStatistics:
        """The statistics of both sets of images; exact, associative and commutative."""
        merged = TensorStatistics(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            counts=self.counts + other.counts,
            sums=self.sums,
            values=self.values + other.values,
            per_channel=self.per_channel + other.per_channel,
        )
        if self.sums is None or other.sums is None:
            merged.sums = other.sums if self.sums is None else self.sums
        elif self.sums.shape != other.sums.shape:
            merged.sums, merged.per_channel = np.zeros(0, np.int64), 0
        else:
            merged.sums = self.sums + other.sums
        return merged


@dataclass
class Statistics:
    """Statistics of a model's tensors.

    Attributes:
        tensors: tensor name to its statistics.
        origin: what they were made from: `model` (sha256 of the FP32 file), `input` (hash of the preprocessing block),
            `images` (hash of the image list), `samples`, `skipped`, and the images themselves (name, sha256).
    """

    tensors: dict[str, TensorStatistics] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)

    def update(self, tensors: Mapping[str, np.ndarray], where: str) -> None:
        """Add one image's tensors."""
        for name, value in tensors.items():
            self.tensors.setdefault(name, TensorStatistics()).update(name, value, where)

    def merge(self, other: Statistics) -> Statistics:
        """Both together, exactly; `origin` is this one's."""
        merged = dict(self.tensors)
        for name, tensor in other.tensors.items():
            merged[name] = merged[name].merge(tensor) if name in merged else tensor
        return Statistics(merged, self.origin)

    def require(self, expected: Mapping[str, str], where: str) -> None:
        """Refuse statistics that were made for something else.

        Args:
            expected: keys of `origin` with the values they must have.
            where: the statistics' folder, for the error.

        Raises:
            CalibrationError: naming what differs.
        """
        for key, value in expected.items():
            if self.origin.get(key) != value:
                raise CalibrationError(
                    f"{where} was made for another {key} ({str(self.origin.get(key))[:12]} instead of {value[:12]})",
                    "run the calibrate stage again (`dvc repro` does so by itself)",
                )

    def save(self, folder: str | Path) -> None:
        """Write `statistics.npz` (sparse histograms, sums) and `statistics.json` (origin); equal statistics give equal bytes.

        Raises:
            OutputError: the folder cannot be written; what was there is untouched.
        """
        names = sorted(self.tensors)
        tensors = [self.tensors[name] for name in names]
        filled = [np.flatnonzero(tensor.counts) for tensor in tensors]
        sums = [np.zeros(0, np.int64) if tensor.sums is None else tensor.sums for tensor in tensors]
        arrays = {
            "names": np.array(names, dtype=np.str_),
            "ranges": np.array([[tensor.low, tensor.high] for tensor in tensors], np.float32).reshape(-1, 2),
            "sizes": np.array(
                [
                    [tensor.values, tensor.per_channel, len(bins), len(total), tensor.sums is not None]
                    for tensor, bins, total in zip(tensors, filled, sums, strict=True)
                ],
                np.int64,
            ).reshape(-1, 5),
            "bins": _joined(filled, np.uint16),
            "counts": _joined([tensor.counts[bins] for tensor, bins in zip(tensors, filled, strict=True)], np.int64),
            "sums": _joined(sums, np.int64),
        }
        with replace_dir(folder) as temporary:
            # numpy stamps every member 1980-01-01, so the archive holds no clock.
            np.savez_compressed(temporary / "statistics.npz", **arrays)
            write_json(temporary / "statistics.json", self.origin)

    @classmethod
    def load(cls, folder: str | Path) -> Statistics:
        """Read what `save` wrote.

        Raises:
            CalibrationError: there are none, or a file is damaged.
        """
        folder = Path(folder)
        try:
            origin = read_json(folder / "statistics.json")
            with np.load(folder / "statistics.npz", allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in ("names", "ranges", "sizes", "bins", "counts", "sums")}
        except FileNotFoundError as error:
            raise CalibrationError(f"{folder} has no statistics: {error.filename} is missing", "run the calibrate stage") from error
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CalibrationError(f"{folder} holds damaged statistics: {error}", "run the calibrate stage again") from error
        tensors: dict[str, TensorStatistics] = {}
        bin_at = sum_at = 0
        for name, (low, high), (values, per_channel, bins, total, has_sums) in zip(
            arrays["names"], arrays["ranges"], arrays["sizes"], strict=True
        ):
            counts = np.zeros(BINS, np.int64)
            counts[arrays["bins"][bin_at : bin_at + bins]] = arrays["counts"][bin_at : bin_at + bins]
            sums = arrays["sums"][sum_at : sum_at + total] if has_sums else None
            tensors[str(name)] = TensorStatistics(float(low), float(high), counts, sums, int(values), int(per_channel))
            bin_at, sum_at = bin_at + bins, sum_at + total
        return cls(tensors, origin)


def _joined(parts: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(piece, dtype) for piece in parts)])
