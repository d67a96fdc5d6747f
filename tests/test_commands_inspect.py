"""`octavo inspect` as a user runs it: facts of a file, and what INT8 would make of it, in step with what quantize_int8 does."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from conftest import ROOT, small_network
from forked import run_octavo
from graphs import he, network, statistics_of
from grid_detector import grid_detector

from octavo import __version__
from octavo.errors import ParamsError, SourceError
from octavo.files import sha256_file, write_json
from octavo.graph.clean import clean
from octavo.graph.io import load, save, weight_bytes
from octavo.intake.described import described
from octavo.params.grammar import Int8
from octavo.quantization.fp16 import convert
from octavo.quantization.int8 import quantize_dynamic, quantize_static

KEYS = {
    *("file", "bytes", "ir_version", "opset", "inputs", "outputs", "image_input", "ops", "parameters", "constants_bytes"),
    *("quantized", "size", "size_by", "macs", "macs_unknown", "layers", "precisions", "runs", "made_for", "expected"),
    *("int8", "custom_ops", "decoder", "notes"),
}
LAYER_KEYS = {"name", "op_type", "output", "macs", "parameters", "precision", "data", "weights", "note", "runs", "kernel"}
INT8_KEYS = {"target", "refused", "layers", "nodes", "float", "later"}


def octavo(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return run_octavo(cwd or Path.cwd(), tuple(map(str, arguments)), {**os.environ, "PYTHONPATH": str(ROOT)})


def images(count: int, seed: int = 3) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [{"image": generator.normal(size=(1, 3, 32, 32)).astype(np.float32)} for _ in range(count)]


@pytest.fixture
def fp32(tmp_path: Path) -> ir.Model:
    """The small network as `export` writes it, and fp32.onnx."""
    model = ir.from_proto(small_network())
    clean(model, 18)
    save(model, tmp_path / "fp32.onnx")
    return model


def test_a_float_file(fp32, tmp_path):
    found = described(tmp_path / "fp32.onnx")
    assert found.keys() == KEYS
    assert all(layer.keys() == LAYER_KEYS for layer in found["layers"])
    assert found["int8"].keys() == INT8_KEYS
    assert found["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 32, 32]}]
    assert found["image_input"] == {"name": "image", "layout": "nchw", "dtype": "float32"}
    assert found["opset"] == {"ai.onnx": 18}
    assert found["ops"] == {"Conv": 3, "Add": 1, "Clip": 1, "Gemm": 1, "ReduceMean": 1, "Relu": 1}
    assert found["quantized"] == []
    assert {layer["name"]: (layer["macs"], layer["parameters"], layer["precision"]) for layer in found["layers"]} == {
        "stem": (8 * 16 * 16 * 27, 224, "float32"),
        "depth": (8 * 16 * 16 * 9, 72, "float32"),
        "point": (8 * 16 * 16 * 8, 72, "float32"),
        "head": (32, 36, "float32"),
    }
    assert found["macs"] == sum(layer["macs"] for layer in found["layers"])
    assert found["parameters"] == 404
    assert (found["size"], found["size_by"], found["macs_unknown"]) == ([32, 32], "graph", [])
    assert {layer["runs"] for layer in found["layers"]} == {"float"}
    assert found["decoder"]["family"] is None
    assert found["bytes"] == (tmp_path / "fp32.onnx").stat().st_size


@pytest.mark.parametrize("target", ["cpu", "cpu-no-vnni", "arm", "openvino", "openvino-no-vnni", "tensorrt"])
def test_int8_is_foreseen_as_it_is_made(fp32, tmp_path, target):
    recipe = Int8(target=target, method="minmax", placement="all", repair=False)
    made = quantize_static(fp32, statistics_of(fp32, images(4)), recipe)
    found = described(tmp_path / "fp32.onnx", recipe=recipe)
    assert [(node["node"], node["precision"], node["reason"]) for node in found["int8"]["nodes"]] == [
        (decision.node, decision.precision, decision.reason) for decision in made.decisions
    ]
    # All but the scales of activations, some bytes each.
    assert found["expected"]["int8"] == pytest.approx(weight_bytes(made.model), abs=400)
    assert found["expected"]["fp16"] == weight_bytes(convert(fp32).model)
    assert found["expected"]["fp32"] == weight_bytes(fp32)


def unrolled(steps: int = 6) -> ir.Model:
    """A Conv with a factor behind it, and a cell of one Gemm that reads its own result, as recurrent networks are exported."""
    rng = np.random.default_rng(0)
    nodes = [
        oh.make_node("Conv", ["image", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Mul", ["c", "gain"], ["scaled"], "scale"),
        oh.make_node("Relu", ["scaled"], ["r"], "relu"),
        oh.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        oh.make_node("Flatten", ["p"], ["h0"], "flat"),
    ]
    for step in range(steps):
        nodes.append(oh.make_node("Gemm", [f"h{step}", "u", "b"], [f"g{step}"], f"cell{step}", transB=1))
        nodes.append(oh.make_node("Relu", [f"g{step}"], [f"h{step + 1}"], f"act{step}"))
    tensors = {"w": he(rng, 64, 32, 3, 3), "gain": np.full((64, 1, 1), 1.5, np.float32)}
    tensors |= {"u": he(rng, 64, 64), "b": rng.uniform(-0.1, 0.1, 64).astype(np.float32)}
    return network(nodes, tensors, [f"h{steps}"], inputs={"image": [1, 32, 8, 8]})


@pytest.mark.parametrize("target", ["cpu", "openvino"])
def test_what_layers_share_is_foreseen_and_counted_once(tmp_path, target):
    model, recipe = unrolled(), Int8(target=target, method="minmax", placement="all", repair=False)
    save(model, tmp_path / "fp32.onnx")
    feeds = [{"image": np.random.default_rng(seed).normal(size=(1, 32, 8, 8)).astype(np.float32)} for seed in range(4)]
    made = quantize_static(model, statistics_of(model, feeds), recipe)
    found = described(tmp_path / "fp32.onnx", recipe=recipe)
    # All but zero points and the scales of activations; 4096 bytes for each step more where codes are not shared.
    assert found["expected"]["int8"] == pytest.approx(weight_bytes(made.model), abs=1000)
    assert found["expected"]["int8"] < (30_000 if target == "cpu" else 60_000)
    assert [layer["parameters"] for layer in found["layers"][1:]] == [64 * 64 + 64] * 6
    assert found["precisions"]["float32"]["parameters"] == 64 * 32 * 9 + 64 * 64 + 64


def test_what_stays_float_comes_with_its_reason(tmp_path):
    onnx.save(grid_detector(size=64), tmp_path / "grid.onnx")
    found = described(tmp_path / "grid.onnx")
    assert found["int8"]["refused"] is None
    reasons = {group["reason"]: group["ops"] for group in found["int8"]["float"]}
    assert reasons == {
        "no weights follow: decoding, scores and other tails stay float": {"Reshape": 6, "Sigmoid": 3, "Transpose": 6}
    }
    assert found["int8"]["layers"] == 6
    assert any("placement: measured" in words for words in found["int8"]["later"])
    assert any("repair" in words and "20 dB" in words for words in found["int8"]["later"])
    assert found["decoder"]["family"] == "nanodet"
    assert found["decoder"]["classes"] == 2


def test_kept_in_float_by_name(fp32, tmp_path):
    found = described(tmp_path / "fp32.onnx", recipe=Int8(keep_float=("depth",)))
    assert {"reason": "keep_float: depth", "ops": {"Clip": 1, "Conv": 1}, "nodes": ["depth", "depth.relu6"]} in found["int8"][
        "float"
    ]


@pytest.mark.parametrize(("form", "forms"), [("qdq", ["qdq"]), ("qoperator", ["qoperator"])])
def test_static_int8_files(fp32, tmp_path, form, forms):
    recipe = Int8(format=form, method="minmax", placement="all", repair=False)
    save(quantize_static(fp32, statistics_of(fp32, images(4)), recipe).model, tmp_path / "int8.onnx")
    found = described(tmp_path / "int8.onnx")
    assert set(forms) <= set(found["quantized"])
    assert {layer["precision"] for layer in found["layers"]} == {"int8"}
    assert {(layer["data"], layer["weights"]) for layer in found["layers"]} == {("uint8", "int8")}
    # QLinear operators' kernels are told by their names, wherever the layer went.
    assert sum(found["runs"]["kernels"]["int8"].values()) >= 4
    # The writer gives a depthwise layer the 16 channels that ONNX Runtime's kernel is fast on: the figures are the file's own.
    assert len(found["layers"]) == 4
    assert found["macs_unknown"] == []
    assert found["macs"] > described(tmp_path / "fp32.onnx")["macs"]
    assert "quantized already" in found["int8"]["refused"]
    assert found["expected"] == {"fp32": None, "fp16": None, "int8": None}
    if form == "qdq":
        assert (found["runs"]["int8_layers"], found["runs"]["int8_layers_integer"]) == (4, 4)


def test_kernels_of_a_file_for_another_runtime_are_said_to_be_onnx_runtime_s(fp32, tmp_path):
    recipe = Int8(target="openvino", method="minmax", placement="all", repair=False)
    save(quantize_static(fp32, statistics_of(fp32, images(4)), recipe).model, tmp_path / "model.onnx")
    here = "layers in int8: 4, of which"
    assert here in octavo("inspect", tmp_path / "model.onnx").stdout
    manifest = {"file": "model.onnx", "files": {"model.onnx": sha256_file(tmp_path / "model.onnx")}, "target": "openvino"}
    write_json(tmp_path / "manifest.json", manifest)
    assert described(tmp_path / "model.onnx")["made_for"] == "openvino"
    said = octavo("inspect", tmp_path / "model.onnx").stdout
    assert "layers in int8: 4, for `target: openvino`, which was not run; ONNX Runtime's CPU" in said
    assert here not in said
    assert "unexpected:" not in said


def test_a_dynamic_file_and_one_in_half_precision(fp32, tmp_path):
    save(quantize_dynamic(fp32, Int8()).model, tmp_path / "dynamic.onnx")
    save(convert(fp32).model, tmp_path / "half.onnx")
    found = described(tmp_path / "dynamic.onnx")
    assert found["quantized"] == ["dynamic", "weights"]
    layers = {layer["op_type"]: layer for layer in found["layers"]}
    assert layers["MatMulInteger"]["precision"] == "int8 dynamic"
    assert (layers["Conv"]["precision"], layers["Conv"]["weights"]) == ("float32", "int8")
    assert found["macs"] == described(tmp_path / "fp32.onnx")["macs"]
    half = described(tmp_path / "half.onnx")
    assert half["quantized"] == ["float16"]
    assert {layer["precision"] for layer in half["layers"]} == {"float16"}
    assert half["parameters"] == 404
    assert re.search("quantized already: weights of .* are float16", half["int8"]["refused"])


def test_q_and_dq_before_inputs_alone(fp32, tmp_path):
    """As TensorRT has them: ONNX Runtime makes no integer kernel of such a convolution, and that is said."""
    recipe = Int8(target="tensorrt", method="minmax", placement="all", repair=False, correction="none")
    save(quantize_static(fp32, statistics_of(fp32, images(4)), recipe).model, tmp_path / "int8.onnx")
    found = described(tmp_path / "int8.onnx")
    layers = found["layers"]
    assert (found["macs"], found["parameters"]) == (described(tmp_path / "fp32.onnx")["macs"], 404)
    assert {(layer["precision"], layer["data"]) for layer in layers} == {("int8", "int8")}
    bare = [layer for layer in layers if "no Q behind it" in layer["note"]]
    assert [layer["name"] for layer in bare] == ["point"]
    assert bare[0]["runs"] == "float"


def test_external_data_and_dynamic_sizes(tmp_path):
    proto = grid_detector()
    onnx.save(
        proto,
        tmp_path / "grid.onnx",
        save_as_external_data=True,
        location="grid.data",
        size_threshold=0,
        all_tensors_to_one_file=True,
    )
    found = described(tmp_path / "grid.onnx")
    assert found["bytes"] == sum((tmp_path / name).stat().st_size for name in ("grid.onnx", "grid.data"))
    assert (found["size"], found["size_by"]) == ([640, 640], "default")
    asked = described(tmp_path / "grid.onnx", (64, 128))
    assert (asked["size"], asked["size_by"]) == ([64, 128], "asked")
    proto = grid_detector()
    onnx.helper.set_model_props(proto, {"imgsz": "[96, 64]"})
    onnx.save(proto, tmp_path / "told.onnx")
    told = described(tmp_path / "told.onnx")
    assert (told["size"], told["size_by"]) == ([96, 64], "exporter")
    assert asked["macs"] * 50 == found["macs"]
    assert asked["layers"][0]["output"] == [1, 2, 8, 16]
    (tmp_path / "grid.data").unlink()
    done = octavo("inspect", tmp_path / "grid.onnx")
    assert done.returncode == 2
    assert "external data file" in done.stderr


def test_custom_operators_and_what_lies_behind(tmp_path):
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1, 1, 1, 1]),
        oh.make_node("Blur", ["a"], ["b"], "blur", domain="acme"),
        oh.make_node("Conv", ["b", "v"], ["y"], "last", pads=[1, 1, 1, 1]),
    ]
    generator = np.random.default_rng(0)
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", 1, [1, 3, 16, 16])],
        [oh.make_tensor_value_info("y", 1, [1, 4, 16, 16])],
        [onh.from_array(he(generator, 8, 3, 3, 3), "w"), onh.from_array(he(generator, 4, 8, 3, 3), "v")],
    )
    proto = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18), oh.make_opsetid("acme", 1)], ir_version=10)
    onnx.save(proto, tmp_path / "custom.onnx")
    found = described(tmp_path / "custom.onnx")
    assert found["custom_ops"] == [{"op_type": "Blur", "domain": "acme", "nodes": 1, "body": None}]
    assert found["ops"]["acme.Blur"] == 1
    assert {"reason": "custom operator", "ops": {"Blur": 1}, "nodes": ["blur"]} in found["int8"]["float"]
    assert {"reason": "lies behind a custom operator", "ops": {"Conv": 1}, "nodes": ["last"]} in found["int8"]["float"]
    shown = octavo("inspect", tmp_path / "custom.onnx")
    assert shown.returncode == 0, shown.stderr
    assert "none: the graph is cut before it to run" in shown.stdout


def test_sizes_that_depend_on_values_are_read_off_a_run(tmp_path):
    nodes = [
        oh.make_node("NonZero", ["x"], ["places"], "places"),
        oh.make_node("Cast", ["places"], ["float"], "float", to=1),
        oh.make_node("Transpose", ["float"], ["rows"], "rows", perm=[1, 0]),
        oh.make_node("MatMul", ["rows", "w"], ["y"], "product"),
    ]
    save(network(nodes, {"w": he(np.random.default_rng(0), 4, 5)}, ["y"], inputs={"x": [1, 3, 8, 8]}), tmp_path / "m.onnx")
    found = described(tmp_path / "m.onnx")
    assert found["macs"] == 3 * 8 * 8 * 4 * 5
    assert any("read off a run" in note for note in found["notes"])


def test_a_file_for_several_images_is_told_of_one(tmp_path):
    """Layers, MACs and runs are of one image, as in the stages; inputs and outputs are the file's."""
    found = {}
    for batch in (1, 4):
        onnx.save(small_network(batch=batch), tmp_path / f"{batch}.onnx")
        found[batch] = described(tmp_path / f"{batch}.onnx")
    assert found[4]["macs"] == found[1]["macs"] > 0
    assert [layer["output"] for layer in found[4]["layers"]] == [layer["output"] for layer in found[1]["layers"]]
    assert found[4]["inputs"][0]["shape"] == [4, 3, 32, 32]
    assert any("for 4 images at a time" in note for note in found[4]["notes"])
    assert not any("at a time" in note for note in found[1]["notes"])
    assert "does not run" not in str(found[4]["decoder"])


