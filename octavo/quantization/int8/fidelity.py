"""What `fidelity: auto` asks for: SQNR in dB at a network's heads (`judge.heads_of`), by what kind of answer they are.

An answer is told by the graph around its head, not by the network's name:

- classes: a vector computed from globally pooled features that nothing but softmax and changes of shape come behind. The largest of
  many decides, and the first two are often close.
- vectors: all others, embeddings among them. Comparing two averages over their dimensions.
- masks: maps of one size. Each decision is made by many pixels.
- boxes: maps of several sizes, which detectors have. A single position decides where a box ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from octavo.quantization.int8.units import ACTIVATIONS, is_map, is_weighted

__all__ = ["fidelity_of"]

CLASSES, VECTORS, MASKS, BOXES = 24.0, 25.0, 22.5, 20.0
# Vectors of both kinds with `effort: high`.
HIGH = 26.5
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMean"})
_SHAPES = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_LAST = _SHAPES | {"ArgMax", "Cast", "LogSoftmax", "Softmax", "TopK"}


def fidelity_of(heads: Sequence[ir.Value], effort: str) -> float:
    """SQNR in dB that a network with these heads is held to.

    Args:
        heads: the tensors behind the last weights.
        effort: `default` or `high`.
    """
    maps = [value for value in heads if is_map(value)]
    if maps:
        sizes = {tuple(map(str, value.shape[2:])) for value in maps if value.shape is not None}
        return BOXES if len(sizes) > 1 else MASKS
    if effort == "high":
        return HIGH
    return CLASSES if heads and all(_of_pooled(value) and _is_answer(value) for value in heads) else VECTORS


def _of_pooled(value: ir.Value) -> bool:
    """Whether a vector is made of globally pooled features alone."""
    while (node := value.producer()) is not None and node.inputs and node.inputs[0] is not None:
        before = node.inputs[0]
        if node.op_type in _POOLS and is_map(before):
            return not is_map(value)
        if is_map(before) or not (is_weighted(node) or node.op_type in ACTIVATIONS | _SHAPES):
            return False
        value = before
    return False


def _is_answer(value: ir.Value) -> bool:
    """Whether nothing is computed from a vector that could change which of its values is the largest."""
    return all(use.node.op_type in _LAST and all(map(_is_answer, use.node.outputs)) for use in value.uses())
