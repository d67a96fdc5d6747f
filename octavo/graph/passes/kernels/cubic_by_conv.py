"""Float cubic Resize by whole factors, as a Conv."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant, shape_of_codes

__all__ = ["CubicByConvPass"]

_HALF_PIXEL = frozenset({"half_pixel", "pytorch_half_pixel"})


class CubicByConvPass(NodePass):
    """Rewrite a cubic Resize of images, larger or smaller by one whole factor, as Pad, Conv and DepthToSpace, channel by channel.

    ONNX Runtime works out each value by itself: 3x512x512 to half of it 26.7 ms and 2.1 so, 3x128x128 to four times 48 and 1.4,
    32x64x64 to twice 37 and 2.6 (AMD Zen 4, one thread). Upscalers end in one, or add one to what they answer with.

    1. x is a 4-D tensor of known channels; the factor is constant, or sizes are and x has a known height and width. It is one
       for both axes: a whole number, or one over 2 or 4, of which float32 holds the scale exactly.
    2. Coordinates are `half_pixel`, `pytorch_half_pixel` of sides that stay above 1, or `asymmetric`.
    3. Anything else is left alone: align_corners, `axes`, `antialias`, `exclude_outside`, a region of interest.

    Values beyond the edge are the edge's, as they are in Resize. The Pad keeps ONNX Runtime from taking a Conv between DQ and Q for
    one that it may quantize. Exact up to float rounding.
    """

    op_type = "Resize"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        shape = _shape_of(node.inputs[0])
        factor = _factor(node, shape) if shape is not None else None
        if shape is None or factor is None:
            return False
        up, down = (int(factor), 1) if factor >= 1 else (1, round(1 / factor))
        coordinates = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
        kernel, before = _kernel(up, down, centred=coordinates in _HALF_PIXEL, a=node.attributes.get_float("cubic_coeff_a", -0.75))
        behind = kernel.shape[-1] - before - down
        made: list[ir.Node] = []

        def step(op_type: str, inputs: Sequence[ir.Value], **attributes: object) -> ir.Value:
            made.append(ir.node(op_type, inputs, attributes, name=f"{node.name}.cubic{len(made)}"))
            value = made[-1].outputs[0]
            value.name, value.dtype = f"{made[-1].name}.out", ir.DataType.FLOAT
            return value

        def constant(kind: str, array: np.ndarray) -> ir.Value:
            return new_constant(model, f"{node.name}.{kind}", array)

        # Channel by channel: a factor's phases are few numbers then, however many channels there are.
        planes = step("Reshape", [node.inputs[0], constant("planes", np.array([-1, 1, 0, 0]))])
        pads = np.array([0, 0, before, before, 0, 0, behind, behind])
        padded = step("Pad", [planes, constant("pads", pads)], mode="edge")
        sized = step("Conv", [padded, constant("kernel", kernel)], strides=[down, down])
        if up > 1:
            sized = step("DepthToSpace", [sized], blocksize=up)
        images = step("Reshape", [sized, constant("images", np.array([-1, shape[1], 0, 0]))])
        take_place(model, [node], made, node.outputs[0], images)
        return True


def _shape_of(value: ir.Value) -> list[object] | None:
    """The sizes of four axes, the channels known."""
    maker = value.producer()
    shape = shape_of_codes(maker.inputs[0]) if is_op(maker, "DequantizeLinear") else value.shape
    return list(shape) if shape is not None and len(shape) == 4 and isinstance(shape[1], int) else None


def _factor(node: ir.Node, shape: Sequence[object]) -> float | None:
    """The factor of height and width where the rules hold."""
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    if settings.get("mode", "nearest") != "cubic" or settings.get("antialias") or settings.get("exclude_outside"):
        return None
    if "axes" in settings or settings.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    factors = _factors(node, shape)
    if factors is None or factors[:2] != [1, 1] or factors[2] != factors[3] or factors[2] == 1:
        return None
    factor = factors[2]
    if factor != int(factor) and factor not in (0.5, 0.25):
        return None
    coordinates = settings.get("coordinate_transformation_mode", "half_pixel")
    # A side that becomes 1 is read elsewhere by PyTorch's rule.
    sides = all(isinstance(side, int) and side * factor > 1 for side in shape[2:])
    allowed = coordinates in ("half_pixel", "asymmetric") or (coordinates == "pytorch_half_pixel" and (sides or factor > 1))
    return factor if allowed else None


def _factors(node: ir.Node, shape: Sequence[object]) -> list[float] | None:
    scales, sizes = ([constant_of(value) for value in node.inputs[2:]] + [None, None])[:2]
    if scales is not None and scales.size == 4:
        return [float(scale) for scale in scales]
    if sizes is None or sizes.size != 4 or not all(isinstance(size, int) for size in shape[1:]):
        return None
    sides = [float(size / side) for size, side in zip(sizes[1:], shape[1:], strict=True)]
    return [1.0 if sizes[0] == shape[0] or sizes[0] == 1 else 0.0, *sides]


def _kernel(up: int, down: int, *, centred: bool, a: float) -> tuple[np.ndarray, int]:
    """What makes `up` by `up` values of each pixel, float32 [up * up, 1, size, size], and how far it begins before the pixel."""
    places = [(phase + 0.5) * down / up - 0.5 if centred else phase * down / up for phase in range(up)]
    first = min(min(math.floor(place) for place in places) - 1, 0)
    # No shorter than a step: what a side has beyond whole steps would put out one value more.
    size = max(max(math.floor(place) for place in places) + 3, down) - first
    rows = np.zeros((up, size))
    for row, place in zip(rows, places, strict=True):
        start = math.floor(place) - 1
        row[start - first : start - first + 4] = [_cubic(abs(place - tap), a) for tap in range(start, start + 4)]
    return np.einsum("ay,bx->abyx", rows, rows).reshape(up * up, 1, size, size).astype(np.float32), -first


def _cubic(x: float, a: float) -> float:
    """Keys' weight of a tap at a distance below 2 (IEEE ASSP 29, 1981)."""
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
