"""Detectors that choose class by class at their end: what is tried for INT8 is their part before that, and the file has all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of

from octavo.graph.selection import suppression
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static, without_suppression
from octavo.quantization.int8.noise.judge import with_outputs
from octavo.quantization.int8.structure.refusals import TAIL
from octavo.quantization.int8.without_suppression import WithoutSuppression
from octavo.runtime import session

CLASSES = 13
OUTPUTS = ("boxes", "scores", "labels")


def detector(*more: str) -> ir.Model:
    """Two layers, heads of scores and boxes, and as torchvision's SSD has it: for each class the places above a bound, the best of
    these, and one suppression of all. It has a tensor that is called as INT8 calls what it adds.

    Args:
        more: names of outputs besides.
    """
    generator = np.random.default_rng(3)
    tensors = {
        "stem": he(generator, 16, 3, 3, 3),
        "body": he(generator, 16, 16, 3, 3),
        "of_scores": he(generator, CLASSES + 1, 16, 1, 1) * 2,
        "of_boxes": he(generator, 4, 16, 1, 1),
        "columns": np.int64([CLASSES + 1, -1]),
        "fours": np.int64([4, -1]),
        "low": np.float32(1e-9),
        "most": np.int64([5]),
        "zero": np.int64(0),
        "first": np.int64([0]),
        "second": np.int64([1]),
        "each": np.int64([-1, 1]),
        "flat": np.int64([-1]),
        "iou": np.float32(0.5),
        "all": np.int64([1000]),
    }
    node = oh.make_node
    nodes = [
        node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["b"], "bend"),
        node("Conv", ["b", "body"], ["c"], "body", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["d"], "bend_more"),
        node("Conv", ["d", "of_scores"], ["score_map"], "score_head"),
        node("Conv", ["d", "of_boxes"], ["box_map"], "box_head"),
        node("Reshape", ["score_map", "columns"], ["logits"], "rows_of_scores"),
        node("Softmax", ["logits"], ["p"], "softmax", axis=0),
        node("Reshape", ["box_map", "fours"], ["corners"], "rows_of_boxes"),
        node("Transpose", ["corners"], ["all_boxes"], "turn", perm=[1, 0]),
    ]
    for k in range(CLASSES):
        tensors[f"class{k}"] = np.int64(k + 1)
        nodes += [
            node("Gather", ["p", f"class{k}"], [f"p{k}"], f"column{k}", axis=0),
            node("Greater", [f"p{k}", "low"], [f"m{k}"], f"above{k}"),
            node("NonZero", [f"m{k}"], [f"places{k}"], f"places{k}"),
            node("Squeeze", [f"places{k}", "first"], [f"rows{k}"], f"rows{k}"),
            node("Gather", [f"p{k}", f"rows{k}"], [f"above{k}"], f"sure{k}", axis=0),
            node("TopK", [f"above{k}", "most"], [f"best{k}", f"which{k}"], f"best{k}", axis=0),
            node("Gather", ["all_boxes", f"rows{k}"], [f"near{k}"], f"near{k}", axis=0),
            node("Gather", [f"near{k}", f"which{k}"], [f"q{k}"], f"boxes{k}", axis=0),
            node("Mul", [f"which{k}", "zero"], [f"none{k}"], f"none{k}"),
            node("Add", [f"none{k}", f"class{k}"], [f"label{k}"], f"label{k}"),
        ]
    nodes += [
        node("Concat", [f"best{k}" for k in range(CLASSES)], ["bests"], "bests", axis=0),
        node("Concat", [f"q{k}" for k in range(CLASSES)], ["found"], "found", axis=0),
        node("Concat", [f"label{k}" for k in range(CLASSES)], ["named"], "named", axis=0),
        node("Unsqueeze", ["found", "first"], ["found3"], "found3"),
        node("Unsqueeze", ["bests", "first"], ["bests2"], "bests2"),
        node("Unsqueeze", ["bests2", "first"], ["bests3"], "bests3"),
        node("NonMaxSuppression", ["found3", "bests3", "all", "iou"], ["chosen"], "suppress"),
        node("Slice", ["chosen", "two", "three", "second"], ["kept2"], "kept2"),
        node("Reshape", ["kept2", "flat"], ["kept"], "kept"),
        node("Gather", ["found", "kept"], ["boxes"], "boxes", axis=0),
        node("Gather", ["bests", "kept"], ["scores"], "scores", axis=0),
        node("Gather", ["named", "kept"], ["classes"], "classes", axis=0),
        node("Cast", ["classes"], ["labels"], "labels", to=1),
    ]
    tensors |= {"two": np.int64([2]), "three": np.int64([3])}
    return network(nodes, tensors, [*OUTPUTS, *more], inputs={"x": [1, 3, 32, 32]})


@pytest.fixture(scope="module")
def samples() -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(8)
    return [{"x": generator.standard_normal((1, 3, 32, 32)).astype(np.float32)} for _ in range(6)]


def quantized(model: ir.Model, samples: list[dict[str, np.ndarray]], **recipe: object):
    images = Images(samples[:3], samples[3:])
    return quantize_static(model, statistics_of(model, samples[:3]), Int8(placement="all", repair=False, **recipe), images)


def test_the_part_ends_at_scores_and_boxes():
    apart = WithoutSuppression.of(detector())
    assert {value.name for value in apart.part.graph.outputs} == {"p", "all_boxes"}
    assert {"column3", "above3", "best3", "suppress", "labels"} <= apart.off.keys()
    assert [node.name for node in apart.part.graph][-1] in ("softmax", "turn")


def test_an_output_that_was_not_chosen_keeps_the_graph_whole():
    """Such outputs may be read as boxes."""
    assert not suppression(detector("all_boxes"))
    assert WithoutSuppression.of(detector("all_boxes")) is None


def test_nodes_without_names_keep_it_whole():
    """By none of these could they be found again: a refusal says so, as elsewhere."""
    model = detector()
    for node in model.graph:
        node.name = "one" if node.op_type in ("Conv", "TopK") else node.name
    assert WithoutSuppression.of(model) is None


@pytest.mark.parametrize("recipe", [{}, {"format": "qoperator"}, {"bits16": ("d",)}])
def test_the_file_answers_as_if_it_had_been_carried_along(samples, monkeypatch, recipe):
    model = detector()
    result = quantized(model, samples, **recipe)
    monkeypatch.setattr(without_suppression, "_WORTH", 1 << 30)
    assert WithoutSuppression.of(model) is None
    whole = quantized(model, samples, **recipe)
    assert result.measured == whole.measured
    assert [(one.node, one.precision) for one in result.decisions] == [(one.node, one.precision) for one in whole.decisions]
    for feeds in samples:
        ours, theirs = run(result.model, feeds), run(whole.model, feeds)
        assert len(ours["scores"]) > 10
        for name in OUTPUTS:
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_nothing_of_it_is_opened_for_what_is_tried(samples, monkeypatch):
    model, opened = detector(), []
    statistics = statistics_of(model, samples[:3])
    init = session.ort.InferenceSession.__init__

    def spied(self, given, *args, **more):
        opened.append(given if isinstance(given, bytes) else Path(given).read_bytes())
        init(self, given, *args, **more)

    monkeypatch.setattr(session.ort.InferenceSession, "__init__", spied)
    result = quantize_static(model, statistics, Int8(), Images(samples[:3], samples[3:]))
    assert opened
    assert not any(b"NonMaxSuppression" in graph or b"TopK" in graph for graph in opened)
    assert {one.reason for one in result.decisions if one.op_type == "TopK"} == {TAIL}


def test_what_leads_to_a_branch_is_not_run_where_heads_alone_are_asked_for():
    """Exporters write suppression in the branch for images with boxes; what that reads stands in the graph around it."""
    node, value = oh.make_node, oh.make_tensor_value_info
    inner = node("NonMaxSuppression", ["boxes3", "scores3"], ["chosen"], "suppress")
    branches = {
        "then_branch": oh.make_graph([inner], "then", [], [value("chosen", 7, None)]),
        "else_branch": oh.make_graph([node("Identity", ["none"], ["same"], "keep")], "else", [], [value("same", 7, None)]),
    }
    nodes = [
        node("Conv", ["x", "w"], ["head"], "head"),
        node("Reshape", ["head", "rows"], ["boxes3"], "boxes"),
        node("Reshape", ["head", "one_class"], ["all"], "scores"),
        node("Slice", ["all", "first", "most", "last"], ["scores3"], "some"),
        node("Size", ["head"], ["size"], "size"),
        node("Greater", ["size", "zero"], ["any"], "any"),
        node("If", ["any"], ["found"], "if", **branches),
        node("Cast", ["found"], ["y"], "out", to=1),
    ]
    tensors = {"w": he(np.random.default_rng(0), 4, 3, 1, 1), "rows": np.int64([1, -1, 4]), "one_class": np.int64([1, 1, -1])}
    tensors |= {"first": np.int64([0]), "most": np.int64([256]), "last": np.int64([2]), "zero": np.int64(0)}
    tensors |= {"none": np.zeros((0, 3), np.int64)}
    model = network(nodes, tensors, ["y"])
    assert [one.name for one in with_outputs(model, ["head"]).graph] == ["head"]
    assert len(list(model.graph)) == len(nodes)


def test_what_is_kept_float_behind_it_is_no_error_and_what_is_nowhere_is(samples):
    result = quantized(detector(), samples, keep_float=("best3", "stem"))
    assert {one.node: one.precision for one in result.decisions}["stem"] == "float"
    with pytest.raises(Exception, match="no node has this name"):
        quantized(detector(), samples, keep_float=("nowhere",))
