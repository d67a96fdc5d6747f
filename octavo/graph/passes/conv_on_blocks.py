"""Strided integer convolutions on images of few channels run on blocks of pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import codes_of_input, constant_of, new_constant, pruned, shape_of_codes

__all__ = ["Blocks", "ConvOnBlocksPass", "blocks_of"]

# With more channels the copies are long already (8 channels: 1.6 times slower on blocks).
_CHANNELS = 4


class ConvOnBlocksPass(NodePass):
    """Rewrite `Conv(DQ(x), DQ(w))` of stride s, x uint8, as a Conv of stride 1 on `DQ(SpaceToDepth(x, s))`.

    ONNX Runtime's integer Conv copies each pixel under the kernel by itself, channels last: a 6x6 kernel of stride 2 on RGB is 36
    copies of 3 bytes. On blocks of 2x2 pixels it is a 3x3 kernel on 12 channels: 9 copies of 12 bytes, the same products, the same
    sums. SpaceToDepth moves codes and rounds nothing; weights outside the old kernel are code 0.

    1. One group, no dilation, explicit pads, the same stride s >= 2 down and across.
    2. The input has at most 4 channels, and a height and width that are known multiples of s.
    3. The weights are constant int8 codes of zero point 0.

    The result is the same to the last bit.
    """

    op_type = "Conv"

    def _rewrite(self, model: ir.Model, conv: ir.Node) -> bool:
        source = codes_of_input(conv.inputs[0])
        restored = conv.inputs[1].producer() if conv.inputs[1] is not None else None
        if source is None or restored is None or restored.op_type != "DequantizeLinear":
            return False
        codes = constant_of(restored.inputs[0])
        zero = constant_of(restored.inputs[2]) if len(restored.inputs) > 2 else np.zeros(1)
        if codes is None or codes.dtype != np.int8 or codes.ndim != 4 or zero is None or zero.any():
            return False
        shape = shape_of_codes(source.codes)
        blocks = blocks_of(conv, shape, codes.shape[2:]) if shape is not None else None
        if blocks is None:
            return False
        split = ir.node("SpaceToDepth", [source.codes], {"blocksize": blocks.size}, name=f"{conv.name}.blocks")
        read = ir.node("DequantizeLinear", [split.outputs[0], *source.node.inputs[1:]], name=f"{conv.name}.blocks.DQ")
        folded = new_constant(model, f"{conv.name}.block_codes", blocks.weights(codes))
        weights = ir.node(
            "DequantizeLinear", [folded, *restored.inputs[1:]], dict(restored.attributes), name=f"{conv.name}.block_codes.DQ"
        )
        for node in (split, read, weights):
            node.outputs[0].name = f"{node.name}.out"
        model.graph.insert_before(conv, [split, read, weights])
        conv.replace_input_with(0, read.outputs[0])
        conv.replace_input_with(1, weights.outputs[0])
        for name, value in (("kernel_shape", blocks.kernel), ("pads", blocks.pads), ("strides", (1, 1))):
            conv.attributes[name] = ir.AttrInt64s(name, list(value))
        pruned(model, [source.node, restored])
        return True


@dataclass(frozen=True)
class Blocks:
    """How a Conv runs on blocks.

    Attributes:
        size: of a block, in pixels: the Conv's stride.
        kernel: (height, width) in blocks.
        pads: (top, left, bottom, right) in blocks.
        shifts: (down, right): pixels between the corner of the first block and the Conv's first weight.
    """

    size: int
    kernel: tuple[int, int]
    pads: tuple[int, int, int, int]
    shifts: tuple[int, int]

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """The Conv's weights for blocks.

        Args:
            weights: [outputs, channels, height, width], or codes with zero point 0.

        Returns:
            [outputs, size * size * channels, *kernel] of the same dtype, channels in SpaceToDepth's order.
        """
        outputs, channels, height, width = weights.shape
        (rows, columns), (down, right), size = self.kernel, self.shifts, self.size
        wide = np.zeros((outputs, channels, rows * size, columns * size), weights.dtype)
        wide[:, :, down : down + height, right : right + width] = weights
        parts = wide.reshape(outputs, channels, rows, size, columns, size).transpose(0, 3, 5, 1, 2, 4)
        return np.ascontiguousarray(parts.reshape(outputs, size * size * channels, rows, columns))


def blocks_of(conv: ir.Node, image: list[object], kernel: tuple[int, int]) -> Blocks | None:
    """How a Conv runs on blocks; None where rule 1 or 2 forbids it.

    Args:
        image: the input's shape.
        kernel: (height, width) of the weights.
    """
    settings = {name: attribute.value for name, attribute in conv.attributes.items()}
    strides = list(settings.get("strides") or [1, 1])
    size = strides[0]
    if size < 2 or strides != [size, size] or settings.get("group", 1) != 1 or set(settings.get("dilations") or [1]) != {1}:
        return None
    if settings.get("auto_pad", "NOTSET") != "NOTSET" or len(image) != 4:
        return None
    channels, *sides = image[1:]
    if not isinstance(channels, int) or channels > _CHANNELS or any(not isinstance(side, int) or side % size for side in sides):
        return None
    pads = list(settings.get("pads") or [0, 0, 0, 0])
    lengths, before, after, shifts = [], [], [], []
    for axis, side in enumerate(sides):
        first = -(-pads[axis] // size)
        count = (kernel[axis] - 1 - pads[axis]) // size + first + 1
        results = (side + pads[axis] + pads[2 + axis] - kernel[axis]) // size + 1
        # Never negative: what the kernel reaches behind the image is padding in pixels already.
        last = results - side // size - first + count - 1
        lengths.append(count)
        before.append(first)
        after.append(last)
        shifts.append(first * size - pads[axis])
    return Blocks(size, (lengths[0], lengths[1]), (*before, *after), (shifts[0], shifts[1]))
