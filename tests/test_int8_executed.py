"""Decisions held against ONNX Runtime's own optimized graph: what runs as decided, what does not, whatever nodes are called."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from conftest import small_network
from graphs import as_bytes, inferred, network, optimized, run, statistics_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantized import Parts

from octavo.calibration.collector import collect
from octavo.errors import CalibrationError, QuantizationError
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import save
from octavo.graph.passes.kernels.protect_float import ProtectFloatPass
from octavo.params.grammar import Int8
from octavo.quantization import acceptance
from octavo.quantization.acceptance import accept
from octavo.quantization.decisions import Decision, left_out
from octavo.quantization.executed import Executed, executed
from octavo.quantization.int8 import Images, quantize_dynamic, quantize_static
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.verification import verified
from octavo.runtime import entries
from octavo.runtime.kernels import KINDS, RunNode, optimized_nodes

GENERATOR = np.random.default_rng(5)
SHAPES = (("w0", 3, 3), ("w1", 8, 1), ("w2", 8, 1))
IMAGES = [GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32) for _ in range(6)]
WEIGHTS = {name: GENERATOR.standard_normal((8, width, side, side)).astype(np.float32) / 4 for name, width, side in SHAPES}
# Channel 0 is always zero, so that the weight on it does nothing, but for the one scale that it would give all others.
WEIGHTS["w0"][0] = 0
WEIGHTS["w1"][0, 0] = 100


def quantized(model: ir.Model, **recipe: object) -> Int8Result:
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    return quantize_static(model, statistics, Int8(method="minmax", placement="all", float_heads=False, **recipe))


def explained(model: ir.Model, result: Int8Result) -> Executed:
    return executed(model, result.decisions, optimized_nodes(as_bytes(result.model)))


def three_convs(names: tuple[str, ...] = ("stem", "stem.relu", "middle", "middle.relu", "last")) -> ir.Model:
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], names[0], pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["b"], names[1]),
        oh.make_node("Conv", ["b", "w1"], ["c"], names[2]),
        oh.make_node("Relu", ["c"], ["d"], names[3]),
        oh.make_node("Conv", ["d", "w2"], ["y"], names[4]),
    ]
    return network(nodes, WEIGHTS, ["y"])


def samples() -> list[tuple[str, dict[str, np.ndarray]]]:
    return [(str(place), {"x": image}) for place, image in enumerate(IMAGES[:3])]


def test_a_float_layer_whose_cut_stood_behind_a_concat_is_found():
    """PIDNet's pyramid: a Relu behind Concats goes before these, and ONNX Runtime names each fused Conv after the Relu's part."""
    wide = {
        name: GENERATOR.standard_normal(shape).astype(np.float32) / 4
        for name, shape in (("v", (16, 3, 3, 3)), ("w", (16, 3, 3, 3)), ("u", (8, 32, 1, 1)))
    }
    nodes = [
        oh.make_node("Conv", ["x", "v"], ["a"], "one", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["x", "w"], ["b"], "two", pads=[1, 1, 1, 1]),
        oh.make_node("Concat", ["a", "b"], ["c"], "join", axis=1),
        oh.make_node("Relu", ["c"], ["d"], "cut"),
        oh.make_node("Conv", ["d", "u"], ["y"], "last"),
    ]
    model = network(nodes, wide, ["y"])
    found = explained(model, quantized(model, keep_float=["one", "two", "cut"]))
    assert (found.unresolved, found.unexpected) == ([], [])
    records = {record["node"]: (record["runs"], record["kernel"], record.get("fused_into")) for record in found.nodes[:2]}
    assert records == dict.fromkeys(("one", "two"), ("float", "Conv", "cut"))


NAMES = {
    "plain": ("stem", "stem.relu", "middle", "middle.relu", "last"),
    "numbers": ("1", "2", "3", "4", "5"),
    # Of other nodes' tensors, and like what ONNX Runtime and the writer make of names.
    "of other tensors": ("b", "c", "d", "y", "a"),
    "with dots": ("n", "n.n", "n.n.n", "n.n.n.n", "n.n.n.n.n"),
    "with ONNX Runtime's ends": ("n_token_1", "n_token_2", "n_nchwc", "n", "n_token_1_nchwc"),
}


@pytest.mark.parametrize("format_", ["qdq", "qoperator"])
@pytest.mark.parametrize("kind", NAMES)
def test_every_layer_is_found_whatever_it_is_called(kind, format_):
    names = NAMES[kind]
    model = three_convs(names)
    found = explained(model, quantized(model, format=format_))
    assert (found.layers, found.integer, found.unexpected, found.unresolved) == (3, 3, [], [])
    records = {record["node"]: record for record in found.nodes}
    assert {records[name]["kernel"] for name in names} == {"QLinearConv"}
    assert records[names[1]]["fused_into"] == names[0]
    kept = explained(model, quantized(model, format=format_, keep_float=(names[2],)))
    assert (kept.layers, kept.integer, kept.unexpected, kept.unresolved) == (2, 2, [], [])
    assert {record["node"]: record for record in kept.nodes}[names[2]]["runs"] == "float"


@pytest.mark.parametrize(
    ("format_", "vnni", "level"), [("qdq", False, "off"), ("qoperator", False, "extended"), ("qoperator", True, "off")]
)
def test_as_written_is_where_integer_operators_are_exact(format_, vnni, level, monkeypatch, tmp_path):
    model = three_convs()
    result = quantized(model, format=format_)
    save(model, tmp_path / "fp32.onnx")
    save(result.model, tmp_path / "int8.onnx")
    monkeypatch.setattr(entries, "has_vnni", lambda: vnni)
    made = verified(
        tmp_path / "int8.onnx", tmp_path / "fp32.onnx", result.decisions, samples(), name="f", custom=CustomOps(), sizes=(2, 1)
    )
    found = made["accepted"]
    assert found["written_level"] == level
    if not vnni:
        assert found["written_db"]["y"] == pytest.approx(found["sqnr_db"]["y"], abs=0.5)


@pytest.mark.parametrize(("target", "warned"), [("cpu", True), ("tensorrt", False)])
def test_what_runs_otherwise_is_a_warning_for_the_runtime_that_the_file_is_for(target, warned, tmp_path):
    model = three_convs()
    result = quantized(model, target="tensorrt")
    save(model, tmp_path / "fp32.onnx")
    save(result.model, tmp_path / "int8.onnx")
    paths = (tmp_path / "int8.onnx", tmp_path / "fp32.onnx")
    made = verified(*paths, result.decisions, samples(), name="f", custom=CustomOps(), sizes=(2, 1), target=target)
    assert made["executed"]["unexpected"]
    assert any("decided int8 and runs as float" in warning for warning in made["warnings"]) == warned


@pytest.mark.parametrize(
    ("kept", "target", "share", "warned"),
    [
        ([], "cpu", 1, []),
        (["middle", "last"], "cpu", 216 / 344, []),
        (["stem"], "cpu", 128 / 344, ["37%"]),
        ([], "tensorrt", 1, []),
    ],
)
def test_how_much_is_int8_is_told_by_multiplications_and_not_by_layers(kept, target, share, warned, tmp_path):
    model = three_convs()
    result = quantized(model, keep_float=kept, target=target)
    save(model, tmp_path / "fp32.onnx")
    save(result.model, tmp_path / "int8.onnx")
    paths = (tmp_path / "int8.onnx", tmp_path / "fp32.onnx")
    made = verified(*paths, result.decisions, samples(), name="f", custom=CustomOps(), sizes=(2, 1), target=target)
    assert made["executed"]["int8_share"] == pytest.approx(share, abs=1e-4)
    told = [warning for warning in result.warnings(repair=True, share=share) if "multiplications" in warning]
    assert [warning.split(" of ")[0] for warning in told] == warned


@pytest.mark.parametrize(("told", "share"), [(True, 216 / 344), (False, None)])
def test_layers_behind_an_operator_without_a_body_count_as_float(told, share, tmp_path):
    """Told what the operator puts out, their work is known; else no share is given, which would be one of what was quantized."""
    whole = three_convs()
    relu = next(node for node in whole.graph if node.name == "stem.relu")
    relu.op_type, relu.domain = "Plugin", "acme"
    whole.opset_imports["acme"] = 1
    if not told:
        for node in whole.graph:
            for value in node.outputs:
                if value.name in ("b", "c", "d"):
                    value.shape = None
    custom = CustomOps({"Plugin": None})
    part = custom.part(whole)
    result = quantized(part)
    save(whole, tmp_path / "fp32.onnx")
    save(custom.restore(result.model, whole), tmp_path / "int8.onnx")
    decisions = [*result.decisions, *left_out(custom.untouched(whole))]
    paths = (tmp_path / "int8.onnx", tmp_path / "fp32.onnx")
    made = verified(*paths, decisions, samples(), name="f", custom=custom, sizes=(2, 1), original=whole)
    assert made["executed"]["int8_layers_integer"] == 1
    assert made["executed"].get("int8_share") == (share and pytest.approx(share, abs=1e-4))


def test_a_float_layer_that_an_optimizer_quantizes_is_named_and_refused(monkeypatch):
    """ONNX Runtime's WeightBiasQuantization, with the writer's guard against it taken away."""
    model = three_convs()
    good = quantized(model, keep_float=("middle",))
    assert accept(as_bytes(model), as_bytes(good.model), samples(), name="good").warnings == []
    monkeypatch.setattr(ProtectFloatPass, "_rewrite", lambda self, model, node: False)
    bad = quantized(model, keep_float=("middle",))
    found = explained(model, bad)
    assert found.unexpected == [{"node": "middle", "op_type": "Conv", "decided": "float", "runs": "int8", "kernel": "QLinearConv"}]
    with pytest.raises(
        QuantizationError, match=r"bad.onnx: ONNX Runtime's optimized graph is not the one in the file: 'y' is .* dB"
    ):
        accept(as_bytes(model), as_bytes(bad.model), samples(), name="bad.onnx")
    tolerated = accept(as_bytes(model), as_bytes(bad.model), samples(), name="bad.onnx", selecting=True)
    assert tolerated.warnings
    assert tolerated.written_db["y"] - tolerated.sqnr_db["y"] > 6


@pytest.mark.parametrize(
    "chain",
    [
        ["Conv", "Transpose"],
        ["Conv", "Relu", "Transpose"],
        ["Conv", "Clip", "MaxPool"],
        ["Conv", "Reshape"],
        ["Conv", "Relu", "Slice"],
        ["Gemm", "Reshape"],
        ["Gemm", "Relu", "Reshape"],
        ["MatMul", "Add"],
        ["MatMul", "Add", "Transpose"],
    ],
    ids=" ".join,
)
def test_a_float_layer_keeps_its_weights_where_codes_stand_behind_what_moves_values(chain):
    """ONNX Runtime moves the Q ahead of these, and makes a Gemm of MatMul and Add: then it rounds the weights."""
    parts = Parts([1, 8, 6, 6])
    weights = parts.generator.standard_normal((8, 8)).astype(np.float32)
    parts.tensors |= {"kernel": weights[:, :, None, None], "matrix": weights, "bias": weights[0], "rows": np.array([36, 8])}
    parts.tensors |= {"shape": np.array([1, 8, 36]), "low": np.float32(0), "high": np.float32(6)}
    parts.tensors |= {"one": np.array([0, 1, 1]), "five": np.array([1, 5, 5])}
    more = {
        "Add": ["bias"],
        "Clip": ["low", "high"],
        "Conv": ["kernel"],
        "Gemm": ["matrix", "bias"],
        "MatMul": ["matrix"],
        "Reshape": ["shape"],
        "Slice": ["one", "five"],
    }
    how = {"MaxPool": {"kernel_shape": [2, 2]}, "Transpose": {"perm": [0, 2, 3, 1]}}
    value = parts.read("x.code")
    if chain[0] != "Conv":
        parts.nodes.append(oh.make_node("Reshape", [value, "rows"], ["flat"], "flat"))
        value = "flat"
        how["Transpose"] = {"perm": [1, 0]}
    for op_type in chain:
        node = oh.make_node(op_type, [value, *more.get(op_type, [])], [op_type.lower()], op_type, **how.get(op_type, {}))
        parts.nodes.append(node)
        value = node.output[0]
    model, image = parts.model(parts.quantize(value)), {"x": parts.image()}

    def apart() -> float:
        plain, fast = (run(model, image, optimization=level)["y0"] for level in ("off", "all"))
        return float(np.abs(plain - fast).max())

    assert apart() > 0.02, "ONNX Runtime leaves these weights alone: the rule can go"
    assert ProtectFloatPass(chain[0])(model).modified
    # One code apart where sums in another order tip it over.
    assert apart() < 0.031
    # Where nothing comes in as codes, nothing is guarded but what a Q reads at once.
    model = network(
        [
            oh.make_node("Conv", ["x", "w"], ["a"], "conv"),
            oh.make_node("Transpose", ["a"], ["t"], "t", perm=[0, 2, 3, 1]),
            oh.make_node("QuantizeLinear", ["t", "scale", "zero"], ["q"], "q"),
            oh.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dq"),
        ],
        {"w": weights[:4, :3, None, None], "scale": np.float32(0.03), "zero": np.uint8(117)},
        ["y"],
    )
    assert not ProtectFloatPass("Conv")(model).modified


@pytest.mark.parametrize(("set_aside", "at_once"), [(acceptance._SET_ASIDE, 1), (0, 3)])
def test_graphs_lie_in_memory_one_after_the_other_unless_outputs_are_huge_and_keep_nothing(monkeypatch, set_aside, at_once):
    """Of SSD300, 143 MB, what three of them kept was 350 of 990 MB; of a Faster R-CNN, 167 MB, they took the most of the stage."""
    alive, most, arenas = set(), [], []

    class Watched(acceptance.Session):
        def __init__(self, *given, **how):
            arenas.append(how.get("arena", True))
            super().__init__(*given, **how)
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    model = three_convs()
    file = as_bytes(quantized(model).model)
    whole = accept(as_bytes(model), file, samples(), name="good")
    monkeypatch.setattr(acceptance, "Session", Watched)
    monkeypatch.setattr(acceptance, "_SET_ASIDE", set_aside)
    assert accept(as_bytes(model), file, samples(), name="good") == whole
    assert arenas == [False] * 3
    assert max(most) == at_once


def test_int8_decisions_that_run_in_float_are_named():
    """FP32 itself, said to be INT8: each layer is unexpected, also where its kernel has another node's name."""
    model = inferred(small_network())
    decisions = [Decision(node.name, node.op_type, "int8", "so they say") for node in model.graph]
    found = executed(model, decisions, optimized_nodes(as_bytes(model)))
    assert found.layers == 4
    assert found.integer == 0
    assert {each["node"] for each in found.unexpected} >= {"stem", "depth", "point", "head"}
    assert {each["runs"] for each in found.unexpected} == {"float"}
    stem = next(record for record in found.nodes if record["node"] == "stem")
    assert (stem["fused_into"], stem["runs"]) == ("stem.relu", "float")


