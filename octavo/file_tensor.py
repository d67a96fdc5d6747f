"""Weights that stay in the file they were read from until someone asks for their numbers."""

from __future__ import annotations

import math
import mmap
import os
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

__all__ = ["FileTensor", "MappedFile"]


class MappedFile:
    """A file mapped into memory, which may be renamed, replaced or deleted meanwhile, but not written over.

    Args:
        path: of a file that is not empty.

    Attributes:
        path: where the file itself lies, links followed.
        data: uint8, its bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        with path.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self._found = _identity(os.fstat(stream.fileno()))
        self.data = np.frombuffer(self._map, np.uint8)

    def lies_there(self) -> bool:
        """Whether what is at `path` is this file, as it was."""
        try:
            return _identity(self.path.stat()) == self._found
        except OSError:
            return False

    def let_go(self, start: int, end: int) -> None:
        """Count these bytes no more as memory of this process; who reads them again has them back from the system's cache."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class FileTensor(ir.LazyTensor):
    """A tensor whose bytes lie in a mapped file, in C order, least significant byte first.

    Its numbers are where numpy can compute with them, and round in one way: where the file begins them at an address that their
    type does not divide, as protobufs do, `numpy` makes a copy, which is kept.

    Args:
        file: the file.
        offset: bytes of it before the tensor's.
        dtype: of the numbers: one that numpy knows.
        shape: as many sizes as there are axes.
        name: the tensor's.

    Attributes:
        file, offset: as given.
        mapped: the numbers where they lie, aligned or not: what only reads them once need not copy them.
    """

    __slots__ = ("file", "mapped", "offset")

    def __init__(self, file: MappedFile, offset: int, dtype: ir.DataType, shape: tuple[int, ...], name: str) -> None:
        self.file, self.offset = file, offset
        size = math.prod(shape) * dtype.numpy().itemsize
        self.mapped = file.data[offset : offset + size].view(dtype.numpy()).reshape(shape)
        super().__init__(partial(_aligned, self.mapped, file, offset), dtype, ir.Shape(shape), cache=True, name=name)

    def tobytes(self) -> bytes:
        """The bytes, without a copy of the numbers beside them."""
        data = self.mapped.tobytes()
        self.let_go()
        return data

    def tofile(self, file: BinaryIO) -> None:
        """Write the bytes, without a copy of the numbers."""
        file.write(self.mapped.reshape(-1).view(np.uint8).data)
        self.let_go()

    def let_go(self) -> None:
        """Count its bytes no more as memory of this process: they were read, and are not wanted again soon."""
        self.file.let_go(self.offset, self.offset + self.mapped.nbytes)


def _aligned(mapped: np.ndarray, file: MappedFile, offset: int) -> ir.Tensor:
    if mapped.flags.aligned:
        return ir.Tensor(mapped)
    copy = ir.Tensor(mapped.copy())
    # Both would count.
    file.let_go(offset, offset + mapped.nbytes)
    return copy
