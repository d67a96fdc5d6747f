"""RoundedLastPass and RowsAgainPass: maps that integer layers read, rounded with channels last, and rows that stay rows."""

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, optimized, run
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.kernels.rounded_last import RoundedLastPass
from octavo.graph.passes.kernels.rows_again import RowsAgainPass

SIDE, DEPTH = 6, 32
FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def floats(kind: str) -> list[onnx.NodeProto]:
    """Float Convs of the image, and what becomes of them: `map`."""
    ends = {
        "conv": [oh.make_node("Identity", ["a"], ["map"])],
        "relu": [oh.make_node("Relu", ["a"], ["map"])],
        "silu": [oh.make_node("Sigmoid", ["a"], ["s"]), oh.make_node("Mul", ["a", "s"], ["map"])],
        "sum": [oh.make_node("Add", ["a", "b"], ["map"])],
        "concat": [oh.make_node("Concat", ["a", "b"], ["map"], axis=1)],
        "wide": [oh.make_node("Concat", ["a", "b"], ["map"], axis=3)],
        "pool": [oh.make_node("GlobalAveragePool", ["a"], ["map"])],
        "softplus": [oh.make_node("Softplus", ["a"], ["map"])],
    }
    convs = [oh.make_node("Conv", ["x", weight], [out], weight) for weight, out in (("wa", "a"), ("wb", "b"))]
    end = ends[kind]
    if kind == "conv":
        convs[0].output[0], end = "map", []
        convs[1].input[0] = "x"
    return [*convs, *end]


def graph(kind: str = "silu", *, channels: int = DEPTH, readers: str = "conv", batch: int | str = 1) -> ir.Model:
    """A float map, its codes, and who reads them: an integer Conv, two, one and a float op, or rows for a Gemm."""
    generator = np.random.default_rng(3)
    depth = 2 * channels if kind == "concat" else channels
    tensors = {
        "wa": he(generator, channels, 3, 1, 1),
        "wb": he(generator, channels, 3, 1, 1),
        "scale": np.float32(0.03),
        "zero": np.uint8(100),
        "step": np.float32(0.01),
        "wide": np.float32(0.5),
    }
    # Of their own, as files have them where kernels are exact (`OwnCodesPass`).
    for name in "yz":
        tensors |= {f"{name}.codes": generator.integers(-127, 128, (DEPTH, depth, 1, 1), dtype=np.int8), f"{name}.none": np.int8(0)}
    nodes = [*floats(kind), oh.make_node("QuantizeLinear", ["map", "scale", "zero"], ["map.code"], "q")]

    def conv(name: str) -> list[onnx.NodeProto]:
        return [
            oh.make_node("DequantizeLinear", ["map.code", "scale", "zero"], [f"{name}.read"], f"{name}.dq"),
            oh.make_node("DequantizeLinear", [f"{name}.codes", "step", f"{name}.none"], [f"{name}.w"], f"{name}.wdq"),
            oh.make_node("Conv", [f"{name}.read", f"{name}.w"], [f"{name}.raw"], name),
            oh.make_node("QuantizeLinear", [f"{name}.raw", "wide", "zero"], [f"{name}.code"], f"{name}.q"),
            oh.make_node("DequantizeLinear", [f"{name}.code", "wide", "zero"], [name], f"{name}.out"),
        ]

    outputs = ["y"]
    nodes += conv("y")
    if readers == "two":
        nodes += conv("z")
        outputs.append("z")
    elif readers == "float":
        nodes += [
            oh.make_node("DequantizeLinear", ["map.code", "scale", "zero"], ["back"], "back.dq"),
            oh.make_node("Softplus", ["back"], ["z"], "z"),
        ]
        outputs.append("z")
    elif readers == "map":
        nodes.append(oh.make_node("Neg", ["map"], ["z"], "z"))
        outputs.append("z")
    return network(nodes, tensors, outputs, inputs={"x": [batch, 3, SIDE, SIDE]})


