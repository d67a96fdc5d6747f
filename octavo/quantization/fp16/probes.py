"""What float16 costs, computed where the tensors are: FP32 and FP16 as one graph, with nodes beside each pair of tensors.

A few numbers come out instead of the tensors, and one run an image tells all of them. Fetched in groups, each group would run the
graph up to it again: minutes a comparison for D-FINE at 640x640 (1504 tensors, 1.8 GB an image).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

__all__ = ["FP32", "Differences", "Reaches", "beside", "lay_given"]

# Before the name of each tensor of FP32 where both are one graph.
FP32 = "octavo.fp32."
# What is larger counts as infinite: its square has no place in float32, and float16 has none for it.
_LARGEST = 1e15
_END = np.iinfo(np.int64).max


def beside(reference: ir.Model, half: ir.Model) -> ir.Model:
    """One graph that computes both from the same inputs, of FP32's types.

    Args:
        reference, half: not changed; graphs with the same inputs and outputs. Tensors that both hold are held once.

    Returns:
        `half`, with all of the reference's nodes, whose tensors have `FP32` before their names. The graph's outputs are the half's.
    """
    merged, copy = half.clone(), reference.clone()
    graph = merged.graph
    copy.graph.outputs.clear()
    own = {value.name: value for value in graph.inputs}
    casts = []
    for value in copy.graph.inputs:
        shared = own[value.name]
        if shared.dtype != value.dtype:
            cast = ir.node("Cast", [shared], {"to": shared.dtype})
            cast.outputs[0].name, cast.outputs[0].type = f"octavo.cast.{value.name}", shared.type
            ir.convenience.replace_all_uses_with(shared, cast.outputs[0], replace_graph_outputs=True)
            cast.replace_input_with(0, shared)
            casts.append(cast)
            shared.type = value.type
        ir.convenience.replace_all_uses_with(value, shared)
    for value in list(copy.graph.initializers.values()):
        held = graph.initializers.get(value.name or "")
        if held is None or held.const_value is not value.const_value:
            # Clones share their tensors, and a tensor has its value's name.
            tensor = ir.Tensor(
                value.const_value.numpy(), dtype=value.dtype, shape=value.const_value.shape, name=f"{FP32}{value.name}"
            )
            held = ir.Value(name=tensor.name, const_value=tensor, shape=tensor.shape, type=value.type)
            graph.register_initializer(held)
        ir.convenience.replace_all_uses_with(value, held)
    nodes, fixed = list(copy.graph), _fixed(merged)
    copy.graph.remove(nodes)
    for node in nodes:
        node.name = f"{FP32}{node.name}"
        for value in node.outputs:
            if value.name:
                value.name = f"{FP32}{value.name}"
            if not fixed(value):
                # A symbol that stands in both would promise ONNX Runtime equal sizes.
                value.shape = None
    first = next(iter(graph), None)
    if first is not None:
        graph.insert_before(first, casts)
    graph.extend(nodes)
    for found, more in ((merged.functions, copy.functions), (merged.opset_imports, copy.opset_imports)):
        for key, value in more.items():
            found.setdefault(key, value)
    return merged


def lay_given(half: ir.Model, reference: ir.Model, names: Sequence[str]) -> dict[str, str]:
    """Lay FP32's tensors beside a graph, in place, as inputs that are given to it: what is known need not be computed again.

    Args:
        half: gets them under their names, with `FP32` before these.
        reference: has the tensors; it is not changed.
        names: of them, none an input of it.

    Returns:
        Each name to that of the input.
    """
    fixed = _fixed(reference)
    values = {value.name: value for node in reference.graph for value in node.outputs}
    inputs = {}
    for name in names:
        shape = values[name].shape if fixed(values[name]) else None
        given = ir.Value(name=f"{FP32}{name}.given", type=values[name].type, shape=shape)
        copy = ir.node("Identity", [given], name=f"{FP32}{name}.given")
        copy.outputs[0].name, copy.outputs[0].type, copy.outputs[0].shape = f"{FP32}{name}", given.type, shape
        half.graph.inputs.append(given)
        half.graph.append(copy)
        inputs[name] = given.name
    return inputs


def _fixed(model: ir.Model) -> Callable[[ir.Value], bool]:
    """Which tensors' shapes follow from the inputs' (batch, image size): they are the same in both graphs, and not empty."""
    given = {dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)} - {None}

    def fixed(value: ir.Value) -> bool:
        return value.shape is not None and all(dim > 0 if isinstance(dim, int) else dim.value in given for dim in value.shape)

    return fixed


class Differences:
    """Lays nodes beside each pair of tensors (`octavo.runtime.tensors.open_groups`, `tap`).

    What comes out for FP32's tensor `FP32 + name` has that name and `.loss`: float32 [3], the sums of squares of FP32's values and
    of the difference, where FP32 is finite (the latter NaN or infinite where FP16 is), and how many of FP16's values are not finite
    (0 for tensors of known shape). A tensor whose shape depends on values has its two shapes out as well, `.shapes`.
    """

    def __call__(self, model: ir.Model, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Lay them; see the class."""
        fixed = _fixed(model)
        halves = {value.name: value for value in (*model.graph.inputs, *(out for node in model.graph for out in node.outputs))}
        tape, found = Tape(model.graph), []
        # From the last tensor on, as calibration's probes: each then runs right behind its tensors, which are let go.
        for value in reversed(values):
            half = halves[(value.name or "").removeprefix(FP32)]
            found += _difference(tape, value, half) if fixed(value) else _difference_of_any(tape, value, half)
        return found


