"""Operators of ONNX's own domain by what they do: layers, and those that compute nothing but put values into other places.

Rules that look through nodes which only move values ask for different ones of them, and each names what it takes of these sets and
what it adds or leaves out, with the reason.
"""

from __future__ import annotations

__all__ = ["COPIES", "CURVES", "JOINS", "LAYERS", "MOVES", "PARTS", "REARRANGES", "VIEWS", "WEIGHTED"]

# Layers whose second input is multiplied with the data and summed.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# What quantization is for; behind the last of them a graph is post-processing.
LAYERS = WEIGHTED | {"Einsum"}

# Each value of the only tensor that they read by itself, all by the same function.
CURVES = frozenset({"Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Selu", "Sigmoid", "Softplus", "Tanh"})

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
