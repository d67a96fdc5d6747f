"""Operators of ONNX's own domain that compute nothing: their outputs hold values of their inputs, in other places.

Rules that look through such nodes ask for different ones of them, and each names what it takes of these sets and what it adds or
leaves out, with the reason.
"""

from __future__ import annotations

__all__ = ["COPIES", "JOINS", "MOVES", "PARTS", "REARRANGES", "VIEWS"]

# All values of the first input, in the order in which they lie in memory.
VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# All values of the first input, each once.
REARRANGES = VIEWS | {"DepthToSpace", "SpaceToDepth", "Transpose"}
# Some values of the first input; the other inputs say which.
PARTS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})
# All values of the first input, some of them several times.
COPIES = frozenset({"Expand", "Tile"})
# Values of the first input and no others: whoever follows these backwards follows input 0.
MOVES = REARRANGES | PARTS | COPIES
# Values of all inputs.
JOINS = frozenset({"Concat"})
