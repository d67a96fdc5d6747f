"""What quantization adds to a graph has short names; whatever finds a layer by its name still finds it."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import as_bytes, he, network, run, statistics_of

from octavo.evidence.layers import layer_noise
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static, static
from octavo.runtime.kernels import optimized_nodes

LONG = "/backbone/stage.0/block.1/branch"


@pytest.fixture(scope="module")
def parts() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """Convs behind ReLU6 and PRelu, a residual Add, and a float head; some names are those that numbering would give."""
    generator = np.random.default_rng(0)
    tensors = {
        "c0": he(generator, 16, 3, 3, 3),
        f"{LONG}/w": he(generator, 16, 16, 3, 3),
        "d0": he(generator, 16, 16, 1, 1),
        "head.w": he(generator, 4, 16, 3, 3),
        "slope": generator.uniform(0.1, 0.4, (16, 1, 1)).astype(np.float32),
        "low": np.float32(0),
        "high": np.float32(6),
    }
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        oh.make_node("Conv", ["x", "c0"], ["s"], f"{LONG}/stem", **same),
        oh.make_node("Clip", ["s", "low", "high"], ["q0"], f"{LONG}/clip"),
        oh.make_node("Conv", ["q0", f"{LONG}/w"], [f"{LONG}/b"], "q1", **same),
        oh.make_node("PRelu", [f"{LONG}/b", "slope"], ["p"], f"{LONG}/prelu"),
        oh.make_node("Conv", ["p", "d0"], ["d1"], f"{LONG}/pointwise"),
        oh.make_node("Add", ["d1", "q0"], ["sum"], "d2"),
        oh.make_node("Conv", ["sum", "head.w"], ["y"], "head", **same),
    ]
    feeds = [{"x": generator.random((1, 3, 16, 16), np.float32)} for _ in range(8)]
    return network(nodes, tensors, ["y"]), feeds


def quantized(parts, **options: object):
    model, feeds = parts
    recipe = Int8(method="minmax", placement="all", repair=False, **options)
    return quantize_static(model, statistics_of(model, feeds), recipe, Images(feeds[:4], feeds[4:]))


@pytest.fixture(scope="module", params=["qdq", "qoperator"])
def form(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def both(parts, form):
    """The file as it is, and with the names that quantization itself gives."""
    made = quantized(parts, format=form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static, "shorten_names", lambda *_: None)
        return made, quantized(parts, format=form)


def test_the_same_values_from_fewer_bytes(parts, both):
    made, long = both
    assert len(as_bytes(made.model)) < len(as_bytes(long.model)) - 2000
    image = parts[1][5]
    assert run(made.model, image)["y"].tobytes() == run(long.model, image)["y"].tobytes()


def test_no_name_is_given_twice(parts, both):
    model = both[0].model
    values = [*model.graph.initializers, *(value.name for node in model.graph for value in node.outputs)]
    assert len(values) == len(set(values))
    names = [node.name for node in model.graph]
    assert len(names) == len(set(names))
    assert all(names)


def test_nodes_that_compute_keep_their_names_and_weights_are_found_by_theirs(parts, both):
    made, long = both
    computing = [
        [node.name for node in result.model.graph if node.op_type not in ("QuantizeLinear", "DequantizeLinear")]
        for result in (made, long)
    ]
    assert computing[0] == computing[1]
    assert f"{LONG}/stem.weight_codes" in made.model.graph.initializers


def test_every_decision_finds_the_kernel_that_it_found(parts, both):
    found = [executed(parts[0], result.decisions, optimized_nodes(as_bytes(result.model))) for result in both]
    assert found[0] == found[1]
    assert found[0].integer == found[0].layers == 3
    assert not found[0].unresolved


def test_layers_are_held_against_the_tensors_that_they_were_held_against(parts, form, both):
    model, feeds = parts
    noise = [layer_noise(model, result.model, lambda: ((str(place), feed) for place, feed in enumerate(feeds))) for result in both]
    assert noise[0] == noise[1]
    assert len(noise[0]) == (6 if form == "qdq" else 2)


def test_two_runs_give_the_same_bytes(parts):
    assert as_bytes(quantized(parts).model) == as_bytes(quantized(parts).model)
