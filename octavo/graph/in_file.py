"""ONNX files read and written without their large weights in memory, which stay where they lie in the file.

A protobuf is read whole and copied field by field: weights of 346 MB (ViT-B/16) took .5 s of processor time and 660 MB at the peak,
and each page of such memory, which the system clears first, more time than the copy. Here the wire format is walked over, and what
is parsed is the same message with references in place of the weights' bytes; what is written is such a message, and the weights one
after the other in their places.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from octavo.file_tensor import FileTensor, MappedFile
from octavo.graph.wire import BYTES, VARINT, Field, UnreadError, fields, key, message, numbers, varint

__all__ = ["InFile", "parsed", "taken_out", "write"]

# Files below this size are parsed whole, and tensors below the other stay in the message.
_WORTH, _LARGE = 1 << 20, 1 << 12
# Fields of onnx.proto: of a ModelProto, a GraphProto and a TensorProto.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
# What numpy reads as it lies in the file.
_TYPES = frozenset(
    {
        *(ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16),
        *(ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.INT64),
    }
)
# Of a tensor whose bytes are not in the message: its size is neither held against the message then, nor missed in it.
_HERE = "in the file"
_SAID_EXTERNAL = onnx.TensorProto(
    data_location=onnx.TensorProto.EXTERNAL, external_data=[onnx.StringStringEntryProto(key="location", value=_HERE)]
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
        except UnreadError:
            # Protobuf's own parser says what is wrong with it, or reads what is rare: groups, a graph in parts.
            pass
    return InFile(onnx.load(path, format="protobuf", load_external_data=False), {})


def taken_out(model: ir.Model, *, of_protobufs: bool = False) -> dict[str, ir.TensorProtocol]:
    """Take the large weights out of a graph, in place, so that a message of it is small.

    Args:
        model: the graph.
        of_protobufs: those too that a protobuf holds, which may be numbers of their own fields, and are not for `write` then.

    Returns:
        They, by name.
    """
    weights = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype not in _TYPES or tensor.nbytes < _LARGE:
            continue
        if isinstance(tensor, ir.TensorProtoTensor) and not of_protobufs:
            continue
        weights[name] = tensor
        without = onnx.TensorProto(name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
        without.MergeFromString(_SAID_EXTERNAL)
        value.const_value = ir.TensorProtoTensor(without)
    return weights


def write(proto: onnx.ModelProto, weights: Mapping[str, ir.TensorProtocol], path: Path) -> None:
    """Write a model, byte for byte as with these weights in it: fields in the order of their numbers, as protobuf writes them.

    Args:
        proto: the model, without them.
        weights: what was taken out of its graph, by name.
        path: a new file.

    Raises:
        OSError: it cannot be written.
    """
    whole = memoryview(proto.SerializeToString(deterministic=True))
    with path.open("wb") as file:
        for field in fields(whole, 0, len(whole)):
            if field.number != _GRAPH or not weights:
                file.write(whole[field.start : field.end])
                continue
            parts = list(_parts(whole, field, weights))
            file.write(key(_GRAPH, BYTES) + varint(sum(map(_size, parts))))
            for part in parts:
                if isinstance(part, bytes):
                    file.write(part)
                else:
                    part.tofile(file)


def _parts(whole: memoryview, graph: Field, weights: Mapping[str, ir.TensorProtocol]) -> Iterator[bytes | ir.TensorProtocol]:
    """A graph's message in pieces, of which some are weights' bytes."""
    for field in fields(whole, graph.content, graph.end):
        name = _name(whole, field) if field.number == _INITIALIZER else None
        if name not in weights:
            yield bytes(whole[field.start : field.end])
            continue
        inner = fields(whole, field.content, field.end)
        kept = b"".join(whole[part.start : part.end] for part in inner if part.number not in (_EXTERNAL, _LOCATION))
        head = kept + key(_RAW_DATA, BYTES) + varint(_size(weights[name]))
        yield key(_INITIALIZER, BYTES) + varint(len(head) + _size(weights[name])) + head
        yield weights[name]


def _size(part: bytes | ir.TensorProtocol) -> int:
    return len(part) if isinstance(part, bytes) else math.prod(part.shape.numpy()) * part.dtype.numpy().itemsize


def _name(whole: memoryview, tensor: Field) -> str | None:
    names = (part for part in fields(whole, tensor.content, tensor.end) if part.number == _NAME)
    return next((bytes(whole[part.content : part.end]).decode() for part in names), None)


@dataclass(frozen=True)
class _Weight:
    """A tensor that stays in the file: its numbers' place, and the message without them."""

    name: str
    dtype: ir.DataType
    dims: tuple[int, ...]
    data: Field
    message: bytes


def _without_weights(file: MappedFile) -> InFile:
    whole = memoryview(file.data)
    outer = list(fields(whole, 0, len(whole)))
    graphs = [field for field in outer if field.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].kind != BYTES:
        raise UnreadError
    inner = list(fields(whole, graphs[0].content, graphs[0].end))
    large = (field for field in inner if field.number == _INITIALIZER and field.end - field.content >= _LARGE)
    found = {field: weight for field in large if (weight := _weight(whole, field)) is not None}
    graph = b"".join(
        message(_INITIALIZER, found[field].message) if field in found else whole[field.start : field.end] for field in inner
    )
    model = b"".join(message(_GRAPH, graph) if field is graphs[0] else whole[field.start : field.end] for field in outer)
    proto = onnx.ModelProto.FromString(model)
    names = [tensor.name for tensor in proto.graph.initializer]
    if len(set(names)) < len(names):
        # Which one counts is for those to say who read the whole message.
        raise UnreadError
    weights = {
        weight.name: FileTensor(file, weight.data.content, weight.dtype, weight.dims, weight.name) for weight in found.values()
    }
    # Looking for them brought in what lies around.
    file.let_go(0, len(whole))
    return InFile(proto, weights)


def _weight(whole: memoryview, field: Field) -> _Weight | None:
    """A tensor that may stay in the file; None where it may not."""
    kept, dims, dtype, name, data = [], [], 0, b"", None
    for part in fields(whole, field.content, field.end):
        if part.number == _RAW_DATA and data is None:
            data = part
            continue
        if part.number in (_RAW_DATA, _EXTERNAL, _LOCATION):
            return None
        kept.append(whole[part.start : part.end])
        if part.number == _DIMS and part.kind in (VARINT, BYTES):
            dims += numbers(whole, part)
        elif part.number == _DATA_TYPE and part.kind == VARINT:
            (dtype,) = numbers(whole, part)
        elif part.number == _NAME and part.kind == BYTES:
            name = bytes(whole[part.content : part.end])
    if not name or not name.isascii() or data is None or data.kind != BYTES or dtype not in _TYPES:
        return None
    kind = ir.DataType(dtype)
    if math.prod(dims) * kind.itemsize != data.end - data.content:
        return None
    return _Weight(name.decode(), kind, tuple(dims), data, b"".join([*kept, _SAID_EXTERNAL]))
