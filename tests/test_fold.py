"""What is known before the graph runs is computed, what nobody takes out again is not, padding is left to what can pad itself."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, sqnr, statistics_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelRunError
from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.fold_constants import FoldConstantsPass
from octavo.graph.passes.cleaning.fold_pad import FoldPadPass
from octavo.graph.passes.cleaning.known_sizes import KnownSizesPass
from octavo.graph.passes.cleaning.pad_apart import PadApartPass
from octavo.graph.passes.cleaning.pick_part import PickPartPass
from octavo.graph.passes.cleaning.sum_apart import SumApartPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static

GENERATOR = np.random.default_rng(23)
IMAGE = {"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)}


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def alike(model: ir.Model, pass_, feeds=IMAGE) -> list[str]:
    before = run(model, feeds, optimization="off")
    assert pass_(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, feeds, optimization="off")
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    return ops(model)


def test_weights_that_the_graph_computes_become_weights():
    """Weight normalization and a Cast of half-precision weights, both larger than any limit for small constants."""
    raw = GENERATOR.standard_normal((256, 3, 40, 40)).astype(np.float16)
    nodes = [
        oh.make_node("Cast", ["raw"], ["wide"], "cast", to=onnx.TensorProto.FLOAT),
        oh.make_node("Mul", ["wide", "gain"], ["w"], "norm"),
        oh.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[19, 19, 20, 20]),
    ]
    model = network(nodes, {"raw": raw, "gain": np.full((256, 1, 1, 1), 0.5, np.float32)}, ["y"])
    assert alike(model, FoldConstantsPass()) == ["Conv"]
    assert next(iter(model.graph)).inputs[1].const_value.shape == (256, 3, 40, 40)


@pytest.mark.parametrize(
    ("sizes", "attributes"), [([], {"num_outputs": 2}), ([2, 6], {}), ([6, 2], {"axis": 0})], ids=["even", "uneven", "axis"]
)
def test_weights_that_are_split_become_weights(sizes, attributes):
    nodes = [
        oh.make_node("Transpose", ["raw"], ["all"], "turn", perm=[1, 0, 2, 3]),
        oh.make_node("Split", ["all", "sizes"] if sizes else ["all"], ["v", "w"], "split", **attributes),
        oh.make_node("Conv", ["x", "v"], ["a"], "a"),
        oh.make_node("Conv", ["x", "w"], ["b"], "b"),
        oh.make_node("Concat", ["a", "b"], ["y"], "y", axis=1),
    ]
    raw = GENERATOR.standard_normal((3, 8, 3, 3)).astype(np.float32)
    model = network(nodes, {"raw": raw} | ({"sizes": np.array(sizes)} if sizes else {}), ["y"])
    assert alike(model, FoldConstantsPass()) == ["Conv", "Conv", "Concat"]
    assert sorted(model.graph.initializers) == ["v", "w"]
    assert [node.inputs[1].const_value.shape[0] for node in list(model.graph)[:2]] == (sizes or [4, 4])


@pytest.mark.parametrize("outputs", [["normal", "", ""], ["normal", "mean_out", "var_out"]])
def test_standardized_weights_become_weights(outputs):
    """As TorchScript writes `F.batch_norm(weight.reshape(1, -1, n), training=True)`: timm's NFNets, BiT."""
    raw = GENERATOR.standard_normal((1, 8, 27)).astype(np.float32) * 3 + 1
    nodes = [
        oh.make_node("BatchNormalization", ["raw", "gain", "zero", "zero", "one"], outputs, "norm", training_mode=1, momentum=1.0),
        oh.make_node("Reshape", ["normal", "shape"], ["w"], "shape"),
        oh.make_node("Conv", ["x", "w"], ["y"], "conv"),
    ]
    gain = np.linspace(0.5, 2, 8, dtype=np.float32)
    constants = {"raw": raw, "gain": gain, "zero": np.zeros(8, np.float32), "one": np.ones(8, np.float32)}
    model = network(nodes, constants | {"shape": np.array([8, 3, 3, 3])}, ["y"])
    assert FoldConstantsPass()(model).modified
    assert ops(model) == ["Conv"]
    assert list(model.graph.initializers) == ["w"]
    wanted = (raw - raw.mean(-1, keepdims=True)) / np.sqrt(raw.var(-1, keepdims=True) + 1e-5) * gain[:, None]
    found = next(iter(model.graph)).inputs[1].const_value.numpy()
    np.testing.assert_allclose(found, wanted.reshape(8, 3, 3, 3), rtol=1e-4, atol=1e-5)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert run(model, IMAGE)["y"].shape == (1, 8, 14, 14)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        (
            "Resize",
            ["t", "", "scales"],
            {"mode": "nearest", "nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "asymmetric"},
        ),
        ("Resize", ["t", "", "scales"], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("Dropout", ["t", "half", "training"], {"seed": 3}),
    ],
    ids=["nearest", "corners", "dropout"],
)
def test_what_the_reference_implementation_computes_otherwise_stays(op, inputs, attributes):
    constants = {
        "t": np.random.default_rng(1).standard_normal((1, 2, 7, 7)).astype(np.float32),
        "scales": np.array([1, 1, 16 / 7, 16 / 7], np.float32),
        "half": np.float32(0.5),
        "training": np.array(True),
    }
    nodes = [oh.make_node(op, inputs, ["r"], "r", **attributes), oh.make_node("ReduceSum", ["r"], ["s"], "s")]
    nodes += [oh.make_node("Add", ["x", "s"], ["y"], "y")]
    model = network(nodes, {name: constants[name] for name in inputs if name}, ["y"])
    before = run(model, IMAGE, optimization="off")["y"]
    clean(model, 18)
    assert op in ops(model)
    np.testing.assert_allclose(run(model, IMAGE, optimization="off")["y"], before, rtol=1e-6)