def test_a_product_of_two_integer_tensors_is_no_surprise_but_where_keep_float_names_it():
    """MatMul without constant weights was decided float; behind two DequantizeLinear ONNX Runtime multiplies the codes, exactly."""
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Transpose", ["a"], ["t"], "turn", perm=[0, 1, 3, 2]),
        oh.make_node("MatMul", ["a", "t"], ["m"], "attention"),
        oh.make_node("Softmax", ["m"], ["p"], "p"),
        oh.make_node("Conv", ["p", "w1"], ["y"], "last"),
    ]
    model = network(nodes, WEIGHTS, ["y"])
    result = quantized(model)
    found = explained(model, result)
    assert found.unexpected == []
    told = {record["node"]: record for record in found.nodes}["attention"]
    assert (told["precision"], told["runs"], told["kernel"]) == ("float", "int8", "MatMulIntegerToFloat")
    named = [replace(one, reason="keep_float: attention") if one.node == "attention" else one for one in result.decisions]
    missed = executed(model, named, optimized_nodes(as_bytes(result.model)))
    assert [(each["node"], each["kernel"]) for each in missed.unexpected] == [("attention", "MatMulIntegerToFloat")]
    asked = explained(model, quantized(model, keep_float=("attention",)))
    assert asked.unexpected == []
    assert {record["node"]: record for record in asked.nodes}["attention"]["kernel"].endswith("MatMul")


