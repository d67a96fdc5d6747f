"""Many embeddings as one binary block (docs/codec.md)."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from octavo.deploy.codec.codes import LIMITS, Codes
from octavo.deploy.codec.packing import MAX_DIM, VERSION, pack, refuse_scales, refuse_version, row_bytes, unpack
from octavo.errors import CodecError

__all__ = ["MAGIC", "read_block", "write_block"]

MAGIC = b"OVEC"
# Magic, version, bits, two reserved bytes, dimension, count; little endian.
_HEADER = struct.Struct("<4sBBHII")
_CHECKSUM = struct.Struct("<I")


def write_block(codes: Codes) -> bytes:
    """Codes as a binary block: header, scales, codes, checksum."""
    if max(len(codes), codes.dim) > MAX_DIM:
        raise CodecError(f"{len(codes)} embeddings of dimension {codes.dim} in one block", f"write at most {MAX_DIM} into each")
    head = _HEADER.pack(MAGIC, VERSION, codes.bits, 0, codes.dim, len(codes))
    body = head + codes.scales.astype("<f8").tobytes() + pack(codes).tobytes()
    return body + _CHECKSUM.pack(zlib.crc32(body))


def read_block(block: bytes) -> Codes:
    """The codes of a binary block, for matching without decoding.

    Raises:
        CodecError: not a block, of another version, truncated, or damaged; it names what is wrong.
    """
    if not isinstance(block, bytes | bytearray | memoryview):
        raise CodecError(f"a block is bytes, this is a {type(block).__name__}", "read the file in binary mode: Path.read_bytes()")
    block = bytes(block)
    again = "fetch or write the block again"
    if not block.startswith(MAGIC[: len(block)]) or not block:
        raise CodecError(f"not a block of embeddings: it begins with {block[:4]!r}, not {MAGIC!r}", "give what encode_block made")
    if len(block) < _HEADER.size:
        raise CodecError(f"the block ends within its header: {len(block)} bytes of {_HEADER.size}", again)
    _, version, bits, reserved, dim, count = _HEADER.unpack_from(block)
    refuse_version(version, "the block")
    if bits not in LIMITS:
        raise CodecError(f"the block has codes of {bits} bits, which version {VERSION} has not", again)
    if reserved or not dim or not count:
        raise CodecError(f"the block's header is damaged: dimension {dim}, count {count}, reserved bytes {reserved:#06x}", again)
    row = row_bytes(dim, bits)
    codes_at = _HEADER.size + 8 * count
    end = codes_at + row * count
    if len(block) != end + _CHECKSUM.size:
        raise CodecError(
            f"the block has {len(block)} bytes where {count} embeddings of dimension {dim} take {end + _CHECKSUM.size}", again
        )
    if _CHECKSUM.unpack_from(block, end)[0] != zlib.crc32(memoryview(block)[:end]):
        raise CodecError("the block's checksum is not that of its bytes: it is damaged", again)
    scales = np.frombuffer(block, "<f8", count, _HEADER.size).astype(np.float64)
    packed = np.frombuffer(block, np.uint8, row * count, codes_at).reshape(count, row)
    made = Codes(unpack(packed, dim, bits, "embedding", range(count)), scales, bits)
    refuse_scales(made, np.full(count, LIMITS[bits]), "embedding")
    return made