def test_what_queries_learn_of_each_other_before_they_see_an_image_becomes_constant():
    """The first self-attention of DETR's and Mask2Former's decoders: queries, a norm, and what the next layer asks with."""
    nodes = [
        oh.make_node("Softmax", ["queries"], ["attended"], "attended"),
        oh.make_node("LayerNormalization", ["attended", "gain", "bias"], ["normal"], "norm", epsilon=1e-5),
        oh.make_node("MatMul", ["normal", "asks"], ["asked"], "asks"),
        oh.make_node("Conv", ["x", "w"], ["seen"], "conv"),
        oh.make_node("Reshape", ["seen", "tokens"], ["keys"], "tokens"),
        oh.make_node("MatMul", ["asked", "keys"], ["y"], "scores"),
    ]
    drawn = {"queries": (1, 6, 8), "gain": (8,), "bias": (8,), "asks": (8, 8), "w": (8, 3, 4, 4)}
    constants = {name: GENERATOR.standard_normal(shape).astype(np.float32) for name, shape in drawn.items()}
    model = network(nodes, constants | {"tokens": np.array([1, 8, -1])}, ["y"])
    before = run(model, IMAGE, optimization="off")["y"]
    FoldConstantsPass()(model)
    assert ops(model) == ["Conv", "Reshape", "MatMul"]
    np.testing.assert_allclose(run(model, IMAGE, optimization="off")["y"], before, atol=1e-4)


def test_tables_resized_to_a_size_become_weights():
    """Position embeddings of another size than the image's."""
    table, sizes = np.random.default_rng(1).standard_normal((1, 3, 7, 7)).astype(np.float32), np.array([1, 3, 16, 16])
    nodes = [oh.make_node("Resize", ["t", "", "", "sizes"], ["r"], "r", mode="linear"), oh.make_node("Add", ["x", "r"], ["y"], "y")]
    model = network(nodes, {"t": table, "sizes": sizes}, ["y"])
    before = run(model, IMAGE, optimization="off")["y"]
    clean(model, 18)
    assert ops(model) == ["Add"]
    np.testing.assert_allclose(run(model, IMAGE, optimization="off")["y"], before, atol=1e-5)


def test_what_is_split_and_put_out_stays():
    nodes = [
        oh.make_node("Split", ["raw"], ["v", "u"], "split", num_outputs=2),
        oh.make_node("Conv", ["x", "v"], ["y"], "conv"),
    ]
    model = network(nodes, {"raw": GENERATOR.standard_normal((8, 3, 3, 3)).astype(np.float32)}, ["y", "u"])
    FoldConstantsPass()(model)
    assert ops(model) == ["Split", "Conv"]


def test_sizes_of_static_tensors_are_constants_and_dropout_goes():
    nodes = [
        oh.make_node("Shape", ["x"], ["size"], "size"),
        oh.make_node("Gather", ["size", "one"], ["channels"], "channels"),
        oh.make_node("Concat", ["first", "channels", "rest"], ["target"], "target", axis=0),
        oh.make_node("Dropout", ["x"], ["kept"], "dropout"),
        oh.make_node("Reshape", ["kept", "target"], ["y"], "reshape"),
    ]
    shapes = {"one": np.array([1]), "first": np.array([1]), "rest": np.array([-1])}
    model = network(nodes, shapes, ["y"])
    clean(model, 18)
    assert ops(model) == ["Reshape"]
    assert list(next(iter(model.graph)).outputs[0].shape) == [1, 3, 256]


