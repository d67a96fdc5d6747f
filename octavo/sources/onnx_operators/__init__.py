"""ONNX's operators in torch. A new one is one line in a table: from its node to what runs in its place."""

from __future__ import annotations

from octavo.sources.onnx_operators.elementwise import ELEMENTWISE
from octavo.sources.onnx_operators.gathers import GATHERS
from octavo.sources.onnx_operators.layers import LAYERS
from octavo.sources.onnx_operators.moves import MOVES
from octavo.sources.onnx_operators.node import Builder
from octavo.sources.onnx_operators.resize import RESIZE
from octavo.sources.onnx_operators.windows import POOLS

__all__ = ["OPERATORS", "SIZE_INPUTS"]

# Operator of the ONNX domain -> from its node to a call on tensors.
OPERATORS: dict[str, Builder] = {**ELEMENTWISE, **GATHERS, **LAYERS, **MOVES, **POOLS, **RESIZE}

# Inputs that are sizes, axes or the like: constants, or what `octavo.sources.onnx_operators.sizes` makes of a shape. Never tensors.
SIZE_INPUTS: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    **{name: (1,) for name in OPERATORS if name.startswith("Reduce")},
}