def test_what_moves_the_codes_of_an_integer_gemm_works_on_codes():
    """ONNX Runtime states no type for what a QGemm writes: float was believed of all of them."""
    nodes = [
        oh.make_node("Flatten", ["x"], ["f"], "flat"),
        oh.make_node("Gemm", ["f", "first", "bias"], ["g"], "first"),
        oh.make_node("Reshape", ["g", "rows"], ["r"], "rows"),
        oh.make_node("Gemm", ["r", "second", "few"], ["y"], "second"),
    ]
    tensors = {"first": GENERATOR.standard_normal((768, 16)).astype(np.float32), "bias": np.ones(16, np.float32)}
    tensors |= {"second": GENERATOR.standard_normal((8, 4)).astype(np.float32), "few": np.ones(4, np.float32)}
    model = network(nodes, tensors | {"rows": np.array([2, 8])}, ["y"])
    found = explained(model, quantized(model))
    records = {record["node"]: (record["runs"], record["kernel"]) for record in found.nodes if "runs" in record}
    assert records["first"] == records["second"] == ("int8", "QGemm")
    assert records["rows"] == ("int8", "Reshape")
    assert found.unexpected == []


def test_weights_stored_as_int8_are_expected_to_compute_in_float():
    model = inferred(small_network())
    result = quantize_dynamic(model, Int8())
    found = explained(model, result)
    assert (found.unexpected, found.unresolved) == ([], [])
    assert (found.layers, found.integer) == (1, 1), "only the Gemm computes in integers"
    records = {record["node"]: record for record in found.nodes}
    assert records["stem"]["precision"] == "int8"
    assert records["stem"]["arithmetic"] == records["stem"]["runs"] == "float"
    assert records["head"]["runs"] == "int8"
    assert "arithmetic" not in records["head"]


