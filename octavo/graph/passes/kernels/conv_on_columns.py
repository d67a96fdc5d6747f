"""Integer convolutions on images of few channels put out several columns at a time, from blocks of columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import between, constant_of, new_constant, pruned, shape_of_codes

__all__ = ["MOST_CHANNELS", "STEPS", "Columns", "ConvOnColumnsPass", "columns_of"]

# With more channels the copies are long already (8 channels: as fast as before, 16: slower).
MOST_CHANNELS = 4
# Columns that are put out at a time, by stride. Of 3 to 64 outputs and kernels of 3x3 to 7x7 these were the fastest.
_AT_A_TIME = {1: 4, 2: 2, 3: 2}
# Of an image of so few channels so many times as many: blocks are to have more than 4 channels.
_FEW, _TIMES = 2, 2
# (Columns that are put out at a time, columns of the image from one of them to the next), where these are several.
STEPS = tuple((count * times, stride) for stride, count in _AT_A_TIME.items() for times in (1, _TIMES))
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class ConvOnColumnsPass(NodePass):
    """Rewrite `Q(Conv(DQ(x), DQ(w)))` of stride s, x uint8, as a Conv on blocks of s m columns that puts out m columns at a time.

    ONNX Runtime's integer Conv copies each pixel under the kernel by itself, channels last: a 6x6 kernel of stride 2 on RGB is 36
    copies of 3 bytes for each position. With channels last, four columns of three channels are one of twelve, and two columns of 16
    outputs one of 32, without anything being moved: half as many positions, 18 copies of 12 bytes for each, and a product of
    matrices that is twice as wide. Weights outside the old kernel are code 0.

    1. One group, no dilation, explicit pads, the same stride down and across, a kernel of 2 columns or more.
    2. The input has at most 4 channels and known sizes; its width is a multiple of the blocks', and the result's of m.
    3. The weights are constant int8 codes of zero point 0; a bias has constant codes, too. Q alone reads the result.

    The codes are the same to the last bit.
    """

    op_type = "Conv"

    def _rewrite(self, model: ir.Model, conv: ir.Node) -> bool:
        found = between(conv)
        constants = [_restored(value) for value in conv.inputs[1:]]
        if found is None or not constants or any(each is None for each in constants) or found[1].outputs[0].is_graph_output():
            return False
        (source, quantize), codes = found, constant_of(constants[0].inputs[0])
        shape = shape_of_codes(source.codes)
        columns = columns_of(conv, shape, codes.shape) if shape is not None and codes.dtype == np.int8 and codes.ndim == 4 else None
        if columns is None:
            return False
        _, _, height, width = shape
        outputs = codes.shape[0]
        wide = [height, width // columns.block, columns.block * codes.shape[1]]
        blocks = _reshaped(model, source.codes, wide, f"{conv.name}.columns", before=conv)
        read = ir.node("DequantizeLinear", [blocks, *source.node.inputs[1:]], name=f"{conv.name}.columns.DQ")
        read.outputs[0].name = f"{read.name}.out"
        model.graph.insert_before(conv, read)
        conv.replace_input_with(0, read.outputs[0])
        for place, each in enumerate(constants, 1):
            array = constant_of(each.inputs[0])
            array = columns.weights(array) if place == 1 else np.tile(array, columns.count)
            conv.replace_input_with(place, _repeated(model, each, array, columns.count, conv))
        for name, value in (("kernel_shape", columns.kernel), ("pads", columns.pads), ("strides", columns.strides)):
            conv.attributes[name] = ir.AttrInt64s(name, list(value))
        # The sizes of what it puts out are others now.
        conv.outputs[0].shape = None
        code = quantize.outputs[0]
        known = code.shape
        uses, code.shape = list(code.uses()), None
        rows = _reshaped(model, code, [columns.height, columns.width, outputs], f"{conv.name}.pixels", before=None, after=quantize)
        # They are the tensor's codes now.
        name, code.name = code.name, f"{conv.name}.blocks.code"
        rows.name, rows.shape, rows.dtype = name, known, ir.DataType.UINT8
        for use in uses:
            use.node.replace_input_with(use.idx, rows)
        pruned(model, [source.node, *constants])
        return True


def _restored(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that restores constant codes of zero point 0."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "DequantizeLinear" or constant_of(node.inputs[0]) is None:
        return None
    zero = constant_of(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1)
    return None if zero is None or zero.any() or constant_of(node.inputs[1]) is None else node


def _repeated(model: ir.Model, restored: ir.Node, codes: np.ndarray, count: int, before: ir.Node) -> ir.Value:
    """Other codes of as many times the outputs, restored with the same scales."""
    name = f"{restored.inputs[0].name}.columns"
    inputs = [new_constant(model, name, codes)]
    for what, value in zip(("scale", "zero"), restored.inputs[1:], strict=False):
        array = constant_of(value)
        inputs.append(new_constant(model, f"{name}.{what}", np.tile(array, count)) if array.size > 1 else value)
    node = ir.node("DequantizeLinear", inputs, dict(restored.attributes), name=f"{restored.name}.columns")
    node.outputs[0].name = f"{node.name}.out"
    model.graph.insert_before(before, node)
    return node.outputs[0]


def _reshaped(
    model: ir.Model, codes: ir.Value, sizes: list[int], name: str, *, before: ir.Node | None, after: ir.Node | None = None
) -> ir.Value:
    """Codes whose rows, with channels last, are read with other sizes [height, width, channels]."""
    last = ir.node("Transpose", [codes], {"perm": _LAST}, name=f"{name}.last")
    shape = new_constant(model, f"{name}.sizes", np.array([-1, *sizes], np.int64))
    reshape = ir.node("Reshape", [last.outputs[0], shape], name=name)
    first = ir.node("Transpose", [reshape.outputs[0]], {"perm": _FIRST}, name=f"{name}.first")
    for node in (last, reshape, first):
        node.outputs[0].name = f"{node.name}.code"
    if before is not None:
        model.graph.insert_before(before, [last, reshape, first])
    else:
        model.graph.insert_after(after, [last, reshape, first])
    return first.outputs[0]


@dataclass(frozen=True)
class Columns:
    """How a Conv runs on blocks of columns.

    Attributes:
        count: columns that it puts out at a time.
        block: columns of the image in a block.
        kernel: (height in pixels, width in blocks).
        pads: (top, left, bottom, right), down in pixels, across in blocks.
        strides: (down in pixels, across in blocks).
        shift: columns between the left edge of the first block and the Conv's first weight.
        height, width: of the result.
    """

    count: int
    block: int
    kernel: tuple[int, int]
    pads: tuple[int, int, int, int]
    strides: tuple[int, int]
    shift: int
    height: int
    width: int

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """The Conv's weights for blocks.

        Args:
            weights: [outputs, channels, height, width], or codes with zero point 0.

        Returns:
            [count * outputs, block * channels, *kernel] of the same dtype; the outputs of one column stand together, and so do the
            channels of one.
        """
        outputs, channels, height, width = weights.shape
        stride = self.block // self.count
        wide = np.zeros((self.count, outputs, channels, height, self.kernel[1] * self.block), weights.dtype)
        for place in range(self.count):
            left = self.shift + place * stride
            wide[place, ..., left : left + width] = weights
        parts = wide.reshape(self.count, outputs, channels, height, self.kernel[1], self.block).transpose(0, 1, 5, 2, 3, 4)
        return np.ascontiguousarray(parts.reshape(self.count * outputs, self.block * channels, *self.kernel))


def columns_of(conv: ir.Node, image: list[object], weights: tuple[int, ...]) -> Columns | None:
    """How a Conv runs on blocks of columns; None where rule 1 or 2 forbids it.

    Args:
        image: the input's shape.
        weights: their shape.
    """
    settings = {name: attribute.value for name, attribute in conv.attributes.items()}
    strides, kernel = list(settings.get("strides") or [1, 1]), weights[2:]
    stride = strides[0]
    if strides != [stride, stride] or settings.get("group", 1) != 1 or set(settings.get("dilations") or [1]) != {1}:
        return None
    if settings.get("auto_pad", "NOTSET") != "NOTSET" or len(image) != 4 or kernel[1] < 2:
        return None
    channels, height, width = image[1:]
    if not all(isinstance(size, int) for size in image[1:]) or channels > MOST_CHANNELS:
        return None
    count = _AT_A_TIME.get(stride, 1) * (_TIMES if channels <= _FEW else 1)
    block = count * stride
    top, left, bottom, right = settings.get("pads") or [0, 0, 0, 0]
    rows, columns = (height + top + bottom - kernel[0]) // stride + 1, (width + left + right - kernel[1]) // stride + 1
    if width % block or columns % count or rows < 1 or columns < 1 or block * channels <= MOST_CHANNELS:
        return None
    first = -(-left // block)
    shift = first * block - left
    across = -(-(shift + (count - 1) * stride + kernel[1]) // block)
    # Never negative: what the kernel reaches behind the image is padding in pixels already.
    last = columns // count - 1 + across - first - width // block
    return Columns(count, block, (kernel[0], across), (top, first, bottom, last), (stride, 1), shift, rows, columns)
