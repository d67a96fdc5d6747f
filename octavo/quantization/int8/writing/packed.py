"""Float constants in fewer bytes of the file, restored as they were, or nearly, while ONNX Runtime loads the graph.

Beside int8 weights there remain, in float32: weights of float layers whose codes would make noise (16 % of YOLOX-nano's file), and
tables of decoding, which folding of constants made: grids, anchors, strides (15 % of YOLOv5n's). What restores them reads constants
alone; ONNX Runtime folds it away, so that nothing runs slower.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.qdq import forget, new_constant
from octavo.quantization.int8.writing.packed_columns import pack_columns

__all__ = ["TWICE", "few_values", "pack_constants", "pack_tables", "share_codes", "whole_steps"]

# Restoring fewer values than this would take more bytes than it saves.
_WORTH = 256
# Equal constants of at most so many values are found: zero points and scales of all channels, shapes.
_ALIKE = 4096
# The axis of output channels of their weights (of gates and hidden units); either may be it for a Gemm.
_LAYERS = {"Conv": 0, "FusedConv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "GRU": 1, "LSTM": 1, "RNN": 1}
# The first input of a layer that is no weight; recurrent layers have those of the hidden state as well.
_BEYOND = {"GRU": 3, "LSTM": 3, "RNN": 3}
# Of int8 weights: so many that nodes which copy them take fewer bytes.
TWICE = 1024
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
# Half precision has 66 to 76 dB against the weights of a channel, unless most of these are below its smallest normal number.
_HALF_NOISE = 1e-6
# Binary places of what is taken for whole numbers.
_PLACES = 8


def pack_constants(model: ir.Model, kept: Container[str] = ()) -> set[str]:
    """Pack the constants of a graph that is ready to be saved, in place: tables, then weights, then what is there more than once.

    A layer's float32 weights become float16 where each channel keeps 60 dB by that; constants with the same content become one.

    Args:
        model: static INT8, in Q/DQ or operator form.
        kept: names of nodes whose weights stay float32.

    Returns:
        The layers whose weights are float16 now, by their nodes' names.
    """
    pack_tables(model)
    pack_columns(model)
    halves: set[str] = set()
    for value, array, readers in _constants(model):
        if all(_is_weight(use) and use.node.name not in kept for use in readers):
            axis = _LAYERS[readers[0].node.op_type]
            if array.ndim > axis and _pack_weights(model, value, array, axis):
                halves |= {use.node.name or "" for use in readers}
    _share_equal(model)
    share_codes(model)
    return halves


def pack_tables(model: ir.Model) -> None:
    """Pack float32 tables that only Add, Sub, Mul and Div read, in place; what restores them gives the same bits.

    Axes along which a table repeats are left to Expand. Values that are whole steps of one size are uint8 or uint16 codes, and so
    are places in a list where a table has few different values (an SSD detector's anchors, in shares of the image); what takes
    fewer bytes is taken.

    Args:
        model: a graph that is ready to be saved.
    """
    for value, array, readers in _constants(model):
        if all(use.node.op_type in _ARITHMETIC for use in readers):
            _pack_table(model, value, array)


def share_codes(model: ir.Model) -> None:
    """Keep int8 weights once that several layers have, in place, by Tile and Split, which ONNX Runtime folds.

    To it they are apart, as `_share_equal` says they must be, and those of products with ranges of run time, too
    (`dynamic_products`).

    Args:
        model: a graph that is ready to be saved.
    """
    alike: dict[tuple[tuple[int, ...], bytes], list[ir.Value]] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.INT8 and tensor.size >= TWICE and not value.is_graph_input():
            alike.setdefault((tuple(tensor.shape.numpy()), tensor.tobytes()), []).append(value)
    for (shape, _), values in alike.items():
        if len(values) < 2:
            continue
        name, count = f"{values[0].name}.shared", len(values)
        repeats = new_constant(model, f"{name}.repeats", np.array([count, *[1] * (len(shape) - 1)], np.int64))
        parts = new_constant(model, f"{name}.parts", np.full(count, shape[0], np.int64))
        codes = new_constant(model, f"{name}.codes", values[0].const_value.numpy())
        tile = ir.node("Tile", [codes, repeats], name=f"{name}.tile")
        split = ir.node("Split", [tile.outputs[0], parts], {"axis": 0}, num_outputs=count, name=f"{name}.split")
        tile.outputs[0].name, tile.outputs[0].dtype = f"{name}.tiled", ir.DataType.INT8
        for place, (value, part) in enumerate(zip(values, split.outputs, strict=True)):
            part.name, part.dtype = f"{name}.{place}", ir.DataType.INT8
            _replace(model, value, part, [tile, split] if not place else [])


def whole_steps(array: np.ndarray) -> tuple[np.ndarray, np.float32, np.float32] | None:
    """(codes, step, start) with `codes * step + start` equal to a float32 array to the last bit; None where there are none.

    Codes are uint8 or uint16, of the array's shape. Only values with at most eight binary places are looked at.
    """
    scaled = array.astype(np.float64) * 2**_PLACES
    if not np.isfinite(scaled).all() or np.abs(scaled).max() >= 2**31 or (scaled != np.rint(scaled)).any():
        return None
    whole = scaled.astype(np.int64)
    start = int(whole.min())
    step = int(np.gcd.reduce(whole.reshape(-1) - start))
    codes = (whole - start) // max(step, 1)
    if codes.max() > np.iinfo(np.uint16).max:
        return None
    kind = np.uint8 if codes.max() <= np.iinfo(np.uint8).max else np.uint16
    parts = codes.astype(kind), np.float32(step / 2**_PLACES), np.float32(start / 2**_PLACES)
    restored = parts[0].astype(np.float32) * parts[1] + parts[2]
    return parts if restored.tobytes() == np.ascontiguousarray(array).tobytes() else None


def few_values(array: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """(codes, list) with `list[codes]` equal to a float32 array to the last bit; None where that takes no fewer bytes.

    Codes are uint8 or uint16, of the array's shape. Values are told apart by their bits: -0.0 is not 0.0, and each NaN is its own.
    """
    bits, codes = np.unique(np.ascontiguousarray(array).view(np.uint32), return_inverse=True)
    if len(bits) > 1 << 16:
        return None
    parts = codes.reshape(array.shape).astype(np.uint8 if len(bits) <= 1 << 8 else np.uint16), bits.view(np.float32)
    return parts if sum(part.nbytes for part in parts) < array.nbytes else None


def _constants(model: ir.Model) -> Iterator[tuple[ir.Value, np.ndarray, list[ir.Usage]]]:
    """The float32 constants that are worth packing, and who reads them, in the main graph alone."""
    for value in list(model.graph.initializers.values()):
        tensor, readers = value.const_value, list(value.uses())
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < _WORTH:
            continue
        bound = value.is_graph_input() or value.is_graph_output() or any(use.node.graph is not model.graph for use in readers)
        if readers and not bound:
            yield value, tensor.numpy(), readers


def _is_weight(use: ir.Usage) -> bool:
    return use.node.op_type in _LAYERS and use.idx < _BEYOND.get(use.node.op_type, 2)


def _pack_table(model: ir.Model, value: ir.Value, array: np.ndarray) -> None:
    small = array
    for axis in range(array.ndim):
        first = small.take([0], axis)
        if (small == first).all():
            small = first
    steps, listed = (whole_steps(small), few_values(small)) if small.size >= _WORTH else (None, None)
    name, nodes = value.name, []
    if listed is not None and (steps is None or sum(part.nbytes for part in listed) < steps[0].nbytes):
        codes, values = new_constant(model, f"{name}.codes", listed[0]), new_constant(model, f"{name}.values", listed[1])
        places = _then(nodes, "Cast", [codes], f"{name}.cast", to=ir.DataType.INT32)
        result = _then(nodes, "Gather", [values, places], f"{name}.gather")
    elif steps is not None:
        codes, step, start = steps
        result = _then(nodes, "Cast", [new_constant(model, f"{name}.codes", codes)], f"{name}.cast", to=ir.DataType.FLOAT)
        for op_type, number, plain in (("Mul", step, 1), ("Add", start, 0)):
            if number != plain:
                result = _then(nodes, op_type, [result, new_constant(model, f"{name}.{op_type}.by", number)], f"{name}.{op_type}")
    elif small.size < array.size:
        result = new_constant(model, f"{name}.part", small)
    else:
        return
    if small.size < array.size:
        shape = new_constant(model, f"{name}.shape", np.array(array.shape, np.int64))
        result = _then(nodes, "Expand", [result, shape], f"{name}.expand")
    _replace(model, value, result, nodes)


def _pack_weights(model: ir.Model, value: ir.Value, array: np.ndarray, axis: int) -> bool:
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
    lost = np.moveaxis(half, axis, 0).reshape(rows.shape).astype(np.float64) - rows
    if not ((lost**2).sum(1) <= _HALF_NOISE * (rows**2).sum(1)).all():
        return False
    nodes: list[ir.Node] = []
    codes = new_constant(model, f"{value.name}.half", half)
    _replace(model, value, _then(nodes, "Cast", [codes], f"{value.name}.cast", to=ir.DataType.FLOAT), nodes)
    return True


def _share_equal(model: ir.Model) -> None:
    """Make equal constants of the main graph one; onnx-ir's pass would take those of int8, too.

    Weights and their zero points stay apart: with `session.x64quantprecision` (CPUs without VNNI) ONNX Runtime 1.31 rewrites both
    as uint8, once for each weight, and fails to load a file where two layers share one ("attempt to replace the existing tensor").
    """
    first: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype in (ir.DataType.INT8, ir.DataType.STRING) or tensor.size > _ALIKE:
            continue
        if value.is_graph_input() or value.is_graph_output():
            continue
        same = first.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()), value)
        if same is not value:
            value.replace_all_uses_with(same)
            forget(model, value)


def _then(nodes: list[ir.Node], op_type: str, inputs: list[ir.Value], name: str, to: ir.DataType | None = None) -> ir.Value:
    node = ir.node(op_type, inputs, {} if to is None else {"to": to.value}, name=name)
    node.outputs[0].name, node.outputs[0].dtype = f"{name}.out", to or ir.DataType.FLOAT
    nodes.append(node)
    return node.outputs[0]


def _replace(model: ir.Model, value: ir.Value, result: ir.Value, nodes: list[ir.Node]) -> None:
    result.shape = value.shape
    model.graph.insert_before(model.graph[0], nodes)
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, result)
    forget(model, value)
