"""What `fidelity: auto` asks for: SQNR in dB at a network's heads (`structure.heads.heads_of`), by what kind of answer they are.

- vectors: classes and embeddings. The largest of many decides, and the first two are often close; comparing two averages over their
  dimensions, and a cosine of .998 is 24 dB.
- masks: maps of one size. Each decision is made by many pixels.
- boxes: maps of several sizes, which detectors have. A single position decides where a box ends. Where the outputs can be read as
  boxes, noise is the share of AP that it is expected to cost (`objects.py`): 20 dB are 1 %. Else it is that of heads, and what it
  does differs from detector to detector. Where the last dB are dear, they are not asked for (`least_of`, `search.Search.settled`).
- pictures (`pictures.py`): of an upscaler's PSNR against the photo 99 % are kept at about 33 dB of the picture's variance.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from octavo.quantization.int8.structure.heads import channels_last, is_map

__all__ = ["PICTURES", "are_masks", "fidelity_of", "least_of"]

# Of classifiers, 24.5 dB were .03 to .45 dB more while what classes differ by on average counted as signal.
VECTORS, MASKS, BOXES, PICTURES = 24.5, 22.5, 20.0, 33.0
# What boxes are held to where `BOXES` would be dear; of AP that is 1.6 %.
LEAST_BOXES = 18.0
# Vectors with `effort: high`.
HIGH = 26.5


def fidelity_of(heads: Sequence[ir.Value], effort: str) -> float:
    """SQNR in dB that a network with these heads is held to.

    Args:
        heads: the tensors behind the last weights.
        effort: `default` or `high`.
    """
    if any(is_map(value) for value in heads):
        return MASKS if are_masks(heads) else BOXES
    return HIGH if effort == "high" else VECTORS


def are_masks(heads: Sequence[ir.Value]) -> bool:
    """Whether a network's heads are maps of one size; with channels last, of one width, too: boxes and scores of the same queries,
    as DETR has them, are a detector's.
    """
    maps = [value for value in heads if is_map(value)]
    sizes = {
        tuple(map(str, value.shape[1:] if channels_last(value) else value.shape[2:])) for value in maps if value.shape is not None
    }
    return bool(maps) and len(sizes) <= 1


def least_of(bound: float) -> float:
    """SQNR in dB below which no network is let that `fidelity_of` holds to `bound`, however dear more is."""
    return LEAST_BOXES if bound == BOXES else bound
