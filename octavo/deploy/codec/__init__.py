"""Embeddings for transmission and storage: JSON text tokens, one a vector, and binary blocks of many.

    tokens = encode_tokens(embeddings)      # N x D float32 -> N strings
    embeddings = decode_tokens(tokens)      # and back
    block = encode_block(embeddings)        # N x D float32 -> bytes
    similarity = cosine(read_block(block), read_tokens(tokens))     # on the codes, nothing decoded

docs/codec.md has both forms byte by byte, what their version means, sizes and what matching loses. numpy is all that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.deploy.codec.blocks import read_block, write_block
from octavo.deploy.codec.codes import LIMITS, Codes, cosine, quantize
from octavo.deploy.codec.packing import VERSION
from octavo.deploy.codec.tokens import Meta, Token, read_tokens, token_meta, write_tokens
from octavo.errors import CodecError

__all__ = [
    "LIMITS",
    "VERSION",
    "Codes",
    "cosine",
    "decode_block",
    "decode_token",
    "decode_tokens",
    "encode_block",
    "encode_token",
    "encode_tokens",
    "quantize",
    "read_block",
    "read_tokens",
    "token_meta",
    "write_block",
    "write_tokens",
]


def encode_token(vector: np.ndarray, meta: Meta | None = None, bits: int = 8) -> str:
    """One vector of D float32 as a JSON token; otherwise as `encode_tokens`."""
    if isinstance(vector, np.ndarray) and vector.ndim != 1:
        raise CodecError(f"the embedding has shape {list(vector.shape)}, not [dimension]", "encode_tokens takes [count, dimension]")
    return encode_tokens(vector[None] if isinstance(vector, np.ndarray) else vector, meta, bits)[0]


def encode_tokens(vectors: np.ndarray, meta: Meta | Sequence[Meta | None] | None = None, bits: int = 8) -> list[str]:
    """Vectors as JSON tokens.

    Args:
        vectors: N x D float32, finite.
        meta: what the caller wants to travel along, a JSON object for all tokens or one for each.
        bits: 8; or 6, a quarter smaller, for embeddings whose matching was measured with it.

    Raises:
        CodecError: as `quantize` and `write_tokens`.
    """
    return write_tokens(quantize(vectors, bits), meta)


def decode_token(token: Token) -> np.ndarray:
    """The vector of one token: D float32."""
    return read_tokens([token]).vectors()[0]


def decode_tokens(tokens: Sequence[Token]) -> np.ndarray:
    """The vectors of tokens of one dimension: N x D float32. Raises CodecError as `read_tokens`."""
    return read_tokens(tokens).vectors()


def encode_block(vectors: np.ndarray, bits: int = 8) -> bytes:
    """Vectors, N x D float32, as one binary block. Raises CodecError as `quantize`."""
    return write_block(quantize(vectors, bits))


def decode_block(block: bytes) -> np.ndarray:
    """The vectors of a binary block: N x D float32. Raises CodecError as `read_block`."""
    return read_block(block).vectors()
