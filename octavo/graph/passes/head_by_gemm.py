"""A detector's 1x1 head behind integer layers as a Gemm of rows, in the layout that both its sides have."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import codes_of_input, constant_of, new_constant, pruned

__all__ = ["HeadByGemmPass"]

# Where axes of [N, a, c, H, W] stand in [N, H, W, a, c].
_MOVED = (0, 3, 4, 1, 2)


class HeadByGemmPass(NodePass):
    """Rewrite `Transpose(Reshape(Conv(DQ(x)), [N, a, c, H, W]))` that ends with c, a 1x1 float Conv, as a Gemm of pixels.

    YOLOv3, v5, v7 and RetinaNets read their heads so. Integer kernels keep channels last, and so does the decoding; in between, a
    float Conv takes the image into the blocked layout and out of it again. As rows of [N H W, C] times a matrix it does neither,
    and the Transpose that may be left moves runs of c.

    1. x is uint8 codes that an integer kernel or what follows it made, with known channels, height and width; the Conv alone reads
       this DQ. Behind a float layer the image lies in the blocked layout already: that stays.
    2. The Conv has one group, strides of 1 and no pads; its weights are constants, or computed from constants alone, and so is its
       bias. Nobody but the Reshape reads it, and nobody but the Transpose that one.
    3. The Reshape's shape is constant and parts nothing but the channels; the Transpose leaves N in front.

    The result is the same up to the order in which a kernel sums.
    """

    op_type = "Transpose"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else []
        reshape = node.inputs[0].producer() if node.inputs[0] is not None else None
        conv = reshape.inputs[0].producer() if reshape is not None and reshape.op_type == "Reshape" else None
        if len(perm) != 5 or perm[0] != 0 or perm[-1] != 2 or conv is None or not _is_pointwise(conv):
            return False
        image, made = conv.inputs[0], conv.outputs[0]
        alone = all(len(list(value.uses())) == 1 and not value.is_graph_output() for value in (image, made, node.inputs[0]))
        codes = codes_of_input(image)
        shape = constant_of(reshape.inputs[1])
        if not alone or codes is None or _is_of_float(codes.codes) or made.shape is None or shape is None or shape.size != 5:
            return False
        batch, channels, *sides = list(made.shape)
        known = all(isinstance(size, int) for size in (channels, *sides))
        parts_channels = list(shape[3:]) == sides and int(shape[1]) * int(shape[2]) == channels and min(shape[1:3]) > 0
        if not known or not parts_channels or shape[0] not in (-1, 0, 1, batch):
            return False
        old = node.outputs[0]
        made_nodes, value = _steps(model, conv, reshape, [_MOVED.index(axis) for axis in perm], [-1, *sides, *map(int, shape[1:3])])
        value.shape = old.shape
        name, old.name = old.name, f"{old.name}.old"
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], made_nodes, [old], [value])
        value.name = name
        pruned(model, [reshape, conv])
        return True


def _steps(model: ir.Model, conv: ir.Node, reshape: ir.Node, perm: list[int], shape: list[int]) -> tuple[list[ir.Node], ir.Value]:
    made: list[ir.Node] = []

    def step(op_type: str, inputs: list[ir.Value], name: str, **attributes: object) -> ir.Value:
        made.append(ir.node(op_type, inputs, attributes, name=name))
        made[-1].outputs[0].name, made[-1].outputs[0].dtype = f"{name}.out", ir.DataType.FLOAT
        return made[-1].outputs[0]

    def shaped(value: ir.Value, lengths: list[int], name: str) -> ir.Value:
        return step("Reshape", [value, new_constant(model, f"{name}.shape", np.array(lengths, np.int64))], name)

    channels, depth = (int(size) for size in conv.inputs[1].shape[:2])
    rows = shaped(step("Transpose", [conv.inputs[0]], f"{conv.name}.last", perm=[0, 2, 3, 1]), [-1, depth], f"{conv.name}.rows")
    weights = constant_of(conv.inputs[1])
    if weights is not None:
        matrix = new_constant(model, f"{conv.name}.matrix", weights.reshape(channels, depth))
    else:
        # ONNX Runtime folds it while loading, like what computes the weights (`stored.py`).
        matrix = shaped(conv.inputs[1], [channels, depth], f"{conv.name}.matrix")
    value = step("Gemm", [rows, matrix, *[value for value in conv.inputs[2:] if value is not None]], conv.name, transB=1)
    value = shaped(value, shape, reshape.name)
    return made, value if perm == sorted(perm) else step("Transpose", [value], f"{reshape.name}.moved", perm=perm)


def _is_pointwise(conv: ir.Node) -> bool:
    if conv.op_type != "Conv" or conv.inputs[1].shape is None or list(conv.inputs[1].shape[2:]) != [1, 1]:
        return False
    settings = {name: attribute.value for name, attribute in conv.attributes.items()}
    plain = settings.get("group", 1) == 1 and set(settings.get("strides") or [1]) == {1} and not any(settings.get("pads") or [])
    explicit = settings.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return plain and explicit and all(value is None or _is_constant(value) for value in conv.inputs[1:])


def _is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer, or computed from initializers alone."""
    if constant_of(value) is not None:
        return True
    maker = value.producer()
    return maker is not None and all(part is not None and _is_constant(part) for part in maker.inputs)


def _is_of_float(codes: ir.Value) -> bool:
    """Whether codes are those of a tensor that a float layer made."""
    node = codes.producer()
    if node is None or node.op_type != "QuantizeLinear":
        return node is None
    maker = node.inputs[0].producer()
    reads = [] if maker is None else [value for value in maker.inputs if value is not None and not _is_constant(value)]
    return not reads or any(value.producer() is None or value.producer().op_type != "DequantizeLinear" for value in reads)
