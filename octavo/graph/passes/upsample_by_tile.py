"""Nearest-neighbour upsampling of uint8 codes by whole factors, as copies of whole pixels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

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
    2. x is 4-D with known channels, height and width; scales, or sizes, are constant and whole multiples of height and width.
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
    if shape is None or len(shape) != 4 or not all(isinstance(size, int) for size in shape[1:]):
        return None
    given = [constant_of(value) for value in node.inputs[2:]]
    scales = given[0] if given else None
    sizes = given[1] if len(given) > 1 else None
    if scales is not None and scales.size == 4:
        factors = scales.astype(np.float64)
    elif sizes is not None and sizes.size == 4:
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
    # 0 copies the batch's size.
    row = np.array([0, height, 1, width * right * channels], np.int64)
    image = np.array([0, height * down, width * right, channels], np.int64)
    steps = [
        ("Transpose", {"perm": list(_LAST)}, None),
        ("Tile", {}, np.array([1, 1, 1, right], np.int64)),
        ("Reshape", {}, row),
        ("Tile", {}, np.array([1, 1, down, 1], np.int64)),
        ("Reshape", {}, image),
        ("Transpose", {"perm": list(_FIRST)}, None),
    ]
    value, made = before.codes, []
    for place, (op_type, attributes, constant) in enumerate(steps):
        name = f"{node.name}.tile{place}"
        inputs = [value] if constant is None else [value, new_constant(model, f"{name}.by", constant)]
        made.append(ir.node(op_type, inputs, attributes, name=name))
        value = made[-1].outputs[0]
        value.name, value.dtype = f"{name}.out", ir.DataType.UINT8
    old = after.outputs[0]
    name, old.name = old.name, f"{old.name}.old"
    ir.convenience.replace_nodes_and_values(model.graph, after, [after], made, [old], [value])
    value.name = name
    pruned(model, [node, before.node])