def test_16_bit_and_borders_are_told_apart(tmp_path):
    q16 = {"s": np.float32(0.001), "z": np.uint16(32768)}
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        oh.make_node("Reshape", ["q", "shape"], ["r"], "r"),
        oh.make_node("DequantizeLinear", ["r", "s", "z"], ["f"], "f"),
        oh.make_node("Cast", ["f"], ["h"], "h", to=onnx.TensorProto.FLOAT16),
        oh.make_node("Reshape", ["h", "flat"], ["g"], "g"),
        oh.make_node("Cast", ["g"], ["y"], "c", to=onnx.TensorProto.FLOAT),
        oh.make_node("Shape", ["x"], ["n"], "n"),
    ]
    tensors = {**q16, "shape": np.array([3, 256], np.int64), "flat": np.array([-1], np.int64)}
    graph = network(nodes, tensors, ["y"], opset=21)
    kinds = {node.name: node.kind for node in optimized_nodes(as_bytes(graph))}
    assert {kinds["q"], kinds["f"]} == {"border"}
    assert kinds["r"] == "16-bit"
    assert kinds["g"] == "fp16"


BLOCKS = {
    "conv": lambda source, target: [oh.make_node("Conv", [source, "square"], [target], f"{target}/conv")],
    "relu": lambda source, target: [oh.make_node("Relu", [source], [target], f"{target}/relu")],
    "add": lambda source, target: [
        oh.make_node("Conv", [source, "square"], [f"{target}.side"], f"{target}/side"),
        oh.make_node("Add", [source, f"{target}.side"], [target], f"{target}/add"),
    ],
    "silu": lambda source, target: [
        oh.make_node("Sigmoid", [source], [f"{target}.s"], f"{target}/sigmoid"),
        oh.make_node("Mul", [source, f"{target}.s"], [target], f"{target}/mul"),
    ],
    "pool": lambda source, target: [
        oh.make_node("MaxPool", [source], [target], f"{target}/pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    ],
    "leaky": lambda source, target: [oh.make_node("LeakyRelu", [source], [target], f"{target}/leaky", alpha=0.1)],
    "softmax": lambda source, target: [oh.make_node("Softmax", [source], [target], f"{target}/softmax", axis=1)],
}


MIDDLES = {
    "Softmax": lambda: oh.make_node("Softmax", ["a"], ["m"], "middle", axis=1),
    "Sigmoid": lambda: oh.make_node("Sigmoid", ["a"], ["m"], "middle"),
    "LeakyRelu": lambda: oh.make_node("LeakyRelu", ["a"], ["m"], "middle", alpha=0.1),
    "AveragePool": lambda: oh.make_node("AveragePool", ["a"], ["m"], "middle", kernel_shape=[2, 2]),
    "GlobalAveragePool": lambda: oh.make_node("GlobalAveragePool", ["a"], ["m"], "middle"),
    "Add": lambda: oh.make_node("Add", ["a", "b"], ["m"], "middle"),
    "Mul": lambda: oh.make_node("Mul", ["a", "b"], ["m"], "middle"),
    "Concat": lambda: oh.make_node("Concat", ["a", "b"], ["m"], "middle", axis=2),
    "Where": lambda: oh.make_node("Where", ["which", "a", "b"], ["m"], "middle"),
    "MaxPool": lambda: oh.make_node("MaxPool", ["a"], ["m"], "middle", kernel_shape=[2, 2]),
    "Reshape": lambda: oh.make_node("Reshape", ["a", "shape"], ["m"], "middle"),
}


@pytest.mark.parametrize("kind", MIDDLES)
def test_a_float_node_of_any_kind_between_integer_layers_is_float(kind):
    """What reads a Conv with a scale for each channel would not even load as an integer kernel."""
    nodes = [oh.make_node("Conv", ["x", "w0"], [name], f"conv.{name}", pads=[1, 1, 1, 1]) for name in ("a", "b")]
    nodes += [MIDDLES[kind](), oh.make_node("Conv", ["m", "w2"], ["y"], "last")]
    tensors = WEIGHTS | {"which": np.array([True, False] * 8), "shape": np.array([1, 8, 8, 32], np.int64)}
    model = network(nodes, tensors, ["y"])
    result = quantized(model, keep_float=("middle",))
    found = explained(model, result)
    assert found.unexpected == []
    # What only moves values may move their codes.
    if kind not in ("MaxPool", "Reshape"):
        assert {record["node"]: record for record in found.nodes}["middle"]["runs"] == "float"
    assert accept(as_bytes(model), as_bytes(result.model), samples(), name="made").warnings == []


@pytest.mark.parametrize("bias_first", [False, True])
@pytest.mark.parametrize(("readers", "kernel"), [(1, "DynamicQuantizeMatMul"), (2, "MatMulIntegerToFloat")])
def test_a_bias_behind_a_dynamic_product_is_fused_and_no_surprise(bias_first, readers, kernel):
    """As RT-DETR's linear layers have it, one or several of one input: the kernel has the name of the tensor that the Add makes."""
    nodes, tensors = [], {"b": np.ones(32, np.float32)}
    for place in range(readers):
        added = ["b", f"a{place}"] if bias_first else [f"a{place}", "b"]
        nodes += [
            oh.make_node("MatMul", ["x", f"w{place}"], [f"a{place}"], f"linear{place}"),
            oh.make_node("Add", added, [f"y{place}"], f"bias{place}"),
        ]
        tensors[f"w{place}"] = GENERATOR.standard_normal((32, 32)).astype(np.float32)
    model = network(nodes, tensors, [f"y{place}" for place in range(readers)], inputs={"x": [1, 16, 32]})
    found = explained(model, quantize_dynamic(model, Int8()))
    assert (found.layers, found.integer, found.unexpected, found.unresolved) == (readers, readers, [], [])
    records = {record["node"]: record for record in found.nodes}
    assert records["bias0"]["kernel"] == records["linear0"]["kernel"] == kernel
    assert records["bias0"]["fused_into"] == "linear0"


def test_integers_of_the_graph_itself_are_no_surprise():
    """A uint8 image, and classes of pixels put out as uint8."""
    source = """<ir_version: 8, opset_import: ["": 18]> g (uint8[1,3,16,16] x) => (uint8[1,16,16] y)
        { [in] f = Cast<to=1>(x) [conv] a = Conv<pads=[1,1,1,1]>(f, w0) [max] k = ArgMax<axis=1, keepdims=0>(a)
        [out] y = Cast<to=2>(k) }"""
    proto = onnx.parser.parse_model(source)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS["w0"], "w0"))
    model = inferred(proto)
    images = [{"x": GENERATOR.integers(0, 255, (1, 3, 16, 16)).astype(np.uint8)} for _ in range(4)]
    result = quantize_static(model, statistics_of(model, images), Int8(method="minmax", placement="all"))
    found = explained(model, result)
    assert (found.integer, found.unexpected, found.unresolved) == (1, [], [])
    records = {record["node"]: record for record in found.nodes}
    assert (records["in"]["precision"], records["in"]["runs"]) == ("float", "int8")


