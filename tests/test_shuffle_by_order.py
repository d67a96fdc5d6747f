"""ShuffleByOrderPass: channel shuffles become the order of weights, and the graphs that must keep theirs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.forms.shuffle_by_order import ShuffleByOrderPass
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.runtime.kernels import optimized_nodes

SIDE = 6


class Net:
    """A graph being built from images of SIDE x SIDE."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {}

    def op(self, op_type: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(oh.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def conv(self, source: str, name: str, inputs: int, outputs: int, *, depthwise: bool = False, activation: str = "") -> str:
        self.tensors[f"{name}.w"] = he(self.generator, outputs, 1 if depthwise else inputs, 3, 3)
        self.tensors[f"{name}.b"] = self.generator.standard_normal(outputs).astype(np.float32)
        raw = f"{name}.raw" if activation else name
        group = inputs if depthwise else 1
        self.op("Conv", [source, f"{name}.w", f"{name}.b"], raw, pads=[1, 1, 1, 1], group=group)
        return self.op(activation, [raw], name) if activation else name

    def shuffle(self, source: str, name: str, channels: int, groups: int, perm: tuple[int, ...] = (0, 2, 1, 3, 4)) -> str:
        self.tensors[f"{name}.apart"] = np.array([1, groups, channels // groups, SIDE, SIDE])
        self.tensors[f"{name}.again"] = np.array([1, channels, SIDE, SIDE])
        self.op("Reshape", [source, f"{name}.apart"], f"{name}.5d")
        self.op("Transpose", [f"{name}.5d"], f"{name}.swapped", perm=perm)
        return self.op("Reshape", [f"{name}.swapped", f"{name}.again"], name)

    def split(self, source: str, names: list[str], sizes: list[int]) -> list[str]:
        self.tensors[f"{source}.sizes"] = np.array(sizes)
        self.nodes.append(oh.make_node("Split", [source, f"{source}.sizes"], names, f"{source}.split", axis=1))
        return names

    def concat(self, sources: list[str], name: str) -> str:
        return self.op("Concat", sources, name, axis=1)

    def model(self, *outputs: str) -> ir.Model:
        return network(self.nodes, self.tensors, list(outputs), inputs={"x": [1, 3, SIDE, SIDE]})

    def stage(self, half: int, units: int, *, groups: int = 2, activation: str = "LeakyRelu") -> str:
        """ShuffleNetV2's stage: two branches, then units that carry one half on and work on the other."""
        left = self.conv("x", "left", 3, half, activation=activation)
        right = self.conv("x", "right", 3, half, activation=activation)
        whole = self.concat([left, right], "whole0")
        for unit in range(units):
            mixed = self.shuffle(whole, f"mixed{unit}", 2 * half, groups)
            carried, worked = self.split(mixed, [f"carried{unit}", f"worked{unit}"], [half, half])
            inner = self.conv(worked, f"inner{unit}", half, half, activation=activation)
            deep = self.conv(inner, f"deep{unit}", half, half, depthwise=True)
            done = self.conv(deep, f"done{unit}", half, half, activation=activation)
            whole = self.concat([carried, done], f"whole{unit + 1}")
        return whole


def image(seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)}


def alike(model: ir.Model) -> list[str]:
    """Rewrite, hold the outputs to what they were, and name the ops that are left."""
    before = run(model, image(), optimization="off")
    names = {value.name: value for node in model.graph for value in node.outputs}
    every = run(shown(model, names), image(), optimization="off")
    assert ShuffleByOrderPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, image(), optimization="off")
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-5 * np.abs(value).max())
    kept = {value.name: value for node in model.graph for value in node.outputs if value.name in every}
    for name, value in run(shown(model, kept), image(), optimization="off").items():
        np.testing.assert_allclose(value, every[name], rtol=1e-4, atol=1e-5 * max(np.abs(every[name]).max(), 1), err_msg=name)
    assert not ShuffleByOrderPass()(model).modified
    used = {value.name for node in model.graph for value in node.inputs if value is not None and value.is_initializer()}
    assert set(model.graph.initializers) == used
    return [node.op_type for node in model.graph]


def shown(model: ir.Model, values: dict[str, ir.Value]) -> ir.Model:
    """A copy that puts out these tensors."""
    copy = ir.from_proto(ir.to_proto(model))
    made = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(made[name] for name in values)
    return copy


@settings(max_examples=25, deadline=None)
@given(
    half=st.sampled_from([2, 4, 6, 7]),
    units=st.integers(1, 4),
    activation=st.sampled_from(["Relu", "LeakyRelu", "Sigmoid", ""]),
    last=st.booleans(),
)
def test_a_stage_of_any_length_shuffles_nothing_any_more(half, units, activation, last):
    """Every tensor that keeps its name keeps its values, not the outputs alone."""
    net = Net(half + units)
    whole = net.stage(half, units, activation=activation)
    if last:
        # Read on the way to a dense Conv by a depthwise one and a pool, too.
        deep = net.conv(whole, "branch", 2 * half, 2 * half, depthwise=True, activation="Relu")
        pooled = net.op("MaxPool", [deep], "pooled", kernel_shape=[2, 2])
        net.conv(pooled, "also", 2 * half, 3)
    net.conv(whole, "y", 2 * half, 5)
    ops = alike(net.model("y", *(["also"] if last else [])))
    assert not {"Reshape", "Transpose"} & set(ops)


def test_groups_of_other_numbers_are_followed_too():
    net = Net()
    parts = [net.conv("x", f"part{place}", 3, 4) for place in range(3)]
    mixed = net.shuffle(net.concat(parts, "all"), "mixed", 12, 3)
    first, rest = net.split(mixed, ["first", "rest"], [5, 7])
    net.conv(first, "y", 5, 2)
    net.conv(rest, "z", 7, 2)
    assert "Reshape" not in alike(net.model("y", "z"))


def test_what_others_read_is_cut_as_it_lies():
    """A Relu at the end of the region's source is read elsewhere: its order is not free, and its parts are runs."""
    net = Net()
    left = net.conv("x", "left", 3, 4, activation="Relu")
    right = net.conv("x", "right", 3, 4, activation="Relu")
    net.op("Neg", [left], "seen")
    mixed = net.shuffle(net.concat([left, right], "both"), "mixed", 8, 2)
    first, rest = net.split(mixed, ["first", "rest"], [4, 4])
    net.conv(first, "y", 4, 2)
    net.conv(rest, "z", 4, 2)
    assert "Transpose" not in alike(net.model("y", "z", "seen"))


def refused(kind: str) -> ir.Model:
    net = Net()
    left, right = (net.conv("x", name, 3, 4) for name in ("left", "right"))
    both = net.concat([left, right], "both")
    perm = (0, 2, 1, 4, 3) if kind == "another permutation" else (0, 2, 1, 3, 4)
    mixed = net.shuffle(both, "mixed", 8, 2, perm)
    if kind == "a graph output":
        net.conv(mixed, "y", 8, 2)
        return net.model("y", "mixed")
    if kind == "another reader":
        net.op("Softmax", [mixed], "soft", axis=1)
        return net.model("soft")
    if kind == "a grouped Conv":
        net.tensors["w"] = he(net.generator, 4, 4, 1, 1)
        net.op("Conv", [mixed, "w"], "y", group=2)
        return net.model("y")
    if kind == "weights that are computed":
        net.tensors["w"] = he(net.generator, 4, 8, 1, 1)
        net.op("Neg", ["w"], "minus")
        net.op("Conv", [mixed, "minus"], "y")
        return net.model("y")
    net.conv(mixed, "y", 8, 2)
    return net.model("y")


@pytest.mark.parametrize(
    "kind", ["a graph output", "another reader", "a grouped Conv", "weights that are computed", "another permutation"]
)
def test_an_order_that_somebody_sees_stays(kind):
    model = refused(kind)
    before = ir.to_proto(model).SerializeToString()
    assert not ShuffleByOrderPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_concats_and_splits_without_a_shuffle_stay():
    net = Net()
    both = net.concat([net.conv("x", "left", 3, 4), net.conv("x", "right", 3, 4)], "both")
    first, rest = net.split(both, ["first", "rest"], [2, 6])
    net.conv(first, "y", 2, 2)
    net.conv(rest, "z", 6, 2)
    assert not ShuffleByOrderPass()(net.model("y", "z")).modified


def test_a_shuffle_between_float_layers_is_float_in_the_record_and_no_surprise():
    net = Net()
    net.stage(8, 2)
    first = net.shuffle("whole2", "last.mixed", 16, 2)
    second = net.conv(first, "a", 16, 16, activation="LeakyRelu")
    model = net.model(net.conv(net.shuffle(second, "b", 16, 2), "y", 16, 8))
    kept = [node.name for node in model.graph if node.op_type in ("Conv", "LeakyRelu") and node.name not in ("y", "a.raw", "a")]
    recipe = Int8(method="minmax", placement="all", float_heads=False, keep_float=kept)
    result = quantize_static(model, statistics_of(model, [image()]), recipe, Images([image()], []))
    record = {decision.node: decision.precision for decision in result.decisions}
    # What an INT8 layer alone reads is put together of codes.
    rounded = {"whole2", *(f"{shuffle}{part}" for shuffle in ("last.mixed", "b") for part in ("", ".5d", ".swapped"))}
    before = [name for name in record if name not in {"y", "a.raw", "a"} | rounded]
    assert {record[name] for name in before} == {"float"}
    assert {precision for name, precision in record.items() if name not in before} == {"int8"}
    ran = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert ran.unexpected == []


@pytest.mark.parametrize("named", ["whole1", "mixed1.5d", "mixed1.swapped", "mixed1", "mixed1.split"])
def test_keep_float_of_a_shuffle_is_of_what_fetches_its_channels_alone(named):
    net = Net()
    mixed = net.shuffle(net.stage(8, 2), "last.mixed", 16, 2)
    model = net.model(net.conv(mixed, "y", 16, 8))
    layers = [node.name for node in model.graph if node.op_type == "Conv"]
    recipe = Int8(method="minmax", placement="all", float_heads=False, keep_float=[named])
    result = quantize_static(model, statistics_of(model, [image()]), recipe, Images([image()], []))
    record = {decision.node: decision for decision in result.decisions}
    assert {record[name].precision for name in layers} == {"int8"}
    assert record[named].precision == record["mixed1.split"].precision == "float"
    assert record["mixed1.split"].reason == f"keep_float: {named}"
    assert record["mixed0.split"].precision == record["last.mixed"].precision == "int8"
    ran = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert {one["node"]: one["runs"] for one in ran.nodes if "runs" in one}["mixed1.split"] == "float"
    assert ran.unexpected == []
