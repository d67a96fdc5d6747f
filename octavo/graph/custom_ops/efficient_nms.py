"""TensorRT's EfficientNMS_TRT as an ONNX function over NonMaxSuppression; also the example of how a body is written.

It follows the plugin's documentation and code (NVIDIA/TensorRT, plugin/efficientNMSPlugin), for every batch, box and class count:

1. A score counts when it is >= `score_threshold`; with `score_activation` its sigmoid does. `background_class` never counts.
2. A box goes where a kept box of its class (`class_agnostic`: of any class) has an IoU >= `iou_threshold` with it.
3. The best `max_output_boxes` of an image come out, highest score first, boxes always as corners; unused places hold zeros.
4. With a third input, boxes are corrections to anchors: added to corners, or scaled as SSD does for centre and size.
5. Inputs are float32 or float16; boxes and scores come out in the same type, and are computed in float32.

Differences: the plugin looks at the 4096 best scores of an image only, this at all of them; among equal scores the lower class,
then the lower box comes first, where the plugin's order is not defined.
"""

# ruff: noqa: PLR0917, SIM108 - attributes of an ONNX function are its arguments, and onnxscript has no conditional expressions
from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

__all__ = ["OP_TYPE", "efficient_nms"]

OP_TYPE = "EfficientNMS_TRT"
_DOMAIN = Opset("octavo.efficient_nms", 1)
_FLOAT, _INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
# Marks a box that does not count; a score of 0 or of raw logits may.
_MARK = onnx.helper.make_tensor("mark", onnx.TensorProto.FLOAT, [1], [-3e38])


@script(_DOMAIN, default_opset=op)
def suppress(boxes, scores, score_threshold: float, iou_threshold: float, max_output_boxes: int, box_coding: int):
    """What greedy suppression keeps of boxes [L, N, 4] with scores [L, C, N], within each list and class.

    Returns:
        [M, 3]: list, class and box of each, best first within a class; and their scores [M], the mark in place of those too low.
    """
    least = op.Constant(value_float=score_threshold)
    most = op.Constant(value_int=max_output_boxes)
    # NonMaxSuppression compares with > where the plugin has >=: both bounds a hair lower, and the score's is applied again.
    overlap = op.Max(op.Sub(op.Constant(value_float=iou_threshold), op.Constant(value_float=1e-7)), op.Constant(value_float=0.0))
    almost = op.Sub(least, op.Constant(value_float=1e-6))
    chosen = op.NonMaxSuppression(boxes, scores, most, overlap, almost, center_point_box=box_coding)
    values = op.GatherND(scores, chosen)
    return chosen, op.Where(op.GreaterOrEqual(values, least), values, op.Constant(value=_MARK))


@script(_DOMAIN, default_opset=op)
def decode(corrections, anchors, box_coding: int):
    """Boxes [B, N, G, 4] from what is predicted relative to anchors [1 or B, N, 4], in the same coding as both."""
    first, second = op.Split(corrections, axis=3, num_outputs=2)
    anchor_first, anchor_second = op.Split(op.Unsqueeze(anchors, [2]), axis=3, num_outputs=2)
    if box_coding == 1:
        middle = op.Add(op.Mul(first, anchor_second), anchor_first)
        boxes = op.Concat(middle, op.Mul(anchor_second, op.Exp(second)), axis=3)
    else:
        low = op.Add(op.Min(first, second), op.Min(anchor_first, anchor_second))
        boxes = op.Concat(low, op.Add(op.Max(first, second), op.Max(anchor_first, anchor_second)), axis=3)
    return boxes