def test_a_graph_without_an_image(tmp_path):
    nodes = [oh.make_node("MatMul", ["x", "w"], ["y"], "product")]
    save(network(nodes, {"w": he(np.random.default_rng(0), 32, 8)}, ["y"], inputs={"x": ["batch", 32]}), tmp_path / "m.onnx")
    found = described(tmp_path / "m.onnx")
    assert found["image_input"] is None
    assert found["size"] is None
    assert found["macs"] == 32 * 8
    assert any("no image input" in note for note in found["notes"])
    assert octavo("inspect", tmp_path / "m.onnx").returncode == 0


def test_the_same_as_json(fp32, tmp_path):
    done = octavo("inspect", tmp_path / "fp32.onnx", "--json", "--target", "arm")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == KEYS
    assert found["int8"]["target"] == "arm"
    # What a file cannot tell is null, and the keys stay.
    save(quantize_dynamic(fp32, Int8()).model, tmp_path / "dynamic.onnx")
    other = json.loads(octavo("inspect", tmp_path / "dynamic.onnx", "--json").stdout)
    assert other.keys() == KEYS
    assert other["int8"].keys() == INT8_KEYS


def test_nothing_is_cut_in_a_pipe(tmp_path):
    model = small_network()
    for node in model.graph.node:
        node.name = "/backbone/stages/stages.0/" + "blocks/" * 30 + node.name
    onnx.save(model, tmp_path / "m.onnx")
    done = octavo("inspect", tmp_path / "m.onnx")
    assert done.returncode == 0, done.stderr
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            assert any(line.startswith(f"{node.name} ") for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout


def test_a_terminal_gets_tables_that_fold(fp32, tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "60"}
    command = [sys.executable, "-m", "octavo", "inspect", str(tmp_path / "fp32.onnx")]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # the other end is closed
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "\x1b[1m" in shown.decode(), "headings are bold"
    assert all(len(line.rstrip()) <= 60 for line in text.split("Layers")[-1].splitlines() if not line.startswith("note:"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "does not exist"),
        (b"", "not an ONNX file"),
        (b"models:\n", "not an ONNX file"),
        (b"\x08\x08\x12", "not an ONNX file"),
    ],
)
def test_no_onnx_file(tmp_path, content, expected):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    done = octavo("inspect", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr


def test_a_truncated_file_and_a_folder(tmp_path):
    whole = small_network().SerializeToString()
    (tmp_path / "half.onnx").write_bytes(whole[: len(whole) // 2])
    for path in (tmp_path / "half.onnx", tmp_path):
        done = octavo("inspect", path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert f"{tmp_path}: is a folder, not a file" in done.stderr
    assert "check the path" in done.stderr


def test_version():
    done = octavo("--version")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"octavo {__version__}\n")


def test_sizes_on_the_command_line(fp32, tmp_path):
    assert "the graph takes 32x32" in octavo("inspect", tmp_path / "fp32.onnx", "--size", "64").stderr
    assert "is no size" in octavo("inspect", tmp_path / "fp32.onnx", "--size", "64by64").stderr
    assert octavo("inspect", tmp_path / "fp32.onnx", "--size", "32x32").returncode == 0


def test_a_graph_of_two_images(tmp_path):
    nodes = [
        oh.make_node("Conv", ["right", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Sub", ["left", "c"], ["y"], "difference"),
    ]
    inputs = {"left": [1, 3, 8, 8], "right": [1, 3, "h", "w"]}
    save(network(nodes, {"w": he(np.random.default_rng(0), 3, 3, 3, 3)}, ["y"], inputs=inputs), tmp_path / "m.onnx")
    plain = described(tmp_path / "m.onnx")
    assert plain["image_input"] is None
    assert any("several inputs could take the image" in note and "`--input`" in note for note in plain["notes"])
    with pytest.raises(ParamsError, match="--size is of the input that takes the image, and none is known: several inputs"):
        described(tmp_path / "m.onnx", (8, 8))
    with pytest.raises(SourceError, match="has no input 'middle'; its inputs: left float"):
        described(tmp_path / "m.onnx", input_name="middle")
    found = described(tmp_path / "m.onnx", (8, 8), input_name="right")
    assert found["image_input"]["name"] == "right"
    assert (found["size"], found["size_by"]) == ([8, 8], "asked")
    assert found["macs"] == 8 * 8 * 3 * 3 * 9
    assert found["int8"]["layers"] == 1
    done = octavo("inspect", tmp_path / "m.onnx", "--input", "right", "--size", "8")
    assert done.returncode == 0, done.stderr
    assert "at 8x8 (--size)" in done.stdout


def test_help():
    shown = octavo("--help")
    assert shown.returncode == 0
    assert "inspect" in shown.stdout
    assert "init" in shown.stdout
    assert "--json" in octavo("inspect", "--help").stdout
    assert octavo("inspekt").returncode == 2


def test_the_file_is_read_and_not_written(fp32, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    octavo("inspect", tmp_path / "fp32.onnx", cwd=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert load(tmp_path / "fp32.onnx").graph.name == fp32.graph.name
