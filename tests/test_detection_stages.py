"""A detector through the stages as a user runs them, and what a user can get wrong on the way."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
import yaml
from conftest import ROOT, project_params
from forked import run_stage
from grid_detector import NAMES, grid_detector, write_squares
from PIL import Image

from octavo.evidence.pictures import write_pictures
from octavo.evidence.validation import Validation
from octavo.images.dataset import Item
from octavo.images.feeds import Feeds
from octavo.images.objects import Objects
from octavo.images.preprocess import preprocess
from octavo.params.grammar import Detection, Input, Validate
from octavo.runtime.session import Session
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.picture import WRONG, drawn_found, drawn_truth

MADE = ("export", "calibrate", "quantize_fp16", "quantize_int8")
INPUT = {"size": [64, 64], "resize": {"rule": "letterbox", "antialias": False}}
DATA = {
    "calibration": {"format": "folder", "path": "squares/calibration"},
    "validation": {"format": "coco", "path": "squares/validation"},
}


def params(**changes: object) -> None:
    blocks = {"task": {"name": "detection", "classes": list(NAMES)}, "input": INPUT, "data": DATA} | changes
    Path("params.yaml").write_text(yaml.safe_dump(project_params(**blocks)), encoding="utf-8")


def succeed(*stages: str) -> str:
    said = ""
    for stage in stages:
        done = run_stage(stage, "--model", "small")
        assert done.returncode == 0, done.stderr
        said += done.stdout
    return said


def refuse(stage: str, *parts: str) -> None:
    done = run_stage(stage, "--model", "small")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "RuntimeWarning" not in done.stderr
    for part in parts:
        assert part in done.stderr


def accuracy() -> dict:
    return json.loads(Path("metrics/small/accuracy.json").read_text())


def test_int8_is_held_to_the_ap_that_it_is_expected_to_lose(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(grid_detector(), "small.onnx")
    write_squares(Path("squares/calibration"), 48, seed=1, annotated=False)
    params(calibrate={"samples": 48}, int8={"placement": "all"})
    succeed("export", "calibrate", "quantize_int8")
    measured = json.loads(Path("models/small/int8/manifest.json").read_text())["made"]["measured"]
    assert measured["fidelity_db"] == 20
    assert measured["expected_loss"] <= 0.01
    assert "expected loss of AP, as written" in Path("models/small/int8/report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A project whose variants are made; tests copy it."""
    folder = tmp_path_factory.mktemp("made")
    onnx.save(grid_detector(), folder / "small.onnx")
    write_squares(folder / "squares/calibration", 8, seed=1, annotated=False)
    write_squares(folder / "squares/validation", 12, seed=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        params()
        succeed(*MADE)
    return folder


@pytest.fixture
def project(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_from_outputs_to_the_evidence(project):
    resolutions = {"threads": [1], "rounds": 5, "warmup": 1, "resolutions": [96, [64, 128]]}
    params(benchmark=resolutions)
    said = succeed("validate", "benchmark", "report")
    assert "outputs read as nanodet" in said
    assert "12 labelled images; ap needs 50 to say much" in said
    record = accuracy()
    assert record["decoder"] == "nanodet"
    assert record["metric"] == "ap"
    for variant in ("fp32", "fp16", "int8", "int8_dynamic"):
        assert record[f"{variant}.ap50"] == pytest.approx(1)
        assert record[f"{variant}.ap.red"] == pytest.approx(1, abs=0.02)
    assert record["int8.match_f1"] > 0.95
    assert record["int8.retained_low"] <= record["int8.retained"] <= record["int8.retained_high"]
    assert record["fp32.sure_boxes"] > 12
    assert "fp32.match_f1" not in record
    # 96: every side half as long again, so that the squares straddle its cells; 64x128: the photo lies centred in it.
    assert {"fp32.96x96.ap", "int8.96x96.ap", "int8.64x128.retained", "int8.64x128.match_f1", "int8.96x96.ap_small"} <= set(record)
    assert record["fp32.64x128.ap"] == pytest.approx(1, abs=0.02)
    assert record["fp32.96x96.ap"] < 0.5
    documented = (ROOT / "docs/metrics.md").read_text()
    for key in {key.split(".", 1)[-1] for key in record if "." in key}:
        generic = "ap.<class>" if key.startswith("ap.") else key
        if "x" not in key.split(".")[0] and not key.startswith("sqnr_db."):
            assert f"`{generic}`" in documented, f"{key} is not described in docs/metrics.md"
    latency = json.loads(Path("metrics/small/latency.json").read_text())
    assert latency["int8.cpu.t1.b1.96x96.median_ms"] > 0
    assert latency["int8.cpu.t1.b1.median_ms"] > 0
    page = Path("metrics/small/report.md").read_text()
    assert "| AP | AP50 |" in page
    assert "Top-1" not in page
    assert "| int8 | 96x96 |" in page
    rows = Path("metrics/small/resolutions.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * 4
    # All objects are small.
    own = next(dict(zip(rows[0].split(","), row.split(","), strict=True)) for row in rows if row.startswith("fp32,96x96"))
    assert float(own["ap_small"]) == float(own["accuracy"]) == record["fp32.96x96.ap"]
    pictures = sorted(Path("metrics/small/pictures").iterdir())
    assert [path.name[:3] for path in pictures] == ["01_", "02_", "03_", "04_", "05_", "06_"]
    with Image.open(pictures[0]) as picture:
        assert picture.size[0] > 3 * picture.size[1] * 0.8, "ground truth, FP32 and INT8 beside each other"


def test_unlabelled_images_are_held_against_fp32_alone(project):
    params(data=DATA | {"validation": {"format": "folder", "path": "squares/validation/images"}})
    succeed("validate")
    record = accuracy()
    assert record["labelled"] == 0
    assert record["int8.match_f1"] > 0.95
    assert record["int8.gate.retained"] == "no-labels"
    assert 0 < record["fp32.sure_boxes"] < 50
    assert record["int8.gate.agreement"] == "inconclusive"
    assert not any(key.endswith(".ap") for key in record)
    assert len(list(Path("metrics/small/pictures").iterdir())) == 6


def test_a_broken_variant_has_an_ap_of_0_and_fails(project):
    onnx.save(grid_detector(blind=True), project / "models/small/int8/model.onnx")
    said = succeed("validate")
    record = accuracy()
    assert record["int8.ap"] == record["int8.retained"] == record["int8.match_f1"] == 0
    assert record["int8.gate.retained"] == "fail"
    assert record["int8.gate.agreement"] == "fail"
    assert "gate int8.gate.retained: fail" in said
    assert "int8.match_iou" not in record


def test_a_broken_fp32_keeps_nothing(project):
    onnx.save(grid_detector(blind=True), project / "small.onnx")
    succeed("export", "validate")
    record = accuracy()
    assert record["fp32.ap"] == 0
    assert record["int8.gate.retained"] == "fail"


def test_a_decoder_that_does_not_fit(project):
    params(task={"name": "detection", "decoder": "yolov8"})
    for stage in ("quantize_int8", "validate"):
        refuse(stage, "`task.decoder: yolov8` reads 1 x (4 + c) x n", "score8 float32 [1, 64, 2]", "use nanodet, which would fit")
    params(task={"name": "detection", "decoder": "yolo9000"})
    refuse("quantize_int8", "there is no detector family 'yolo9000'")


def test_boxes_that_are_infinite_are_refused_before_they_are_read(project):
    table = np.full((1, 6, 84), 0.1, np.float32)
    table[:, 2:4] = np.inf
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        flat (float[1, 3, 64, 64] image) => (float[1, 6, 84] rows) { mean = ReduceMean <keepdims = 0> (image)
        rows = Add (mean, table) }"""
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    onnx.save(graph, project / "small.onnx")
    refuse("export", "output 'rows' holds infinity")


def test_class_names_that_do_not_fit(project):
    params(task={"name": "detection", "classes": ["red", "green", "blue"]})
    told = "`task.classes` names 3 classes, the model tells 2 apart (outputs read as nanodet)"
    refuse("validate", told)
    assert f"validate is going to refuse this model: {told}" in succeed("export")
    params(task={"name": "detection", "classes": ["rot", "green"]})
    refuse("validate", "red", "class_map")
    params(
        task={"name": "detection", "classes": ["rot", "green"]},
        data=DATA | {"validation": DATA["validation"] | {"class_map": {"red": "rot"}}},
    )
    succeed("validate")
    assert accuracy()["fp32.ap.rot"] == pytest.approx(1, abs=0.02)


def test_an_image_that_is_listed_but_missing(project):
    next((project / "squares/validation/images").iterdir()).unlink()
    refuse("validate", "2_", "instances.json")


def test_a_resolution_that_the_graph_does_not_take(project):
    onnx.save(grid_detector(size=64), project / "small.onnx")
    succeed("export")
    params(benchmark={"threads": [1], "rounds": 5, "resolutions": [128]})
    for stage in ("export", "validate", "benchmark"):
        refuse(stage, "`benchmark.resolutions` has 128x128, the graph takes 64x64 alone", "dynamic", "an entry of its own")


def test_an_input_of_raw_pixels(project):
    onnx.save(grid_detector(raw=True), project / "small.onnx")
    pixels = {"dtype": "uint8", "layout": "nhwc", "scale": 1, "resize": {"rule": "letterbox", "antialias": False, "pad": [9, 8, 7]}}
    params(input=INPUT | pixels)
    succeed(*MADE, "validate", "benchmark")
    record = accuracy()
    assert record["fp32.ap"] == pytest.approx(1, abs=0.02)
    assert record["int8.retained"] > 0.97
    manifest = json.loads(Path("models/small/int8/manifest.json").read_text())
    assert manifest["inputs"][0]["type"] == "tensor(uint8)"


def test_words_above_a_tall_photo_can_be_read(tmp_path):
    network, spec = grid_detector().SerializeToString(), Input.model_validate(INPUT)
    sessions = {"fp32": Session(network), "int8": Session(network)}
    validation = Validation(Detection(name="detection"), spec, sessions, Feeds("image"))
    Image.new("RGB", (4, 400), "grey").save(tmp_path / "tall.png")
    item = Item(tmp_path / "tall.png", "tall.png", "tall", None, Objects.of([], []), (400, 4))
    validation.run([(item, preprocess(item.read(), spec))])
    write_pictures(tmp_path / "pictures", validation, 1)
    with Image.open(tmp_path / "pictures/01_tall.jpg") as picture:
        assert picture.size == (3 * 160 + 2 * 6, 320 + 22)


def test_a_box_of_a_wrong_class_is_told_from_a_box_too_many():
    """Both are red; the class that stands at the box tells them apart, at any size of the photo."""
    truth, names = Objects.of([[10, 40, 60, 80]], [0]), ("cat", "dog", "eel")
    for side, scale in ((100, 1.0), (400, 1.0), (400, 0.1), (12, 4.0)):
        photo, drawn = np.zeros((side, side, 3), np.uint8), []
        for kind, named in ((1, names), (2, names), (1, None)):
            found = Boxes.of([[10, 40, 60, 80]], [0.5], [kind])
            words, picture = drawn_found(photo, scale, found, truth, named)
            assert words == "0 right, 1 false, 1 missed"
            drawn.append(picture)
        assert all(picture.shape == photo.shape for picture in drawn)
        assert (drawn[0] != drawn[1]).any()
        assert (drawn[0] != drawn[2]).any()
    # Words of boxes at one place lie beside each other, and on the picture: white on each one's colour.
    many = Boxes.of([[0, 0, 90, 90]] * 4, [0.9, 0.8, 0.7, 0.6], [0, 1, 2, 3])
    _, picture = drawn_found(np.zeros((100, 100, 3), np.uint8), 1.0, many, Objects.of([[0, 0, 90, 90]], [0]), names)
    red = (picture == WRONG).all(axis=2)
    assert red.sum() > 3 * 300
    sevens, eights = (
        drawn_truth(np.zeros((100, 100, 3), np.uint8), 1.0, many, Objects.of([[9, 40, 90, 90]], [kind]), names)[1]
        for kind in (7, 8)
    )
    assert (sevens != eights).any(), "a class without a name has its number"


def test_pictures_without_boxes_come_last(tmp_path):
    sessions = {name: Session(grid_detector().SerializeToString()) for name in ("fp32", "int8")}
    validation = Validation(Detection(name="detection"), Input.model_validate(INPUT), sessions, Feeds("image"))
    write_squares(tmp_path, 2, seed=5)
    Image.new("RGB", (64, 64), "grey").save(tmp_path / "images/0.png")
    for path in sorted((tmp_path / "images").iterdir()):
        photo = np.asarray(Image.open(path)).astype(np.float32).transpose(2, 0, 1)[None] / 255
        validation.run([(Item(path, path.name, path.name, None, Objects.of([], []), (64, 64)), photo)])
    assert write_pictures(tmp_path / "pictures", validation, 3)[2] == "03_0.jpg"


def test_pictures_show_the_worst_first(tmp_path):
    sessions = {"fp32": Session(grid_detector().SerializeToString()), "int8": Session(grid_detector().SerializeToString())}
    validation = Validation(Detection(name="detection"), Input.model_validate(INPUT), sessions, Feeds("image"))
    write_squares(tmp_path, 3, seed=5)
    paths = sorted((tmp_path / "images").iterdir())
    for path in paths:
        photo = np.asarray(Image.open(path)).astype(np.float32).transpose(2, 0, 1)[None] / 255
        item = Item(path, path.name, path.name, None, Objects.of([], []), (64, 64))
        validation.run([(item, photo)])
    # INT8 loses the boxes of the last image.
    score = validation.scores["int8"]
    score.found[2] = score.found[2].taken(np.zeros(0, int))
    assert write_pictures(tmp_path / "pictures", validation, 2) == [f"01_{paths[2].stem}.jpg", f"02_{paths[0].stem}.jpg"]
    # Of files of one name in two folders, and of long names.
    names = "x/1.png", "y/1.png", f"{'z' * 250}.png"
    validation.images = [replace(item, name=name) for item, name in zip(validation.images, names, strict=True)]
    assert write_pictures(tmp_path / "pictures", validation, 3) == [f"01_{'z' * 120}.jpg", "02_x_1.jpg", "03_y_1.jpg"]
    assert write_pictures(tmp_path / "pictures", validation, 0) == []
    assert list((tmp_path / "pictures").iterdir()) == []
    assert Validate().pictures > 0