@script(_DOMAIN, default_opset=op)
def gather(listed, image, box, label, values, max_output_boxes: int, box_coding: int):
    """The four outputs from boxes [B, N, 4] and what was selected of them: image, box and class [M, 1] and scores [M]."""
    mark = op.Constant(value=_MARK)
    # A row for each image, in which what other images have is marked.
    images = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(listed, start=0, end=1), [0]), 1), [1])
    rows = op.Where(op.Equal(images, op.Transpose(image, perm=[1, 0])), op.Unsqueeze(values, [0]), mark)
    most = op.Reshape(op.Constant(value_int=max_output_boxes), [1])
    filled = op.Min(most, op.Shape(rows, start=1, end=2))
    top, places = op.TopK(rows, filled, axis=1)
    found = op.Greater(top, op.Constant(value_float=-2e38))
    # Places beyond what is found are those of other images, whose boxes are as many.
    coded = op.GatherND(listed, op.Gather(box, places), batch_dims=1)
    if box_coding == 1:
        middle, size = op.Split(coded, axis=2, num_outputs=2)
        half = op.Mul(size, op.Constant(value_float=0.5))
        corners = op.Concat(op.Sub(middle, half), op.Add(middle, half), axis=2)
    else:
        corners = op.Identity(coded)

    zero = op.Constant(value_float=0.0)
    missing = op.Sub(most, filled)
    num_detections = op.Cast(op.ReduceSum(op.Cast(found, to=_INT32), [1]), to=_INT32)
    padding = op.Concat([0, 0, 0, 0], missing, [0], axis=0)
    detection_boxes = op.Pad(op.Where(op.Unsqueeze(found, [2]), corners, zero), padding)
    detection_scores = op.Pad(op.Where(found, top, zero), op.Concat([0, 0, 0], missing, axis=0))
    classes_found = op.Where(found, op.Gather(op.Squeeze(label, [1]), places), op.Constant(value_int=0))
    detection_classes = op.Cast(op.Pad(classes_found, op.Concat([0, 0, 0], missing, axis=0)), to=_INT32)
    return num_detections, detection_boxes, detection_scores, detection_classes


@script(_DOMAIN, default_opset=op)
def detect(
    boxes,
    scores,
    score_threshold: float = 0.5,
    iou_threshold: float = 0.5,
    max_output_boxes: int = 100,
    background_class: int = -1,
    score_activation: int = 0,
    class_agnostic: int = 0,
    box_coding: int = 0,
):
    """Boxes [B, N, 4] or [B, N, C, 4] and scores [B, N, C] to the plugin's four outputs."""
    batch, count, classes = op.Split(op.Shape(scores), num_outputs=3)
    background = op.Constant(value_int=background_class)
    mark = op.Constant(value=_MARK)
    points = op.Cast(scores, to=_FLOAT)
    if score_activation == 1:
        probabilities = op.Sigmoid(points)
    else:
        probabilities = op.Identity(points)

    # G lists of boxes for each image: one for all classes together, or one for each class.
    by_box = op.Reshape(op.Cast(boxes, to=_FLOAT), op.Concat(batch, count, [-1], [4], axis=0))
    by_group = op.Transpose(by_box, perm=[0, 2, 1, 3])
    groups = op.Shape(by_group, start=1, end=2)
    per_group = op.Div(classes, groups)
    listed = op.Reshape(by_group, op.Concat(batch, [-1], [4], axis=0))
    if class_agnostic == 1:
        # Of a box's classes only the best can stay: a box overlaps itself wholly.
        ids = op.Range(0, op.Squeeze(classes, [0]), 1)
        counted = op.Where(op.Equal(ids, background), mark, probabilities)
        split = op.Reshape(op.Transpose(counted, perm=[0, 2, 1]), op.Concat(batch, groups, per_group, count, axis=0))
        best = op.Reshape(op.ReduceMax(split, [2], keepdims=0), op.Concat(batch, [1], [-1], axis=0))
        chosen, values = suppress(listed, best, score_threshold, iou_threshold, max_output_boxes, box_coding)
        image, _, box = op.Split(chosen, axis=1, num_outputs=3)
        group = op.Div(box, count)
        named = op.Reshape(op.ArgMax(split, axis=2, keepdims=0), op.Concat(batch, [-1], axis=0))
        label = op.Add(op.Mul(group, per_group), op.Unsqueeze(op.GatherND(named, op.Concat(image, box, axis=1)), [1]))
    else:
        lists = op.Reshape(by_group, op.Concat([-1], count, [4], axis=0))
        beside = op.Reshape(op.Transpose(probabilities, perm=[0, 2, 1]), op.Concat([-1], per_group, count, axis=0))
        chosen, all_values = suppress(lists, beside, score_threshold, iou_threshold, max_output_boxes, box_coding)
        in_list, in_group, in_order = op.Split(chosen, axis=1, num_outputs=3)
        image = op.Div(in_list, groups)
        group = op.Mod(in_list, groups)
        box = op.Add(op.Mul(group, count), in_order)
        label = op.Add(op.Mul(group, per_group), in_group)
        values = op.Where(op.Equal(op.Squeeze(label, [1]), background), mark, all_values)

    num_detections, best_boxes, best_scores, detection_classes = gather(
        listed, image, box, label, values, max_output_boxes, box_coding
    )
    detection_boxes = op.CastLike(best_boxes, boxes)
    detection_scores = op.CastLike(best_scores, scores)
    return num_detections, detection_boxes, detection_scores, detection_classes


