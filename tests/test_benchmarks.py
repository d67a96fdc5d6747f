"""The harness behind the speed and accuracy claims: its metrics on cases that can be counted by hand, and a whole small run."""

import dataclasses
import json
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import CLASSES, ROOT, small_network, write_images
from onnx import numpy_helper
from PIL import Image

import compare
import fp16
import peers
import stems
from measure import FP32, judge
from metrics import ChannelNoise, ConfusionMatrix, verification_auc
from networks import NETWORKS, Network, network
from octavo.errors import DataError, OctavoError, ParamsError
from octavo.graph.passes.kernels import kernel_forms
from octavo.images.dataset import Item
from octavo.images.objects import Objects
from octavo.params.grammar import ImageSet, Input
from octavo.runtime.session import Session
from scorers import Classification, Embedding, Faces, Segmentation
from views import VIEWS, View


def test_mean_iou_by_hand_with_void():
    matrix = ConfusionMatrix(3)
    matrix.update(np.array([[0, 0, 1], [1, 1, 11]]), np.array([[0, 1, 1], [1, 0, 2]]))
    # Class 0: hit 1 of union 3; class 1: 2 of 4; class 2 is found on void alone, which does not count.
    assert matrix.iou()[:2].tolist() == pytest.approx([1 / 3, 1 / 2])
    assert np.isnan(matrix.iou()[2])
    assert matrix.mean_iou() == pytest.approx(5 / 12)
    # One matrix for all images is not the mean over images.
    matrix.update(np.zeros((2, 5), int), np.zeros((2, 5), int))
    assert matrix.iou()[0] == pytest.approx(11 / 13)


def test_auc_over_pairs():
    people = [0, 0, 1, 1]
    apart = np.array([[1, 0.1], [1, 0], [0, 1], [0.1, 1]])
    assert verification_auc(apart, people) == 1
    # Each pair of one person scores .0995, the four others .995, .995, .198 and 0: one of four lies below.
    assert verification_auc(apart[[0, 2, 1, 3]], people) == 0.25
    assert verification_auc(np.ones((4, 2)), people) == 0.5


@pytest.mark.parametrize("view", VIEWS)
def test_boxes_lie_in_a_view_where_what_they_surround_does(view):
    pixels = np.full((100, 160, 3), 10, np.uint8)
    pixels[30:70, 40:90] = 200
    seen = view.image(pixels)
    boxes = view.objects(Objects.of([[40, 30, 90, 70]], [3]), pixels.shape[:2])
    bright = np.argwhere(seen[..., 0] > 140)
    (top, left), (bottom, right) = bright.min(axis=0), bright.max(axis=0) + 1
    assert boxes.xyxy.tolist() == [[left, top, right, bottom]]
    assert boxes.classes.tolist() == [3]
    assert boxes.area.tolist() == pytest.approx([(right - left) * (bottom - top)])


def test_the_first_view_is_the_photo_and_boxes_that_a_window_cuts_off_are_not_looked_for():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    objects = Objects.of([[0, 0, 10, 10], [20, 20, 40, 40]], [0, 1])
    assert VIEWS[0].image(pixels).tolist() == pixels.tolist()
    assert VIEWS[0].objects(objects, (40, 50)).xyxy.tolist() == objects.xyxy.tolist()
    left = View((0.16, 0.0, 1.0, 1.0)).objects(objects, (40, 50))
    assert left.classes.tolist() == [1]
    assert left.xyxy.tolist() == [[12, 20, 32, 40]]


def test_noise_of_a_small_channel_shows_in_the_mean_over_channels():
    noise = ChannelNoise()
    reference = np.zeros((1, 2, 4, 4), np.float32)
    reference[:, 0], reference[:, 1] = 100, 1
    other = reference.copy()
    other[:, 1] += 1
    noise.update({"out": reference}, {"out": other})
    found = noise.metrics()
    assert found["sqnr_db"] == pytest.approx(40, abs=0.01)
    # 200 dB stand for a channel without noise; the small one has 0 dB.
    assert found["sqnr_db_channels"] == pytest.approx(100)


