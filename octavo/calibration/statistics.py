"""What `calibrate` saves: per-tensor statistics that merge exactly, and the hashes of what they were made from."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo.calibration.channels import Channels
from octavo.calibration.histogram import BINS
from octavo.calibration.tensor import TensorStatistics
from octavo.errors import CalibrationError
from octavo.files import read_json, replace_dir, write_json

__all__ = ["Statistics", "TensorStatistics"]

# What a damaged file raises in zipfile, numpy and json: a header may ask for another compression, a password or Python 2's grammar.
_DAMAGED = (
    OSError, ValueError, LookupError, EOFError, MemoryError, RuntimeError, TypeError, SyntaxError, ArithmeticError, AttributeError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_ARRAYS = ("names", "aliases", "ranges", "sizes", "bins", "counts", "sums", "channel_ranges")


@dataclass
class Statistics:
    """Statistics of a model's tensors.

    Attributes:
        tensors: tensor name to its statistics; an alias stands there too, without channels, once `link` was called.
        origin: what they were made from: `model` (sha256 of the FP32 file), `input` (hash of the preprocessing block),
            `images` (hash of the image list), `samples`, `skipped`, and the images themselves (name, sha256).
        aliases: names of tensors that were not read themselves, each with the tensor whose range is theirs
            (`octavo.calibration.observed`).
    """

    tensors: dict[str, TensorStatistics] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def update(self, tensors: Mapping[str, np.ndarray], where: str) -> None:
        """Add the tensors of one or more images."""
        for name, value in tensors.items():
            self.tensors.setdefault(name, TensorStatistics()).update(name, value, where)

    def link(self, aliases: Mapping[str, str]) -> None:
        """Let aliases answer for themselves in `tensors`; one whose source was never seen is left out."""
        for name, source in aliases.items():
            if source in self.tensors:
                self.tensors[name] = self.tensors[source].values_only()
                self.aliases[name] = source

    def absorb(self, other: Statistics) -> None:
        """Take another set of images in, exactly; tensors that only `other` has are shared with it, not copied."""
        for name in other._read():
            if name in self.tensors:
                self.tensors[name].absorb(other.tensors[name])
            else:
                self.tensors[name] = other.tensors[name]

    def widened(self, channels: Mapping[str, int]) -> Statistics:
        """The same of a graph some of whose tensors got more channels, of zeros, behind their own.

        Args:
            channels: how many each tensor has; tensors with as many, more or none stay as they are.
        """
        wider = {name: self.tensors[name].widened(count) for name, count in channels.items() if name in self.tensors}
        return Statistics({**self.tensors, **wider}, self.origin, self.aliases)

    def merge(self, other: Statistics) -> Statistics:
        """Both together, exactly; `origin` is this one's."""
        merged = Statistics({name: self.tensors[name].merge(TensorStatistics()) for name in self._read()}, self.origin)
        merged.absorb(other)
        merged.link(self.aliases | other.aliases)
        return merged

    def _read(self) -> list[str]:
        """Names of the tensors that were read, sorted."""
        return sorted(self.tensors.keys() - self.aliases.keys())

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

    def files(self, kind: str) -> list[tuple[str, str]]:
        """The images that the statistics were made from, or that they leave out.

        Args:
            kind: `files` or `held_out`.

        Returns:
            (name, sha256) of each.

        Raises:
            CalibrationError: `origin` does not tell.
        """
        try:
            return [(str(name), str(digest)) for name, digest in self.origin[kind]]
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(
                f"the statistics do not say which images they are of: statistics.json has no list {kind!r} of names and hashes",
                "run the calibrate stage again",
            ) from error

    def require_images(self, images: str, held_out: Iterable[str], where: str) -> None:
        """Refuse statistics that were made from other images, or that leave out others.

        Args:
            images: hash of the image list (`octavo.images.dataset.image_list`).
            held_out: sha256 of each image that is left out.
            where: the statistics' folder, for the error.

        Raises:
            CalibrationError: naming what differs.
        """
        again = "run the calibrate stage again (`dvc repro` does so by itself, after a change of `data.datasets` with `-f`)"
        if self.origin.get("images") != images:
            raise CalibrationError(f"{where} was made from other images than `data.calibration` and `calibrate` choose now", again)
        if {digest for _, digest in self.files("held_out")} != set(held_out):
            raise CalibrationError(f"{where} leaves out other images than `calibrate` holds out now", again)

    def require_tensors(self, names: Iterable[str]) -> None:
        """Refuse statistics that hold a tensor which a graph does not have.

        Args:
            names: of all tensors of the graph.

        Raises:
            CalibrationError: naming the first such tensor and how many there are.
        """
        strange = sorted(self.tensors.keys() - set(names))
        if strange:
            raise CalibrationError(
                f"the statistics were made from another model: this graph has no tensor {strange[0]!r} ({len(strange)} of "
                f"{len(self.tensors)} such tensors)",
                "run the calibrate stage on this model (`dvc repro` does so by itself)",
            )

    def save(self, folder: str | Path) -> None:
        """Write `statistics.npz` (sparse histograms, channels) and `statistics.json` (origin); equal statistics, equal bytes.

        Raises:
            OutputError: the folder cannot be written; what was there is untouched.
        """
        names = self._read()
        tensors = [self.tensors[name] for name in names]
        filled = [np.flatnonzero(tensor.counts) for tensor in tensors]
        channels = [tensor.channels or Channels() for tensor in tensors]
        arrays = {
            "names": np.array(names, dtype=np.str_),
            "aliases": np.array(sorted(self.aliases.items()), dtype=np.str_).reshape(-1, 2),
            "ranges": np.array([[tensor.low, tensor.high] for tensor in tensors], np.float32).reshape(-1, 2),
            "sizes": np.array(
                [
                    # What has no channel axis and what lost it differ when more images are merged in.
                    [t.values, t.axis or 0, len(bins), t.channels is not None, len(kept.sums), kept.values]
                    for t, bins, kept in zip(tensors, filled, channels, strict=True)
                ],
                np.int64,
            ).reshape(-1, 6),
            "bins": _joined(filled, np.uint16),
            "counts": _joined([tensor.counts[bins] for tensor, bins in zip(tensors, filled, strict=True)], np.int64),
            "sums": _joined([kept.sums for kept in channels], np.int64),
            "channel_ranges": np.stack(
                [_joined([kept.low for kept in channels], np.float32), _joined([kept.high for kept in channels], np.float32)]
            ),
        }
        with replace_dir(folder) as temporary:
            # numpy stamps every member 1980-01-01, so the archive holds no clock.
            np.savez_compressed(temporary / "statistics.npz", **arrays)
            write_json(temporary / "statistics.json", self.origin)

    @classmethod
    def load(cls, folder: str | Path) -> Statistics:
        """Read what `save` wrote.

        Raises:
            CalibrationError: there are none, or a file is damaged or of an earlier version.
        """
        folder = Path(folder)
        try:
            origin = read_json(folder / "statistics.json")
            if not isinstance(origin, dict):
                raise TypeError("statistics.json holds no object")
            with np.load(folder / "statistics.npz", allow_pickle=False) as archive:
                loaded = cls._of({key: archive[key] for key in _ARRAYS})
        except FileNotFoundError as error:
            raise CalibrationError(f"{folder} has no statistics: {error.filename} is missing", "run the calibrate stage") from error
        except _DAMAGED as error:
            raise CalibrationError(f"{folder} holds damaged statistics: {error}", "run the calibrate stage again") from error
        loaded.origin = origin
        return loaded

    @classmethod
    def _of(cls, arrays: Mapping[str, np.ndarray]) -> Statistics:
        """What `save` made these arrays of."""
        loaded = cls()
        bin_at = channel_at = 0
        for name, (low, high), (values, axis, bins, has_channels, width, per_channel) in zip(
            arrays["names"], arrays["ranges"], arrays["sizes"], strict=True
        ):
            counts = np.zeros(BINS, np.int64)
            counts[arrays["bins"][bin_at : bin_at + bins]] = arrays["counts"][bin_at : bin_at + bins]
            own = slice(channel_at, channel_at + width)
            channels = Channels(arrays["sums"][own], *(side[own] for side in arrays["channel_ranges"]), int(per_channel))
            loaded.tensors[str(name)] = TensorStatistics(
                float(low), float(high), counts, int(values), channels if has_channels else None, int(axis) or None
            )
            bin_at, channel_at = bin_at + bins, channel_at + width
        loaded.link({str(name): str(source) for name, source in arrays["aliases"]})
        return loaded


def _joined(parts: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(piece, dtype) for piece in parts)])