@script(_DOMAIN, default_opset=op)
def detect_from_anchors(
    boxes,
    scores,
    anchors,
    score_threshold: float = 0.5,
    iou_threshold: float = 0.5,
    max_output_boxes: int = 100,
    background_class: int = -1,
    score_activation: int = 0,
    class_agnostic: int = 0,
    box_coding: int = 0,
):
    """As `detect`, boxes being predicted relative to anchors [1 or B, N, 4]."""
    batch, count, _ = op.Split(op.Shape(scores), num_outputs=3)
    corrections = op.Reshape(op.Cast(boxes, to=_FLOAT), op.Concat(batch, count, [-1], [4], axis=0))
    decoded = decode(corrections, op.Cast(anchors, to=_FLOAT), box_coding)
    # fmt: off
    num_detections, best_boxes, detection_scores, detection_classes = detect(
        decoded, scores, score_threshold, iou_threshold, max_output_boxes, background_class, score_activation, class_agnostic,
        box_coding,
    )
    # fmt: on
    detection_boxes = op.CastLike(best_boxes, boxes)
    return num_detections, detection_boxes, detection_scores, detection_classes


def efficient_nms(inputs: int) -> list[onnx.FunctionProto]:
    """The function `EfficientNMS_TRT`, first, and those that it calls; the same bytes each time.

    Args:
        inputs: 2 (boxes, scores) or 3 (with anchors); other counts get the form with 2.
    """
    parts = [detect_from_anchors, decode, detect, suppress, gather] if inputs == 3 else [detect, suppress, gather]
    functions = [part.to_function_proto() for part in parts]
    functions[0].name = OP_TYPE
    for function in functions:
        _in_order(function)
    return functions


def _in_order(function: onnx.FunctionProto) -> None:
    """Put what each If makes in the order of its names, in place: onnxscript keeps it in a set, whose order changes by the run."""
    for place, node in enumerate(function.node):
        if node.op_type != "If":
            continue
        stems = [name.rsplit("_", 1)[0] for name in node.output]
        order = sorted(range(len(stems)), key=lambda output: stems[output])
        for attribute in node.attribute:
            values = [onnx.ValueInfoProto.FromString(attribute.g.output[output].SerializeToString()) for output in order]
            del attribute.g.output[:]
            attribute.g.output.extend(values)
        # The numbers behind the names follow the set's order, too.
        names = {name: f"{stem}_{place}_chosen" for name, stem in zip(node.output, stems, strict=True)}
        node.output[:] = [names[node.output[output]] for output in order]
        _read_as(function.node[place + 1 :], names)
        function.output[:] = [names.get(name, name) for name in function.output]


def _read_as(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            _read_as(attribute.g.node, names)
