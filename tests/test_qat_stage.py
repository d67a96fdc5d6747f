"""Stage `qat` on small real networks: from params.yaml to a verified file, resumed, refused, skipped, and on two processes."""

import csv
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from conftest import ROOT, project_params, small_network, write_images
from PIL import Image
from qat_project import change, classifier_project, main_of, segmenter_project

from octavo.errors import DataError, OutputError, ParamsError, QuantizationError
from octavo.files import read_json, sha256_file
from octavo.layout import checkpoint_dir, variant_dir
from octavo.params import load_model
from octavo.qat.checkpoint import LAST, Checkpoint
from octavo.qat.training import Training

FOLDER = Path("models/small/qat")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return made(classifier_project(tmp_path_factory.mktemp("classifier")))


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    return made(segmenter_project(tmp_path_factory.mktemp("segmenter")))


def made(project):
    before = Path.cwd()
    os.chdir(project)
    try:
        main_of("export")
        main_of("calibrate")
    finally:
        os.chdir(before)
    return project


@pytest.fixture
def project(classifier, tmp_path, monkeypatch):
    return entered(classifier, tmp_path, monkeypatch)


def entered(source, folder, monkeypatch):
    shutil.copytree(source, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    return folder


def rows(name):
    with open(f"metrics/small/qat_{name}.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def record():
    return read_json(FOLDER / "manifest.json")["made"]


def test_a_classifier_is_trained_verified_and_judged_like_any_variant(project, capsys):
    main_of("qat")
    manifest = read_json(FOLDER / "manifest.json")
    found = manifest["made"]
    assert manifest["variant"] == "qat"
    assert manifest["sha256"] == sha256_file(FOLDER / "model.onnx")
    assert found["training"]["labelled"] is True
    assert found["training"]["distillation"] == 0.5
    assert found["training"]["trained_on"] == 20
    assert found["training"]["held_out"] == 4
    assert found["training"]["ranges_from_calibration"] == found["training"]["ranges"]
    assert found["executed"]["int8_layers"] == found["executed"]["int8_layers_integer"] == 5
    assert found["parity"]["agreement"] == 1.0
    assert [output["name"] for output in manifest["outputs"]] == ["output"]
    assert manifest["inputs"][0]["shape"][0] == "batch"
    assert not checkpoint_dir("small").exists()
    assert len(rows("steps")) == found["training"]["steps"] == 6
    assert [int(row["step"]) for row in rows("epochs")] == [0, 2, 4, 6]
    assert float(rows("steps")[0]["learning_rate"]) == pytest.approx(1e-3)
    assert "best at" in capsys.readouterr().out
    assert "trained" in (FOLDER / "report.md").read_text()

    for stage in ("quantize_int8", "validate", "benchmark", "report"):
        main_of(stage)
    accuracy = read_json("metrics/small/accuracy.json")
    assert accuracy["qat.gate.integer_layers"] == accuracy["qat.gate.parity"] == "pass"
    assert {"qat.top1", "qat.retained", "qat.sqnr_db", "qat.gate.retained"} <= accuracy.keys()
    table = Path("metrics/small/report.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][2:] == [
        "fp32",
        "int8",
        "int8_dynamic",
        "qat",
    ]


def test_the_same_run_gives_the_same_bytes_and_is_not_run_twice(project, capsys):
    change(project, qat={"epochs": 1})
    main_of("qat")
    first = sha256_file(FOLDER / "model.onnx")
    stamp = (FOLDER / "model.onnx").stat().st_mtime_ns
    capsys.readouterr()
    change(project, validate={"seed": 5})  # nothing that training depends on
    main_of("qat")
    assert "made of these images and settings already" in capsys.readouterr().out
    assert (FOLDER / "model.onnx").stat().st_mtime_ns == stamp
    main_of("qat", "--restart")
    assert (FOLDER / "model.onnx").stat().st_mtime_ns > stamp
    assert sha256_file(FOLDER / "model.onnx") == first


class Killed(BaseException):
    """As a kill would end it: nothing catches it."""


def killed_at(monkeypatch, step):
    whole = Training._step

    def until(self, model, batch, done):
        if done == step:
            raise Killed
        return whole(self, model, batch, done)

    monkeypatch.setattr(Training, "_step", until)


@pytest.mark.parametrize("step", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_result(project, monkeypatch, step):
    """Killed in the middle of an epoch, and after ranges and batch norms were frozen; with an average and learned scales."""
    change(project, qat={"ema": 0.9, "scales": "learned"})
    main_of("qat")
    expected, curves = sha256_file(FOLDER / "model.onnx"), (rows("steps"), rows("epochs"))
    shutil.rmtree(FOLDER)
    with monkeypatch.context() as patched:
        killed_at(patched, step)
        with pytest.raises(Killed):
            main_of("qat")
    assert (checkpoint_dir("small") / "last.pt").is_file()
    assert not FOLDER.exists(), "whole or not at all"
    main_of("qat")
    assert record()["training"]["resumed_from"] == step - step % 2
    assert sha256_file(FOLDER / "model.onnx") == expected
    assert (rows("steps"), rows("epochs")) == curves


def test_a_checkpoint_of_another_configuration_or_a_damaged_one_is_refused(project, monkeypatch):
    with monkeypatch.context() as patched:
        killed_at(patched, 3)
        with pytest.raises(Killed):
            main_of("qat")
    change(project, qat={"learning_rate": 1e-4})
    with pytest.raises(QuantizationError, match=r"another run: qat\.learning_rate differs") as error:
        main_of("qat")
    assert "--restart" in error.value.mend
    last = checkpoint_dir("small") / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.raises(QuantizationError, match="no checkpoint that can be read"):
        main_of("qat")
    change(project, qat={"epochs": 1})
    main_of("qat", "--restart")
    assert record()["training"]["resumed_from"] == 0


def test_a_checkpoint_that_the_disk_does_not_hold_is_no_bug_and_leaves_the_one_before(tmp_path):
    """Torch told of a full disk as `unexpected pos 145408 vs 145296`."""
    first, larger = (Checkpoint({}, step, {"w": torch.zeros(step)}, {}) for step in (1, 100_000))
    first.save(tmp_path / LAST)
    before = (tmp_path / LAST).read_bytes()
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, allowed[1]))
    try:
        with pytest.raises(OutputError, match=r"last\.pt could not be written: File too large\n.*free disk space"):
            larger.save(tmp_path / LAST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert [path.name for path in tmp_path.iterdir()] == [LAST]
    assert (tmp_path / LAST).read_bytes() == before
    assert Checkpoint.load(tmp_path / LAST, {}).step == 1


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    """The network takes the logarithm of an image's mean: of one training image that is minus infinity."""
    folder = classifier_project(tmp_path)
    monkeypatch.chdir(folder)
    change(
        folder,
        source={"args": {"logs": True}},
        input={"mean": [0], "std": [1]},
        qat={"flip": False, "freeze_batch_norm": 0, "held_out": 1},
    )
    main_of("export")
    main_of("calibrate")
    Image.fromarray(np.zeros((40, 48, 3), np.uint8)).save("images/train/0/black.png")
    with pytest.raises(QuantizationError, match=r"diverged: the loss or its gradient is not a number at step [1-6]") as error:
        main_of("qat")
    assert "qat.learning_rate" in error.value.mend
    kept = torch.load(checkpoint_dir("small") / "last.pt", weights_only=True)
    assert all(value.isfinite().all() for value in kept["model"].values() if value.is_floating_point())
    assert not FOLDER.exists()


def test_masks_teach_a_segmentation_network(segmenter, tmp_path, monkeypatch):
    folder = entered(segmenter, tmp_path, monkeypatch)
    change(folder, qat={"distillation": 0.0, "learning_rate": 5e-3, "epochs": 6})
    main_of("qat")
    found = record()
    assert found["training"]["labelled"] is True
    assert found["training"]["after"]["metric"] > found["training"]["before"]["metric"] + 0.02, "it learns from masks alone"
    losses = [float(row["loss"]) for row in rows("steps")]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert found["parity"]["agreement"] >= 0.999
    assert found["executed"]["int8_layers"] == found["executed"]["int8_layers_integer"] == 5


def test_without_labels_the_network_is_taught_by_fp32(segmenter, tmp_path, monkeypatch):
    folder = entered(segmenter, tmp_path, monkeypatch)
    data = load_model("params.yaml", "small").data.model_dump(mode="json", exclude_defaults=True)
    data["train"] = {"format": "folder", "path": "images/train/images"}
    change(folder, data=data, qat={"epochs": 4, "freeze_batch_norm": "auto"})
    monkeypatch.setattr("octavo.qat.training._STEPS", 1)  # however long an epoch is
    main_of("qat")
    found = record()["training"]
    assert found["labelled"] is False
    assert found["freeze_batch_norm"] == 0
    assert found["distillation"] == 1
    assert "metric" not in found["after"]
    assert found["after"]["distance"] <= found["before"]["distance"]


@pytest.mark.parametrize(("steps", "moving"), [(2, 1), (3, 0)])
def test_batch_norms_follow_their_batches_where_labels_teach_and_an_epoch_is_long_enough(project, monkeypatch, steps, moving):
    change(project, qat={"epochs": 1, "freeze_batch_norm": "auto"})
    monkeypatch.setattr("octavo.qat.training._STEPS", steps)  # an epoch has two
    main_of("qat")
    assert record()["training"]["freeze_batch_norm"] == moving


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda masks: Image.fromarray(np.zeros((20, 20), np.uint8)).save(masks[0]), "20x20 pixels, its image 40x48"),
        (lambda masks: Image.fromarray(np.full((40, 48), 7, np.uint8)).save(masks[0]), "holds class 7, the model has classes 0..2"),
        (lambda masks: masks[0].unlink(), "have no mask of their name"),
        (lambda masks: masks[0].rename(masks[0].with_name("other.png")), "have no mask of their name"),
    ],
)
def test_masks_that_do_not_fit_are_named(segmenter, tmp_path, monkeypatch, spoil, message):
    entered(segmenter, tmp_path, monkeypatch)
    spoil(sorted(Path("images/train/masks").iterdir()))
    with pytest.raises(DataError, match=message):
        main_of("qat")
    assert not FOLDER.exists()


