"""The wire format of protobufs, as far as ONNX files use it (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["BYTES", "VARINT", "Field", "UnreadError", "fields", "key", "message", "numbers", "varint"]

VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5


class UnreadError(Exception):
    """A message that is not read here: damaged, or with what ONNX does not use."""


@dataclass(frozen=True)
class Field:
    """Where a field lies in its message: from its key to its end, and where its content begins."""

    number: int
    kind: int
    start: int
    content: int
    end: int


def numbers(whole: memoryview, field: Field) -> list[int]:
    """What a field of whole numbers holds, packed or not."""
    found, place = [], field.content
    while place < field.end:
        number, place = _read(whole, place, field.end)
        found.append(number)
    return found


def fields(whole: memoryview, start: int, end: int) -> Iterator[Field]:
    """The fields of a message, in its order.

    Raises:
        UnreadError: it ends within one, or has one of a kind that ONNX does not use.
    """
    while start < end:
        said, content = _read(whole, start, end)
        kind = said & 7
        if kind == VARINT:
            _, stop = _read(whole, content, end)
        elif kind == BYTES:
            length, content = _read(whole, content, end)
            stop = content + length
        elif kind in (_FIXED32, _FIXED64):
            stop = content + (4 if kind == _FIXED32 else 8)
        else:
            raise UnreadError
        if stop > end:
            raise UnreadError
        yield Field(said >> 3, kind, start, content, stop)
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
    raise UnreadError


def varint(number: int) -> bytes:
    """A whole number that is not negative."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def key(number: int, kind: int) -> bytes:
    """What a field begins with."""
    return varint(number << 3 | kind)


def message(number: int, content: bytes) -> bytes:
    """A field of this content."""
    return key(number, BYTES) + varint(len(content)) + content
