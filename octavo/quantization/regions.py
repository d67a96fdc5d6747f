"""A few of the regions that a detector looks at stand for all of them, where its layers on regions make most of the work.

Faster R-CNN chooses up to a thousand boxes by suppression, and layers see what RoiAlign cuts out for each, every region by itself.
With four Convs there (torchvision's `fasterrcnn_resnet50_fpn_v2`) they make six times the multiplications of all else at 320
pixels, in each of the hundreds of runs by which a network is quantized. Noise on every twentieth region, the best and the worst
scored of them alike, tells the same. Times are those of all regions: it is these that the file computes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from octavo.graph.custom_ops.cut import reads, with_inner
from octavo.graph.macs import macs_in
from octavo.quantization.choices import Feeds, with_choices
from octavo.runtime.shapes import FED, SEEN, shape_of
from octavo.runtime.sizes import observe_sizes

__all__ = ["feeds_of", "few_of"]

# Regions of an image at most, where all of them make more than this share of what the rest of the graph multiplies; and of images
# that are judged by, of each of which there are as many then.
_FEW, _SHARE, _JUDGED = 64, 0.5, 8


def feeds_of(complete: ir.Model, ready: ir.Model, choosers: Sequence[str], images: Sequence[Sequence[Feeds]]) -> list[list[Feeds]]:
    """Images with FP32's choices on them (`choices.with_choices`), few regions where all are dear.

    Sizes are observed on the first image: those that the file has (`shapes.SEEN`), and those that are fed (`shapes.FED`).

    Args:
        complete: FP32.
        ready: `held(complete, choosers)`.
        choosers: names of nodes that choose.
        images: feeds, of calibration images and of those to judge by; sizes are observed where there are some of the first.

    Returns:
        For each list; where all regions are dear, for the first images to judge by.
    """
    few = few_of(complete, ready, choosers, images[0])
    if few is not None:
        images = [images[0], *(feeds[:_JUDGED] for feeds in images[1:])]
    fed = [with_choices(complete, choosers, feeds, chosen_by=few) for feeds in images]
    if fed[0]:
        observe_sizes(ready, fed[0][0], SEEN if few is None else FED)
    return fed


def few_of(complete: ir.Model, ready: ir.Model, choosers: Collection[str], images: Sequence[Feeds]) -> ir.Model | None:
    """FP32 with few regions in place of all, for `with_choices` to read choices from; None where all are not dear.

    Where there are regions, sizes of all of them are observed on the first image (`shapes.SEEN`).

    Args:
        complete, ready, choosers: as for `feeds_of`.
        images: feeds; of none nothing is known to be dear.
    """
    regions = _of_regions(complete, choosers) if images else []
    if not regions:
        return None
    observe_sizes(ready, with_choices(complete, [*choosers], images[:1])[0])
    return _with_few(complete, regions) if _are_dear(ready) else None


def _of_regions(model: ir.Model, choosers: Collection[str]) -> list[str]:
    """Those of some choosing nodes that suppress boxes for RoiAlign to cut out, and put out as many rows as are left."""
    leading: set[ir.Value] = set()
    found = []
    for node in reversed(list(model.graph)):
        if node.op_type == "RoiAlign":
            leading.add(node.inputs[1])
        if leading.isdisjoint(node.outputs):
            continue
        leading.update(reads(node))
        suppresses = any(inner.op_type == "NonMaxSuppression" for inner in with_inner(node))
        if suppresses and node.name in choosers and all(map(_has_open_rows, node.outputs)):
            found.append(node.name or "")
    return found[::-1]


def _has_open_rows(value: ir.Value) -> bool:
    return value.shape is None or (bool(value.shape) and not isinstance(value.shape[0], int))


def _are_dear(model: ir.Model) -> bool:
    """Whether what is computed for more rows than are enough makes much of all multiplications."""
    work = [(macs_in([node], shape_of), node.outputs[0].meta.get(SEEN, (1,))) for node in model.graph]
    regions = sum(macs for macs, sizes in work if sizes and sizes[0] > _FEW)
    return regions > _SHARE * (sum(macs for macs, _ in work) - regions)


def _with_few(model: ir.Model, names: Collection[str]) -> ir.Model:
    """A copy in which what these nodes put out is thinned evenly to `_FEW` rows at most; it has the name that all of it had."""
    copy = model.clone()
    graph = copy.graph
    zero, one, few = (_constant(graph, f"octavo.regions.{number}", number) for number in (0, 1, _FEW))
    for node in [node for node in graph if node.name in names]:
        for value in node.outputs:
            thin = ir.Value(name=value.name, type=value.type, shape=value.shape)
            ir.convenience.replace_all_uses_with(value, thin, replace_graph_outputs=True)
            value.name = f"{value.name}.octavo.all"
            rows = ir.Node("", "Shape", [value], [ir.AttrInt64("start", 0), ir.AttrInt64("end", 1)])
            # Of no rows none are left: -1 / 64 is 0.
            steps = [ir.Node("", "Sub", [rows.outputs[0], one])]
            steps.append(ir.Node("", "Div", [steps[-1].outputs[0], few]))
            steps.append(ir.Node("", "Add", [steps[-1].outputs[0], one]))
            last = ir.Node("", "Slice", [value, zero, rows.outputs[0], zero, steps[-1].outputs[0]], outputs=[thin])
            for place, added in enumerate((rows, *steps)):
                added.outputs[0].name = f"{value.name}.{place}"
                added.outputs[0].type, added.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1])
            graph.insert_after(node, [rows, *steps, last])
    return copy


def _constant(graph: ir.Graph, name: str, number: int) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(np.array([number], np.int64)))
    graph.register_initializer(value)
    return value