def test_what_is_frozen_does_not_move(project):
    change(project, qat={"freeze": ["stem.*", "deep.*"], "epochs": 1})
    main_of("qat")
    with pytest.raises(QuantizationError, match="'stemm'") as error:
        change(project, qat={"freeze": ["stemm"]})
        main_of("qat")
    assert "stem" in error.value.mend
    change(project, qat={"freeze": ["*"]})
    with pytest.raises(QuantizationError, match="no trainable layer is left"):
        main_of("qat")
    assert record()["settings"]["freeze"] == ["stem.*", "deep.*"], "what was there stays"


def test_training_images_are_nobody_elses(project):
    shutil.copy(next(Path("images/validation/1").iterdir()), "images/train/1/copy.png")
    with pytest.raises(DataError, match="validation and training share 1 image"):
        main_of("qat")
    Path("images/train/1/copy.png").unlink()
    shutil.copy(next(Path("images/calibration").iterdir()), "images/train/1/copy.png")
    with pytest.raises(DataError, match="calibration and training share 1 image"):
        main_of("qat")


def test_training_needs_images_and_a_gpu_only_where_one_is_asked_for(project, monkeypatch):
    data = load_model("params.yaml", "small").data.model_dump(mode="json", exclude_defaults=True)
    del data["train"]
    params = Path("params.yaml").read_text()
    changed = yaml.safe_load(params)
    changed["models"]["small"]["data"] = data
    Path("params.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(ParamsError, match=r"data\.train"):
        main_of("qat")
    Path("params.yaml").write_text(params)
    change(project, qat={"device": "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParamsError, match="torch sees no GPU"):
        main_of("qat")


def test_xnnpack_is_asked_for_where_executorch_is_not_installed(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "executorch", None)
    change(project, qat={"quantizer": "xnnpack"})
    with pytest.raises(ParamsError, match="needs executorch") as error:
        main_of("qat")
    assert "pip install" in error.value.mend


def test_a_model_that_is_not_trained_says_so_and_needs_no_torch(project):
    change(project, qat={"enabled": False})
    script = "import sys; sys.modules.update(dict.fromkeys(['torch', 'torchao'])); sys.argv = ['qat', '--model', 'small']; "
    script += f"import runpy; runpy.run_path({str(ROOT / 'stages/qat.py')!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((FOLDER / "skipped.json").read_text()) == {
        "asked": False,
        "reason": "qat.enabled is not set in params.yaml",
    }
    assert rows("steps") == rows("epochs") == []


def onnx_project(folder, model):
    onnx.save(model, folder / "small.onnx")
    write_images(folder / "images/calibration", 8, seed=1)
    write_images(folder / "images/train", 16, seed=5)
    for label in range(4):
        write_images(folder / f"images/validation/{label}", 2, seed=10 + label)
    params = project_params(qat={"enabled": True, "epochs": 2, "batch": 8, "held_out": 4, "device": "cpu", "learning_rate": 1e-3})
    params["models"]["small"]["data"]["train"] = {"format": "folder", "path": "images/train"}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def test_an_onnx_file_is_trained_in_torch(tmp_path, monkeypatch):
    monkeypatch.chdir(onnx_project(tmp_path, small_network()))
    change(tmp_path, qat={"keep_float": ["depth"]})
    for stage in ("export", "calibrate", "qat"):
        main_of(stage)
    found = record()
    assert found["executed"]["int8_layers"] == found["executed"]["int8_layers_integer"] == 3
    assert found["training"]["after"]["distance"] <= found["training"]["before"]["distance"]
    assert [output["name"] for output in read_json(FOLDER / "manifest.json")["outputs"]] == ["logits"]
    assert any(each["node"].startswith("depth") and each["precision"] == "float" for each in found["nodes"])


@pytest.mark.slow
def test_a_gelu_that_the_exporter_spelled_out_is_one_node_of_the_trained_file(tmp_path, monkeypatch):
    model = small_network()
    place = next(place for place, node in enumerate(model.graph.node) if node.name == "stem.relu")
    before, after = model.graph.node[place].input[0], model.graph.node[place].output[0]
    del model.graph.node[place]
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    model.graph.initializer.extend(
        onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [], [value]) for name, value in numbers.items()
    )
    spelled = [("Div", [before, "root"], "d"), ("Erf", ["d"], "e"), ("Add", ["e", "one"], "s"), ("Mul", [before, "s"], "p")]
    spelled.append(("Mul", ["p", "half"], after))
    for step, (op_type, inputs, output) in enumerate(spelled):
        model.graph.node.insert(place + step, onnx.helper.make_node(op_type, inputs, [output], f"gelu.{step}"))
    monkeypatch.chdir(onnx_project(tmp_path, model))
    for stage in ("export", "calibrate", "qat"):
        main_of(stage)
    found = record()
    assert found["executed"]["int8_layers"] == found["executed"]["int8_layers_integer"] > 0
    assert found["training"]["after"]["distance"] <= found["training"]["before"]["distance"]
    trained = onnx.load(FOLDER / "model.onnx")
    assert "Erf" not in {node.op_type for node in trained.graph.node}


def test_a_graph_that_torch_cannot_train_is_listed_as_skipped(tmp_path, monkeypatch):
    model = small_network()
    # An operator of no counterpart, behind the classifier.
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Hardmax", ["before"], ["hard"], "hard"))
    model.graph.node.append(onnx.helper.make_node("Add", ["hard", "before"], ["logits"], "join"))
    monkeypatch.chdir(onnx_project(tmp_path, model))
    for stage in ("export", "calibrate", "quantize_int8", "qat", "validate", "benchmark", "report"):
        main_of(stage)
    told = json.loads((FOLDER / "skipped.json").read_text())
    assert told["asked"] is True
    assert "Hardmax" in told["reason"]
    assert "Hardmax" in read_json("metrics/small/accuracy.json")["qat.skipped"]
    assert "qat is skipped" in Path("metrics/small/report.md").read_text()


@pytest.mark.parametrize(
    ("resize", "size", "reason"),
    [
        ({"mode": "cubic"}, 32, "'up' (Resize) has no counterpart in torch: `mode` cubic of other"),
        ({"mode": "nearest", "nearest_mode": "ceil"}, "open", "nearest with half_pixel of an image whose size is open"),
    ],
)
def test_a_resize_that_only_the_image_s_size_refuses_is_listed_as_skipped(tmp_path, monkeypatch, resize, size, reason):
    model = small_network()
    graph = model.graph
    if size == "open":
        for axis, name in ((2, "height"), (3, "width")):
            graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    graph.initializer.append(onnx.helper.make_tensor("scales", onnx.TensorProto.FLOAT, [4], [1, 1, 1.3, 1.3]))
    for node in graph.node[2:]:
        for place, name in enumerate(node.input):
            if name == "stem.relu":
                node.input[place] = "larger"
    graph.node.insert(2, onnx.helper.make_node("Resize", ["stem.relu", "", "scales"], ["larger"], "up", **resize))
    monkeypatch.chdir(onnx_project(tmp_path, model))
    for stage in ("export", "calibrate", "qat"):
        main_of(stage)
    assert reason in json.loads((FOLDER / "skipped.json").read_text())["reason"]


@pytest.mark.slow
def test_two_processes_train_as_one(project):
    """With batch norms and ranges frozen a batch in two halves has the gradients of the whole."""
    change(project, qat={"freeze_batch_norm": 0, "freeze_observers": 0, "flip": False, "epochs": 2})
    main_of("qat")
    alone, losses = record(), [float(row["loss"]) for row in rows("steps")]
    shutil.rmtree(FOLDER)
    torchrun = Path(sys.executable).with_name("torchrun")
    done = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node", "2", ROOT / "stages/qat.py", "--model", "small"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    both = record()
    assert both["training"]["processes"] == 2
    assert both["training"]["steps"] == alone["training"]["steps"]
    np.testing.assert_allclose([float(row["loss"]) for row in rows("steps")], losses, rtol=0.05)
    assert both["executed"]["int8_layers_integer"] == 5
    assert variant_dir("small", "qat").is_dir()
