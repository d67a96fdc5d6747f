"""One embedding as a JSON text token (docs/codec.md)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from octavo.deploy.codec.codes import LIMITS, Codes
from octavo.deploy.codec.packing import MAX_DIM, VERSION, pack, refuse_scales, refuse_version, row_bytes, unpack
from octavo.errors import CodecError

__all__ = ["Meta", "Token", "read_tokens", "token_meta", "write_tokens"]

Token = str | bytes | Mapping[str, Any]
Meta = Mapping[str, Any]


class _Parts(NamedTuple):
    """What a token holds, checked but for the codes themselves."""

    dim: int
    bits: int
    scale: float
    packed: bytes
    user: dict[str, Any]


def write_tokens(codes: Codes, meta: Meta | Sequence[Meta | None] | None = None) -> list[str]:
    """Codes as JSON tokens, ASCII, without white space.

    Raises:
        CodecError: `meta` is not JSON, or there are more or fewer of them than vectors.
    """
    metas = [meta] * len(codes) if meta is None or isinstance(meta, Mapping) else list(meta)
    if len(metas) != len(codes):
        raise CodecError(f"{len(metas)} objects of metadata for {len(codes)} embeddings", "give one for each, or one for all")
    size = row_bytes(codes.dim, codes.bits)
    packed = pack(codes).tobytes()
    tokens = []
    for row, (scale, user) in enumerate(zip(codes.scales.tolist(), metas, strict=True)):
        head: dict[str, Any] = {"version": VERSION, "bits": codes.bits, "scale": scale}
        if user is not None:
            if not isinstance(user, Mapping):
                raise CodecError(
                    f"the metadata of embedding {row} is a {type(user).__name__}", "give a dictionary, or leave it out"
                )
            head["user"] = dict(user)
        data = base64.b64encode(packed[row * size : (row + 1) * size]).decode("ascii")
        tokens.append(_json({"dim": codes.dim, "meta": head, "data": data}, row))
    return tokens


def read_tokens(tokens: Sequence[Token]) -> Codes:
    """The codes of tokens, for matching without decoding.

    Args:
        tokens: JSON text, or objects that a JSON parser made of it, all of one dimension. Where bits differ, the result has 8.

    Raises:
        CodecError: a token that is not whole or not of this version; it names which one and what is wrong.
    """
    if isinstance(tokens, str | bytes | Mapping):
        raise CodecError("one token is given where a list of tokens is read", "use decode_token, or put it into a list")
    if not len(tokens):
        raise CodecError("there are no tokens: the batch is empty", "leave the call out where there is nothing to read")
    parts = [_parts(token, f"token {row}") for row, token in enumerate(tokens)]
    dim = parts[0].dim
    for row, part in enumerate(parts):
        if part.dim != dim:
            raise CodecError(
                f"token {row} has dimension {part.dim}, token 0 has {dim}", "read the embeddings of one network at a time"
            )
    codes = np.empty((len(parts), dim), np.int8)
    for bits in sorted({part.bits for part in parts}):
        rows = np.array([row for row, part in enumerate(parts) if part.bits == bits])
        packed = np.frombuffer(b"".join(parts[row].packed for row in rows), np.uint8).reshape(len(rows), -1)
        codes[rows] = unpack(packed, dim, bits, "token", rows)
    made = Codes(codes, np.array([part.scale for part in parts], np.float64), max(part.bits for part in parts))
    refuse_scales(made, np.array([LIMITS[part.bits] for part in parts]), "token")
    return made


def token_meta(token: Token) -> dict[str, Any]:
    """The metadata that the caller of `encode_tokens` gave; empty where there was none."""
    return _parts(token, "the token").user


def _parts(token: Token, name: str) -> _Parts:
    """Take a token apart."""
    again = "fetch or write the token again"
    if not isinstance(token, Mapping):
        if not isinstance(token, str | bytes):
            raise CodecError(f"{name} is a {type(token).__name__}", "give JSON text, or the object that was parsed from it")
        try:
            token = json.loads(token)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"{name} is not JSON ({error}): it is truncated or damaged", again) from error
        if not isinstance(token, Mapping):
            raise CodecError(f"{name} is not a JSON object", "give what encode_tokens made")
    missing = [key for key in ("dim", "meta", "data") if key not in token]
    if missing:
        raise CodecError(f"{name} has no {' and no '.join(repr(key) for key in missing)}", "give what encode_tokens made")
    head, dim, data = token["meta"], token["dim"], token["data"]
    if not isinstance(head, Mapping):
        raise CodecError(f"{name}: 'meta' is not an object", "give what encode_tokens made")
    refuse_version(head.get("version"), name)
    bits = head.get("bits")
    if type(bits) is not int or bits not in LIMITS:
        raise CodecError(f"{name}: 'meta.bits' is {bits!r}, not {' or '.join(map(str, LIMITS))}", again)
    if type(dim) is not int or not 1 <= dim <= MAX_DIM:
        raise CodecError(f"{name}: 'dim' is {dim!r}, not a whole number of 1 or more", again)
    user = head.get("user", {})
    if not isinstance(user, Mapping):
        raise CodecError(f"{name}: 'meta.user' is not an object", again)
    return _Parts(dim, bits, _scale(head.get("scale"), name), _unencoded(data, row_bytes(dim, bits), name), dict(user))


def _scale(scale: object, name: str) -> float:
    """A JSON number as float64; whether it can be a scale is `refuse_scales`' question."""
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise CodecError(f"{name}: 'meta.scale' is {scale!r}, not a number", "fetch or write the token again")
    try:
        return float(scale)
    except OverflowError:
        return float("inf")


def _unencoded(data: object, size: int, name: str) -> bytes:
    """The `size` bytes of a base64 text, which must be the one text that these bytes have."""
    again = "fetch or write the token again"
    if not isinstance(data, str):
        raise CodecError(f"{name}: 'data' is not text", again)
    expected = -(-size // 3) * 4
    if len(data) != expected:
        raise CodecError(f"{name}: 'data' has {len(data)} characters where its dimension takes {expected}: it is damaged", again)
    try:
        packed = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"{name}: 'data' is not base64 ({error})", "use the standard alphabet (+ and /) with padding") from error
    if len(packed) != size or base64.b64encode(packed).decode("ascii") != data:
        raise CodecError(f"{name}: 'data' is not the base64 of {size} bytes: it is damaged", again)
    return packed


def _json(token: dict[str, Any], row: int) -> str:
    try:
        return json.dumps(token, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(
            f"the metadata of embedding {row} is not JSON: {error}",
            "use text, finite numbers, booleans, lists and dictionaries",
        ) from error
