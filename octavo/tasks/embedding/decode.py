"""From a network's outputs to the vector that is stored and compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.errors import DataError
from octavo.params.grammar import Embedding

__all__ = ["output_of", "vector_of", "vectors_of"]


def output_of(outputs: Mapping[str, np.ndarray], task: Embedding) -> str:
    """The name of the output with the vectors.

    Raises:
        DataError: no such output, or several and none named.
    """
    name = task.output or next(iter(outputs))
    if name not in outputs or (task.output is None and len(outputs) > 1):
        raise DataError(
            f"which output holds the embedding? the graph has {', '.join(outputs)}",
            "name it: `task: {name: embedding, output: ...}`",
        )
    return name


def vectors_of(outputs: Mapping[str, np.ndarray], task: Embedding) -> np.ndarray:
    """The vectors of a batch.

    Args:
        outputs: output name to array; the embedding is N x D, with any number of dimensions of 1 beside D (N x D x 1 x 1).
        task: says which output, where there are several, and whether lengths become 1.

    Returns:
        float32, N x D; of length 1 where `task.normalise`, but a vector of zeros stays one.

    Raises:
        DataError: no such output, several and none named, or its shape is not that of one vector an image.
    """
    name = output_of(outputs, task)
    found = outputs[name]
    if found.ndim < 2 or sum(side > 1 for side in found.shape[1:]) != 1 or not np.issubdtype(found.dtype, np.floating):
        raise DataError(
            f"output {name!r} of shape {list(found.shape)} ({found.dtype}) is not one vector an image",
            "check `task`: an embedding is N x D or N x D x 1 x 1; maps are pooled in the graph",
        )
    vectors = found.reshape(found.shape[0], -1).astype(np.float32)
    return _unit(vectors) if task.normalise else vectors


def vector_of(outputs: Mapping[str, np.ndarray], task: Embedding) -> np.ndarray:
    """One image's vector: float32, D; see `vectors_of`.

    Raises:
        DataError: as there, or the outputs are of several images.
    """
    vectors = vectors_of(outputs, task)
    if len(vectors) != 1:
        raise DataError(f"the outputs are of {len(vectors)} images, not of one", "check the graph's batch dimension")
    return vectors[0]


def _unit(vectors: np.ndarray) -> np.ndarray:
    # Scaled by the largest value first: squares of very small or large ones would vanish or overflow.
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    scaled = np.divide(vectors, largest, out=np.zeros(vectors.shape, np.float64), where=largest > 0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.divide(scaled, lengths, out=scaled, where=lengths > 0).astype(np.float32)
