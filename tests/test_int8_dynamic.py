"""Dynamic INT8: MatMul and Gemm by ONNX Runtime's dynamic kernels, convolutions with int8 weights only."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import QuantizationError
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import save
from octavo.params.grammar import Int8
from octavo.quantization.int8.dynamic import quantize_dynamic
from octavo.quantization.verification import verified

GENERATOR = np.random.default_rng(14)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32) + np.float32(1)} for _ in range(4)]


def normal(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> ir.Model:
    tensors = {
        "w": normal(8, 3, 3, 3),
        "m": normal(8, 8),
        "g": normal(8, 8),
        "b": normal(8),
        "shape": np.array([1, 8, -1], np.int64),
    }
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv", strides=[2, 2]),
        oh.make_node("Reshape", ["c", "shape"], ["r"], "flat"),
        oh.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["t", "m"], ["q"], "query"),
        oh.make_node("MatMul", ["q", "r"], ["s"], "scores"),
        oh.make_node("ReduceMean", ["q", "one"], ["p"], "mean", keepdims=0),
        oh.make_node("Gemm", ["p", "g", "b"], ["y"], "plain", transB=1),
        oh.make_node("Gemm", ["y", "g", "b"], ["z"], "scaled", alpha=0.5),
    ]
    return network(nodes, tensors | {"one": np.array([1], np.int64)}, ["z", "s"])


def test_each_kind_of_node_gets_its_form_and_reason(model):
    before = ir.to_proto(model).SerializeToString()
    result = quantize_dynamic(model, Int8())
    assert ir.to_proto(model).SerializeToString() == before
    onnx.checker.check_model(ir.to_proto(result.model))
    reasons = {decision.node: (decision.precision, decision.reason) for decision in result.decisions}
    carrier = ("float", "dynamic INT8 quantizes weights only")
    attended = ("float", "its weights are not constant")
    weighted = ("int8", "int8 weights, activation ranges at run time")
    assert reasons == {
        "conv": ("int8", "weights int8 in the file, computed in float32"),
        **{"flat": carrier, "turn": carrier, "mean": carrier, "scores": attended},
        **{"query": weighted, "plain": weighted, "scaled": weighted},
    }
    ops = [node.op_type for node in result.model.graph]
    assert (ops.count("MatMulInteger"), ops.count("Conv"), ops.count("Gemm"), ops.count("MatMul")) == (3, 1, 0, 1)
    found = sqnr(model, result.model, IMAGES)
    assert min(found.values()) > 25
    assert max(found.values()) < 100, "it is quantized"


def test_keep_float_and_the_correction(model):
    statistics = statistics_of(model, IMAGES)
    kept = quantize_dynamic(model, Int8(keep_float=("Gemm", "query")), statistics)
    reasons = {decision.node: decision.reason for decision in kept.decisions}
    assert (reasons["plain"], reasons["query"]) == ("keep_float: Gemm", "keep_float: query")
    assert "MatMulInteger" not in [node.op_type for node in kept.model.graph]
    assert kept.corrected == 1
    plain = quantize_dynamic(model, Int8(keep_float=("Gemm", "query"), correction="none"), statistics)
    assert plain.corrected == 0

    def shift(other: ir.Model) -> float:
        return float(np.abs(np.mean([run(model, image)["z"] - run(other, image)["z"] for image in IMAGES], axis=0)).max())

    assert shift(kept.model) < 0.5 * shift(plain.model)
    again = quantize_dynamic(model, Int8(keep_float=("Gemm", "query")), statistics)
    assert ir.to_proto(again.model).SerializeToString() == ir.to_proto(kept.model).SerializeToString()


@pytest.mark.parametrize("op", ["Gemm", "Gemm transB", "MatMul", "MatMul of sequences"])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_products_for_cpus_without_vnni_are_exact_whatever_they_read(op, data):
    """Default kernels on activations that are made to overflow: all of a channel's weights of one sign meet the largest code."""
    generator = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    rows, columns, outputs = (data.draw(st.integers(*ends)) for ends in ((1, 5), (1, 300), (5, 20)))
    weights = (generator.laplace(size=(columns, outputs)) ** data.draw(st.sampled_from([1, 3]))).astype(np.float32)
    given_weights = np.ascontiguousarray(weights.T) if op.endswith("transB") else weights
    attributes = {"transB": 1} if op.endswith("transB") else {}
    model = network(
        [oh.make_node(op.split(maxsplit=1)[0], ["x", "w"], ["y"], "product", **attributes)],
        {"w": given_weights},
        ["y"],
        inputs={"x": [2, rows, columns] if op.endswith("sequences") else [rows, columns]},
    )
    recipe = {"per_channel": data.draw(st.booleans()), "weights": data.draw(st.sampled_from(["minmax", "mse"]))}
    made = quantize_dynamic(model, Int8(target="cpu-no-vnni", **recipe)).model
    stored = {name: value.const_value.numpy() for name, value in made.graph.initializers.items()}
    codes, scale = stored["product.weight_codes"].astype(np.float64), stored["product.weight_scale"]
    # Each row is worst for a channel of its own.
    signs = codes.T[generator.integers(0, outputs, rows)] * generator.choice([-1, 1], (rows, 1)) > 0
    signs[0, 0] = True
    image = signs.astype(np.float32)
    wanted = image @ codes * scale
    feeds = {"x": np.stack([image, image]) if op.endswith("sequences") else image}
    got = run(made, feeds, entries={})["y"]
    assert np.abs(got - wanted).max() <= 1e-5 * max(np.abs(wanted).max(), 1e-9)