def test_a_symbolic_size_stays_a_question():
    nodes = [
        oh.make_node("Shape", ["x"], ["size"], "size"),
        oh.make_node("Slice", ["size", "zero", "one"], ["batch"], "batch"),
        oh.make_node("Concat", ["batch", "rest"], ["target"], "target", axis=0),
        oh.make_node("Reshape", ["x", "target"], ["y"], "reshape"),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1])}
    model = network(nodes, constants, ["y"], inputs={"x": ["N", 3, 4, 4]})
    FoldConstantsPass()(model)
    for batch in (1, 3):
        assert run(model, {"x": np.ones((batch, 3, 4, 4), np.float32)})["y"].shape == (batch, 48)


def sizes_asked(index: np.ndarray, shape: list, **attributes: int) -> ir.Model:
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], "r"),
        oh.make_node("Shape", ["r"], ["s"], "s", **attributes),
        oh.make_node("Gather", ["s", "i"], ["g"], "g", axis=0),
        oh.make_node("Cast", ["g"], ["y"], "y", to=onnx.TensorProto.FLOAT),
    ]
    return network(nodes, {"i": index}, ["y"], inputs={"x": shape})


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_sizes_are_constants_where_they_are_known(sizes, is_open, data):
    """Of tensors of which other sizes are open, empty ones included."""
    start, end = data.draw(st.integers(-4, len(sizes) - 1)), data.draw(st.none() | st.integers(-4, 5))
    named = list(range(len(sizes)))[start:end]
    assume(named)
    places = st.integers(-len(named), len(named) - 1)
    index = np.array(data.draw(places | st.lists(places, min_size=1, max_size=3)))
    shape = [f"n{axis}" if is_open[axis] else size for axis, size in enumerate(sizes)]
    model = sizes_asked(index, shape, start=start, **({} if end is None else {"end": end}))
    feeds = {"x": np.zeros(sizes, np.float32)}
    before = run(model, feeds, optimization="off")["y"]
    known = not any(is_open[named[place]] for place in index.reshape(-1))
    assert KnownSizesPass()(model).modified == known
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_array_equal(run(model, feeds, optimization="off")["y"], before)
    assert ("Gather" in ops(model)) == (not known)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(-5, 5) | st.just(-(2**63)),
    st.integers(-5, 5) | st.just(2**63 - 1),
    st.none() | st.sampled_from([-2, -1, 1, 2]),
)
@settings(max_examples=60, deadline=None)
def test_sizes_that_a_slice_takes_are_constants_where_they_are_known(sizes, is_open, start, end, step):
    """As torch's exporter asks for the last size of the queries, from -1 to the largest number there is."""
    places = list(range(len(sizes)))[start:end:step]
    assume(places)
    given = {"i": [start], "e": [end], **({} if step is None else {"axis": [0], "step": [step]})}
    shape = [f"n{axis}" if is_open[axis] else size for axis, size in enumerate(sizes)]
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], "r"),
        oh.make_node("Shape", ["r"], ["s"], "s"),
        oh.make_node("Slice", ["s", *given], ["g"], "g"),
        oh.make_node("Cast", ["g"], ["y"], "y", to=onnx.TensorProto.FLOAT),
    ]
    model = network(nodes, {name: np.array(value) for name, value in given.items()}, ["y"], inputs={"x": shape})
    feeds = {"x": np.zeros(sizes, np.float32)}
    before = run(model, feeds, optimization="off")["y"]
    known = not any(is_open[place] for place in places)
    assert KnownSizesPass()(model).modified == known
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_array_equal(run(model, feeds, optimization="off")["y"], before)
    assert ("Slice" in ops(model)) == (not known)


