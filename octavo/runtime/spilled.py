"""Arrays that lie in a file until somebody asks for them: what is read now and then of dozens of images does not stay in memory.

48 images of 3x640x640 float32 are 236 MB, more than quantizing a small detector takes for anything else. Each is mapped from the
file where it is asked for and leaves memory with the array: tens of microseconds beside the milliseconds that a network takes.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from octavo.files import scratch_written_to

__all__ = ["Spill"]

# What all arrays of one image take from where on they are worth a file.
_LARGE = 128 << 10


@dataclass(frozen=True)
class _Place:
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


class Spill:
    """A file without a name, which goes with the last of what lies in it, however the process ends."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None

    def put(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Write arrays, and let go of them.

        Args:
            arrays: of any shape and dtype but object.

        Returns:
            The same arrays, read again each time that they are asked for: writing into one changes no other. Those themselves where
            all of them together are small, or were put away before.

        Raises:
            OutputError: the system's temporary folder has no room for them.
        """
        if isinstance(arrays, _Spilled) or sum(value.nbytes for value in arrays.values()) < _LARGE:
            return arrays
        with scratch_written_to(Path(tempfile.gettempdir())):
            if self._file is None:
                # Held by what is mapped from it, too.
                self._file = tempfile.TemporaryFile(prefix="octavo-")  # noqa: SIM115
            places = {name: self._written(self._file, value) for name, value in arrays.items()}
            self._file.flush()
        return _Spilled(self._file, places)

    @staticmethod
    def _written(file: BinaryIO, value: np.ndarray) -> _Place:
        # Files are mapped from multiples of this on.
        offset = -(-file.tell() // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        file.seek(offset)
        file.write(np.ascontiguousarray(value).data.cast("B") if value.size else b"")
        return _Place(offset, value.shape, value.dtype)


class _Spilled(Mapping[str, np.ndarray]):
    """One image's arrays by name."""

    def __init__(self, file: BinaryIO, places: Mapping[str, _Place]) -> None:
        self._file, self._places = file, places

    def __getitem__(self, name: str) -> np.ndarray:
        place = self._places[name]
        size = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize
        if not size:
            return np.empty(place.shape, place.dtype)
        # A copy once it is written to.
        held = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_COPY, offset=place.offset)
        return np.frombuffer(held, place.dtype).reshape(place.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
