"""How large tensors are on an image, where the graph leaves that open."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

from octavo.runtime.mapped import MappedConstants
from octavo.runtime.shapes import SEEN, fixed_shape

__all__ = ["observe_sizes"]


def observe_sizes(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> None:
    """Note the shapes that the graph leaves open as they are on one image, so that kernels can be timed for graphs of any size.

    They are kept beside the graph, not in it: no file says so.

    Args:
        model: float; each of its tensors has a name of its own.
        feeds: of an image, batch dimension 1.
    """
    for value in model.graph.inputs:
        if _is_open(value):
            value.meta[SEEN] = feeds[value.name].shape
    made = [value for node in model.graph for value in node.outputs if _is_open(value)]
    if not made:
        return
    constants = MappedConstants()
    proto = constants.proto(model)
    del proto.graph.output[:]
    for place, value in enumerate(made):
        name = f"{SEEN}.{place}"
        proto.graph.node.append(helper.make_node("Shape", [value.name], [name], name=name))
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, [None]))
    shapes = constants.session(proto.SerializeToString(), memory_pattern=False, arena=False).run(feeds)
    for place, value in enumerate(made):
        value.meta[SEEN] = tuple(int(size) for size in shapes[f"{SEEN}.{place}"])


def _is_open(value: ir.Value) -> bool:
    return bool(value.name) and value.dtype == ir.DataType.FLOAT and fixed_shape(value) is None
