"""Constants that lie in files while graphs are tried: the same results, little memory, nothing left behind."""

import gc
import tempfile
import weakref

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, statistics_of

from octavo.graph.io import load
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.fitting.cuts import searched_scales
from octavo.quantization.int8.noise import sensitivity
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.sensitivity import noise_of, weights_noise
from octavo.runtime import mapped
from octavo.runtime.mapped import MappedConstants

CHANNELS = 64
FEEDS = [{"x": np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)} for seed in range(6)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def opened(monkeypatch):
    """Bytes of the graphs that sessions were opened for."""
    sizes, session = [], MappedConstants.session
    monkeypatch.setattr(
        MappedConstants, "session", lambda own, graph, **how: sizes.append(len(graph)) or session(own, graph, **how)
    )
    return sizes


def wide() -> onnx.ModelProto:
    """Three Convs, the last two with as many weights as are mapped, and slopes of a PRelu, one for each value of 256 KiB."""
    generator = np.random.default_rng(0)
    weights = {
        "stem": generator.standard_normal((CHANNELS, 3, 3, 3)) / 5,
        "slopes": generator.uniform(0, 1, (CHANNELS * 4, 16, 16)),
        "body": generator.standard_normal((CHANNELS * 4, CHANNELS, 3, 3)) / 24,
        "last": generator.standard_normal((8, CHANNELS * 4, 7, 7)) / 112,
    }
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("Conv", ["r", "body"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("PRelu", ["b", "slopes"], ["p"], "p"),
        oh.make_node("Conv", ["p", "last"], ["y"], "last"),
    ]
    return network(nodes, {name: value.astype(np.float32) for name, value in weights.items()}, ["y"])


def tried():
    """What is measured of roundings and ranges: everything that opens graphs with switches."""
    model = prepared(wide())
    draft = Draft(model, statistics_of(model, FEEDS[:4]), Int8(method="minmax"), {}, FEEDS[:4])
    plan, judge = draft.plan(), HeadJudge(model, ["y"], FEEDS[4:])
    alone, weights = noise_of(model, plan, judge, FEEDS[4:]), weights_noise(model, plan, judge, FEEDS[4:])
    scales = searched_scales(model, plan, judge, judge)
    return alone, weights, {name: (float(scale.scale), int(scale.zero_point)) for name, scale in scales.items()}


def test_graphs_that_are_tried_hold_no_large_weights_and_measure_the_same(folder, monkeypatch, opened):
    found = tried()
    mapped_sizes = opened.copy()
    monkeypatch.setattr(mapped, "_LARGE", 1 << 40)
    opened.clear()
    assert tried() == found
    weights = 4 * (CHANNELS * 4 * CHANNELS * 9 + 8 * CHANNELS * 4 * 49)
    # The slopes are looked at where nodes are written, and stay.
    slopes = 4 * CHANNELS * 4 * 16 * 16
    assert max(opened) > 1.5 * weights
    assert max(mapped_sizes) < 1.5 * slopes, mapped_sizes


def test_one_stretch_of_the_network_is_open_at_a_time(monkeypatch):
    model = prepared(wide())
    draft = Draft(model, statistics_of(model, FEEDS[:4]), Int8(method="minmax"), {}, FEEDS[:4])
    plan, judge = draft.plan(), HeadJudge(model, ["y"], FEEDS[4:])
    monkeypatch.setattr(sensitivity, "_ROUNDINGS", 2)
    opened, session = [], MappedConstants.session

    def watched(own, graph, **how):
        assert not any(one() is not None for one in opened)
        made = session(own, graph, **how)
        opened.append(weakref.ref(made))
        return made

    monkeypatch.setattr(MappedConstants, "session", watched)
    for measure in (lambda: noise_of(model, plan, judge, FEEDS[4:]), lambda: searched_scales(model, plan, judge, judge)):
        measure()
        assert len(opened) > 3
        opened.clear()


def test_nothing_is_left_in_the_temporary_folder(folder):
    tried()
    gc.collect()
    assert not list(folder.iterdir())


def test_a_session_outlives_the_files_of_its_constants(folder):
    model = wide()
    wanted = run(model, FEEDS[0])["y"]
    constants = MappedConstants()
    session = constants.session(constants.proto(model).SerializeToString())
    assert list(folder.iterdir())
    del constants
    assert not list(folder.iterdir())
    assert np.array_equal(session.run(FEEDS[0])["y"], wanted)


def test_small_constants_stay_and_no_folder_is_made(folder):
    constants = MappedConstants()
    tensor = constants.constant("w", np.arange(4, dtype=np.float32))
    assert onnx.numpy_helper.to_array(tensor).tolist() == [0, 1, 2, 3]
    large = constants.constant("w", np.zeros((256, 256), np.float32))
    assert large.data_location == onnx.TensorProto.EXTERNAL
    assert len(list(folder.iterdir())) == 1


def test_constants_of_any_type_and_size_are_read_back_out_of_one_file(folder):
    generator = np.random.default_rng(0)
    values = {
        str(place): generator.integers(-100, 100, size).astype(dtype)
        for place, (dtype, size) in enumerate(
            [(np.float32, 65), (np.int8, 257), (np.float16, 4099), (np.int64, 3), (np.bool_, 999)]
        )
    }
    nodes = [oh.make_node("Identity", [name], [f"y{name}"]) for name in values]
    outputs = [
        oh.make_tensor_value_info(f"y{name}", oh.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    held = [onnx.numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = oh.make_graph(nodes, "constants", [], outputs, held)
    model = ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9))
    constants = MappedConstants(256)
    without = constants.without(model)
    external = {name for name, value in without.graph.initializers.items() if isinstance(value.const_value, ir.ExternalTensor)}
    assert external == {"0", "1", "2", "4"}
    found = constants.session(ir.to_proto(without).SerializeToString()).run({})
    assert all(np.array_equal(found[f"y{name}"], value) for name, value in values.items())
    assert not any(isinstance(value.const_value, ir.ExternalTensor) for value in model.graph.initializers.values())
    assert len(list(folder.rglob("constants"))) == 1


@pytest.mark.parametrize("size", [129, 200])  # just above what `load` reads at once, and below what is mapped
def test_weights_beside_a_models_file_are_found_whatever_their_size(tmp_path, size):
    weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    x, y = (oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size]) for name in "xy")
    nodes = [oh.make_node("MatMul", ["x", "w"], ["y"], "m")]
    graph = oh.make_graph(nodes, "beside", [x], [y], [onnx.numpy_helper.from_array(weights, "w")])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    feeds = {"x": np.ones((1, size), np.float32)}
    read = load(tmp_path / "model.onnx")
    assert isinstance(read.graph.initializers["w"].const_value, ir.ExternalTensor)
    np.testing.assert_allclose(mapped.session_of(read).run(feeds)["y"][0], weights.sum(axis=0), rtol=1e-4, atol=1e-4)