def test_embeddings_are_held_against_fp32_s_and_tell_people_apart(tmp_path):
    scorer = Embedding()
    vectors = np.array([[3.0, 0.1], [4.0, 0.0], [0.1, 2.0], [0.0, 5.0]], np.float32)
    for place, vector in enumerate(vectors):
        item = Item(tmp_path / f"{place}.jpg", f"{place}.jpg", "", label=place // 2)
        turned = vector if place else vector[::-1]
        scorer.update(item, {"embedding": vector[None]}, {"embedding": turned[None].copy()})
    found = scorer.task()
    assert found["cosine_min"] == pytest.approx(0.6 / 9.01, rel=1e-4)
    assert found["cosine_mean"] == pytest.approx((3 + 0.6 / 9.01) / 4, rel=1e-4)
    assert 0 <= found["auc"] < 1


def test_segmentation_holds_two_class_outputs_against_the_road(tmp_path):
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    mask = np.array([[3, 3, 0, 11]], np.uint8)
    Image.fromarray(mask).save(tmp_path / "masks" / "a.png")
    item = Item(tmp_path / "images" / "a.jpg", "a.jpg", "")
    scorer = Segmentation(11, output="drivable", road=3)
    logits = np.zeros((1, 2, 1, 4), np.float32)
    logits[0, 1] = [[1, -1, 1, 1]]
    scorer.update(item, {"drivable": logits}, {"drivable": logits})
    assert scorer.result()["iou"] == pytest.approx(1 / 3)


def test_faces_are_held_against_those_of_fp32():
    boxes = np.array([[[0.1, 0.1, 0.3, 0.4], [0.6, 0.6, 0.9, 0.9]]], np.float32)
    sure = {"boxes": boxes, "scores": np.array([[[0.1, 0.9], [0.9, 0.1]]], np.float32)}
    blind = {"boxes": boxes, "scores": np.array([[[0.99, 0.01], [0.4, 0.6]]], np.float32)}
    item = Item(Path("a.jpg"), "a.jpg", "")
    good, bad = Faces((240, 320)), Faces((240, 320))
    good.update(item, sure, sure)
    bad.update(item, sure, blind)
    assert good.result()["ap"] == pytest.approx(1)
    assert good.result()["photos"] == 1
    assert bad.result()["ap"] == 0
    assert bad.result()["photos"] == 0


@pytest.fixture
def tiny(tmp_path) -> Network:
    onnx.save(small_network(), tmp_path / "small.onnx")
    for label in range(CLASSES):
        write_images(tmp_path / f"images/{label}", 6, seed=30 + label)
    calibration, validation = (
        ImageSet(format="imagefolder", path=str(tmp_path / "images"), split={"start": start, "stop": stop})
        for start, stop in ((0, 0.5), (0.5, 1))
    )
    spec = Input.model_validate({"size": [32, 32], "mean": [0.5], "std": [0.25]})
    return Network("tiny", tmp_path / "small.onnx", spec, (calibration, validation), Classification)


@pytest.mark.slow
def test_ours_and_onnx_runtime_on_a_small_network(tiny, tmp_path):
    names = ["ours", "ours-openvino", "ort"]
    tools = dict.fromkeys(names, Path(sys.executable))
    # Weights that nobody trained answer nearly alike to all images: less than usual is asked of what is left of that.
    results = peers.compare(tiny, tools, tmp_path / "out", samples=8, limit=8, rounds=3, int8={"fidelity": 5})
    assert list(results) == [FP32, *names]
    assert results[FP32]["kept"] == results[FP32]["agreement"] == results[FP32]["speed"] == 1
    for name in names:
        row = results[name]
        ops = {node.op_type for node in onnx.load(tmp_path / "out" / f"{name}.onnx").graph.node}
        assert "QuantizeLinear" in ops
        # An 8-bit network of four layers lies within these on any machine; a wrong pairing of outputs or images does not.
        assert 15 < row["sqnr_db"] < 60
        assert row["agreement"] >= 0.75
        assert row["ms"] > 0
        assert row["cost"]["quantize"]["seconds"] > 0
        assert row["cost"]["quantize"]["peak_mib"] > 20
        assert row["cost"]["inference_mib"] > 20
    assert set(results["ours"]["cost"]) >= {"calibrate", "quantize"}
    biases = {
        name: any(
            tensor.data_type == onnx.TensorProto.INT32 for tensor in onnx.load(tmp_path / f"out/{name}.onnx").graph.initializer
        )
        for name in names
    }
    assert biases == {"ours": True, "ours-openvino": False, "ort": True}, "each target's own layout"
    record = {"host": peers.fingerprint(), "versions": peers.versions(), "samples": 8, "networks": {"tiny": results}}
    table = peers.markdown(json.loads(json.dumps(record)))
    assert [line.split("|")[2].strip() for line in table.splitlines()[2:6]] == [FP32, *names]
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1


def test_settings_of_octavo_reach_its_quantizer_and_the_table(tiny, tmp_path):
    int8 = {"symmetric": True, "repair": False}
    results = peers.compare(tiny, {"ours": Path(sys.executable)}, tmp_path, samples=8, limit=2, rounds=0, int8=int8)
    graph = onnx.load(tmp_path / "ours.onnx").graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    zeros = {int(constants[node.input[2]].flat[0]) for node in graph.node if node.op_type == "QuantizeLinear"}
    assert zeros == {128}
    record = {"host": peers.fingerprint(), "versions": {}, "samples": 8, "networks": {"tiny": results}}
    assert "`int8: {'symmetric': True, 'repair': False}`" in peers.markdown(record | {"int8": int8})
    assert "in 8 views" in peers.markdown(record | {"views": 8})


@pytest.mark.parametrize(
    ("given", "said"), [("{fidelty: 24}", "did you mean 'fidelity'?"), ("{fidelity: high}", "fidelity"), ("{a: [", "while parsing")]
)
def test_settings_of_octavo_that_it_does_not_know(given, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["peers.py", "--out", "none", "--int8", given])
    with pytest.raises(ParamsError, match="--int8") as refused:
        peers.main()
    assert said in refused.value.problem


@pytest.mark.parametrize(("option", "said"), [(("--samples", "3"), "3 is less than 4"), (("--limit", "0"), "0 is less than 1")])
def test_numbers_that_leave_nothing_to_measure(option, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["peers.py", "--out", "none", *option])
    with pytest.raises(SystemExit):
        peers.main()
    assert said in capsys.readouterr().err


def test_a_tool_that_fails_is_a_row_of_the_table(tiny, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    broken = peers.quantize("ort", Path(sys.executable), tmp_path / "broken.onnx", tmp_path, tmp_path / "none.onnx")
    assert broken["failed"].startswith("quantize: ")
    (tmp_path / "nothing").mkdir()
    ours = peers.quantize("ours", Path(sys.executable), tmp_path / "small.onnx", tmp_path / "nothing", tmp_path / "none.onnx")
    assert "there was no image to calibrate on" in ours["failed"]
    results = judge(tiny, {}, limit=2, rounds=0) | {"ort": broken}
    record = {"host": peers.fingerprint(), "versions": {}, "samples": 8, "networks": {"tiny": results}}
    assert "| tiny | ort | failed: quantize: " in peers.markdown(record)


def test_views_are_of_photos_with_boxes(tiny):
    with pytest.raises(ParamsError, match="tiny is no detector"):
        next(tiny.validation(views=VIEWS))


def test_calibration_and_validation_share_no_image(tiny):
    first, second = tiny.items("calibration"), tiny.items("validation")
    assert len(first) == len(second) == CLASSES * 3
    assert not {item.sha256 for item in first} & {item.sha256 for item in second}
    both = dataclasses.replace(tiny, sets=(tiny.sets[0], tiny.sets[0]))
    with pytest.raises(DataError, match="share"):
        both.items("validation")


def test_every_network_is_described_and_mistakes_are_told(tmp_path):
    (tmp_path / "models").mkdir()
    for name in NETWORKS:
        with pytest.raises(DataError, match=r"\.onnx: no such file"):
            network(name, tmp_path, tmp_path / "models")
    with pytest.raises(ParamsError, match="yolov5n"):
        network("yolo", tmp_path)
    with pytest.raises(ParamsError, match="--data"):
        network("yolov5n", None)


def test_missing_environments_are_named_with_the_way_to_make_them(monkeypatch, capsys):
    given = type("Given", (), {"nncf_python": None, "quark_python": Path("nowhere")})
    assert list(peers._interpreters(given, ["ours", "nncf"])) == ["ours"]
    assert "pip install nncf" in capsys.readouterr().out
    with pytest.raises(ParamsError, match="nowhere"):
        peers._interpreters(given, ["quark"])


def test_an_interpreter_may_be_named_from_where_the_command_is_given(monkeypatch, tmp_path):
    """Its tool runs in a folder of its own."""
    (tmp_path / "NNCF").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    given = type("Given", (), {"nncf_python": Path("NNCF")})
    assert peers._interpreters(given, ["nncf"]) == {"nncf": tmp_path / "NNCF"}


@pytest.mark.parametrize("script", ["evaluate", "peers"])
def test_scripts_have_help_and_plain_errors(script):
    run = partial(subprocess.run, capture_output=True, text=True, check=False, cwd=ROOT)
    command = [sys.executable, f"benchmarks/{script}.py"]
    assert "--openvino-python" in run([*command, "--help"]).stdout
    option = {"evaluate": ["--network", "none"], "peers": ["--networks", "none", "--out", "nowhere"]}[script]
    missing = run([*command, *option, "--openvino-python", "nowhere"])
    assert missing.returncode == 2
    assert "no interpreter nowhere" in missing.stderr
    failed = run([*command, *option])
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: ")
    assert "yolov5n" in failed.stderr


SCRIPTS = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text())


@pytest.mark.parametrize("script", [pytest.param(one, marks=[pytest.mark.slow] * (one == "cuda_options.py")) for one in SCRIPTS])
def test_every_script_loads_and_says_what_it_takes(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / script), run_name="__main__")
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out