def test_the_scale_of_attention_is_a_number_with_the_batch_open():
    """torch's exporter writes it as the root of the queries' last size, which their shape tells: of the queries' own, which are
    turned by two Reshapes of sizes that are asked for one by one.
    """
    nodes = [
        oh.make_node("Shape", ["x"], ["all"], "all"),
        *(oh.make_node("Gather", ["all", f"i{axis}"], [f"size{axis}"], f"size{axis}") for axis in (0, 1)),
        *(oh.make_node("Unsqueeze", [f"size{axis}", "zero"], [f"one{axis}"], f"one{axis}") for axis in (0, 1)),
        oh.make_node("Concat", ["one0", "one1", "two", "four"], ["parts"], "parts", axis=0),
        oh.make_node("Reshape", ["x", "parts"], ["apart"], "apart"),
        oh.make_node("Transpose", ["apart"], ["q"], "q", perm=[0, 2, 1, 3]),
        oh.make_node("Shape", ["q"], ["asked"], "asked"),
        oh.make_node("Slice", ["asked", "last", "end"], ["depth"], "depth"),
        oh.make_node("Cast", ["depth"], ["wide"], "wide", to=onnx.TensorProto.FLOAT),
        oh.make_node("Sqrt", ["wide"], ["root"], "root"),
        oh.make_node("Div", ["unit", "root"], ["scale"], "scale"),
        oh.make_node("Mul", ["q", "scale"], ["y"], "y"),
    ]
    tensors = {
        **{"i0": np.array(0), "i1": np.array(1), "zero": np.array([0]), "two": np.array([2]), "four": np.array([4])},
        **{"last": np.array([-1]), "end": np.array([2**63 - 1]), "unit": np.float32([1])},
    }
    model = network(nodes, tensors, ["y"], inputs={"x": ["N", 5, 8]})
    feeds = {"x": GENERATOR.standard_normal((3, 5, 8)).astype(np.float32)}
    before = run(model, feeds, optimization="off")["y"]
    clean(model, 18)
    assert not {"Cast", "Div", "Slice", "Sqrt"} & set(ops(model))
    np.testing.assert_array_equal(run(model, feeds)["y"], before)


def test_a_size_asked_beyond_the_axes_and_one_put_out_stay():
    beyond = sizes_asked(np.array(2), ["n", 4])
    assert not KnownSizesPass()(beyond).modified
    nodes = [oh.make_node("Shape", ["x"], ["s"], "s"), oh.make_node("Gather", ["s", "i"], ["y"], "g")]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.INT64, [])],
        [onnx.numpy_helper.from_array(np.array(1), "i")],
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)])))
    assert not KnownSizesPass()(model).modified


def test_boxes_are_clipped_where_there_are_none():
    """As torchvision's RetinaNet does; with both sizes asked for, ONNX Runtime makes a Reshape to [0, -1] of it, and fails."""
    nodes = [
        oh.make_node("Greater", ["score", "half"], ["sure"], "sure"),
        oh.make_node("NonZero", ["sure"], ["at"], "at"),
        oh.make_node("Reshape", ["at", "flat"], ["rows"], "rows"),
        oh.make_node("Gather", ["box", "rows"], ["some"], "some", axis=0),
        oh.make_node("Slice", ["some", "first", "last", "one", "two"], ["left"], "left"),
        oh.make_node("Slice", ["some", "one", "last", "one", "two"], ["top"], "top"),
        *(oh.make_node("Max", [name, "zero"], [f"{name}0"], f"{name}0") for name in ("left", "top")),
        *(oh.make_node("Unsqueeze", [f"{name}0", "two"], [f"{name}1"], f"{name}1") for name in ("left", "top")),
        oh.make_node("Concat", ["left1", "top1"], ["inside"], "inside", axis=-1),
        *(oh.make_node("Shape", ["some"], [f"shape{axis}"], f"shape{axis}") for axis in (0, 1)),
        *(oh.make_node("Gather", [f"shape{axis}", f"axis{axis}"], [f"size{axis}"], f"size{axis}") for axis in (0, 1)),
        *(oh.make_node("Unsqueeze", [f"size{axis}", "first"], [f"one{axis}"], f"one{axis}") for axis in (0, 1)),
        oh.make_node("Concat", ["one0", "one1"], ["wanted"], "wanted", axis=0),
        oh.make_node("Reshape", ["inside", "wanted"], ["y"], "y"),
    ]
    tensors = {
        **{"half": np.float32(0.5), "zero": np.float32(0), "flat": np.array([-1]), "axis0": np.array(0), "axis1": np.array(1)},
        **{"first": np.array([0]), "one": np.array([1]), "two": np.array([2]), "last": np.array([4])},
    }
    model = network(nodes, tensors, ["y"], inputs={"score": [8], "box": [8, 4]})
    feeds = {"score": GENERATOR.random(8, np.float32), "box": GENERATOR.standard_normal((8, 4)).astype(np.float32)}
    expected = run(model, feeds)["y"]
    clean(model, 18)
    np.testing.assert_array_equal(run(model, feeds)["y"], expected)
    assert run(model, feeds | {"score": np.zeros(8, np.float32)})["y"].shape == (0, 4)