@pytest.mark.parametrize("op", ["ArgMax", "ReduceMax", "Where"])
def test_what_chooses_among_codes_is_no_surprise(op):
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "relu"),
    ]
    if op == "ArgMax":
        nodes += [
            oh.make_node(op, ["r"], ["i"], "chooses", axis=1),
            oh.make_node("Cast", ["i"], ["f"], "cast", to=onnx.TensorProto.FLOAT),
            oh.make_node("Mul", ["r", "f"], ["m"], "mul"),
        ]
    elif op == "Where":
        nodes += [oh.make_node("Greater", ["r", "few"], ["g"], "greater"), oh.make_node(op, ["g", "r", "few"], ["m"], "chooses")]
    else:
        nodes.append(oh.make_node(op, ["r", "rows"], ["m"], "chooses"))
    nodes.append(oh.make_node("Conv", ["m", "w1"], ["y"], "last"))
    model = network(nodes, WEIGHTS | {"rows": np.array([2]), "few": np.float32(0.25)}, ["y"])
    found = explained(model, quantized(model))
    records = {record["node"]: record for record in found.nodes}
    assert (records["chooses"]["precision"], records["chooses"]["runs"]) == ("float", "int8")
    assert found.unexpected == []


def test_a_guard_is_no_node_of_the_network():
    """A float MaxPool behind an INT8 Reshape reads through a LeakyRelu, which is named after the tensor."""
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "relu"),
        oh.make_node("Reshape", ["r", "flat"], ["s"], "rows"),
        oh.make_node("MaxPool", ["s"], ["m"], "pool", kernel_shape=[2]),
        oh.make_node("Conv", ["m", "w"], ["y"], "last"),
    ]
    tensors = {"w0": WEIGHTS["w0"], "flat": np.array([1, 8, -1]), "w": WEIGHTS["w2"].reshape(8, 8, 1)}
    model = network(nodes, tensors, ["y"])
    result = quantized(model)
    assert any(node.name.endswith(".guard") for node in result.model.graph)
    assert explained(model, result).unexpected == []


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_attention_are_found(turned, scaled):
    """ONNX Runtime takes factors and Transposes into them, and adds to their names; a Q behind them adds to their outputs'."""
    nodes = [oh.make_node("MatMul", ["x", f"w{name}"], [name], f"{name}.linear") for name in ("q", "k")]
    nodes += [
        oh.make_node("Transpose", ["k"], ["t"], "turn", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["q", "t" if turned else "k"], ["m"], "product"),
        oh.make_node("Mul", ["m", "c"], ["s"], "scale"),
        oh.make_node("Transpose", ["s" if scaled else "m"], ["r"], "back", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["r", "w"], ["y"], "last"),
    ]
    nodes = [node for node in nodes if (turned or node.name != "turn") and (scaled or node.name != "scale")]
    weights = {name: GENERATOR.standard_normal((32, 32)).astype(np.float32) for name in ("wq", "wk", "w")}
    model = network(nodes, weights | {"c": np.float32(0.25)}, ["y"], inputs={"x": [1, 32, 32]})
    statistics = statistics_of(model, [{"x": GENERATOR.standard_normal((1, 32, 32)).astype(np.float32)} for _ in range(4)])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", keep_float=("q.linear", "k.linear")))
    found = explained(model, result)
    assert found.unresolved == []
    records = {record["node"]: record for record in found.nodes}
    assert records["product"]["kernel"] == ("FusedMatMul" if turned or scaled else "MatMul")
    assert "fused_into" not in records["product"]


