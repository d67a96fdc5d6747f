"""RowsOfAnchorsPass: the same rows from convolutions of their own for boxes and scores; decoders that it must leave alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.forms.rows_of_anchors import RowsOfAnchorsPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization import report
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.record import decided
from octavo.quantization.int8.structure.units import units_of
from octavo.runtime.kernels import optimized_nodes

SIDES = (8, 4)
PARTS = (2, 2, 20)
RECIPE = {"method": "minmax", "placement": "all", "repair": False}


def decoder(
    *,
    parts: tuple[int, ...] = PARTS,
    anchors: int = 3,
    sides: tuple[int, ...] = SIDES,
    batch: int | str = 1,
    sigmoid: bool = True,
    sliced: bool = False,
    kernel: int = 1,
    read_twice: bool = False,
) -> ir.Model:
    """YOLOv5's decoder on two scales: every part but the widest is computed with before the parts are joined again."""
    generator = np.random.default_rng(sum(parts))
    columns, wide = sum(parts), int(np.argmax(parts))
    tensors = {"stem": he(generator, 16, 3, 3, 3), "split": np.array(parts), "axis": np.array([4]), "one": np.array([1])}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["c"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["c"], ["f0"], "relu"),
    ]
    rows = []
    for scale, side in enumerate(sides):
        tensors |= {
            f"w{scale}": he(generator, anchors * columns, 16, kernel, kernel),
            f"b{scale}": generator.standard_normal(anchors * columns).astype(np.float32),
            f"apart{scale}": np.array([-1, anchors, columns, side, side]),
            f"flat{scale}": np.array([-1, anchors * side * side, columns]),
        }
        if scale:
            nodes.append(
                oh.make_node("MaxPool", [f"f{scale - 1}"], [f"f{scale}"], f"pool{scale}", kernel_shape=[2, 2], strides=[2, 2])
            )
        nodes += [
            oh.make_node("Conv", [f"f{scale}", f"w{scale}", f"b{scale}"], [f"h{scale}"], f"head{scale}", pads=[kernel // 2] * 4),
            oh.make_node("Reshape", [f"h{scale}", f"apart{scale}"], [f"r{scale}"], f"apart{scale}"),
            oh.make_node("Transpose", [f"r{scale}"], [f"t{scale}"], f"move{scale}", perm=[0, 1, 3, 4, 2]),
        ]
        whole = f"t{scale}"
        if sigmoid:
            nodes.append(oh.make_node("Sigmoid", [whole], [f"s{scale}"], f"sigmoid{scale}"))
            whole = f"s{scale}"
        names = [f"p{scale}.{place}" for place in range(len(parts))]
        if sliced:
            ends = np.cumsum(parts)
            for name, end, size in zip(names, ends, parts, strict=True):
                tensors |= {f"{name}.start": np.array([end - size]), f"{name}.end": np.array([end])}
                nodes.append(oh.make_node("Slice", [whole, f"{name}.start", f"{name}.end", "axis", "one"], [name], name))
        else:
            nodes.append(oh.make_node("Split", [whole, "split"], names, f"split{scale}", axis=4))
        joined = []
        for place, name in enumerate(names):
            if place == wide:
                joined.append(name)
                continue
            tensors[f"{name}.factor"] = np.float32(8 * (scale + 1) + place)
            nodes.append(oh.make_node("Mul", [name, f"{name}.factor"], [f"{name}.times"], f"{name}.mul"))
            joined.append(f"{name}.times")
        if read_twice:
            nodes.append(oh.make_node("ReduceMax", [names[wide]], [f"top{scale}"], f"top{scale}", keepdims=0))
        nodes.append(oh.make_node("Concat", joined, [f"j{scale}"], f"join{scale}", axis=-1))
        nodes.append(oh.make_node("Reshape", [f"j{scale}", f"flat{scale}"], [f"rows{scale}"], f"flat{scale}"))
        rows.append(f"rows{scale}")
    nodes.append(oh.make_node("Concat", rows, ["y"], "all", axis=1))
    used = {name for node in nodes for name in node.input}
    outputs = ["y", *(f"top{scale}" for scale in range(len(sides)) if read_twice)]
    kept = {name: value for name, value in tensors.items() if name in used}
    return network(nodes, kept, outputs, inputs={"x": [batch, 3, 2 * sides[0], 2 * sides[0]]})


def images(count: int, size: int = 1) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    return [{"x": generator.standard_normal((size, 3, 2 * SIDES[0], 2 * SIDES[0])).astype(np.float32)} for _ in range(count)]


def alike(model: ir.Model, size: int = 1) -> Counter[str]:
    """Rewrite, hold the rows to what they were, and count what is left."""
    (feeds,) = images(1, size)
    before = run(model, feeds, optimization="off")["y"]
    assert RowsOfAnchorsPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, feeds, optimization="off")["y"], before, rtol=1e-5, atol=1e-5)
    assert not RowsOfAnchorsPass()(model).modified
    used = {value.name for node in model.graph for value in node.inputs if value is not None and value.is_initializer()}
    assert set(model.graph.initializers) == used
    names = [node.name for node in model.graph]
    assert len(set(names)) == len(names)
    return Counter(node.op_type for node in model.graph)


