"""Slices that take everything, Pads that add nothing, and Reshapes to the shape that there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import constant_of, pruned

__all__ = ["NoIdleMovesPass"]

# What exporters write for "to the end".
_END = np.iinfo(np.int32).max


class NoIdleMovesPass(GraphPass):
    """Rewrite `Slice(x)` that takes all of x, `Pad(x)` that adds nothing to it, and `Reshape(x)` to x's own shape, as `x`.

    GhostNet's modules end in `out[:, :channels]`, which cuts something off where channels are odd: 32 copies in a network of 95
    Convs. ONNX Runtime takes out those alone that are written without an end, and brings images out of their blocked layout for the
    others, and back. Converters of TensorFlow leave Pads whose sizes are computed to be 0 (of transposed convolutions), and
    Reshapes of means that moved among axes of one value: no LayerNormalization is seen behind these (`LayerNormPass`).

    1. A Slice: where it begins and ends, and by which steps, is constant, and all steps are 1. Each of its axes begins at 0, or as
       far back as it is long, and goes to its end, or where its size is open to what exporters write for the end.
    2. A Pad: what it adds is constant, and 0.
    3. A Reshape: each size that it asks for is 0 (as it is) or the one that x has there, but for one at most, which follows (-1).
    4. An output of the graph keeps its node.

    The result is the same to the last bit.
    """

    def _concerns(self, model: ir.Model) -> bool:
        return any(map(_is_idle, model.graph))

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        found = list(filter(_is_idle, model.graph))
        for node in found:
            node.outputs[0].replace_all_uses_with(node.inputs[0])
            pruned(model, [node])
        return ir.passes.PassResult(model, bool(found))


def _is_idle(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Slice", "Pad", "Reshape") or node.outputs[0].is_graph_output():
        return False
    constants = [constant_of(value) for value in node.inputs[1:]]
    if not constants or any(array is None and value is not None for array, value in zip(constants, node.inputs[1:], strict=True)):
        return False
    if node.op_type == "Pad":
        return constants[0] is not None and not constants[0].any()
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if node.op_type == "Reshape":
        return shape is not None and not node.attributes.get_int("allowzero", 0) and _is_shape(constants[0].tolist(), list(shape))
    return len(constants) > 1 and shape is not None and _takes_all(constants, list(shape))


def _is_shape(asked: Sequence[int], shape: Sequence[object]) -> bool:
    told = [size in (0, has) for size, has in zip(asked, shape, strict=False)]
    unknown = [place for place, known in enumerate(told) if not known]
    return len(asked) == len(shape) and (not unknown or [asked[place] for place in unknown] == [-1])


def _takes_all(constants: Sequence[np.ndarray | None], shape: Sequence[object]) -> bool:
    starts, ends, axes, steps = [*constants, None, None][:4]
    if starts is None or ends is None or (steps is not None and (steps != 1).any()):
        return False
    sizes = [shape[axis] for axis in (axes if axes is not None else range(len(starts)))]
    return all(_whole(int(start), int(end), size) for start, end, size in zip(starts, ends, sizes, strict=True))


def _whole(start: int, end: int, size: object) -> bool:
    if not isinstance(size, int):
        return start == 0 and end >= _END
    return (start == 0 or start <= -size) and end >= size
