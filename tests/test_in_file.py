"""Files whose weights stay in them: the same models and errors as parsed whole, and nothing read from a file that changed."""

import os

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import SourceError
from octavo.file_tensor import FileTensor
from octavo.graph import in_file
from octavo.graph.io import load, save
from octavo.runtime.mapped import MappedConstants, session_of
from octavo.runtime.tensors import read_tensors

CHANNELS = 40
SHARED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def everything_stays(monkeypatch):
    """Small files and weights are taken as large ones are."""
    monkeypatch.setattr(in_file, "_WORTH", 1)
    monkeypatch.setattr(in_file, "_LARGE", 8)


def network(generator, prefix=""):
    """Two Convs and a Gemm."""
    weights = {
        "stem": generator.standard_normal((CHANNELS, 3, 3, 3)),
        f"{prefix}body": generator.standard_normal((CHANNELS, CHANNELS, 3, 3)),
        "slopes": generator.standard_normal((CHANNELS, 1, 1)),
        "last": generator.standard_normal((CHANNELS, 10)),
    }
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem"),
        oh.make_node("Conv", ["a", f"{prefix}body"], ["b"], "body"),
        oh.make_node("PRelu", ["b", "slopes"], ["p"], "p"),
        oh.make_node("GlobalAveragePool", ["p"], ["m"], "m"),
        oh.make_node("Flatten", ["m"], ["f"], "f"),
        oh.make_node("MatMul", ["f", "last"], ["y"], "last"),
    ]
    graph = oh.make_graph(
        nodes,
        "graph",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 16, 16])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 10])],
        [onh.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return onnx.shape_inference.infer_shapes(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8))


@pytest.fixture
def path(tmp_path):
    """A network's file whose weights begin at addresses that four does not divide."""
    path = tmp_path / "model.onnx"
    for prefix in ("", "a", "ab", "abc"):
        onnx.save(network(np.random.default_rng(0), prefix), path)
        if not weight(load(path), f"{prefix}body").mapped.flags.aligned:
            return path
    raise AssertionError("no name moves the weights")


def weight(model, name):
    return model.graph.initializers[name].const_value


def body(model):
    return next(value.const_value for name, value in model.graph.initializers.items() if name.endswith("body"))


def whole(path, monkeypatch):
    """The model as the protobuf package reads it."""
    with monkeypatch.context() as patch:
        patch.setattr(in_file, "_WORTH", 1 << 60)
        return load(path)


def outcome(read):
    """The bytes of a model that is read, or what is said of one that is not, or cannot be written: its names are no text."""
    try:
        return ir.to_proto(read()).SerializeToString(deterministic=True)
    except SourceError as error:
        return f"{error.problem} {error.mend}"
    except ir.serde.SerdeError as error:
        return str(error)


def test_weights_stay_in_the_file_and_are_what_it_says(path, monkeypatch):
    model, other = load(path), whole(path, monkeypatch)
    assert all(isinstance(value.const_value, FileTensor) for value in model.graph.initializers.values())
    assert not any(isinstance(value.const_value, FileTensor) for value in other.graph.initializers.values())
    for value, wanted in zip(model.graph.initializers.values(), other.graph.initializers.values(), strict=True):
        assert (value.name, value.shape, value.dtype) == (wanted.name, wanted.shape, wanted.dtype)
        # numpy adds up what is not aligned in other pieces, and with other last bits.
        assert value.const_value.numpy().flags.aligned
        assert value.const_value.numpy() is value.const_value.numpy()
        np.testing.assert_array_equal(value.const_value.numpy(), wanted.const_value.numpy())
    assert outcome(lambda: model) == outcome(lambda: other)


