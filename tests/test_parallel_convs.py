"""ParallelConvsPass: the same values from one Conv, those it must leave alone, and what INT8 makes of a network with branches."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.affine.parallel_convs import ParallelConvsPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.solution import all_int8
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(83)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]


def convs(model: ir.Model) -> int:
    return sum(node.op_type == "Conv" for node in model.graph)


@st.composite
def branches(draw: st.DrawFn) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], list]:
    """Two or three Convs of one image, all of whose windows lie on the same pixels, and the sums of what they put out."""
    axes, stride = draw(st.sampled_from([1, 2, 2])), draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 2, 4, 8]))
    before = draw(st.lists(st.integers(0, 2), min_size=axes, max_size=axes))
    surplus = draw(st.lists(st.integers(-1, 0), min_size=axes, max_size=axes))
    nodes, tensors, total = [], {}, ""
    for place in range(draw(st.integers(2, 3))):
        own = [draw(st.integers(0, reach)) for reach in before] if place else before
        after = [draw(st.integers(0, 2)) for _ in range(axes)]
        sizes = [max(first + last - more, 1) for first, last, more in zip(own, after, surplus, strict=True)]
        after = [size + more - first for size, more, first in zip(sizes, surplus, own, strict=True)]
        if min(after) < 0:
            # A kernel that is larger than what its pads leave: as many taps more.
            sizes = [size - min(last, 0) for size, last in zip(sizes, after, strict=True)]
            after = [max(last, 0) for last in after]
        name = f"c{place}"
        tensors[f"{name}.w"] = he(GENERATOR, 8, 8 // groups, *sizes)
        biased = draw(st.booleans())
        if biased:
            tensors[f"{name}.b"] = GENERATOR.standard_normal(8).astype(np.float32)
        read = ["x", f"{name}.w", *([f"{name}.b"] if biased else [])]
        settings = {"group": groups, "strides": [stride] * axes, "pads": [*own, *after]}
        nodes.append(oh.make_node("Conv", read, [name], name, **settings))
        if total:
            kind = draw(st.sampled_from(["Add", "Sub"]))
            operands = [total, name] if draw(st.booleans()) else [name, total]
            nodes.append(oh.make_node(kind, operands, [f"s{place}"], f"s{place}"))
        total = f"s{place}" if total else name
    return nodes, tensors, [1, 8, *[9] * axes]


@settings(max_examples=60, deadline=None)
@given(found=branches())
def test_the_same_values(found):
    nodes, tensors, shape = found
    model = network(nodes, tensors, [nodes[-1].output[0]], inputs={"x": shape})
    image = {"x": GENERATOR.standard_normal(shape).astype(np.float32)}
    before, name = run(model, image), nodes[-1].output[0]
    weights, count = sum(array.size for key, array in tensors.items() if key.endswith(".w")), convs(model)
    modified = ParallelConvsPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, image)[name], before[name], rtol=1e-4, atol=1e-4)
    assert modified == (convs(model) < count)
    left = [node.inputs[1].const_value for node in model.graph if node.op_type == "Conv"]
    assert sum(tensor.size for tensor in left) <= weights
    assert not ParallelConvsPass()(model).modified


def of(first: dict, second: dict, *, kind: str = "Add", groups: tuple[int, int] = (1, 1), **options: object) -> ir.Model:
    """A sum of a 3x3 Conv and one of 1x1, or as told."""
    sizes = options.get("sizes", (3, 1))
    tensors = {name: he(GENERATOR, 8, 8 // group, size, size) for name, size, group in zip("ab", sizes, groups, strict=True)}
    read = ["x", options.get("reads", "x")]
    # As large as those of the first kernel: he draws few of them larger.
    tensors["b"] *= options.get("louder", 1.0) * tensors["a"].std() / tensors["b"].std()
    nodes = [
        oh.make_node("Conv", [source, name], [f"{name}.out"], f"{name}.conv", group=group, **settings)
        for name, source, group, settings in zip("ab", read, groups, (first, second), strict=True)
    ]
    nodes.append(oh.make_node(kind, ["a.out", "b.out"], ["y"], "sum"))
    inputs = {name: [1, 8, 9, 9] for name in dict.fromkeys(read)}
    return network(nodes, tensors, ["y", *options.get("outputs", ())], inputs=inputs)


SAME = {"pads": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    ("groups", "sizes", "merged"),
    [
        ((1, 1), (3, 1), True),
        ((8, 8), (3, 1), True),
        # A 1x1 Conv of groups has its blocks beside zeros in the dense one.
        ((1, 8), (3, 1), True),
        ((2, 4), (3, 3), True),
        ((2, 8), (3, 3), True),
        # The sum would have nine times the weights.
        ((8, 1), (3, 1), False),
    ],
)
def test_groups(groups, sizes, merged):
    model = of(SAME, SAME if sizes[1] == 3 else {}, groups=groups, sizes=sizes)
    image = {"x": GENERATOR.standard_normal((1, 8, 9, 9)).astype(np.float32)}
    before = run(model, image)["y"]
    assert ParallelConvsPass()(model).modified == merged
    np.testing.assert_allclose(run(model, image)["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        pytest.param(of(SAME, {}), ["b.conv"], id="one stays float by name"),
        pytest.param(of(SAME, {}), ["sum"], id="the sum does"),
        pytest.param(of(SAME, {}, reads="z"), [], id="another tensor"),
        pytest.param(of(SAME, {}, outputs=["b.out"]), [], id="somebody else reads it"),
        pytest.param(of(SAME, {"auto_pad": "SAME_UPPER"}), [], id="auto_pad"),
        pytest.param(of({"pads": [2] * 4, "dilations": [2, 2]}, {}), [], id="dilations"),
        pytest.param(
            of({"strides": [2, 2], "pads": [1, 1, 0, 0]}, {"strides": [2, 2]}, sizes=(3, 3)), [], id="other rows at the end"
        ),
        pytest.param(of(SAME, {}, kind="Mul"), [], id="no sum"),
        pytest.param(of(SAME, {}, groups=(1, 8), louder=20), [], id="weights beside which the others are small"),
    ],
)
def test_left_alone(model, kept):
    before = ir.to_proto(model).SerializeToString()
    assert not ParallelConvsPass(kept)(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def norm(name: str, channels: int, gain: float = 1.0) -> dict[str, np.ndarray]:
    return {
        f"{name}.gain": (gain * GENERATOR.uniform(0.5, 1.5, channels)).astype(np.float32),
        f"{name}.shift": GENERATOR.standard_normal(channels).astype(np.float32) * 0.1,
        f"{name}.mean": GENERATOR.standard_normal(channels).astype(np.float32) * 0.1,
        f"{name}.var": GENERATOR.uniform(0.5, 1.5, channels).astype(np.float32),
    }


def with_branches(gain: float = 0.3) -> ir.Model:
    """Two blocks as RepVGG trains them: 3x3, 1x1 and identity, each with a norm, the identity's of this gain; the second block
    without identity, at stride 2.
    """
    nodes, tensors = [oh.make_node("Conv", ["x", "stem"], ["r0"], "stem", pads=[1] * 4)], {"stem": he(GENERATOR, 16, 3, 3, 3)}
    read, channels = "r0", 16
    for place, (out, stride) in enumerate([(16, 1), (24, 2)], 1):
        parts = []
        for what, size in (("wide", 3), ("one", 1)):
            name = f"{what}{place}"
            tensors[f"{name}.w"] = he(GENERATOR, out, channels, 3, 3)[:, :, :size, :size]
            tensors |= norm(f"{name}.norm", out)
            settings = {"strides": [stride] * 2, "pads": [size // 2] * 4}
            nodes += [
                oh.make_node("Conv", [read, f"{name}.w"], [f"{name}.c"], f"{name}.conv", **settings),
                oh.make_node("BatchNormalization", [f"{name}.c", *list(norm(f"{name}.norm", 1))], [name], f"{name}.norm"),
            ]
            parts.append(name)
        if stride == 1:
            name = f"same{place}"
            tensors |= norm(f"{name}.norm", channels, gain)
            nodes.append(oh.make_node("BatchNormalization", [read, *list(norm(f"{name}.norm", 1))], [name], f"{name}.norm"))
            parts.append(name)
        nodes.append(oh.make_node("Add", parts[:2], [f"add{place}"], f"add{place}"))
        if stride == 1:
            nodes.append(oh.make_node("Add", [f"add{place}", parts[2]], [f"all{place}"], f"all{place}"))
        nodes.append(oh.make_node("Relu", [nodes[-1].output[0]], [f"r{place}"], f"r{place}"))
        read, channels = f"r{place}", out
    nodes += [
        oh.make_node("GlobalAveragePool", [read], ["p"], "p"),
        oh.make_node("Flatten", ["p"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "last"], ["y"], "last"),
    ]
    return network(nodes, tensors | {"last": he(GENERATOR, 24, 5)}, ["y"])


def test_branches_of_norms_are_one_layer():
    model = with_branches()
    ready = prepared(model, merges=True)
    assert [node.op_type for node in ready.graph if node.op_type in ("Add", "Conv", "BatchNormalization")] == ["Conv"] * 3
    assert min(sqnr(model, ready, IMAGES).values()) > 100


def test_what_training_starts_from_has_every_branch():
    model = with_branches()
    layers = all_int8(model, statistics_of(model, IMAGES), Int8(method="minmax"), Images(IMAGES[:4], IMAGES[4:])).layers
    held = [tensor.const_value.numpy() for tensor in model.graph.initializers.values() if tensor.name.endswith(".w")]
    shapes = sorted(layer.weight.shape for layer in layers)
    assert len(held) == 4
    assert all(shapes.count(weights.shape) == [each.shape for each in held].count(weights.shape) for weights in held)


def test_an_identity_that_drowns_the_other_weights_stays_apart():
    ready = prepared(with_branches(gain=3.0), merges=True)
    assert [node.op_type for node in ready.graph if node.op_type in ("Add", "Conv")].count("Conv") == 4


def test_what_runs_is_told_of_every_branch():
    model = with_branches()
    recipe = Int8(placement="all", repair=False, method="minmax")
    result = quantize_static(model, statistics_of(model, IMAGES), recipe, Images(IMAGES[:4], IMAGES[4:]))
    assert min(sqnr(model, result.model, IMAGES).values()) > 25
    run_nodes = optimized_nodes(ir.to_proto(result.model).SerializeToString())
    assert sum(node.op_type == "QLinearConv" for node in run_nodes) == 3
    found = executed(model, result.decisions, run_nodes)
    assert found.unresolved == []
    assert found.unexpected == []
    assert found.integer == found.layers == 6
    assert {record["node"] for record in found.nodes if record["op_type"] == "Conv"} == {
        "stem", "wide1.conv", "one1.conv", "wide2.conv", "one2.conv",
    }  # fmt: skip
    assert {decision.precision for decision in result.decisions} == {"int8"}
    reasons = {decision.node: decision.reason for decision in result.decisions}
    first = {"wide1.conv", "one1.conv", "same1.norm", "add1", "all1", "r1"}
    assert {reasons[name] for name in first} == {reasons["all1"]}


def test_a_branch_that_is_named_stays_a_layer_of_its_own():
    model = with_branches()
    recipe = Int8(placement="all", repair=False, method="minmax", keep_float=["one1.conv"])
    result = quantize_static(model, statistics_of(model, IMAGES), recipe, Images(IMAGES[:4], IMAGES[4:]))
    run_nodes = optimized_nodes(ir.to_proto(result.model).SerializeToString())
    assert any(node.name == "one1.conv" or "one1" in node.name for node in run_nodes if node.kind == "float")
    found = executed(model, result.decisions, run_nodes)
    assert found.unexpected == []
    assert {decision.node for decision in result.decisions if decision.precision == "float"} >= {"one1.conv"}
