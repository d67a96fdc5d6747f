"""Channels that are scaled together: what a stream is, that scaling changes no float result, and which are scaled at all."""

import graphs
import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.fitting import balance
from octavo.quantization.int8.fitting.balance import balanced
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.sensitivity import joint_noise, noise_of
from octavo.quantization.int8.structure.alike import alike
from octavo.quantization.int8.structure.streams import streams_of
from octavo.quantization.int8.structure.units import Unit, units_of

WIDTH = 8
GENERATOR = np.random.default_rng(11)
FEEDS = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(6)]


def spread(generator: np.random.Generator, channels: int) -> np.ndarray:
    return np.exp(generator.uniform(-4, 0, channels)).astype(np.float32)


class Grower:
    """A random network whose channels differ a lot in size; every tensor but the last is (1, WIDTH, 16, 16) or half as wide."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.nodes: list = []
        self.tensors: dict[str, np.ndarray] = {"zero": np.float32(0), "six": np.float32(6)}
        self.wide: list[str] = []

    def name(self) -> str:
        return f"t{len(self.nodes)}"

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        out = self.name()
        self.nodes.append(oh.make_node(op, inputs, [out], f"{op}{len(self.nodes)}", **attributes))
        return out

    def conv(self, value: str, inside: int, out: int, group: int = 1, kernel: int = 3) -> str:
        place = len(self.nodes)
        size = spread(self.generator, out)
        self.tensors[f"w{place}"] = he(self.generator, out, inside // group, kernel, kernel) * size.reshape(-1, 1, 1, 1)
        self.tensors[f"b{place}"] = self.generator.standard_normal(out).astype(np.float32) * size * np.float32(0.1)
        pads = [kernel // 2] * 4
        return self.node("Conv", [value, f"w{place}", f"b{place}"], pads=pads, group=group)

    def step(self, kind: str) -> None:
        pick = lambda: self.wide[self.generator.integers(len(self.wide))]  # noqa: E731
        if kind == "layer":
            made = self.conv(pick(), WIDTH, WIDTH, group=int(self.generator.choice([1, 2, WIDTH])))
        elif kind == "relu6":
            made = self.node("Clip", [self.conv(pick(), WIDTH, WIDTH), "zero", "six"])
        elif kind == "prelu":
            place = len(self.nodes)
            self.tensors[f"s{place}"] = self.generator.uniform(0.1, 0.9, (WIDTH, 1, 1)).astype(np.float32)
            made = self.node("PRelu", [pick(), f"s{place}"])
        elif kind == "again":
            # With the weights of a layer before, and a bias of its own or that layer's.
            layers = [
                node for node in self.nodes if node.op_type == "Conv" and self.tensors[node.input[1]].shape[:2] == (WIDTH, WIDTH)
            ]
            if layers:
                node = layers[self.generator.integers(len(layers))]
                own = f"b{len(self.nodes)}"
                self.tensors[own] = self.generator.standard_normal(WIDTH).astype(np.float32)
                padding = [self.tensors[node.input[1]].shape[2] // 2] * 4
                made = self.node("Conv", [pick(), node.input[1], str(self.generator.choice([node.input[2], own]))], pads=padding)
            else:
                made = self.conv(pick(), WIDTH, WIDTH)
        elif kind == "add":
            made = self.node("Add", [pick(), pick()])
        elif kind == "halves":
            value = pick()
            place = len(self.nodes)
            halves = [f"h{place}.0", f"h{place}.1"]
            self.nodes.append(oh.make_node("Split", [value], halves, f"Split{place}", axis=1, num_outputs=2))
            made = self.node("Concat", [halves[1], self.conv(halves[0], WIDTH // 2, WIDTH // 2)], axis=1)
        elif kind == "gate":
            value = pick()
            pooled = self.node("GlobalAveragePool", [value])
            made = self.node("Mul", [value, self.node("Sigmoid", [self.conv(pooled, WIDTH, WIDTH, kernel=1)])])
        else:
            made = self.node({"relu": "Relu", "leaky": "LeakyRelu", "sigmoid": "Sigmoid"}[kind], [pick()])
        self.wide.append(made)

    def model(self, kinds: list[str]) -> ir.Model:
        self.wide.append(self.conv("x", 3, WIDTH))
        for kind in kinds:
            self.step(kind)
        pooled = self.node(
            "Flatten", [self.node("GlobalAveragePool", [self.node("Add", [self.wide[-1], self.wide[-1 - len(kinds) // 2]])])]
        )
        self.tensors["head"] = he(self.generator, 5, WIDTH)
        self.nodes.append(oh.make_node("Gemm", [pooled, "head"], ["y"], "head", transB=1))
        return prepared(network(self.nodes, self.tensors, ["y"]))


KINDS = ["layer", "layer", "again", "relu6", "prelu", "add", "halves", "gate", "relu", "leaky", "sigmoid"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(KINDS), min_size=2, max_size=9), st.sampled_from([0.3, 0.6, 1.0]))
def test_scaling_the_channels_of_all_streams_changes_no_float_result(seed, kinds, exponent):
    model = Grower(seed).model(kinds)
    statistics = graphs.statistics_of(model, FEEDS)
    plain = Draft(model, statistics, Int8(method="minmax"), {}, FEEDS)
    streams = streams_of(model, plain.units)
    other = plain.equalized_by({stream.name: exponent for stream in streams})
    for feeds in FEEDS:
        before, after = run(model, feeds)["y"], run(other.model, feeds)["y"]
        assert np.allclose(before, after, rtol=1e-3, atol=1e-4 * max(1.0, np.abs(before).max()))
    if other.growth:
        assert other.plan().int8
    assert [[unit.name for unit in units] for units in alike_layers(other.units)] == [
        [unit.name for unit in units] for units in alike_layers(plain.units)
    ]


def alike_layers(units: list[Unit]) -> list[list[Unit]]:
    return alike(unit for unit in units if unit.kind == "linear")


def names_of(model: ir.Model) -> list[set[str]]:
    return [{value.name for value in stream.tensors} for stream in streams_of(model, units_of(model))]


def test_a_residual_stream_is_one_with_all_that_joins_and_reads_it():
    grower = Grower(0)
    grower.wide.append(grower.conv("x", 3, WIDTH))
    first = grower.wide[0]
    inner = grower.node("Relu", [grower.conv(first, WIDTH, WIDTH)])
    second = grower.node("Add", [first, grower.conv(inner, WIDTH, WIDTH)])
    third = grower.node("Add", [second, grower.conv(second, WIDTH, WIDTH)])
    grower.wide.append(third)
    last = grower.conv(third, WIDTH, WIDTH)
    grower.nodes[-1].output[0] = "y"
    model = prepared(network(grower.nodes, grower.tensors, ["y"]))
    streams = streams_of(model, units_of(model))
    whole = next(stream for stream in streams if first in {value.name for value in stream.tensors})
    assert {first, second, third} <= {value.name for value in whole.tensors}
    assert len(whole.tensors) == 5
    assert (whole.factors, len(whole.makers), len(whole.takers)) == (WIDTH, 3, 3)
    assert {inner} in names_of(model)
    assert last  # the graph's output belongs to none
    assert not any("y" in names for names in names_of(model))


@pytest.mark.parametrize(
    ("kind", "free"),
    [("Relu", True), ("LeakyRelu", True), ("MaxPool", True), ("AveragePool", True), ("Sigmoid", False), ("Tanh", False)],
)
def test_what_is_not_homogeneous_ends_a_stream(kind, free):
    grower = Grower(1)
    made = grower.conv("x", 3, WIDTH)
    shape = {"kernel_shape": [2, 2]} if kind.endswith("Pool") else {}
    bent = grower.node(kind, [made], **shape)
    grower.conv(bent, WIDTH, WIDTH)
    grower.nodes[-1].output[0] = "y"
    model = prepared(network(grower.nodes, grower.tensors, ["y"]))
    assert any(bent in names for names in names_of(model)) == free


def test_a_clip_that_is_not_from_zero_and_a_graphs_output_stay():
    grower = Grower(2)
    grower.tensors["low"] = np.float32(-1)
    made = grower.node("Clip", [grower.conv("x", 3, WIDTH), "low", "six"])
    kept = grower.conv(made, WIDTH, WIDTH)
    grower.conv(kept, WIDTH, WIDTH)
    grower.nodes[-1].output[0] = "y"
    model = prepared(network(grower.nodes, grower.tensors, ["y", kept]))
    assert names_of(model) == []


def test_channels_keep_their_streams_through_concat_and_split():
    grower = Grower(3)
    one, other = grower.conv("x", 3, WIDTH // 2), grower.conv("x", 3, WIDTH // 2)
    joined = grower.node("Concat", [one, other], axis=1)
    place = len(grower.nodes)
    parts = ["p0", "p1", "p2"]
    grower.tensors["sizes"] = np.array([2, 4, 2])
    grower.nodes.append(oh.make_node("Split", [joined, "sizes"], parts, f"Split{place}", axis=1))
    outputs = []
    for part, width in zip(parts, (2, 4, 2), strict=True):
        outputs.append(grower.conv(part, width, WIDTH))
    model = prepared(network(grower.nodes, grower.tensors, outputs))
    streams = {
        stream.name: {value.name: factors.tolist() for value, factors in stream.tensors.items()}
        for stream in streams_of(model, units_of(model))
    }
    assert streams[one] == {one: [0, 1, 2, 3], joined: [0, 1, 2, 3, -1, -1, -1, -1], "p0": [0, 1], "p1": [2, 3, -1, -1]}
    assert streams[other] == {other: [0, 1, 2, 3], joined: [-1, -1, -1, -1, 0, 1, 2, 3], "p1": [-1, -1, 0, 1], "p2": [2, 3]}


def test_balancing_takes_what_measures_better_and_leaves_the_rest():
    model = Grower(5).model(["layer", "relu6", "layer", "add", "layer"])
    statistics = graphs.statistics_of(model, FEEDS[:4])
    draft = Draft(model, statistics, Int8(method="minmax"), {}, FEEDS[:4])
    judge = HeadJudge(model, ["y"], FEEDS[4:])
    plan = draft.plan()
    by_image = judge.judge_by_image(draft.written(plan, judge.heads))
    better = draft.equalized_by(balanced(draft, plan, judge, by_image))
    assert better.growth
    noise = [judge.judge(one.written(one.plan(), judge.heads)) for one in (draft, better)]
    assert noise[1] < noise[0]
    # Even channels have nothing to gain.
    even = prepared(
        network(
            [oh.make_node("Conv", ["x", "w"], ["a"], "a"), oh.make_node("Conv", ["a", "v"], ["y"], "b")],
            {"w": np.ones((4, 3, 1, 1), np.float32), "v": he(GENERATOR, 4, 4, 1, 1)},
            ["y"],
        )
    )
    plain = Draft(even, graphs.statistics_of(even, FEEDS), Int8(method="minmax", float_heads=False), {}, FEEDS)
    assert balanced(plain, plain.plan(), HeadJudge(even, ["y"], FEEDS), [1.0] * len(FEEDS)) == {}


def test_no_stream_is_measured_that_cannot_grow_and_none_is_tried_where_too_little_would_be_gained(monkeypatch):
    # Two branches: of one all channels are of one size, of the other they are not.
    sizes = np.geomspace(0.01, 1, 8).astype(np.float32).reshape(8, 1, 1, 1)
    first = np.ones((8, 3, 1, 1), np.float32)
    nodes = [
        oh.make_node("Conv", ["x", "first"], ["a"], "a"),
        oh.make_node("Conv", ["a", "even"], ["b"], "b"),
        oh.make_node("Conv", ["x", "uneven"], ["c"], "c"),
        oh.make_node("Conv", ["c", "back"], ["d"], "d"),
        oh.make_node("Add", ["b", "d"], ["s"], "s"),
        oh.make_node("Conv", ["s", "last"], ["y"], "e"),
    ]
    tensors = {"first": first, "even": he(GENERATOR, 4, 8, 1, 1), "uneven": he(GENERATOR, 8, 3, 1, 1) * sizes}
    tensors |= {"back": he(GENERATOR, 4, 8, 1, 1) / sizes.reshape(1, 8, 1, 1), "last": he(GENERATOR, 4, 4, 1, 1)}
    model = prepared(network(nodes, tensors, ["y"]))
    draft = Draft(model, graphs.statistics_of(model, FEEDS), Int8(method="minmax", float_heads=False), {}, FEEDS)
    plan, judge, asked = draft.plan(), HeadJudge(model, ["y"], FEEDS), []

    def watched(*given, **how):
        asked.append([names for names, _ in given[4]])
        return joint_noise(*given, **how)

    monkeypatch.setattr(balance, "joint_noise", watched)
    by_image = judge.judge_by_image(draft.written(plan, judge.heads))
    assert "c" in balanced(draft, plan, judge, by_image, gain=1.1)
    assert len(asked) == 3
    assert all(["c"] in names and ["a"] not in names for names in asked)
    assert len(asked[0]) > 1
    asked.clear()
    # Nor is a stream tried that makes noise and spares next to none of it.
    with monkeypatch.context() as patch:
        patch.setattr(balance, "spared", lambda stream, *_: 1.0 if "c" in [value.name for value in stream.tensors] else 1e-9)
        assert set(balanced(draft, plan, judge, by_image, gain=1.1)) == {"c"}
    assert len(asked[0]) > 1
    assert asked[1:] == [[["c"]], [["c"]]]
    asked.clear()
    # What the others of the network make is out of its reach.
    assert balanced(draft, plan, judge, [100 * noise for noise in by_image], gain=1.1) == {}
    assert len(asked) == 1


def test_some_roundings_at_a_time_are_what_single_ones_are_and_their_sum_at_most_in_size():
    model = Grower(6).model(["layer", "relu", "layer"])
    draft = Draft(model, graphs.statistics_of(model, FEEDS), Int8(method="minmax"), {}, FEEDS)
    plan, judge = draft.plan(), HeadJudge(model, ["y"], FEEDS)
    alone = noise_of(model, plan, judge, FEEDS)
    tensor, layer = max(alone.tensors, key=alone.tensors.get), plan.int8[0]
    sets = [([tensor], []), ([], [layer.main.name]), ([tensor], [layer.main.name]), ([], []), (["nothing"], [])]
    one, other, both, none, unknown = joint_noise(model, plan, judge, FEEDS, sets)
    assert (one, other) == (alone.tensors[tensor], alone.weights[layer.name])
    assert max(one, other) * 0.5 < both < 2 * (one + other)
    assert none == unknown == 0


def test_roundings_that_all_stand_behind_a_head_leave_it_as_it_is():
    """Nothing was run before the first of them that would have told what that head puts out."""
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["early"], "first"),
        oh.make_node("Conv", ["x", "v"], ["c"], "second"),
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        oh.make_node("Conv", ["r", "u"], ["late"], "last"),
    ]
    tensors = {"w": he(GENERATOR, 4, 3, 1, 1), "v": he(GENERATOR, 4, 3, 3, 3), "u": he(GENERATOR, 4, 4, 1, 1)}
    model = prepared(network(nodes, tensors, ["early", "late"]))
    draft = Draft(model, graphs.statistics_of(model, FEEDS), Int8(method="minmax"), {}, FEEDS)
    plan, judge = draft.plan(), HeadJudge(model, ["early", "late"], FEEDS)
    alone = noise_of(model, plan, judge, FEEDS)
    found = joint_noise(model, plan, judge, FEEDS, [(["r"], []), ([], ["last"])])
    assert found == [alone.tensors["r"], alone.weights["last"]]


def test_a_rounding_that_leaves_no_number_is_the_worst_there_is():
    """Below zero before a square root, where what rounding shifts on average is taken off again."""
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "first"),
        oh.make_node("Add", ["c", "little"], ["a"], "above"),
        oh.make_node("Sqrt", ["a"], ["r"], "root"),
        oh.make_node("Conv", ["r", "v"], ["y"], "last"),
    ]
    tensors = {"w": np.eye(3, dtype=np.float32)[:, :, None, None], "v": he(GENERATOR, 4, 3, 1, 1), "little": np.float32(0.2)}
    model = prepared(network(nodes, tensors, ["y"]))
    # Most values are rounded up, and what is rounded to zero falls below it.
    feeds = [{"x": GENERATOR.choice(np.array([0, 0.7, 255], np.float32), (1, 3, 16, 16), p=[0.09, 0.9, 0.01])} for _ in range(6)]
    draft = Draft(model, graphs.statistics_of(model, feeds), Int8(method="minmax", float_heads=False), {}, feeds)
    alone = noise_of(model, draft.plan(), HeadJudge(model, ["y"], feeds), feeds)
    assert np.isfinite([*alone.tensors.values(), *alone.weights.values(), *alone.reads.values()]).all()
    assert alone.tensors["a"] == max(alone.tensors.values())