@pytest.mark.parametrize("opset", [17, 18])
def test_a_loop_that_appends_to_an_empty_start_keeps_all_that_it_appends(opset):
    """The body states the start's shape, as torch's exporter has it of masks that are pasted one by one."""
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[1,2] x) => (float[n,2] y, int64[1] sizes)
        <int64 turns = {{3}}, bool yes = {{1}}, float[0,2] start = {{}}, int64[1] zero = {{0}}> {{
            y, sizes = Loop (turns, yes, start, zero) <body = b (int64 i, bool go, float[0,2] kept, int64[1] last)
                => (bool on, float[1,2] grown, int64[1] size) <float[1,2] shape_of_the_first_turn, int64[1] zeroth = {{0}}> {{
                on = Identity (go)
                all = Shape (kept)
                size = Gather (all, zeroth)
                shape_of_the_first_turn = Neg (kept)
                back = Neg (shape_of_the_first_turn)
                grown = Concat<axis = 0> (back, x)
            }}>
        }}"""
    )
    feeds = {"x": np.float32([[1, 2]])}
    before = run(model, feeds, optimization="off")
    assert before["y"].shape == (3, 2)
    assert before["sizes"].tolist() == [2]
    clean(model, opset)
    after = run(model, feeds)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    body = next(node for node in model.graph if node.op_type == "Loop").attributes["body"].as_graph()
    assert [None if value.shape is None else len(value.shape) for value in body.inputs] == [0, 0, 2, 1]
    assert not any(isinstance(size, int) for value in body.inputs[2:] for size in value.shape)


@pytest.mark.parametrize("condition", ["never", "above"])
def test_branches_that_are_gone_read_nothing(condition):
    """Of an If whose condition is constant, and of one that nobody reads."""
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[1,3,4,4] x) => (float[1,3,4,4] y)
        <bool never = {{0}}, float z = {{9}}> {{ m = ReduceMean<keepdims=0>(x) above = Greater(m, z) a = Exp(x) [lost] s = Sin(a)
        b = If({condition}) <then_branch = t () => (float[1,3,4,4] o) {{ k = Neg(a) o = Relu(s) }},
                             else_branch = e () => (float[1,3,4,4] p) {{ p = Tanh(a) }}>
        c = If(above) <then_branch = t2 () => (float[1,3,4,4] o2) {{ o2 = Relu(b) }},
                       else_branch = e2 () => (float[1,3,4,4] p2) {{ p2 = Neg(s) }}>
        y = Sigmoid(a) }}"""
    )
    clean(model, 18)
    assert ops(model) == ["Exp", "Sigmoid"]
    assert [use.node.op_type for use in next(iter(model.graph)).outputs[0].uses()] == ["Sigmoid"]
    assert not model.graph.initializers


def test_no_small_constant_is_blown_up_and_quantizers_stay():
    nodes = [
        oh.make_node("ConstantOfShape", ["huge"], ["zeros"], "zeros"),
        oh.make_node("DequantizeLinear", ["codes", "scale"], ["w"], "dq"),
        oh.make_node("Mul", ["x", "w"], ["scaled"], "mul"),
        oh.make_node("ReduceSum", ["zeros"], ["sum"], "sum", keepdims=0),
        oh.make_node("Add", ["scaled", "sum"], ["y"], "add"),
    ]
    constants = {"huge": np.array([2048, 2048]), "codes": np.int8([3]), "scale": np.float32(0.5)}
    model = network(nodes, constants, ["y"])
    FoldConstantsPass()(model)
    assert {"ConstantOfShape", "DequantizeLinear"} <= set(ops(model))


def test_grids_of_a_detector_are_constants_after_clean():
    """Range, Expand, Unsqueeze, Concat and Where, as exporters write YOLO's grids."""
    nodes = [
        oh.make_node("Range", ["zero", "side", "one"], ["steps"], "range"),
        oh.make_node("Cast", ["steps"], ["float"], "cast", to=onnx.TensorProto.FLOAT),
        oh.make_node("Unsqueeze", ["float", "axis"], ["column"], "unsqueeze"),
        oh.make_node("Expand", ["column", "both"], ["grid"], "expand"),
        oh.make_node("Add", ["x", "grid"], ["y"], "add"),
    ]
    constants = {"zero": np.int64(0), "side": np.int64(16), "one": np.int64(1), "axis": np.array([1]), "both": np.array([16, 16])}
    model = network(nodes, constants, ["y"])
    clean(model, 18)
    assert ops(model) == ["Add"]


