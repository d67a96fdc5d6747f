"""Codes as bytes, and what every reader of them refuses: what tokens and blocks share (docs/codec.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.deploy.codec.codes import LIMITS, Codes
from octavo.errors import CodecError

__all__ = ["MAX_DIM", "VERSION", "pack", "refuse_scales", "refuse_version", "row_bytes", "unpack"]

# Of tokens and blocks alike.
VERSION = 1
MAX_DIM = 2**32 - 1


def row_bytes(dim: int, bits: int) -> int:
    """Bytes of one vector's codes: the last byte is filled up with zero bits."""
    return (dim * bits + 7) // 8


def pack(codes: Codes) -> np.ndarray:
    """N rows of bytes. 8 bits: the int8 as they are; 6 bits: code + 32, four in three bytes, the first in the highest bits."""
    if codes.bits == 8:
        return codes.codes.view(np.uint8)
    count, dim = codes.codes.shape
    quads = np.zeros((count, -(-dim // 4) * 4), np.uint8)
    quads[:, :dim] = codes.codes + np.int8(32)
    a, b, c, d = (quads[:, place::4] for place in range(4))
    triples = np.stack([a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d], axis=2)
    return triples.reshape(count, -1)[:, : row_bytes(dim, codes.bits)]


def unpack(packed: np.ndarray, dim: int, bits: int, what: str, rows: Sequence[int]) -> np.ndarray:
    """The reverse of `pack`: N x `dim` int8. Refuses codes and filling that no writer makes; `what` and `rows` name them then."""
    if bits == 8:
        codes = packed.view(np.int8)
        bad = (codes == -128).any(axis=1)
    else:
        triples = np.zeros((len(packed), -(-dim // 4) * 3), np.uint8)
        triples[:, : packed.shape[1]] = packed
        a, b, c = (triples[:, place::3] for place in range(3))
        quads = np.stack([a >> 2, (a << 4 | b >> 4) & 63, (b << 2 | c >> 6) & 63, c & 63], axis=2).reshape(len(packed), -1)
        bad = (quads[:, :dim] == 0).any(axis=1) | quads[:, dim:].any(axis=1)
        codes = quads[:, :dim].astype(np.int8) - np.int8(32)
    if bad.any():
        raise CodecError(
            f"{what} {rows[int(bad.argmax())]}: its data holds a code outside of +-{LIMITS[bits]}: it is damaged",
            "fetch or write it again",
        )
    return codes


def refuse_version(version: object, name: str) -> None:
    """Only the version that this reader knows: another one may mean anything."""
    if type(version) is not int or version != VERSION:
        raise CodecError(
            f"{name} is of version {version!r}; this reader knows version {VERSION}",
            "update Octavo where it is read, or write it with a version that the reader knows",
        )


def refuse_scales(codes: Codes, limits: np.ndarray, name: str) -> None:
    """A scale is finite and not negative, its largest value is a float32 other than 0; only a zero vector has scale 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = (codes.scales * limits).astype(np.float32)
    zero = codes.scales == 0
    good = np.isfinite(largest) & ~np.signbit(codes.scales) & (zero | (largest > 0))
    good &= ~zero | ~codes.codes.any(axis=1)
    if not good.all():
        row = int(good.argmin())
        raise CodecError(
            f"{name} {row} has the scale {codes.scales[row]!s}: a scale is finite, not negative, 0 for zero vectors only, and its "
            "values fit float32",
            "fetch or write it again: it is damaged, or its writer does not keep to docs/codec.md",
        )