@pytest.mark.parametrize(("target", "least"), [("cpu", 127), ("cpu-no-vnni", 80), ("openvino-no-vnni", 80)])
def test_products_have_more_than_7_bits_where_no_pair_asks_for_less(target, least):
    """Convolutions compute in float32, where nothing saturates. Neighbours of one sign may reach 128 together."""
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv"),
        oh.make_node("ConvTranspose", ["c", "t"], ["u"], "turned"),
        oh.make_node("MatMul", ["u", "m"], ["y"], "product"),
    ]
    model = network(nodes, {"w": normal(8, 3, 3, 3), "t": normal(8, 8, 3, 3), "m": normal(16, 64)}, ["y"])
    result = quantize_dynamic(model, Int8(target=target), statistics_of(model, IMAGES)).model
    codes = [value.const_value.numpy() for value in result.graph.initializers.values() if value.dtype == ir.DataType.INT8]
    of = {array.ndim: np.abs(array.astype(int)) for array in codes if array.size > 16}
    assert of[4].max() == 127
    assert of[2].max(axis=0).mean() >= least


@pytest.mark.parametrize("kept", [(), ("fc",), ("fc_MatMul",), ("fc_Add",)])
def test_a_gemm_beside_nodes_that_are_named_as_its_parts_will_be(kept):
    nodes = [
        oh.make_node("Flatten", ["x"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "a", "bias"], ["g"], "fc"),
        oh.make_node("MatMul", ["g", "b"], ["m"], "fc_MatMul"),
        oh.make_node("MatMul", ["m", "c"], ["y"], "fc_Add"),
    ]
    tensors = {"a": normal(768, 16), "bias": normal(16), "b": normal(16, 16), "c": normal(16, 16)}
    model = network(nodes, tensors, ["y"])
    result = quantize_dynamic(model, Int8(keep_float=kept))
    assert {one.node for one in result.decisions if one.precision == "int8"} == {"fc", "fc_MatMul", "fc_Add"} - set(kept)
    made = [node.op_type for node in result.model.graph]
    assert made.count("MatMulInteger") == 3 - len(kept)
    assert 25 < sqnr(model, result.model, IMAGES)["y"] < 100