class Reaches:
    """Lays nodes beside each tensor: its largest finite |x| comes out, float32 [], under its name and `.reach`.

    Args:
        whole: names of tensors that come out themselves as well.
    """

    def __init__(self, whole: Collection[str | None]) -> None:
        self._whole = whole

    def __call__(self, model: ir.Model, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Lay them; see the class."""
        fixed, tape, found = _fixed(model), Tape(model.graph), []
        for value in reversed(values):
            size = tape.op("Abs", [value if fixed(value) else _never_empty(tape, value)])
            finite = tape.op("Less", [size, _constant(tape, np.float32(np.inf))])
            kept = tape.op("Where", [finite, size, _constant(tape, np.float32(0))])
            found.append(_named(tape.op("ReduceMax", [kept], {"keepdims": 0}), f"{value.name}.reach", ir.DataType.FLOAT))
        return found + [value for value in values if value.name in self._whole]


def _difference(tape: Tape, value: ir.Value, half: ir.Value) -> list[ir.Value]:
    return [_sums(tape, value, value, _single(tape, half), _constant(tape, np.zeros(1, np.float32)))]


def _difference_of_any(tape: Tape, value: ir.Value, half: ir.Value) -> list[ir.Value]:
    """Of what both have: the shapes may differ, and a tensor may have no values."""
    pair = [_never_empty(tape, one) for one in (value, _single(tape, half))]
    common = tape.op("Min", [tape.op("Shape", [one]) for one in pair])
    a, b = (tape.op("Slice", [one, _constant(tape, np.zeros(1, np.int64)), common]) for one in pair)
    finite = tape.op("Less", [tape.op("Abs", [pair[1]]), _constant(tape, np.float32(np.inf))])
    broken = tape.op("Cast", [tape.op("Not", [finite])], {"to": ir.DataType.FLOAT})
    count = tape.op("Reshape", [tape.op("ReduceSum", [broken], {"keepdims": 0}), _constant(tape, np.full(1, -1))])
    # The two shapes as one vector: each is led by its length.
    shapes = [tape.op("Shape", [one]) for one in (value, half)]
    joined = tape.op("Concat", [part for shape in shapes for part in (tape.op("Shape", [shape]), shape)], {"axis": 0})
    return [_sums(tape, value, a, b, count), _named(joined, f"{value.name}.shapes", ir.DataType.INT64)]


def _sums(tape: Tape, value: ir.Value, a: ir.Value, b: ir.Value, broken: ir.Value) -> ir.Value:
    zero = _constant(tape, np.float32(0))
    finite = tape.op("Less", [tape.op("Abs", [a]), _constant(tape, np.float32(_LARGEST))])
    signal = tape.op("Where", [finite, a, zero])
    noise = tape.op("Where", [finite, tape.op("Sub", [a, b]), zero])
    squares = [tape.op("ReduceSumSquare", [one], {"keepdims": 0}) for one in (signal, noise)]
    rows = [tape.op("Reshape", [one, _constant(tape, np.full(1, -1))]) for one in squares]
    return _named(tape.op("Concat", [*rows, broken], {"axis": 0}), f"{value.name}.loss", ir.DataType.FLOAT)


def _single(tape: Tape, half: ir.Value) -> ir.Value:
    """In float32, of the values that float16 has: ONNX Runtime drops a cast back, see `measure.rounded_everywhere`."""
    if half.dtype == ir.DataType.FLOAT:
        return half
    first = _constant(tape, np.zeros(1, np.int64))
    return tape.op("Cast", [tape.op("Squeeze", [tape.op("Unsqueeze", [half, first]), first])], {"to": ir.DataType.FLOAT})


def _never_empty(tape: Tape, value: ir.Value) -> ir.Value:
    """Its values and a zero: no operator reduces an empty tensor."""
    row = tape.op("Reshape", [value, _constant(tape, np.full(1, -1))])
    return tape.op("Concat", [row, _constant(tape, np.zeros(1, np.float32))], {"axis": 0})


def _named(value: ir.Value, name: str, dtype: ir.DataType) -> ir.Value:
    value.name, value.type = name, ir.TensorType(dtype)
    return value


def _constant(tape: Tape, array: np.ndarray | np.float32) -> ir.Value:
    array = np.asarray(array)
    name = f"octavo.probe.{array.dtype}.{'_'.join(map(str, array.ravel()))}.{array.ndim}"
    known = tape.graph_like.initializers.get(name)
    return known if known is not None else tape.initializer(ir.tensor(array, name=name), name)