@pytest.mark.parametrize("op", ["PRelu", "body"])
def test_a_float_layer_is_found_in_what_reads_it(op):
    """A PRelu of one slope becomes the Conv's activation; a custom operator's body stands in for the operator when it runs."""
    act = oh.make_node("PRelu", ["a", "slope"], ["b"], "act") if op == "PRelu" else oh.make_node("Relu", ["a"], ["b"], "act")
    conv = oh.make_node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1])
    nodes = [conv, act, oh.make_node("Conv", ["b", "w1"], ["y"], "last")]
    model = network(nodes, WEIGHTS | {"slope": np.full((8, 1, 1), 0.25, np.float32)}, ["y"])
    result = quantized(model, keep_float=("conv",))
    ran = optimized_nodes(as_bytes(result.model))
    if op == "body":
        act = model.graph.node("act")
        act.domain, act.op_type = "com.acme", "Act"
    found = executed(model, result.decisions, ran)
    assert found.unresolved == []
    assert {record["node"]: record for record in found.nodes}["conv"]["fused_into"] == "act"


@pytest.mark.parametrize("doubled", ["act", "layer"])
def test_what_a_graph_computes_twice_is_found_in_what_runs_once(doubled):
    """ONNX Runtime merges nodes that do the same with the same, and their layer with the one that is left."""
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["x", "w0"], ["aa"], "conv2", pads=[1, 1, 1, 1]),
        oh.make_node("Sigmoid", ["a"], ["b"], "act"),
        oh.make_node("Sigmoid", ["aa" if doubled == "layer" else "a"], ["c"], "act2"),
        oh.make_node("Add", ["b", "c"], ["s"], "sum"),
        oh.make_node("Conv", ["s", "w1"], ["y"], "last"),
    ]
    if doubled == "act":
        del nodes[1]
    model = network(nodes, {name: WEIGHTS[name] for name in ("w0", "w1")}, ["y"])
    decisions = [Decision(node.name, node.op_type, "float", "") for node in nodes]
    found = executed(model, decisions, optimized_nodes(as_bytes(model)))
    assert found.unresolved == []
    assert not found.unexpected
    assert all(record["runs"] == "float" for record in found.nodes)
    assert len({record.get("fused_into", record["node"]) for record in found.nodes if "conv" in record["node"]}) == 1


LEAKY = [oh.make_node("Mul", ["a", "tenth"], ["t"], "part"), oh.make_node("Max", ["a", "t"], ["b"], "last")]
HALVED_ABS = [
    oh.make_node("Abs", ["a"], ["t"], "part"),
    oh.make_node("Add", ["a", "t"], ["s"], "sum"),
    oh.make_node("Mul", ["s", "half"], ["b"], "last"),
]
LAST = [
    oh.make_node("Transpose", ["a"], ["t"], "turn", perm=[0, 2, 3, 1]),
    oh.make_node("Mul", ["t", "factors"], ["s"], "last"),
    oh.make_node("Transpose", ["s"], ["b"], "back", perm=[0, 3, 1, 2]),
]


