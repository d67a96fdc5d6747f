"""ONNX files parsed without their large weights, which stay where they lie in the file.

A protobuf is read whole and copied field by field: weights of 346 MB (ViT-B/16) took .5 s of processor time and 660 MB at the peak,
and each page of such memory, which the system clears first, more time than the copy. Here the wire format is walked over
(https://protobuf.dev/programming-guides/encoding/), and what is parsed is the same message with references in place of the weights'
bytes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from octavo.file_tensor import FileTensor, MappedFile

__all__ = ["InFile", "parsed"]

# Files below this size are parsed whole, and tensors below the other stay in the message.
_WORTH, _LARGE = 1 << 20, 1 << 12
# Fields of onnx.proto: of a ModelProto, a GraphProto and a TensorProto.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# What numpy reads as it lies in the file.
_TYPES = frozenset(
    {
        *(ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16),
        *(ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.INT64),
    }
)
_SAID_EXTERNAL = onnx.TensorProto(
    data_location=onnx.TensorProto.EXTERNAL, external_data=[onnx.StringStringEntryProto(key="location", value="in the file")]
).SerializeToString()


@dataclass(frozen=True)
class InFile:
    """A model without the weights that stayed in its file.

    Attributes:
        proto: the model; these weights have data types and dimensions, and are said to be external.
        weights: they, by name.
    """

    proto: onnx.ModelProto
    weights: dict[str, FileTensor]


def parsed(path: Path) -> InFile:
    """Parse an ONNX file; weights that do not stay in it are in the message, as are those whose size is not that of their data.

    Args:
        path: a file.

    Raises:
        google.protobuf.message.DecodeError: it is no protobuf, or truncated.
    """
    if path.stat().st_size >= _WORTH and sys.byteorder == "little":
        try:
            return _without_weights(MappedFile(path))
        except _UnreadError:
            # Protobuf's own parser says what is wrong with it, or reads what is rare: groups, a graph in parts.
            pass
    return InFile(onnx.load(path, format="protobuf", load_external_data=False), {})


class _UnreadError(Exception):
    """A message that is not read here."""


@dataclass(frozen=True)
class _Field:
    """Where a field lies in its message: from its key to its end, and where its content begins."""

    number: int
    kind: int
    start: int
    content: int
    end: int


@dataclass(frozen=True)
class _Weight:
    """A tensor that stays in the file: its numbers' place, and the message without them."""

    name: str
    dtype: ir.DataType
    dims: tuple[int, ...]
    data: _Field
    message: bytes


def _without_weights(file: MappedFile) -> InFile:
    whole = memoryview(file.data)
    fields = list(_fields(whole, 0, len(whole)))
    graphs = [field for field in fields if field.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _BYTES:
        raise _UnreadError
    inner = list(_fields(whole, graphs[0].content, graphs[0].end))
    large = (field for field in inner if field.number == _INITIALIZER and field.end - field.content >= _LARGE)
    found = {field: weight for field in large if (weight := _weight(whole, field)) is not None}
    graph = b"".join(
        _message(_INITIALIZER, found[field].message) if field in found else whole[field.start : field.end] for field in inner
    )
    model = b"".join(_message(_GRAPH, graph) if field is graphs[0] else whole[field.start : field.end] for field in fields)
    proto = onnx.ModelProto.FromString(model)
    names = [tensor.name for tensor in proto.graph.initializer]
    if len(set(names)) < len(names):
        # Which one counts is for those to say who read the whole message.
        raise _UnreadError
    weights = {
        weight.name: FileTensor(file, weight.data.content, weight.dtype, weight.dims, weight.name) for weight in found.values()
    }
    return InFile(proto, weights)


def _weight(whole: memoryview, field: _Field) -> _Weight | None:
    """A tensor that may stay in the file; None where it may not."""
    kept, dims, dtype, name, data = [], [], 0, b"", None
    for part in _fields(whole, field.content, field.end):
        if part.number == _RAW_DATA and data is None:
            data = part
            continue
        if part.number in (_RAW_DATA, _EXTERNAL, _LOCATION):
            return None
        kept.append(whole[part.start : part.end])
        if part.number == _DIMS:
            dims += _numbers(whole, part)
        elif part.number == _DATA_TYPE:
            (dtype,) = _numbers(whole, part)
        elif part.number == _NAME:
            name = bytes(whole[part.content : part.end])
            if not name.isascii():
                return None
    if not name or data is None or data.kind != _BYTES or dtype not in _TYPES:
        return None
    kind = ir.DataType(dtype)
    if math.prod(dims) * kind.itemsize != data.end - data.content:
        return None
    # Its size is neither held against its message then, nor missed in it.
    kept.append(_SAID_EXTERNAL)
    return _Weight(name.decode(), kind, tuple(dims), data, b"".join(kept))


def _numbers(whole: memoryview, field: _Field) -> list[int]:
    """What a field of whole numbers holds, packed or not."""
    found, place = [], field.content
    while place < field.end:
        number, place = _read(whole, place, field.end)
        found.append(number)
    return found


def _fields(whole: memoryview, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message, in its order.

    Raises:
        _UnreadError: it ends within one, or has one of a kind that ONNX does not use.
    """
    while start < end:
        key, content = _read(whole, start, end)
        kind = key & 7
        if kind == _VARINT:
            _, stop = _read(whole, content, end)
        elif kind == _BYTES:
            length, content = _read(whole, content, end)
            stop = content + length
        elif kind in (_FIXED32, _FIXED64):
            stop = content + (4 if kind == _FIXED32 else 8)
        else:
            raise _UnreadError
        if stop > end:
            raise _UnreadError
        yield _Field(key >> 3, kind, start, content, stop)
        start = stop


def _read(whole: memoryview, place: int, end: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= end:
            break
        byte = whole[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise _UnreadError


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _message(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content
