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
            self.data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            self._found = _identity(os.fstat(stream.fileno()))

    def lies_there(self) -> bool:
        """Whether what is at `path` is this file, as it was."""
        try:
            return _identity(self.path.stat()) == self._found
        except OSError:
            return False


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
        super().__init__(partial(_aligned, self.mapped), dtype, ir.Shape(shape), cache=True, name=name)

    def tobytes(self) -> bytes:
        """The bytes, without a copy of the numbers beside them."""
        return self.mapped.tobytes()

    def tofile(self, file: BinaryIO) -> None:
        """Write the bytes, without a copy of the numbers."""
        file.write(self.mapped.reshape(-1).view(np.uint8).data)


def _aligned(mapped: np.ndarray) -> ir.Tensor:
    return ir.Tensor(mapped if mapped.flags.aligned else mapped.copy())
