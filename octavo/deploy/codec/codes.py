"""Embeddings as integer codes: each vector has one scale, value = code x scale. Matching works on the codes.

The scale is the vector's largest magnitude over the largest code (127, or 31 with 6 bits), as float64: then that code's value
rounds to the very float32 that it came from, whatever its magnitude, so extremes and with them constant vectors come back bit by
bit, and coding what was decoded gives the same codes. Clipping the largest values, or fitting the scale by least squares after
rounding, was measured (docs/codec.md): the first loses similarity or wins next to nothing, the second cannot change it, because
scales cancel in a cosine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from octavo.errors import CodecError

__all__ = ["LIMITS", "Codes", "cosine", "quantize"]

# The largest code by bits; the range is symmetric, so -128 and -32 stay unused.
LIMITS = {8: 127, 6: 31}
# Values converted to floating point at a time: what a core's cache holds.
_CHUNK = 1 << 17
# Up to this dimension float32 adds products of 8-bit codes without rounding: every sum is a whole number up to 2^24.
_EXACT_FLOAT32 = (1 << 24) // 127**2


@dataclass(frozen=True, eq=False)
class Codes:
    """N coded vectors of D values.

    Attributes:
        codes: N x D int8, within +-`LIMITS[bits]`.
        scales: N float64, finite; 0 where a vector is zero.
        bits: 8 or 6, what a code takes in a token or block.
    """

    codes: np.ndarray
    scales: np.ndarray
    bits: int = 8

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dim(self) -> int:
        """D."""
        return self.codes.shape[1]

    def vectors(self) -> np.ndarray:
        """The vectors, N x D float32: code x scale in float64, rounded once."""
        made = np.empty(self.codes.shape, np.float32)
        for rows in _chunks(*made.shape):
            made[rows] = np.multiply(self.codes[rows], self.scales[rows, None], dtype=np.float64)
        return made


def quantize(vectors: np.ndarray, bits: int = 8) -> Codes:
    """Code vectors with one scale each.

    Args:
        vectors: N x D float32, N and D at least 1, finite.
        bits: 8, or 6 where size counts more.

    Returns:
        Codes whose values lie within half a scale of the vectors' (and half a unit in the last place of float32); the largest
        magnitude of each vector is exact, and so are zeros, but for their sign.

    Raises:
        CodecError: another type or shape, no vectors, NaN or infinity, or `bits` that there are not.
    """
    if bits not in LIMITS:
        raise CodecError(f"codes of {bits!r} bits", f"use one of: {', '.join(map(str, LIMITS))}")
    _refuse_other_than_vectors(vectors)
    peaks = np.abs(np.maximum(vectors.max(axis=1), -vectors.min(axis=1)))  # of NaN they are NaN; abs: no negative zero
    if not np.isfinite(peaks).all():
        row = int(np.isfinite(peaks).argmin())
        column = int(np.isfinite(vectors[row]).argmin())
        raise CodecError(
            f"embedding {row} has {vectors[row, column]} at index {column}",
            "NaN and infinity have no code: look for what made them (an empty crop, a zero norm), and leave that embedding out",
        )
    scales = peaks.astype(np.float64) / LIMITS[bits]
    divisors = np.where(peaks > 0, scales, 1.0)[:, None]
    codes = np.empty(vectors.shape, np.int8)
    for rows in _chunks(*codes.shape):
        codes[rows] = np.rint(np.divide(vectors[rows], divisors[rows], dtype=np.float64))
    return Codes(codes, scales, bits)


def cosine(one: Codes, other: Codes) -> np.ndarray:
    """Cosine similarity of all pairs from the codes alone: the integer dot product over the lengths of the codes; scales cancel.

    The dot products are those of int32 to the last bit, computed by BLAS in a floating-point type that holds them exactly.

    Args:
        one: N vectors.
        other: M vectors of the same dimension, the larger side; the bits may differ.

    Returns:
        N x M float32 in -1..1; 0 where a vector is zero.

    Raises:
        CodecError: the dimensions differ.
    """
    if one.dim != other.dim:
        raise CodecError(f"embeddings of dimension {one.dim} and {other.dim} are compared", "compare those of one network")
    exact = np.float32 if one.dim <= _EXACT_FLOAT32 else np.float64
    left = one.codes.astype(exact)
    left_lengths = _lengths(left)[:, None]
    found = np.empty((len(one), len(other)), np.float32)
    for rows in _chunks(len(other), max(one.dim, len(one))):
        right = other.codes[rows].astype(exact)
        found[:, rows] = (left @ right.T) / (left_lengths * _lengths(right))
    return found


def _lengths(codes: np.ndarray) -> np.ndarray:
    """Euclidean length of each row; 1 for a row of zeros, whose dot products are 0."""
    return np.sqrt(np.maximum(np.einsum("nd,nd->n", codes, codes), 1).astype(np.float64))


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of `rows` that hold about `_CHUNK` values each."""
    step = max(1, _CHUNK // columns)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _refuse_other_than_vectors(vectors: np.ndarray) -> None:
    if not isinstance(vectors, np.ndarray):
        raise CodecError(f"embeddings are a {type(vectors).__name__}", "pass a numpy array: np.asarray(embeddings, np.float32)")
    if vectors.dtype != np.float32:
        raise CodecError(
            f"embeddings are of type {vectors.dtype}, not float32 in this machine's byte order",
            "convert them first, in the knowledge of what that rounds: embeddings.astype(np.float32)",
        )
    if vectors.ndim != 2:
        raise CodecError(
            f"embeddings have shape {list(vectors.shape)}, not [count, dimension]",
            "reshape them: embeddings.reshape(len(embeddings), -1), or embedding[None] for a single one",
        )
    if not vectors.shape[0]:
        raise CodecError("there are no embeddings: the batch is empty", "leave the call out where nothing was found")
    if not vectors.shape[1]:
        raise CodecError("embeddings have dimension 0", "look at the network's output: it should be [count, dimension]")