@pytest.mark.parametrize("behind", [LEAKY, HALVED_ABS, LAST], ids=["leaky", "relu", "channels-last"])
def test_a_float_layer_is_found_in_what_exporters_write_in_parts(behind):
    conv = oh.make_node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1])
    numbers = {"tenth": np.float32(0.1), "half": np.float32(0.5), "factors": GENERATOR.uniform(1, 2, 8).astype(np.float32)}
    nodes = [conv, *behind, oh.make_node("Conv", ["b", "w1"], ["y"], "end")]
    used = {name for node in nodes for name in node.input}
    model = network(nodes, {name: array for name, array in (WEIGHTS | numbers).items() if name in used}, ["y"])
    found = explained(model, quantized(model, keep_float=tuple(node.name for node in nodes[:-1])))
    assert found.unresolved == []
    assert {record["node"]: record for record in found.nodes}["conv"]["fused_into"] == "last"


@pytest.mark.parametrize("op", ["Elu", "Softplus", "Softsign", "ThresholdedRelu"])
def test_a_float_linear_layer_is_found_in_its_activation(op):
    weights = {"v": GENERATOR.standard_normal((4, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
    nodes = [oh.make_node("Gemm", ["x", "v", "b"], ["a"], "layer"), oh.make_node(op, ["a"], ["y"], "act")]
    model = network(nodes, weights, ["y"], inputs={"x": [1, 4]})
    found = executed(model, [Decision(node.name, node.op_type, "float", "") for node in nodes], optimized_nodes(as_bytes(model)))
    assert found.unresolved == []
    assert [record["kernel"] for record in found.nodes] == ["FusedGemm", "FusedGemm"]


def test_a_linear_layer_of_16_bit_codes_is_found_in_its_activation():
    generator = np.random.default_rng(3)
    weights = {name: generator.standard_normal((8, 8)).astype(np.float32) for name in ("v", "w")}
    nodes = [
        oh.make_node("Gemm", ["x", "v"], ["a"], "first"),
        oh.make_node("Relu", ["a"], ["r"], "relu"),
        oh.make_node("Gemm", ["r", "w"], ["y"], "last"),
    ]
    model = network(nodes, weights, ["y"], inputs={"x": [1, 8]}, opset=21)
    feeds = [{"x": generator.standard_normal((1, 8)).astype(np.float32)} for _ in range(4)]
    recipe = Int8(placement="all", method="minmax", symmetric=True, bits16=("r",))
    result = quantize_static(model, statistics_of(model, feeds), recipe)
    told = explained(model, result)
    assert not told.unresolved
    assert [record["kernel"] for record in told.nodes] == ["FusedGemm", "FusedGemm", "Gemm"]


def test_a_norm_that_becomes_a_head_over_pixels_is_no_surprise():
    """What brings its values to rows and back is named after it, and moves floats; of one channel it is a dense layer."""
    generator = np.random.default_rng(3)
    tensors = {name: np.abs(generator.standard_normal(1)).astype(np.float32) + 1 for name in ("scale", "bias", "mean", "var")}
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv"),
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        oh.make_node("BatchNormalization", ["r", "scale", "bias", "mean", "var"], ["y"], "norm"),
    ]
    model = network(nodes, {"w": generator.standard_normal((1, 3, 1, 1)).astype(np.float32), **tensors}, ["y"])
    result = quantize_static(model, statistics_of(model, [{"x": image} for image in IMAGES]), Int8(placement="all"))
    norm = {decision.node: decision for decision in result.decisions}["norm"]
    assert (norm.precision, norm.reason) == ("int8", "integer kernel over pixels, which writes float")
    told = explained(model, result)
    assert told.unexpected == []
    assert {record["node"]: record["runs"] for record in told.nodes}["norm"] == "int8"


def test_a_transpose_that_onnx_runtime_makes_is_not_one_of_that_name():
    """Nodes without names are called after what they do, as ONNX Runtime calls its own."""
    model = network([oh.make_node("Relu", ["x"], ["r"]), oh.make_node("Transpose", ["r"], ["y"], "Transpose")], {}, ["y"])
    own = [
        RunNode("Transpose_token_5", "Transpose", "", "float", ("Transpose_token_5",)),
        RunNode("q", "Transpose", "", "int8", ("y",)),
    ]
    found = executed(model, [Decision("Transpose", "Transpose", "int8", "")], own)
    assert found.unexpected == []
    assert found.nodes[0]["runs"] == "int8"


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_two_heads_runs(turned):
    nodes = [oh.make_node("Conv", ["x", "w0"], [name], f"conv.{name}", pads=[1, 1, 1, 1]) for name in ("a", "b")]
    nodes.append(oh.make_node("Transpose", ["b"], ["t"], "turn", perm=[0, 1, 3, 2]))
    nodes.append(oh.make_node("MatMul", ["a", "t" if turned else "b"], ["y"], "product"))
    model = network(nodes, WEIGHTS, ["y"])
    assert accept(as_bytes(model), as_bytes(quantized(model).model), samples(), name="made").sqnr_db["y"] > 30


@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=6), st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_no_layer_goes_missing_and_nothing_is_counted_twice(blocks, data):
    """Whatever the chain and whatever stays float: each layer has one kernel, of the precision that was decided."""
    nodes = [oh.make_node("Conv", ["x", "w0"], ["t0"], "t0/conv", pads=[1, 1, 1, 1])]
    for place, block in enumerate(blocks):
        nodes += BLOCKS[block](f"t{place}", f"t{place + 1}")
    nodes.append(oh.make_node("Conv", [f"t{len(blocks)}", "square"], ["y"], "end/conv"))
    square = GENERATOR.standard_normal((8, 8, 1, 1)).astype(np.float32) / 3
    model = network(nodes, {"w0": WEIGHTS["w0"], "square": square}, ["y"])
    layers = [node.name for node in nodes if node.op_type == "Conv"]
    kept = tuple(data.draw(st.lists(st.sampled_from(layers), unique=True, max_size=len(layers) - 1)))
    result = quantized(model, keep_float=kept)
    ran = optimized_nodes(as_bytes(result.model))
    found = executed(model, result.decisions, ran)
    assert sum(sum(ops.values()) for ops in found.counts.values()) == len(ran)
    assert set(found.counts) <= set(KINDS)
    assert found.unresolved == []
    assert found.unexpected == []
    assert found.integer == found.layers == len(layers) - len(kept)
    kernels = Counter("int8" if node.kind == "int8" else "float" for node in ran if re.search("Conv$", node.op_type))
    assert (kernels["int8"], kernels["float"]) == (found.layers, len(kept))


def test_statistics_of_another_model_are_refused():
    other = collect(three_convs(), lambda: [("one", {"x": IMAGES[0]})])
    nodes = [oh.make_node("Conv", ["x", "w0"], ["first"], "first"), oh.make_node("Conv", ["first", "w1"], ["y"], "second")]
    with pytest.raises(CalibrationError, match=r"made from another model: this graph has no tensor 'a' \(\d of \d such tensors\)"):
        quantize_static(network(nodes, WEIGHTS, ["y"]), other, Int8())


def test_a_quantized_model_is_refused_by_both_quantizers():
    model = three_convs()
    once = quantized(model)
    statistics = collect(model, lambda: [("one", {"x": IMAGES[0]})])
    for attempt in (lambda: quantize_static(once.model, statistics, Int8()), lambda: quantize_dynamic(once.model, Int8())):
        with pytest.raises(QuantizationError, match=r"quantized already: QuantizeLinear 'q0', .* and \d+ more\n.*source.file"):
            attempt()


def test_what_was_folded_away_has_the_precision_of_what_it_went_into(tmp_path):
    tensors = WEIGHTS | {name: np.linspace(0.5, 2, 8, dtype=np.float32) for name in ("scale", "bias", "mean", "var")}
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "var"], ["n"], "norm"),
        oh.make_node("Conv", ["n", "w1"], ["y"], "last"),
    ]
    model = network(nodes, tensors, ["y"])
    for kept, precision in (((), "int8"), (("stem",), "float")):
        result = quantized(model, keep_float=kept)
        made = {decision.node: decision for decision in result.decisions}
        assert made["norm"].precision == precision
        assert "BatchNormalization" not in [node.op_type for node in optimized(result.model, tmp_path).graph.node]
        assert np.isfinite(run(result.model, {"x": IMAGES[0]})["y"]).all()


