"""Nearest-neighbour upsampling of uint8 codes by whole factors, as copies of whole pixels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import Quantized, between, constant_of, new_constant, pruned, shape_of_codes

__all__ = ["UpsampleByTilePass"]

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class UpsampleByTilePass(NodePass):
    """Rewrite `Q(Resize(DQ(x)))`, nearest by whole factors, as Transpose, Tile, Reshape, Tile, Reshape, Transpose of the codes.

    ONNX Runtime's Resize works out each element's place by itself, on one thread (1.3 ns an element). With channels last a pixel is
    one run of bytes: Tile repeats pixels along a row, then rows (0.06 ns). The Transposes vanish where integer kernels stand on
    both sides, because that is their layout.

    1. Q and DQ have the same uint8 scale and zero point; nobody else reads the Resize.
    2. x is 4-D with known channels; scales are constant and whole, or sizes are, and whole multiples of a known height and width.
       Where height or width is open, the shape behind is worked out while the graph runs (Shape and Mul, some microseconds).
    3. Output i is input floor(i / factor): coordinates `asymmetric` with rounding `floor`, or `half_pixel` and `pytorch_half_pixel`
       with a `round_prefer` rounding, which for whole factors never meets a tie.
    4. Anything else is left alone: align_corners, `axes`, a region of interest, linear, cubic.

    The result is the same to the last bit.
    """

    op_type = "Resize"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = between(node) if _repeats(node) else None
        factors = _factors(node, shape_of_codes(found[0].codes)) if found is not None and found[0].is_alike(found[1]) else None
        if factors is None:
            return False
        _by_tiles(model, node, found[0], found[1], factors)
        return True


def _repeats(node: ir.Node) -> bool:
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    if settings.get("mode", "nearest") != "nearest" or "axes" in settings:
        return False
    if settings.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    rounding = settings.get("nearest_mode", "round_prefer_floor")
    coordinates = settings.get("coordinate_transformation_mode", "half_pixel")
    if coordinates == "asymmetric":
        return rounding == "floor"
    return coordinates in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round_prefer")


def _factors(node: ir.Node, shape: list[object] | None) -> tuple[int, int] | None:
    if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
        return None
    given = [constant_of(value) for value in node.inputs[2:]]
    scales = given[0] if given else None
    sizes = given[1] if len(given) > 1 else None
    if scales is not None and scales.size == 4:
        factors = scales.astype(np.float64)
    elif sizes is not None and sizes.size == 4 and all(isinstance(size, int) for size in shape[1:]):
        factors = np.array([1.0, *(sizes[1:] / np.array(shape[1:], np.float64))])
        if sizes[0] != shape[0]:
            return None
    else:
        return None
    if (factors != np.rint(factors)).any() or (factors[:2] != 1).any() or (factors[2:] < 1).any() or factors.max() == 1:
        return None
    return int(factors[2]), int(factors[3])


def _by_tiles(model: ir.Model, node: ir.Node, before: Quantized, after: ir.Node, factors: tuple[int, int]) -> None:
    _, channels, height, width = shape_of_codes(before.codes)
    down, right = factors
    made: list[ir.Node] = []

    def step(op_type: str, inputs: list[ir.Value], dtype: ir.DataType = ir.DataType.UINT8, **attributes: object) -> ir.Value:
        made.append(ir.node(op_type, inputs, attributes, name=f"{node.name}.tile{len(made)}"))
        value = made[-1].outputs[0]
        value.name, value.dtype = f"{made[-1].name}.out", dtype
        return value

    def constant(kind: str, *numbers: int) -> ir.Value:
        return new_constant(model, f"{node.name}.{kind}", np.array(numbers, np.int64))

    pixels = step("Transpose", [before.codes], perm=list(_LAST))
    wide = step("Tile", [pixels, constant("columns", 1, 1, 1, right)])
    if isinstance(height, int) and isinstance(width, int):
        # 0 copies the batch's size.
        row, image = (
            constant("row", 0, height, 1, width * right * channels),
            constant("image", 0, height * down, width * right, channels),
        )
    else:
        shape = step("Shape", [pixels], ir.DataType.INT64)
        row = constant("row", 0, 0, 1, -1)
        image = step("Mul", [shape, constant("factors", 1, down, right, 1)], ir.DataType.INT64)
    tall = step("Tile", [step("Reshape", [wide, row]), constant("rows", 1, 1, down, 1)])
    value = step("Transpose", [step("Reshape", [tall, image])], perm=list(_FIRST))
    take_place(model, [after], made, after.outputs[0], value)
    pruned(model, [node, before.node])
