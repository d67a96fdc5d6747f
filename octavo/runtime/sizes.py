"""How large tensors are on an image, where the graph leaves that open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

from octavo.runtime.mapped import MappedConstants
from octavo.runtime.shapes import SEEN, fixed_shape

__all__ = ["observe_sizes"]


def observe_sizes(model: ir.Model, feeds: Mapping[str, np.ndarray], key: str = SEEN) -> None:
    """Note the shapes that the graph leaves open as they are on one image, so that kernels can be timed for graphs of any size.

    They are kept beside the graph, not in it: no file says so. An open first size that is not the batch of what is fed is how many
    rows data decide on (regions of Faster R-CNN): one at least.

    Args:
        model: float; each of its tensors has a name of its own.
        feeds: of an image, batch dimension 1.
        key: what they are kept as: `shapes.SEEN`, or `shapes.FED` where less is fed than there is in use.
    """
    fed = [value for value in model.graph.inputs if value.shape and value.name in feeds]
    batch = {str(value.shape[0]) for value in fed if feeds[value.name].shape[:1] == (1,)}
    for value in model.graph.inputs:
        if _is_open(value, batch):
            value.meta[key] = _at_least_a_row(feeds[value.name].shape)
    made = [value for node in model.graph for value in node.outputs if _is_open(value, batch)]
    if not made:
        return
    constants = MappedConstants()
    proto = ir.to_proto(constants.in_place(model))
    del proto.graph.output[:]
    for place, value in enumerate(made):
        name = f"{SEEN}.{place}"
        proto.graph.node.append(helper.make_node("Shape", [value.name], [name], name=name))
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, [None]))
    shapes = constants.session(proto.SerializeToString(), memory_pattern=False, arena=False).run(feeds)
    for place, value in enumerate(made):
        value.meta[key] = _at_least_a_row(shapes[f"{SEEN}.{place}"])


def _is_open(value: ir.Value, batch: Collection[str]) -> bool:
    if not value.name or value.dtype != ir.DataType.FLOAT:
        return False
    return fixed_shape(value) is None or (
        bool(value.shape) and not isinstance(value.shape[0], int) and str(value.shape[0]) not in batch
    )


def _at_least_a_row(sizes: Sequence[int]) -> tuple[int, ...]:
    """On an image where nothing is found, layers for what is found have no work that tells what they cost."""
    return tuple(max(int(size), 1) if place == 0 else int(size) for place, size in enumerate(sizes))
