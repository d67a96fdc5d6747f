"""FoldBatchNormPass and RowsFirstPass: the same values with no BatchNormalization left, and the names that stay or change."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.graph.passes.affine.fold_batch_norm import FoldBatchNormPass
from octavo.graph.passes.affine.rows_first import RowsFirstPass
from octavo.graph.prepared import prepared

GENERATOR = np.random.default_rng(11)
IMAGE = GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def batch_norm(source: str, target: str, width: int, tensors: dict[str, np.ndarray], **attributes: object) -> onnx.NodeProto:
    """A node `target` whose parameters (the gain of both signs) go into `tensors`."""
    names = [f"{target}.{part}" for part in ("gain", "shift", "mean", "variance")]
    values = [normal(width) + np.float32(0.5), normal(width), normal(width), np.abs(normal(width)) + np.float32(0.1)]
    tensors |= dict(zip(names, values, strict=True))
    return oh.make_node("BatchNormalization", [source, *names], [target], target, **{"epsilon": 1e-3, **attributes})


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def values(model: ir.Model) -> set[str]:
    return {value.name for node in model.graph for value in node.outputs}


def folded_alike(model: ir.Model) -> ir.Model:
    """Fold, and hold every output to what it was."""
    before = run(model, {"x": IMAGE}, optimization="off")
    assert FoldBatchNormPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, {"x": IMAGE}, optimization="off")
    assert list(after) == list(before)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-5 * np.abs(value).max())
    assert not FoldBatchNormPass()(model).modified
    return model


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("group", [1, 3])
def test_a_conv_takes_it_in(biased, group):
    tensors = {"w": normal(6, 3 // group, 3, 3), "b": normal(6)}
    nodes = [
        oh.make_node("Conv", ["x", "w", "b"][: 3 if biased else 2], ["c"], "conv", pads=[1, 1, 1, 1], group=group),
        batch_norm("c", "y", 6, tensors),
        oh.make_node("Relu", ["y"], ["z"], "relu"),
    ]
    model = folded_alike(network(nodes, tensors, ["z"]))
    assert ops(model) == ["Conv", "Relu"]
    assert values(model) == {"y", "z"}, "the tensor is the normalisation's output, and named so"


@pytest.mark.parametrize("biased", [True, False])
def test_a_transposed_conv_takes_it_in(biased):
    tensors = {"w": normal(3, 6, 4, 4), "b": normal(6)}
    nodes = [
        oh.make_node("ConvTranspose", ["x", "w", "b"][: 3 if biased else 2], ["c"], "conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        batch_norm("c", "y", 6, tensors),
    ]
    assert ops(folded_alike(network(nodes, tensors, ["y"]))) == ["ConvTranspose"]


@pytest.mark.parametrize(
    ("settings", "folds"),
    [(None, True), ({}, True), ({"transB": 1}, True), ({"alpha": 2.0}, False), ({"beta": 0.5}, False), ({"transA": 1}, False)],
)
@pytest.mark.parametrize("biased", [True, False])
def test_a_linear_layer_of_vectors_takes_it_in(settings, folds, biased):
    """The end of a face embedding: Linear and BatchNorm1d. As a MatMul it becomes a Gemm."""
    tensors = {"w": normal(6, 3) if settings and "transB" in settings else normal(3, 6), "b": normal(6)}
    linear = oh.make_node("MatMul", ["v", "w"], ["c"], "layer")
    if settings is not None:
        linear = oh.make_node("Gemm", ["v", "w", "b"][: 3 if biased else 2], ["c"], "layer", **settings)
    nodes = [oh.make_node("GlobalAveragePool", ["x"], ["p"], "pool"), oh.make_node("Flatten", ["p"], ["v"], "flat")]
    if settings and "transA" in settings:
        nodes[1:] = [oh.make_node("Flatten", ["p"], ["f"], "flat"), oh.make_node("Transpose", ["f"], ["v"], "turn", perm=[1, 0])]
    model = network([*nodes, linear, batch_norm("c", "y", 6, tensors)], tensors, ["y"])
    if folds:
        assert ops(folded_alike(model))[-1] == "Gemm"
        assert "BatchNormalization" not in ops(model)
    else:
        assert not FoldBatchNormPass()(model).modified


def test_rows_of_vectors_keep_it():
    """Channels are on axis 1 there, and columns on axis 2."""
    tensors = {"w": normal(16, 6), "rows": np.array([0, 3, -1])}
    tensors |= {"v": normal(256, 16)}
    nodes = [
        oh.make_node("Reshape", ["x", "rows"], ["r"], "flat"),
        oh.make_node("MatMul", ["r", "v"], ["s"], "layer"),
        batch_norm("s", "y", 3, tensors),
    ]
    assert not FoldBatchNormPass()(network(nodes, tensors, ["y"])).modified


def test_a_transposed_conv_of_groups_does_not():
    tensors = {"w": normal(3, 2, 2, 2)}
    nodes = [oh.make_node("ConvTranspose", ["x", "w"], ["c"], "conv", group=3), batch_norm("c", "y", 6, tensors)]
    assert ops(folded_alike(network(nodes, tensors, ["y"]))) == ["ConvTranspose", "Conv"]


def test_two_in_a_row_and_a_graph_output_keep_their_names():
    tensors = {"w": normal(4, 3, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv"),
        batch_norm("c", "first", 4, tensors),
        batch_norm("first", "second", 4, tensors),
    ]
    model = folded_alike(network(nodes, tensors, ["second"]))
    assert ops(model) == ["Conv"]
    assert values(model) == {"second"}


def test_a_weight_that_two_convs_share_changes_for_one():
    tensors = {"w": normal(3, 3, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], "a"),
        batch_norm("a", "n", 3, tensors),
        oh.make_node("Conv", ["n", "w"], ["y"], "b"),
    ]
    model = folded_alike(network(nodes, tensors, ["y"]))
    assert ops(model) == ["Conv", "Conv"]
    assert [node.inputs[1].name for node in model.graph] == ["a.folded_weights", "w"]


def test_each_part_of_a_concat_takes_its_slice():
    """A private conv, the image itself, and a conv that is read elsewhere too."""
    tensors = {"w": normal(4, 3, 3, 3), "v": normal(5, 3, 1, 1), "vb": normal(5)}
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["private"], "private", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["x", "v", "vb"], ["shared"], "shared"),
        oh.make_node("Concat", ["private", "x", "shared", "x"], ["joined"], "join", axis=1),
        batch_norm("joined", "y", 4 + 3 + 5 + 3, tensors),
        oh.make_node("Relu", ["shared"], ["side"], "side"),
    ]
    model = folded_alike(network(nodes, tensors, ["y", "side"]))
    assert sorted(ops(model)) == ["Concat", "Conv", "Conv", "Conv", "Conv", "Conv", "Relu"]
    # What holds other values than before has another name; what holds the same keeps its own.
    assert values(model) == {"private.normalised", "shared", "y.part1", "y.part2", "y.part3", "y", "side"}
    groups = {node.name: node.attributes["group"].as_int() for node in model.graph if "group" in node.attributes}
    assert groups == {"y.part1": 3, "y.part2": 5, "y.part3": 3}


@pytest.mark.parametrize("behind", ["Relu", "Clip", "LeakyRelu"])
def test_one_conv_is_cut_for_all_parts_where_none_folds(behind):
    """As in a DenseNet: each layer reads a Concat of all before, whose parts others read, too."""
    tensors = {"w": normal(4, 3, 3, 3), "v": normal(4, 7, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["first"], "first", pads=[1, 1, 1, 1]),
        oh.make_node("Concat", ["x", "first"], ["one"], "join_one", axis=1),
        batch_norm("one", "n", 7, tensors),
        oh.make_node(behind, ["n"], ["r"], "cut"),
        oh.make_node("Conv", ["r", "v"], ["second"], "second"),
        oh.make_node("Concat", ["x", "first", "second"], ["two"], "join_two", axis=1),
        batch_norm("two", "m", 11, tensors),
        oh.make_node("Relu", ["m"], ["y"], "last"),
    ]
    model = folded_alike(network(nodes, tensors, ["y"]))
    parts = {"n.part0", "n.part1"} if behind == "LeakyRelu" else {"n"}
    # Where a part folds, what does not has a Conv of its own.
    assert {node.name for node in model.graph if "group" in node.attributes} == parts | {"m.part0", "m.part1"}
    assert [node.inputs[0].name for node in model.graph if node.name in ("cut", "last")] == ["n", "m"]


def test_a_concat_along_another_axis_or_read_by_others_stays_whole():
    tensors = {"w": normal(3, 3, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv"),
        oh.make_node("Concat", ["c", "x"], ["tall"], "tall", axis=2),
        batch_norm("tall", "y", 3, tensors),
        oh.make_node("Concat", ["c", "x"], ["wide"], "wide", axis=1),
        batch_norm("wide", "z", 6, tensors),
    ]
    model = folded_alike(network(nodes, tensors, ["y", "z", "wide"]))
    assert sorted(ops(model)) == ["Concat", "Concat", "Conv", "Conv", "Conv"]
    assert values(model) == {"c", "tall", "wide", "y", "z"}


@pytest.mark.parametrize("read_by", ["a node", "the caller"])
def test_a_conv_that_others_read_stays_and_a_depthwise_conv_follows(read_by):
    tensors = {"w": normal(4, 3, 1, 1)}
    nodes = [oh.make_node("Conv", ["x", "w"], ["c"], "conv"), batch_norm("c", "y", 4, tensors)]
    nodes += [oh.make_node("Relu", ["c"], ["r"], "relu")] if read_by == "a node" else []
    model = folded_alike(network(nodes, tensors, ["y", "r" if read_by == "a node" else "c"]))
    assert [op for op in ops(model) if op != "Relu"] == ["Conv", "Conv"]
    node = next(node for node in model.graph if node.outputs[0].name == "y")
    assert (node.name, node.attributes["group"].as_int(), node.inputs[0].name) == ("y", 4, "c")
    assert next(node for node in model.graph if node.name == "conv").inputs[1].name == "w"


def test_alone_it_becomes_a_depthwise_conv_in_its_place():
    tensors = {}
    model = folded_alike(network([batch_norm("x", "y", 3, tensors), oh.make_node("Relu", ["y"], ["z"], "relu")], tensors, ["z"]))
    assert ops(model) == ["Conv", "Relu"]
    assert values(model) == {"y", "z"}
    assert model.graph[0].attributes["group"].as_int() == 3


def left_alone(model: ir.Model, **settings: bool) -> bool:
    before = ir.to_proto(model).SerializeToString()
    return not FoldBatchNormPass(**settings)(model).modified and ir.to_proto(model).SerializeToString() == before


def test_without_depthwise_convs_it_folds_into_layers_and_stays_elsewhere():
    tensors = {"w": normal(4, 3, 1, 1), "v": normal(4, 3, 1, 1)}
    layers = [oh.make_node("Conv", ["x", "w"], ["c"], "conv"), oh.make_node("Conv", ["x", "v"], ["d"], "other")]
    both = oh.make_node("Concat", ["c", "d"], ["j"], "j", axis=1)
    model = network([*layers, both, batch_norm("j", "y", 8, tensors)], tensors, ["y"])
    wanted = run(model, {"x": IMAGE}, optimization="off")["y"]
    assert FoldBatchNormPass(depthwise=False)(model).modified
    assert ops(model) == ["Conv", "Conv", "Concat"]
    np.testing.assert_allclose(run(model, {"x": IMAGE}, optimization="off")["y"], wanted, rtol=1e-4, atol=1e-4)
    assert left_alone(network([batch_norm("x", "y", 3, tensors)], tensors, ["y"]), depthwise=False)
    with_image = oh.make_node("Concat", ["c", "x"], ["j"], "j", axis=1)
    assert left_alone(network([layers[0], with_image, batch_norm("j", "y", 7, tensors)], tensors, ["y"]), depthwise=False)


def test_training_mode_and_its_outputs_are_left_alone():
    tensors = {"w": normal(4, 3, 1, 1)}
    node = batch_norm("c", "y", 4, tensors, training_mode=1)
    node.output.extend(["running_mean", "running_variance"])
    nodes = [oh.make_node("Conv", ["x", "w"], ["c"], "conv"), node]
    assert left_alone(network(nodes, tensors, ["y", "running_mean"]))


@pytest.mark.parametrize("reader", ["node", "graph output"])
def test_extra_outputs_in_use_are_left_alone(reader):
    """Up to opset 13 the second output is there without training_mode too."""
    tensors = {"w": normal(4, 3, 1, 1)}
    node = batch_norm("c", "y", 4, tensors)
    node.output.append("mean")
    nodes = [oh.make_node("Conv", ["x", "w"], ["c"], "conv"), node]
    graph = oh.make_graph(
        [*nodes, oh.make_node("Relu", ["mean"], ["r"], "relu")] if reader == "node" else nodes,
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 16, 16])],
        [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("y", "r" if reader == "node" else "mean")],
        [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 13)], ir_version=8)
    assert left_alone(ir.from_proto(model))


def test_parameters_that_are_computed_or_half_precision_are_left_alone():
    tensors = {"raw": normal(3)}
    nodes = [oh.make_node("Exp", ["raw"], ["gain"], "exp"), batch_norm("x", "y", 3, tensors)]
    nodes[1].input[1] = "gain"
    assert left_alone(network(nodes, tensors, ["y"]))
    tensors = {}
    half = batch_norm("x16", "y16", 3, tensors)
    nodes = [oh.make_node("Cast", ["x"], ["x16"], "down", to=10), half, oh.make_node("Cast", ["y16"], ["y"], "up", to=1)]
    assert left_alone(network(nodes, {name: value.astype(np.float16) for name, value in tensors.items()}, ["y"]))


def test_two_dimensions_have_no_depthwise_conv():
    tensors = {}
    model = network([batch_norm("x", "y", 3, tensors)], tensors, ["y"], inputs={"x": [5, 3]})
    assert left_alone(model)


TOKENS = {"x": [1, 3, 16, 16]}


def tokens(
    tensors: dict[str, np.ndarray], *, width: int = 8, flat: str = "Reshape", shape: tuple[int, ...] = (-1, 8), **more: object
):
    """A linear layer over an image's rows, whose tokens are flattened before a norm, as LeViT does."""
    tensors |= {"w": normal(16, width), "flat": np.array(shape, np.int64), "back": np.array([1, 48, width], np.int64)}
    nodes = [
        oh.make_node("MatMul", ["x", "w"], ["m"], "linear"),
        oh.make_node(
            flat, ["m", "flat"] if flat == "Reshape" else ["m"], ["f"], "flatten", **({} if flat == "Reshape" else {"axis": 3})
        ),
        batch_norm("f", "n", shape[-1], tensors),
        oh.make_node("Reshape", ["n", "back"], ["y"], "tokens"),
    ]
    return network([*nodes, *more.get("nodes", ())], tensors, ["y", *more.get("outputs", ())], inputs=TOKENS)


@pytest.mark.parametrize("flat", ["Reshape", "Flatten"])
def test_a_linear_layer_of_tokens_takes_in_the_norm_of_their_rows(flat):
    model = tokens({}, flat=flat)
    before = run(model, {"x": IMAGE}, optimization="off")
    assert RowsFirstPass()(model).modified
    np.testing.assert_array_equal(run(model, {"x": IMAGE}, optimization="off")["y"], before["y"])
    assert not RowsFirstPass()(model).modified
    assert ops(folded_alike(model)) == ["Reshape", "Gemm", "Reshape"]
    assert ops(prepared(tokens({}, flat=flat))) == ["Reshape", "Gemm", "Reshape"]
    assert {"n", "y"} <= values(model), "the tensor is the normalisation's output, and named so"


def test_rows_stay_behind_what_others_read_or_what_are_no_rows():
    read = [oh.make_node("Relu", ["m"], ["z"], "other")]
    assert not RowsFirstPass()(tokens({}, nodes=read, outputs=["z"])).modified
    assert not RowsFirstPass()(tokens({}, shape=(-1, 4))).modified
    assert not RowsFirstPass()(tokens({}, nodes=[oh.make_node("Relu", ["f"], ["z"], "other")], outputs=["z"])).modified