def padded(value: float | None, behind: str, more: list[int], *, before: str | None = None, **settings: object) -> ir.Model:
    nodes = [oh.make_node(before, ["x"], ["start"], "start")] if before else []
    inputs = ["start" if before else "x", "pads", *(["value"] if value is not None else [])]
    nodes.append(oh.make_node("Pad", inputs, ["wide"], "pad"))
    tensors = {"pads": np.array([0, 0, *more[:2], 0, 0, *more[2:]])}
    tensors |= {"value": np.float32(value)} if value is not None else {}
    if behind == "Conv":
        tensors["w"] = GENERATOR.standard_normal((4, 3, 3, 3)).astype(np.float32)
        nodes.append(oh.make_node("Conv", ["wide", "w"], ["y"], "conv", **settings))
    else:
        nodes.append(oh.make_node(behind, ["wide"], ["y"], "pool", **({"kernel_shape": [3, 3]} | settings)))
    return network(nodes, tensors, ["y"])


@settings(max_examples=40, deadline=None)
@given(
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    own=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    strides=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    kind=st.sampled_from([("Conv", 0.0, None), ("Conv", None, None), ("MaxPool", -np.inf, None), ("MaxPool", 0.0, "Relu")]),
)
def test_padding_goes_into_what_can_pad_itself(pads, own, strides, kind):
    behind, value, before = kind
    model = padded(value, behind, pads, before=before, pads=own, strides=strides)
    folds = behind == "Conv" or all(a + b < 3 for a, b in zip(pads, own, strict=True))
    if folds:
        assert "Pad" not in alike(model, FoldPadPass())
    else:
        assert not FoldPadPass()(model).modified


def test_the_lowest_number_counts_as_minus_infinity():
    assert alike(padded(float(np.finfo(np.float32).min), "MaxPool", [1, 1, 1, 1]), FoldPadPass()) == ["MaxPool"]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (padded(1.0, "Conv", [1, 1, 1, 1]), "a Conv pads with 0 only"),
        (padded(0.0, "MaxPool", [1, 1, 1, 1]), "x may be below 0 everywhere"),
        (padded(-np.inf, "MaxPool", [-1, 0, 0, 0]), "this crops"),
        (padded(-np.inf, "MaxPool", [1, 1, 1, 1], ceil_mode=1, strides=[2, 2]), "ceil_mode counts windows its own way"),
        (padded(0.0, "Conv", [1, 1, 1, 1], auto_pad="SAME_UPPER"), "auto_pad decides by the size"),
    ],
)
def test_other_padding_stays(model, why):
    assert not FoldPadPass()(model).modified, why


@pytest.mark.parametrize(("strides", "pads"), [([1, 1], [0, 0, 1, 1]), ([2, 2], [1, 1, 1, 1]), ([2, 1], [2, 0, 1, 3])])
@pytest.mark.parametrize("own", [None, [0, 0, 0, 0], [1, 0, 2, 1]])
@pytest.mark.parametrize("value", [0.0, None])
def test_onnx_runtime_leaves_zeros_before_a_maximum_alone(strides, pads, own, value):
    """Values below zero at the border, as behind YOLOv3-tiny's LeakyRelu."""
    model = padded(value, "MaxPool", pads, strides=strides, **({"pads": own} if own else {}))
    image = {"x": IMAGE["x"] - 5}
    expected = run(model, image, optimization="off")["y"]
    assert expected.max() == 0
    if all(more + mine < 3 for more, mine in zip(pads, own or pads[:0] or [0] * 4, strict=True)):
        assert not np.array_equal(run(model, image)["y"], expected), "ONNX Runtime has mended PadFusion: the pass can go"
    else:
        with pytest.raises(ModelRunError, match="Pad should be smaller than kernel"):
            run(model, image)
    clean(model, 18)
    assert ops(model) == ["Pad", "MaxPool"]
    np.testing.assert_array_equal(run(model, image)["y"], expected)
    np.testing.assert_array_equal(run(model, image, optimization="off")["y"], expected)


