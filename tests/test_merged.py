"""Roundings measured together along a chain, and parted by what each does to its own tensor."""

from functools import partial

import graphs
import numpy as np
import onnx.helper as oh
import pytest

from octavo.calibration.statistics import Statistics
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.merged import apart, chained
from octavo.quantization.int8.noise.sensitivity import noise_of
from octavo.quantization.int8.noise.switches import LAYER, TENSOR


def residual():
    """x, a, b and c in a chain, c added to what a puts out, and a head."""
    random = np.random.default_rng(3)
    he = partial(graphs.he, random)
    tensors = {"a": he(8, 3, 3, 3), "b": he(8, 8, 3, 3), "c": he(8, 8, 3, 3), "head": he(4, 8, 1, 1)}
    nodes = []
    for layer, source in (("a", "x"), ("b", "ar"), ("c", "br")):
        nodes += [
            oh.make_node("Conv", [source, layer], [f"{layer}y"], layer, pads=[1] * 4),
            oh.make_node("Relu", [f"{layer}y"], [f"{layer}r"], f"{layer}.act"),
        ]
    nodes += [oh.make_node("Add", ["ar", "cr"], ["sum"], "sum"), oh.make_node("Conv", ["sum", "head"], ["y"], "head")]
    feeds = [{"x": random.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(12)]
    model = prepared(graphs.network(nodes, tensors, ["y"]))
    draft = Draft(model, graphs.statistics_of(model, feeds[:8]), Int8(method="minmax"), {}, feeds[:8])
    return draft, HeadJudge(model, ["y"], feeds[8:])


def test_a_chain_is_cut_where_another_node_reads_its_tensor():
    draft, _ = residual()
    plan = draft.plan()
    keys = [(TENSOR, name) for name in plan.scales] + [(LAYER, name) for name in plan.codes]
    groups = {tuple(group) for group in chained(plan, draft.statistics, keys, 4)}
    assert sorted(key for group in groups for key in group) == sorted(keys)
    # The first layer, its input before it, and what it puts out, which two read; then the next two up to the sum.
    assert ((TENSOR, "x"), (LAYER, "a"), (TENSOR, "ar")) in groups or ((LAYER, "a"), (TENSOR, "ar")) in groups
    assert ((LAYER, "b"), (TENSOR, "br"), (LAYER, "c"), (TENSOR, "cr")) in groups
    assert not any({(TENSOR, "ar"), (LAYER, "b")} <= set(group) for group in groups)
    assert max(map(len, chained(plan, draft.statistics, keys, 2))) == 2
    assert sorted(map(tuple, chained(plan, draft.statistics, keys, 1))) == sorted((key,) for key in keys)
    # What calibration did not count cannot be parted.
    fewer = Statistics({name: seen for name, seen in draft.statistics.tensors.items() if name != "br"})
    assert [(TENSOR, "br")] in chained(plan, fewer, keys, 4)


def test_what_is_measured_together_makes_about_what_each_makes_alone():
    draft, judge = residual()
    plan = draft.plan()
    alone, merged = (
        noise_of(draft.model, plan, judge, judge.samples, statistics=draft.statistics, together=together) for together in (1, 4)
    )
    assert alone.tensors.keys() == merged.tensors.keys()
    assert alone.weights.keys() == merged.weights.keys()
    every = [sum(one.tensors.values()) + sum(one.weights.values()) for one in (alone, merged)]
    assert every[1] == pytest.approx(every[0], rel=0.15)
    for one in ("tensors", "weights"):
        for name, noise in getattr(alone, one).items():
            assert 0.3 < getattr(merged, one)[name] / noise < 3


def test_noise_is_parted_by_how_much_each_moves_its_own_tensor():
    draft, _ = residual()
    plan = draft.plan()
    keys = [(LAYER, "b"), (TENSOR, "br")]
    found = apart(plan, draft.statistics, keys, 3.0)
    assert sum(found.values()) == pytest.approx(3.0)
    # As plain arithmetic has it: weights against their own squares a channel, values against their variance.
    weights = next(node for node in draft.model.graph if node.name == "b").inputs[1].const_value.numpy()
    error = np.square(plan.codes["b"].restored - weights).sum(axis=(1, 2, 3)) / np.square(weights).sum(axis=(1, 2, 3))
    seen = np.concatenate([graphs.run(_putting_out(draft.model, "br"), feeds)["br"].ravel() for feeds in draft.samples])
    step = float(plan.scales["br"].scale)
    rounded = np.square(np.clip(np.rint(seen / step), 0, 255) * step - seen).mean() / seen.var()
    assert found[LAYER, "b"] / found[TENSOR, "br"] == pytest.approx(error.mean() / rounded, rel=0.1)


def _putting_out(model, name):
    copy = model.clone()
    copy.graph.outputs.append(next(value for node in copy.graph for value in node.outputs if value.name == name))
    return copy