@pytest.mark.parametrize(("op_type", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_of_recurrent_layers_are_int8_in_the_file(op_type, gates, per_channel):
    """Both directions' and every gate's unit by itself: one of these has a hundredth of the others' weights here."""
    nodes = [
        oh.make_node("Reshape", ["x", "rows"], ["r"], "r"),
        oh.make_node(op_type, ["r", "w", "u"], ["", "h"], "recurrent", hidden_size=8, direction="bidirectional"),
        oh.make_node("Transpose", ["h"], ["t"], "t", perm=[1, 0, 2]),
        oh.make_node("Reshape", ["t", "flat"], ["f"], "f"),
        oh.make_node("MatMul", ["f", "m"], ["y"], "m"),
    ]
    weights, hidden = normal(2, gates * 8, 48), normal(2, gates * 8, 8)
    weights[1] *= 0.01
    tensors = {"rows": np.array([16, 1, -1]), "flat": np.array([1, 16]), "w": weights, "u": hidden, "m": normal(16, 4)}
    model = network(nodes, tensors, ["y"])
    result = quantize_dynamic(model, Int8(per_channel=per_channel))
    reasons = {one.node: (one.precision, one.reason) for one in result.decisions}
    assert reasons["recurrent"] == ("int8", "weights int8 in the file, computed in float32")
    sizes = [value.const_value.size for value in result.model.graph.initializers.values() if value.dtype == ir.DataType.FLOAT]
    assert max(sizes) < hidden.size
    assert sqnr(model, result.model, IMAGES)["y"] > (30 if per_channel else 10)


@pytest.mark.parametrize("before", [[], ["Transpose"]])
def test_a_gemm_with_factors_and_a_turned_input_is_quantized(before):
    """A network of such layers alone could not be quantized at all; its static file could."""
    tensors = {"m": normal(3, 8), "b": normal(8), "rows": np.array([3, -1], np.int64)}
    nodes = [oh.make_node("Reshape", ["x", "rows"], ["r"], "rows")]
    nodes += [oh.make_node("Transpose", ["r"], ["t"], "turn", perm=[1, 0])] if before else []
    settings = {"alpha": 0.5, "beta": 2.0} | ({} if before else {"transA": 1})
    nodes.append(oh.make_node("Gemm", ["t" if before else "r", "m", "b"], ["y"], "product", **settings))
    model = network(nodes, tensors, ["y"])
    result = quantize_dynamic(model, Int8())
    assert {one.node: one.precision for one in result.decisions} == {
        **{node.name: "float" for node in nodes},
        "product": "int8",
    }
    assert "DynamicQuantizeLinear" in [node.op_type for node in result.model.graph]
    assert sqnr(model, result.model, IMAGES)["y"] > 30


def test_a_file_far_from_fp32_says_so(tmp_path):
    """Nothing is measured or given back in it: a channel of tokens that is a hundred times the others leaves these few codes."""
    large = np.ones(32, np.float32)
    large[0] = 100
    tensors = {"large": large, "m": normal(32, 8) / np.float32(4), "shape": np.array([1, -1, 32], np.int64)}
    # Of what is large hardly anything goes on.
    tensors["m"][0] /= 100
    nodes = [
        oh.make_node("Reshape", ["x", "shape"], ["r"], "rows"),
        oh.make_node("Mul", ["r", "large"], ["t"], "scale"),
        oh.make_node("MatMul", ["t", "m"], ["y"], "product"),
    ]
    model = network(nodes, tensors, ["y"])
    result = quantize_dynamic(model, Int8())
    files = [tmp_path / "int8.onnx", tmp_path / "fp32.onnx"]
    for made, file in zip((result.model, model), files, strict=True):
        save(made, file)

    def told(asked_db: float | None) -> list[str]:
        images = [(str(place), image) for place, image in enumerate(IMAGES)]
        of = {"name": "f", "custom": CustomOps(), "sizes": (2, 1), "asked_db": asked_db}
        return [each for each in verified(*files, result.decisions, images, **of)["warnings"] if "`int8.keep_float`" in each]

    (warning,) = told(24.5)
    assert warning.startswith("output 'y' is ")
    assert float(warning.split()[3]) < 15
    assert told(None) == told(10.0) == []


@pytest.mark.parametrize(("shape", "group", "scales"), [((3, 8, 4, 4), 1, (1, 8, 1, 1)), ((3, 1, 5, 5), 3, (3, 1, 1, 1))])
def test_a_network_of_transposed_convolutions_alone_has_int8_weights(shape, group, scales):
    weights = normal(*shape) * np.geomspace(0.01, 1, max(scales), dtype=np.float32).reshape(scales)
    nodes = [oh.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2, 2], group=group)]
    model = network(nodes, {"w": weights}, ["y"])
    result = quantize_dynamic(model, Int8(), statistics_of(model, IMAGES))
    assert [(one.precision, one.reason) for one in result.decisions] == [("int8", "weights int8 in the file, computed in float32")]
    stored = result.model.graph.initializers
    assert {value.dtype for value in stored.values() if value.shape == shape} == {ir.DataType.INT8}
    found = [sqnr(model, result.model, IMAGES)["y"]]
    # One scale for channels of such different sizes would leave a few of them nothing.
    ours, theirs = run(result.model, IMAGES[0])["y"], run(model, IMAGES[0])["y"]
    found += [10 * np.log10(np.square(b).mean() / np.square(a - b).mean()) for a, b in zip(ours[0], theirs[0], strict=True)]
    assert 30 < min(found) < 100


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_a_layer_of_few_weights_stays_as_it_is_and_says_so(op_type):
    shape = (2, 3, 3, 3) if op_type == "Conv" else (3, 2, 3, 3)
    node = oh.make_node(op_type, ["x", "w"], ["y"], "small")
    model = network([node], {"w": normal(*shape)}, ["y"])
    result = quantize_dynamic(model, Int8(), statistics_of(model, IMAGES))
    reason = "fewer than 64 weights: restoring them takes more of the file than it saves"
    assert [(one.precision, one.reason) for one in result.decisions] == [("float", reason)]
    np.testing.assert_array_equal(run(result.model, IMAGES[0])["y"], run(model, IMAGES[0])["y"])
    with pytest.raises(QuantizationError, match="no node of this graph has weights"):
        quantize_dynamic(model, Int8(keep_float=["small"]))