@pytest.mark.parametrize(
    ("behind", "pads", "settings_"),
    [
        ("MaxPool", [1, 1, 1, 1], {"ceil_mode": 1, "kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", [0, 0, 1, 1], {"ceil_mode": 1, "kernel_shape": [2, 2], "strides": [2, 2]}),
        # The last window lies in the zeros.
        ("AveragePool", [0, 0, 1, 1], {"ceil_mode": 1, "kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", [1, 2, 0, 1], {"kernel_shape": [2, 2]}),
        ("AveragePool", [1, 3, 0, 1], {"count_include_pad": 1}),
        ("MaxPool", [0, 0, 1, 1], {"ceil_mode": 1, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("AveragePool", [1, 3, 0, 1], {"pads": [1, 1, 1, 1]}),
        ("AveragePool", [2, 0, 1, 1], {"pads": [1, 1, 1, 1], "ceil_mode": 1, "strides": [2, 2]}),
    ],
)
def test_zeros_before_other_pools_are_left_alone_too(behind, pads, settings_):
    model = padded(0.0, behind, pads, **settings_)
    image = {"x": IMAGE["x"] - 5}
    expected = run(model, image, optimization="off")["y"]
    clean(model, 18)
    assert ops(model) == ["Pad", behind]
    for level in ("all", "off"):
        np.testing.assert_allclose(run(model, image, optimization=level)["y"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("behind", "settings_"),
    [("MaxPool", {"auto_pad": "SAME_UPPER"}), ("AveragePool", {}), ("AveragePool", {"pads": [1, 0, 1, 0]})],
)
def test_a_pool_that_is_padded_by_its_size_and_means_of_fewer_zeros_than_the_kernel_stay_as_they_are(behind, settings_):
    assert not PadApartPass()(padded(0.0, behind, [1, 1, 1, 1], **settings_)).modified


@pytest.mark.parametrize("own", [None, [1, 1, 1, 1]])
def test_zeros_before_a_maximum_are_those_of_the_graph_in_int8_too(own):
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv"),
        oh.make_node("Pad", ["c", "pads"], ["wide"], "pad"),
        oh.make_node("MaxPool", ["wide"], ["m"], "pool", kernel_shape=[3, 3], strides=[2, 2], **({"pads": own} if own else {})),
        oh.make_node("Conv", ["m", "v"], ["y"], "behind"),
    ]
    weights = {
        name: GENERATOR.standard_normal(shape).astype(np.float32) for name, shape in (("w", (4, 3, 3, 3)), ("v", (4, 4, 1, 1)))
    }
    model = network(nodes, weights | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, ["y"])
    clean(model, 18)
    result = quantize_static(model, statistics_of(model, [IMAGE]), Int8())
    assert {one.precision for one in result.decisions} == {"int8"}
    assert sqnr(model, result.model, [IMAGE])["y"] > 30


def test_a_pad_with_two_readers_stays():
    nodes = [
        oh.make_node("Pad", ["x", "pads", "value"], ["wide"], "pad"),
        oh.make_node("MaxPool", ["wide"], ["a"], "pool", kernel_shape=[3, 3]),
        oh.make_node("Relu", ["wide"], ["b"], "relu"),
    ]
    model = network(nodes, {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "value": np.float32(-np.inf)}, ["a", "b"])
    assert not FoldPadPass()(model).modified


def test_a_pad_with_axes_folds():
    nodes = [
        oh.make_node("Pad", ["x", "pads", "", "axes"], ["wide"], "pad"),
        oh.make_node("Conv", ["wide", "w"], ["y"], "conv"),
    ]
    weights = GENERATOR.standard_normal((2, 3, 3, 3)).astype(np.float32)
    model = network(nodes, {"pads": np.array([1, 2]), "axes": np.array([-1]), "w": weights}, ["y"])
    assert alike(model, FoldPadPass()) == ["Conv"]
    assert next(iter(model.graph)).attributes["pads"].as_ints() == (0, 1, 0, 2)


def stacked(count: int, index: object, *, axis: int = 1, named: bool = False) -> ir.Model:
    """Heads of `count` layers stacked as a decoder of queries does it, and one of them taken out again."""
    nodes, tensors = [], {"axes": np.array([axis]), "index": np.asarray(index)}
    for place in range(count):
        tensors[f"w{place}"] = GENERATOR.standard_normal((16, 4)).astype(np.float32)
        nodes.append(oh.make_node("MatMul", ["x", f"w{place}"], [f"head{place}"], f"head{place}"))
        nodes.append(oh.make_node("Unsqueeze", [f"head{place}", "axes"], [f"layer{place}"], f"layer{place}"))
    nodes.append(oh.make_node("Concat", [f"layer{place}" for place in range(count)], ["all"], "stack", axis=axis))
    nodes.append(oh.make_node("Gather", ["all", "index"], ["y" if named else "last"], "take", axis=axis))
    return network([*nodes, *([] if named else [oh.make_node("Sigmoid", ["last"], ["y"], "scores")])], tensors, ["y"])


@pytest.mark.parametrize("index", [-1, 2, 0])
def test_heads_of_layers_that_do_not_answer_are_not_computed(index):
    model = stacked(3, index)
    feeds = {**IMAGE}
    wanted = run(model, feeds, optimization="off")
    clean(model, 17)
    assert ops(model) == ["MatMul", "Sigmoid"]
    assert next(iter(model.graph)).name == f"head{index % 3}"
    np.testing.assert_array_equal(run(model, feeds, optimization="off")["y"], wanted["y"])


def test_an_output_of_the_graph_keeps_its_node_and_its_name():
    model = stacked(3, -1, named=True)
    wanted = run(model, IMAGE, optimization="off")["y"]
    clean(model, 17)
    assert ops(model) == ["MatMul", "Unsqueeze", "Gather"]
    np.testing.assert_array_equal(run(model, IMAGE, optimization="off")["y"], wanted)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    axis=st.sampled_from([1, -3, 3, -1]),
    data=st.data(),
)
def test_places_are_looked_up_in_the_part_that_has_them(sizes, axis, data):
    """The parts are slices of x; whatever is taken, the answer is that of the whole."""
    total = sum(sizes)
    index = data.draw(st.one_of(st.integers(-total, total - 1), st.lists(st.integers(-total, total - 1), min_size=1, max_size=3)))
    nodes, tensors = [], {"index": np.array(index), "axes": np.array([axis]), "zero": np.array([0])}
    for place, size in enumerate(sizes):
        tensors[f"end{place}"] = np.array([size])
        gain = tensors.setdefault(f"gain{place}", np.float32(place + 1))
        assert gain.ndim == 0
        nodes.append(oh.make_node("Slice", ["x", "zero", f"end{place}", "axes"], [f"cut{place}"], f"cut{place}"))
        nodes.append(oh.make_node("Mul", [f"cut{place}", f"gain{place}"], [f"part{place}"], f"part{place}"))
    nodes.append(oh.make_node("Concat", [f"part{place}" for place in range(len(sizes))], ["all"], "join", axis=axis))
    nodes.append(oh.make_node("Gather", ["all", "index"], ["y"], "take", axis=axis % 4))
    model = network(nodes, tensors, ["y"])
    wanted = np.array(index).reshape(-1) % total
    one_part = len(set(np.searchsorted(np.cumsum(sizes), wanted, side="right"))) == 1
    if one_part:
        assert "Concat" not in alike(model, PickPartPass())
    else:
        assert not PickPartPass()(model).modified


def test_another_axis_and_another_reader_keep_the_concat():
    nodes = [
        oh.make_node("Relu", ["x"], ["a"], "a"),
        oh.make_node("Sigmoid", ["x"], ["b"], "b"),
        oh.make_node("Concat", ["a", "b"], ["all"], "join", axis=1),
        oh.make_node("Gather", ["all", "index"], ["y"], "take", axis=2),
    ]
    assert not PickPartPass()(network(nodes, {"index": np.int64(1)}, ["y"])).modified
    nodes[-1] = oh.make_node("Gather", ["all", "index"], ["y"], "take", axis=1)
    nodes.append(oh.make_node("Neg", ["all"], ["z"], "other"))
    assert "Concat" in alike(network(nodes, {"index": np.int64(1)}, ["y", "z"]), PickPartPass())


def branches(outputs: list[str]) -> ir.Model:
    """RepVGG's two branches, of 21 channels: no multiple of what ONNX Runtime's blocked layout holds."""
    shapes = {"p": (21, 21, 3, 3), "q": (21, 21, 1, 1), "b": (21,)}
    nodes = [
        oh.make_node("Conv", ["x", "q"], ["m"], "m"),
        oh.make_node("Conv", ["m", "p", "b"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["m", "q"], ["c"], "c"),
        oh.make_node("Add", ["a", "c"], ["s"], "s"),
        oh.make_node("Sigmoid", ["s"], ["y"], "y"),
    ]
    weights = {name: GENERATOR.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    return network(nodes, weights, outputs, inputs={"x": [1, 21, 16, 16]})


def test_a_conv_that_is_put_out_and_summed_loads_in_every_form():
    """ONNX Runtime takes the sum and the activation into it, and misses the output then."""
    model, image = branches(["a", "y"]), {"x": GENERATOR.standard_normal((1, 21, 16, 16)).astype(np.float32)}
    expected = run(model, image, optimization="off")
    with pytest.raises(ModelRunError, match="producing output: a"):
        run(model, image)
    clean(model, 18)
    found = run(model, image)
    assert list(found) == ["a", "y"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    statistics = statistics_of(model, [image])
    for recipe in ({}, {"keep_float": ["a", "c", "s"]}, {"target": "openvino"}, {"target": "tensorrt"}, {"format": "qoperator"}):
        made = quantize_static(model, statistics, Int8(placement="all", **recipe)).model
        assert min(sqnr(model, made, [image]).values()) > 20


@pytest.mark.parametrize("outputs", [["y"], ["m", "y"], ["s", "y"]])
def test_what_is_not_put_out_or_has_other_readers_stays(outputs):
    assert not SumApartPass()(branches(outputs)).modified