def image(batch: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((batch, 3, SIDE, SIDE)).astype(np.float32)}


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["conv", "relu", "silu", "sum", "concat"]),
    channels=st.sampled_from([16, 32, 48]),
    readers=st.sampled_from(["conv", "two"]),
    batch=st.sampled_from([1, "n"]),
)
def test_the_codes_are_the_same(kind, channels, readers, batch):
    model = graph(kind, channels=channels, readers=readers, batch=batch)
    feeds = image(2 if batch == "n" else 1)
    wanted = {level: run(model, feeds, optimization=level) for level in ("off", "all")}
    assert RoundedLastPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for level, outputs in wanted.items():
        made = run(model, feeds, optimization=level)
        for name, values in outputs.items():
            np.testing.assert_array_equal(made[name], values)
    assert "map.code" in {value.name for node in model.graph for value in node.outputs}
    assert not RoundedLastPass()(model).modified


def test_no_bytes_are_transposed_then(tmp_path: Path):
    model = graph("silu")
    before = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert before.count("Transpose") == 2, "to channels last before the layer, and back behind it"
    assert RoundedLastPass()(model).modified
    ran = optimized(model, tmp_path).graph.node
    assert [node.op_type for node in ran].count("Transpose") == 1, "that behind the last layer"
    assert [node.op_type for node in ran].count("QLinearConv") == 1
    (reorder,) = (node for node in ran if node.op_type == "ReorderOutput")
    assert {one.name: one.i for one in reorder.attribute}["channels_last"] == 1, "the float layer writes them in this order"


@pytest.mark.parametrize(
    "model",
    [
        graph("silu", channels=24),
        graph("wide"),
        graph("pool"),
        graph("softplus"),
        graph("silu", readers="float"),
        graph("silu", readers="map"),
    ],
    ids=["no whole blocks", "beside each other", "pool", "no form for blocks", "a float reader", "the map is read"],
)
def test_other_maps_stay(model):
    before = ir.to_proto(model).SerializeToString()
    assert not RoundedLastPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_what_an_integer_layer_puts_out_stays():
    model = graph("relu")
    nodes = {node.name: node for node in model.graph}
    restored = nodes["y.wdq"]
    first = nodes["wa"]
    codes = ir.node("DequantizeLinear", [first.inputs[1], *restored.inputs[1:]])
    model.graph.insert_before(first, codes)
    first.replace_input_with(1, codes.outputs[0])
    assert not RoundedLastPass()(model).modified


def rows(*, perm: list[int] = FIRST, depth: int = 5, seen: bool = False, back: list[int] = LAST) -> ir.Model:
    """Rows laid out as a map, moved, moved back, and taken as rows of 5 again."""
    nodes = [
        oh.make_node("Relu", ["x"], ["rows"], "rows"),
        oh.make_node("Reshape", ["rows", "map"], ["image"], "image"),
        oh.make_node("Transpose", ["image"], ["first"], "first", perm=perm),
        oh.make_node("Transpose", ["first"], ["last"], "last", perm=back),
        oh.make_node("Reshape", ["last", "flat"], ["again"], "again"),
        oh.make_node("Sigmoid", ["again"], ["y"], "y"),
    ]
    tensors = {"map": np.array([-1, 4, 3, depth]), "flat": np.array([-1, 5])}
    if seen:
        nodes.append(oh.make_node("Sigmoid", ["first"], ["z"], "z"))
    return network(nodes, tensors, ["y", *(["z"] if seen else [])], inputs={"x": [24, 5]})


@pytest.mark.parametrize("seen", [False, True])
def test_rows_stay_rows(seen):
    model = rows(seen=seen)
    feeds = {"x": np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)}
    wanted = run(model, feeds)
    assert RowsAgainPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    left = [node.op_type for node in model.graph]
    assert left == (["Relu", "Reshape", "Transpose", "Sigmoid", "Sigmoid"] if seen else ["Relu", "Sigmoid"])
    for name, values in run(model, feeds).items():
        np.testing.assert_array_equal(values, wanted[name])
    assert not RowsAgainPass()(model).modified


@pytest.mark.parametrize("model", [rows(back=FIRST), rows(depth=10), rows(perm=LAST)])
def test_other_rows_stay(model):
    before = ir.to_proto(model).SerializeToString()
    assert not RowsAgainPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
