"""Weights for blocks of columns (`ConvOnColumnsPass`) in the bytes of the Conv's own; ONNX Runtime spreads them while it loads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.kernels.conv_on_columns import STEPS
from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["Shifted", "pack_columns", "shifted"]

# Bytes that are to be saved: the nodes and constants that spread codes out take a quarter of them.
_WORTH = 4096
# What reads the codes, in Q/DQ and in operator form.
_READERS = frozenset({"DequantizeLinear", "QLinearConv"})


@dataclass(frozen=True)
class Shifted:
    """Codes that are there once for each column that is put out, a step further to the right each time.

    Attributes:
        codes: of the first, without the zeros around them, [outputs, channels, height, width].
        count: how often they are there.
        step: columns between one and the next.
        block: columns of the image in a block.
        left: zeros before the first.
        sizes: of what they become, [count * outputs, block * channels, height, width in blocks].
    """

    codes: np.ndarray
    count: int
    step: int
    block: int
    left: int
    sizes: tuple[int, int, int, int]

    @property
    def rows(self) -> tuple[int, int]:
        """(Zeros behind the first, columns of a row of blocks)."""
        width = self.sizes[3] * self.block
        # A step more than a row, so that repeated end to end and read in rows each begins a step further to the right.
        return width + self.step - self.left - self.codes.shape[3], width

    def spread(self) -> np.ndarray:
        """What they become, int8."""
        outputs, channels, height, _ = self.codes.shape
        behind, width = self.rows
        longer = np.pad(self.codes, ((0, 0), (0, 0), (0, 0), (self.left, behind)))
        rows = np.tile(longer, (1, 1, 1, self.count))[..., : self.count * width]
        parts = rows.reshape(outputs, channels, height, self.count, self.sizes[3], self.block)
        return parts.transpose(_PLACES).reshape(self.sizes)


# [outputs, channels, height, place, block, column] as [place, outputs, column, channels, height, block].
_PLACES = (3, 0, 5, 1, 2, 4)


def shifted(array: np.ndarray) -> Shifted | None:
    """How a Conv's int8 codes, [outputs, channels, height, width], are some of them shifted; None where they are not."""
    if array.ndim != 4:
        return None
    found = [each for count, step in STEPS if (each := _shifted(array, count, step)) is not None]
    return min(found, key=lambda each: each.codes.size, default=None)


def _shifted(array: np.ndarray, count: int, step: int) -> Shifted | None:
    (outer, inner, height, across), block = array.shape, count * step
    if outer % count or inner % block:
        return None
    first = array[: outer // count].reshape(outer // count, block, inner // block, height, across).transpose(0, 2, 3, 4, 1)
    first = first.reshape(*first.shape[:3], across * block)
    used = np.flatnonzero(first.any((0, 1, 2)))
    if not used.size or used[-1] + (count - 1) * step >= across * block:
        return None
    found = Shifted(first[..., used[0] : used[-1] + 1], count, step, block, int(used[0]), array.shape)
    return found if (found.spread() == array).all() else None


def pack_columns(model: ir.Model) -> None:
    """Write weights of Convs on blocks of columns as the Conv's own and what spreads these out, in place.

    Args:
        model: a graph that is ready to be saved; Pad, Tile, Slice, Reshape and Transpose of codes are folded by ONNX Runtime.
    """
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        readers = [use.node for use in value.uses()]
        if tensor is None or tensor.dtype != ir.DataType.INT8 or tensor.size < _WORTH or value.is_graph_input():
            continue
        if value.is_graph_output() or any(each.op_type not in _READERS or each.graph is not model.graph for each in readers):
            continue
        found = shifted(tensor.numpy())
        if found is not None and tensor.size - found.codes.size >= _WORTH:
            _write(model, value, found)


def _write(model: ir.Model, value: ir.Value, found: Shifted) -> None:
    outputs, channels, height, _ = found.codes.shape
    behind, width = found.rows
    parts = [outputs, channels, height, found.count, found.sizes[3], found.block]
    steps: list[tuple[str, list[list[int]], dict[str, object]]] = [
        ("Pad", [[0, 0, 0, found.left, 0, 0, 0, behind]], {}),
        ("Tile", [[1, 1, 1, found.count]], {}),
        ("Slice", [[0], [found.count * width], [3]], {}),
        ("Reshape", [parts], {}),
        ("Transpose", [], {"perm": _PLACES}),
        ("Reshape", [list(found.sizes)], {}),
    ]
    # They are the Conv's own codes again, and have their name.
    codes, nodes = new_constant(model, value.name.removesuffix(".columns"), found.codes), []
    for place, (op_type, numbers, attributes) in enumerate(steps):
        name = f"{value.name}.{place}"
        inputs = [new_constant(model, f"{name}.by{k}", np.array(each, np.int64)) for k, each in enumerate(numbers)]
        node = ir.node(op_type, [codes, *inputs], attributes, name=name)
        codes = node.outputs[0]
        codes.name, codes.dtype = f"{name}.out", ir.DataType.INT8
        nodes.append(node)
    codes.shape = value.shape
    model.graph.insert_before(model.graph[0], nodes)
    value.replace_all_uses_with(codes)
    forget(model, value)