@pytest.mark.slow
def test_options_of_cuda_are_refused_without_a_gpu_and_their_files_are_written(tmp_path, monkeypatch):
    import cuda_options

    monkeypatch.setattr(sys, "argv", ["cuda_options.py"])
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(OctavoError, match="cuda"):
        cuda_options.main()
    files = cuda_options._files("squeezenet1_1", tmp_path)
    image = np.random.default_rng(0).normal(size=(2, 3, 224, 224)).astype(np.float32)
    outputs = [Session(file).run({"x": image})["y"] for file in (files["fp32"], files["fp16"])]
    assert outputs[0].shape == (2, 1000)
    np.testing.assert_allclose(*outputs, rtol=0.05, atol=0.01)
    assert files["fp16"].stat().st_size < files["fp32"].stat().st_size * 0.55


def test_fp16_of_both_tools_side_by_side(tiny, tmp_path, monkeypatch):
    def main(name: str) -> dict:
        given = ["--data", str(tmp_path), "--networks", "tiny", "--rounds", "3", "--batch", "1,2", "--out", str(tmp_path / name)]
        monkeypatch.setattr(sys, "argv", ["fp16.py", *given])
        fp16.main()
        return json.loads((tmp_path / name / "fp16.json").read_text())["networks"]["tiny"]

    monkeypatch.setattr(fp16, "network", lambda *_: tiny)
    rows = main("both")
    assert rows.keys() == {FP32, "ours", "ort"}
    for name, row in rows.items():
        assert row["kept"] == 1
        assert (row["sqnr_db"] == 200) if name == FP32 else 50 < row["sqnr_db"] < 100
        assert {"ms.b1", "ms.b2", "speed.b1", "speed.b2"} <= row.keys()
    assert rows[FP32]["speed.b1"] == 1
    assert max(rows["ours"]["size"], rows["ort"]["size"]) < rows[FP32]["size"] == 1
    types = {tensor.data_type for tensor in onnx.load(tmp_path / "both/tiny/ours.onnx").graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types

    def fails(*_):
        raise RuntimeError("cannot\nfor a reason")

    monkeypatch.setitem(fp16.TOOLS, "ort", fails)
    rows = main("one")
    assert rows["ort"] == {"failed": "cannot"}
    assert rows["ours"]["kept"] == 1
    table = (tmp_path / "one/fp16.md").read_text()
    assert "| tiny | ort | failed: cannot |" in table
    assert "; cpu." in table


def test_stems_are_timed_with_and_without_columns(monkeypatch, capsys):
    forms, made = kernel_forms.FORMS, []
    written = kernel_forms.write_kernel_forms

    def kept(model):
        written(model)
        (stem,) = (node for node in model.graph if node.name == "stem")
        made.append(stem.inputs[1].producer().inputs[0].shape[0])

    monkeypatch.setattr("octavo.quantization.int8.writing.writer.write_kernel_forms", kept)
    monkeypatch.setattr(stems, "STEMS", ((16, 24, 8, 3, 2, 1), (16, 24, 8, 3, 1, 1)))
    monkeypatch.setattr(sys, "argv", ["stems.py", "--rounds", "1", "--threads", "1"])
    stems.main()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| 16x24")]
    assert [row[3].strip() for row in rows] == ["2", "1"]
    assert all(float(time) >= 0 for row in rows for time in row[4:])
    assert made == [8, 2 * 8, 8, 4 * 8], "outputs: without, and with as many columns at a time"
    assert kernel_forms.FORMS is forms


def test_files_side_by_side(tmp_path, monkeypatch, capsys):
    """One answers as FP32, the other puts 1 to the second of four channels, of which two are coordinates."""
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    shift = onnx.numpy_helper.from_array(np.array([0, 1, 0, 0], np.float32).reshape(1, 4, 1), "shift")
    for name, tensors in (("fp32", []), ("same", []), ("off", [shift])):
        made = [onnx.helper.make_node("Add", ["x", "shift"], ["y"])] if tensors else nodes
        values = [onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [1, 4, 100]) for value in "xy"]
        graph = onnx.helper.make_graph(made, "g", values[:1], values[1:], tensors)
        onnx.save(
            onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10),
            tmp_path / f"{name}.onnx",
        )
    # Each channel has the variance 4 and the mean square 4.
    np.save(tmp_path / "one.npy", np.where(np.arange(400) % 2, 2, -2).astype(np.float32).reshape(1, 4, 100))
    files = [str(tmp_path / f"{name}.onnx") for name in ("fp32", "same", "off")]
    monkeypatch.setattr(sys, "argv", ["compare.py", *files, "--arrays", str(tmp_path), "--boxes", "2", "--rounds", "3"])
    compare.main()
    _, same, off = capsys.readouterr().out.splitlines()
    assert same.endswith("outputs 200.0 dB, boxes 200.0 dB, scores 200.0 dB")
    # Noise of 1 in a quarter of all values, in half of the coordinates, in no score.
    assert off.endswith("outputs 12.0 dB, boxes 9.0 dB, scores 200.0 dB")
    monkeypatch.setattr(sys, "argv", ["compare.py", *files, "--arrays", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        compare.main()
    assert "has 0" in capsys.readouterr().err