def test_a_model_outlives_the_file_it_was_read_from(path, monkeypatch):
    wanted = outcome(lambda: whole(path, monkeypatch))
    replaced, deleted, saved = load(path), load(path), load(path)
    save(saved, path)
    assert outcome(lambda: saved) == wanted
    onnx.save(network(np.random.default_rng(1)), path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
    assert outcome(lambda: replaced) == wanted
    path.unlink()
    assert outcome(lambda: deleted) == wanted


def test_a_session_reads_weights_where_they_lie_and_of_no_file_that_took_its_place(path, monkeypatch, tmp_path):
    feeds = {"x": np.random.default_rng(2).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    wanted = session_of(whole(path, monkeypatch)).run(feeds)["y"]
    link = tmp_path / "elsewhere" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(path)
    moved, written = load(path), []
    monkeypatch.setattr(MappedConstants, "_written", watched(MappedConstants._written, written))
    monkeypatch.setattr("octavo.runtime.mapped._LARGE", 1)
    for model in (load(path), load(link)):
        np.testing.assert_array_equal(session_of(model).run(feeds)["y"], wanted)
        ((_, read),) = read_tensors(model, ["y"], lambda: [("image", feeds)])
        np.testing.assert_allclose(read["y"], wanted, rtol=1e-5)
    assert not written
    onnx.save(network(np.random.default_rng(1)), path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
    np.testing.assert_array_equal(session_of(moved).run(feeds)["y"], wanted)
    assert written


def watched(method, calls):
    def of(own, array):
        calls.append(array)
        return method(own, array)

    return of


def test_weights_beside_which_others_are_large_lie_in_one_file_with_them(path, monkeypatch):
    feeds = {"x": np.random.default_rng(2).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    model, written = load(path), []
    model.graph.initializers["last"].const_value = ir.tensor(np.ones((CHANNELS, 10), np.float32), name="last")
    wanted = session_of(model).run(feeds)["y"]
    monkeypatch.setattr("octavo.runtime.mapped._LARGE", 1)
    monkeypatch.setattr(MappedConstants, "_written", watched(MappedConstants._written, written))
    np.testing.assert_array_equal(session_of(model).run(feeds)["y"], wanted)
    assert not written
    monkeypatch.setattr("octavo.runtime.mapped._OTHERS", 4 * CHANNELS * 10 - 1)
    np.testing.assert_array_equal(session_of(model).run(feeds)["y"], wanted)
    assert len(written) == 3  # PRelu's slopes stay in the graph


def test_weights_in_a_file_are_written_beside_another(path, monkeypatch, tmp_path):
    wanted = whole(path, monkeypatch)
    (tmp_path / "other").mkdir()
    save(load(path), tmp_path / "other" / "model.onnx", inline_limit=0)
    assert sorted(file.name for file in (tmp_path / "other").iterdir()) == ["model.data", "model.onnx"]
    found = load(tmp_path / "other" / "model.onnx")
    assert list(found.graph.initializers) == list(wanted.graph.initializers)
    for name, value in found.graph.initializers.items():
        np.testing.assert_array_equal(value.const_value.numpy(), wanted.graph.initializers[name].const_value.numpy())


def test_small_files_and_tensors_are_parsed_whole(path, monkeypatch):
    monkeypatch.setattr(in_file, "_LARGE", 4 * CHANNELS * CHANNELS)
    stays = [name for name, value in load(path).graph.initializers.items() if isinstance(value.const_value, FileTensor)]
    assert [name.removeprefix("abc").removeprefix("ab").removeprefix("a") for name in stays] == ["body"]
    monkeypatch.setattr(in_file, "_WORTH", path.stat().st_size + 1)
    assert not isinstance(body(load(path)), FileTensor)


def saved(model, file, monkeypatch, least):
    with monkeypatch.context() as patch:
        patch.setattr(in_file, "_LARGE", least)
        save(model, file)
    return file.read_bytes()


def test_what_is_written_piece_by_piece_is_what_is_written_whole(path, monkeypatch, tmp_path):
    beside = tmp_path / "beside" / "model.onnx"
    beside.parent.mkdir()
    onnx.save(onnx.load(path), beside, save_as_external_data=True, location="weights.bin", size_threshold=0)
    changed = load(path)
    changed.graph.initializers["last"].const_value = ir.tensor(np.ones((CHANNELS, 10), np.float32), name="another name")
    changed.graph.initializers["slopes"].const_value = ir.LazyTensor(
        lambda: ir.tensor(np.ones((CHANNELS, 1, 1), np.float32)), ir.DataType.FLOAT, ir.Shape([CHANNELS, 1, 1])
    )
    models = {"in file": load(path), "whole": whole(path, monkeypatch), "beside": load(beside), "changed": changed}
    for name, model in models.items():
        wanted = saved(model, tmp_path / "whole.onnx", monkeypatch, 1 << 60)
        tensors = [value.const_value for value in model.graph.initializers.values()]
        assert saved(model, tmp_path / "pieces.onnx", monkeypatch, 8) == wanted, name
        assert [value.const_value for value in model.graph.initializers.values()] == tensors
        onnx.checker.check_model(onnx.load(tmp_path / "pieces.onnx"), full_check=True)
    assert len(load(tmp_path / "pieces.onnx").graph.initializers) == 4


@pytest.mark.parametrize("change", ["twice", "nameless", "dims", "negative", "typed", "external", "packed", "string", "half byte"])
def test_what_is_rare_or_wrong_is_read_as_the_whole_file_is(path, monkeypatch, change):
    proto = onnx.load(path)
    tensor = proto.graph.initializer[1]
    data = onh.to_array(tensor)
    if change == "twice":
        proto.graph.initializer.append(onh.from_array(np.zeros(1, np.float32), tensor.name))
    elif change == "nameless":
        tensor.name = ""
    elif change in ("dims", "negative"):
        tensor.dims[0] = -1 if change == "negative" else tensor.dims[0] + 1
    elif change == "typed":
        tensor.ClearField("raw_data")
        tensor.float_data.extend(data.reshape(-1).tolist())
    elif change == "external":
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="elsewhere.bin")
    elif change == "string":
        tensor.data_type = onnx.TensorProto.STRING
    elif change == "half byte":
        tensor.data_type = onnx.TensorProto.INT4
    written = proto.SerializeToString()
    if change == "packed":
        apart = b"".join(bytes([1 << 3, size]) for size in data.shape)
        # As long: the last size takes three bytes.
        packed = bytes([1 << 3 | 2, 6, *data.shape[:3], 0x80 | data.shape[3], 0x80, 0])
        assert written.count(apart) == 1
        written = written.replace(apart, packed)
        assert onnx.load_from_string(written) == proto
    path.write_bytes(written)
    assert outcome(lambda: load(path)) == outcome(lambda: whole(path, monkeypatch))


def test_a_graph_in_two_parts_and_fields_of_no_onnx_are_read(path, monkeypatch):
    proto = onnx.load(path)
    last = onnx.GraphProto(initializer=[proto.graph.initializer.pop()])
    apart = proto.SerializeToString() + onnx.ModelProto(graph=last).SerializeToString()
    # Field 100 as a number, as 8 and as 4 bytes.
    unknown = b"\xa0\x06\x05" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4)
    for written in (apart, onnx.load(path).SerializeToString() + unknown):
        path.write_bytes(written)
        assert len(load(path).graph.initializers) == 4
        assert outcome(lambda: load(path)) == outcome(lambda: whole(path, monkeypatch))


@SHARED
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_as_the_whole_file_is(path, monkeypatch, data):
    written = bytearray(onnx.load(path).SerializeToString())
    # Weights are most of the bytes, and cannot be damaged: the ends, and what is around them, count.
    starts = [bytes(written).find(name.encode()) for name in ("stem", "slopes", "last")] + [0, len(written)]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(starts)) + data.draw(st.integers(-40, 40))
        if 0 <= place < len(written):
            written[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        written = written[: data.draw(st.integers(0, len(written)))]
    damaged = path.with_name("damaged.onnx")
    damaged.unlink(missing_ok=True)
    damaged.write_bytes(written)
    assert outcome(lambda: load(damaged)) == outcome(lambda: whole(damaged, monkeypatch))


@SHARED
@given(data=st.data())
def test_any_weights_are_read_as_the_whole_file_has_them(tmp_path, monkeypatch, data):
    types = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_, np.uint32]
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    tensors = []
    for place in range(data.draw(st.integers(0, 6))):
        shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
        array = generator.integers(-100, 100, shape).astype(data.draw(st.sampled_from(types)))
        tensors.append(onh.from_array(array, data.draw(st.text(max_size=5)) + str(place)))
        tensors[-1].doc_string = data.draw(st.text(max_size=3))
    graph = oh.make_graph([oh.make_node("Identity", ["x"], ["y"])], "g", [], [], tensors)
    for kind, name in (("input", "x"), ("output", "y")):
        getattr(graph, kind).append(oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]))
    file = tmp_path / "any.onnx"
    file.unlink(missing_ok=True)
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)]), file)
    own, other = load(file), whole(file, monkeypatch)
    assert list(own.graph.initializers) == list(other.graph.initializers)
    for value, wanted in zip(own.graph.initializers.values(), other.graph.initializers.values(), strict=True):
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(value.const_value.numpy(), wanted.const_value.numpy())
        assert value.const_value.tobytes() == wanted.const_value.tobytes()
    pieces = saved(own, tmp_path / "pieces.onnx", monkeypatch, 1)
    assert pieces == saved(own, tmp_path / "whole.onnx", monkeypatch, 1 << 60) == saved(other, file, monkeypatch, 1 << 60)