def branches() -> onnx.ModelProto:
    """A Conv, behind which two branches of two Convs stand: their heads."""
    generator = np.random.default_rng(1)
    nodes, weights = [oh.make_node("Conv", ["x", "stem"], ["s"], "stem")], {"stem": generator.standard_normal((8, 3, 3, 3)) / 5}
    for branch in "ab":
        weights |= {f"{branch}{place}": generator.standard_normal((8, 8, 3, 3)) / 8 for place in (0, 1)}
        nodes.append(oh.make_node("Conv", ["s", f"{branch}0"], [f"{branch}.inner"], f"{branch}.0"))
        nodes.append(oh.make_node("Conv", [f"{branch}.inner", f"{branch}1"], [f"{branch}.head"], f"{branch}.1"))
    return network(nodes, {name: value.astype(np.float32) for name, value in weights.items()}, ["a.head", "b.head"])


def test_roundings_of_one_branch_do_not_run_the_other(monkeypatch):
    model = prepared(branches())
    draft = Draft(model, statistics_of(model, FEEDS[:4]), Int8(method="minmax"), {}, FEEDS[:4])
    plan, judge = draft.plan(), HeadJudge(model, ["a.head", "b.head"], FEEDS[4:])
    whole = noise_of(model, plan, judge, FEEDS[4:])
    opened, session = [], MappedConstants.session

    def watched(own, graph, **how):
        nodes = list(onnx.load_from_string(graph).graph.node)
        # Each switched layer stands in the branches of an If.
        inner = {node.name for outer in nodes for attribute in outer.attribute for node in attribute.g.node}
        opened.append((inner, {node.name for node in nodes} | inner))
        return session(own, graph, **how)

    monkeypatch.setattr(sensitivity, "_ROUNDINGS", 1)
    monkeypatch.setattr(sensitivity, "_STRETCHES", 100)
    monkeypatch.setattr(MappedConstants, "session", watched)
    apart = noise_of(model, plan, judge, FEEDS[4:])
    for found, wanted in ((apart.tensors, whole.tensors), (apart.weights, whole.weights)):
        assert found.keys() == wanted.keys()
        assert list(found.values()) == pytest.approx(list(wanted.values()), rel=1e-5)
    rounds = [names for inner, names in opened if inner & {"a.0", "a.1", "b.0", "b.1"}]
    # The last layers stay float: heads are maps.
    assert [names - {""} for names in rounds] == [{"a.0", "a.1"}, {"b.0", "b.1"}]