@settings(max_examples=30, deadline=None)
@given(
    small=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    scores=st.tuples(st.integers(16, 24), st.integers(0, 3)),
    anchors=st.integers(1, 3),
    batch=st.sampled_from([1, "n"]),
    how=st.fixed_dictionaries({"sigmoid": st.booleans(), "sliced": st.booleans()}),
)
def test_any_decoder_of_this_form_gives_the_same_rows(small, scores, anchors, batch, how):
    wide, place = scores[0], min(scores[1], len(small))
    parts = (*small[:place], wide, *small[place:])
    model = decoder(parts=parts, anchors=anchors, batch=batch, **how)
    found = alike(model, 1 if batch == 1 else 2)
    # The stem; for each scale one for the boxes, and one an anchor for scores.
    assert found["Conv"] == 1 + 2 * (1 + anchors)
    assert found["Sigmoid"] == (2 * (1 + anchors) if how["sigmoid"] else 0)


@pytest.mark.parametrize(
    "other",
    [
        {"parts": (2, 2, 15)},
        {"kernel": 3},
        {"read_twice": True},
        {"parts": (20,)},
    ],
    ids=["narrow scores", "3x3", "scores go elsewhere, too", "nothing but scores"],
)
def test_other_decoders_stay_as_they_are(other):
    model = decoder(**other)
    before = ir.to_proto(model).SerializeToString()
    assert not RowsOfAnchorsPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_parts_that_the_graph_puts_out_stay():
    model = decoder()
    split = next(node for node in model.graph if node.name == "split1")
    model.graph.outputs.append(split.outputs[0])
    assert not RowsOfAnchorsPass()(model).modified


def test_heads_that_are_unlike_stay():
    model = decoder()
    head = next(node for node in model.graph if node.name == "sigmoid1")
    head.op_type = "Tanh"
    assert not RowsOfAnchorsPass()(model).modified


def test_a_head_that_shall_stay_keeps_those_that_it_is_joined_with():
    model = decoder()
    assert not RowsOfAnchorsPass(["head1"])(model).modified
    assert RowsOfAnchorsPass(["head2"])(model).modified


def quantized(**recipe: object):
    model, feeds = decoder(), images(8)
    recipe = Int8(**{**RECIPE, **recipe})
    return model, quantize_static(model, statistics_of(model, feeds[:6]), recipe, Images(feeds[:6], feeds[6:]))


def test_int8_scores_come_from_integer_products_and_are_not_transposed(tmp_path):
    model, result = quantized()
    (feeds,) = images(1)
    wanted, got = run(model, feeds)["y"], run(result.model, feeds)["y"]
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()
    path = tmp_path / "model.onnx"
    onnx.save(ir.to_proto(result.model), path)
    nodes = optimized_nodes(path)
    products = [node for node in nodes if node.op_type == "QGemm"]
    assert len(products) == 2 * (1 + 3)
    scores = [node for node in nodes if node.op_type == "Transpose" and "scores" in node.name]
    assert not scores


def test_the_record_speaks_of_the_layer_that_came_in():
    _, result = quantized()
    heads = {decision.node: decision for decision in result.decisions if decision.node.startswith("head")}
    assert {name: decision.precision for name, decision in heads.items()} == {"head0": "int8", "head1": "int8"}
    assert heads["head0"].reason == "in 4 parts: integer kernel over pixels, which writes float"


def test_nodes_are_told_together_however_many_parts_they_became():
    _, result = quantized()
    tails = [decision.reason for decision in result.decisions if "no weights follow" in decision.reason]
    assert len(set(tails)) > 1
    assert not any("in 1 parts" in reason for reason in tails)
    assert {report.alike(reason) for reason in tails} == {"no weights follow: decoding, scores and other tails stay float"}
    assert report.alike("2 of its 3 parts are int8, and not head.wh: repair: 3 dB") == report.alike("repair: 1 dB")


def test_what_is_computed_of_each_part_is_float_and_no_surprise(tmp_path):
    model, result = quantized()
    record = {decision.node: decision for decision in result.decisions}
    for name in ("sigmoid0", "sigmoid1"):
        assert record[name].precision == "float"
        assert record[name].reason.startswith("in 4 parts: ")
    path = tmp_path / "model.onnx"
    onnx.save(ir.to_proto(result.model), path)
    ran = executed(model, result.decisions, optimized_nodes(path))
    assert ran.unexpected == []
    assert ran.layers == ran.integer == 3


def test_the_record_says_which_part_is_float():
    model = decoder()
    ready = prepared(model)
    RowsOfAnchorsPass()(ready)
    reasons = {unit: "repair: so" if unit.name == "head1.boxes" else "" for unit in units_of(ready)}
    record = {decision.node: decision for decision in decided(model, reasons, [])}
    assert record["head0"].precision == "int8"
    assert record["head1"].precision == "float"
    assert record["head1"].reason == "3 of its 4 parts are int8, and not head1.boxes: repair: so"


def test_keep_float_names_the_layer_that_came_in():
    _, result = quantized(keep_float=["head1"])
    heads = {decision.node: decision for decision in result.decisions if decision.node.startswith("head")}
    assert heads["head1"].precision == "float"
    assert "keep_float" in heads["head1"].reason
    assert heads["head0"].precision == "int8"


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_other_runtimes_get_the_decoder_as_it_was(target):
    _, result = quantized(target=target)
    assert {"head0", "head1"} <= {node.name for node in result.model.graph if node.op_type == "Conv"}
