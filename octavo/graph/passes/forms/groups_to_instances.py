"""GroupNormalization becomes an InstanceNormalization of groups, which ONNX Runtime has a kernel for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["GroupsToInstancesPass"]

# The opset from which on scales are of channels; the axes that a tensor of channels with places has at least.
_OPSET, _LEAST = 21, 3


class GroupsToInstancesPass(NodePass):
    """Rewrite GroupNormalization (arXiv 1803.08494) as Reshape, InstanceNormalization, Reshape, Mul and Add.

    So exporters wrote it before opset 21, which torch's own writes as one node. ONNX Runtime 1.31 has no kernel for that: it runs
    the function that ONNX defines it by, 20 nodes that work out shapes, cast, and pass over all values for each operator.

    1. x is float32 [n, channels, ...], its channels known; scale and bias are constants.
    2. Sizes that are not known are taken from x.

    The last node keeps the name and that of the output. Exact up to float rounding.
    """

    op_type = "GroupNormalization"

    def _concerns(self, model: ir.Model) -> bool:
        return (model.opset_imports.get("") or 0) >= _OPSET and super()._concerns(model)

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value, *ends = node.inputs
        scales = [constant_of(one) for one in ends]
        shape, groups = value.shape, node.attributes["num_groups"].as_int()
        if value.dtype != ir.DataType.FLOAT or shape is None or len(shape) < _LEAST or any(array is None for array in scales):
            return False
        channels = shape[1]
        if not isinstance(channels, int):
            return False
        made: list[ir.Node] = []

        def step(op_type: str, inputs: Sequence[ir.Value], like: ir.Shape | None, **settings: object) -> ir.Value:
            made.append(ir.node(op_type, inputs, settings, name=f"{node.name}.{op_type.lower()}{len(made)}"))
            result = made[-1].outputs[0]
            result.name, result.dtype, result.shape = f"{made[-1].name}.out", value.dtype, like
            return result

        def constant(kind: str, array: np.ndarray) -> ir.Value:
            return new_constant(model, f"{node.name}.{kind}", array)

        rows = step("Reshape", [value, constant("groups", np.array([0, groups, -1]))], None)
        ones = [constant(kind, fill(groups, np.float32)) for kind, fill in (("ones", np.ones), ("zeros", np.zeros))]
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        rows = step("InstanceNormalization", [rows, *ones], None, epsilon=epsilon)
        if all(isinstance(size, int) for size in shape[1:]):
            sizes = constant("sizes", np.array([0, *shape[1:]]))
        else:
            sizes = step("Shape", [value], ir.Shape([len(shape)]))
            sizes.dtype = ir.DataType.INT64
        result = step("Reshape", [rows, sizes], shape)
        for op_type, kind, array in zip(("Mul", "Add"), ("scale", "bias"), scales, strict=True):
            by_channel = constant(kind, array.reshape(channels, *[1] * (len(shape) - 2)))
            result = step(op_type, [result, by_channel], shape)
        made[-1].name = node.name
        take_place(model, [node], made, node.outputs[0], result)
        for one in ends:
            forget(model, one)
        return True