def test_what_is_computed_once_has_the_precision_of_what_computes_it():
    """Not of what reads it, which alone is float here."""
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["x", "w0"], ["b"], "double", pads=[1, 1, 1, 1]),
        oh.make_node("Mul", ["a", "b"], ["m"], "square"),
        oh.make_node("Conv", ["m", "w2"], ["y"], "last"),
    ]
    model = network(nodes, {name: WEIGHTS[name] for name in ("w0", "w2")}, ["y"])
    result = quantized(model, keep_float=("square",))
    made = {decision.node: (decision.precision, decision.reason) for decision in result.decisions}
    assert made["double"] == ("int8", "computed once, by conv")
    assert made["square"][0] == "float"
    found = explained(model, result)
    assert found.layers == found.integer == 3
    assert not found.unexpected


def test_a_norm_behind_a_concat_is_recorded_as_the_convs_that_it_becomes():
    names = ("scale", "shift", "mean", "spread")
    norm = {name: np.abs(GENERATOR.standard_normal(11)).astype(np.float32) + 1 for name in names}
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["b"], "stem.relu"),
        oh.make_node("Concat", ["b", "x"], ["c"], "both", axis=1),
        oh.make_node("BatchNormalization", ["c", *names], ["d"], "norm"),
        oh.make_node("Conv", ["d", "w"], ["y"], "last"),
    ]
    weights = {"w0": WEIGHTS["w0"], "w": GENERATOR.standard_normal((4, 11, 1, 1)).astype(np.float32)} | norm
    model = network(nodes, weights, ["y"], inputs={"x": [1, 3, 16, 16]})
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    images = Images([{"x": image} for image in IMAGES], [])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", float_heads=False), images)
    found = {record["node"]: record for record in explained(model, result).nodes}
    assert found["norm"]["precision"] == found["norm"]["runs"] == "int8"
    assert found["norm"]["reason"] == "in 2 parts: integer kernel"


def test_a_relu_behind_a_folded_norm_runs_in_the_layer_before_both():
    norm = {name: np.abs(GENERATOR.standard_normal(8)).astype(np.float32) + 1 for name in ("scale", "shift", "mean", "spread")}
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("BatchNormalization", ["a", *norm], ["b"], "norm"),
        oh.make_node("Relu", ["b"], ["c"], "relu"),
        oh.make_node("Conv", ["c", "w1"], ["y"], "last"),
    ]
    model = network(nodes, {name: WEIGHTS[name] for name in ("w0", "w1")} | norm, ["y"])
    found = {record["node"]: record for record in explained(model, quantized(model)).nodes}
    for name in ("norm", "relu"):
        assert found[name]["runs"] == "int8"
        assert found[name]["fused_into"] == "stem"
