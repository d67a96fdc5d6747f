"""`octavo init` as a user runs it: an entry that loads and that the stages run with, guesses marked, the file's text kept."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
import yaml
from conftest import CLASSES, project_params, small_network, write_images
from forked import run_stage
from graphs import he, network
from grid_detector import grid_detector, write_squares
from PIL import Image
from test_commands_inspect import octavo

from octavo.errors import DataError
from octavo.graph.io import save
from octavo.images.dataset import open_set, refuse_overlap
from octavo.intake import choosing
from octavo.intake.folder import recognised
from octavo.intake.inputs import ImageInput
from octavo.intake.normalisation import inside
from octavo.intake.preprocessing import Guessed, guessed, tried_instead
from octavo.intake.sets import DataGuess, guessed_data
from octavo.intake.task import TaskGuess, guessed_task
from octavo.intake.trial import Tried
from octavo.intake.written import append_entry, model_name
from octavo.params import load
from octavo.params.grammar import Resize
from octavo.tasks.detection.names import COCO80


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with mine.onnx, a classifier of four classes, and labelled images; the working directory."""
    onnx.save(small_network(), tmp_path / "mine.onnx")
    for label in range(CLASSES):
        write_images(tmp_path / f"photos/{label}", 5, seed=label)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: object, task: str = "classification", data: str = "photos") -> subprocess.CompletedProcess:
    return octavo("init", *arguments, "--task", task, "--data", data)


def succeed(*arguments: object, **options: str) -> str:
    done = init(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refuse(*arguments: object, expected: str, **options: str) -> None:
    before = Path("params.yaml").read_bytes() if Path("params.yaml").exists() else None
    done = init(*arguments, **options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    after = Path("params.yaml").read_bytes() if Path("params.yaml").exists() else None
    assert after == before


def test_the_stages_run_with_the_entry(folder):
    told = succeed("mine.onnx")
    assert "dvc repro export@mine" in told
    spec = load("params.yaml").models["mine"]
    assert spec.source.file == "mine.onnx"
    assert spec.input.size == (32, 32)
    assert spec.data.calibration.path == spec.data.validation.path == "photos"
    assert spec.data.calibration.format == "imagefolder"
    assert spec.calibrate.samples == 10
    for stage in ("export", "calibrate", "quantize_fp16", "validate"):
        done = run_stage(stage, "--model", "mine")
        assert done.returncode == 0, (stage, done.stderr)
    accuracy = json.loads(Path("metrics/mine/accuracy.json").read_text())
    assert accuracy["labelled"] == 10


def test_parts_of_one_folder_share_no_image(folder):
    succeed("mine.onnx")
    data = load("params.yaml").models["mine"].data
    sets = [[(item.name, item.sha256) for item in open_set(one, "data")] for one in (data.calibration, data.validation)]
    refuse_overlap(*sets, "calibration", "validation")
    assert sum(map(len, sets)) == 20


def test_every_guess_is_marked(folder):
    succeed("mine.onnx")
    text = Path("params.yaml").read_text()
    for key in ("resize:", "mean:", "calibration:", "validation:"):
        lines = text.splitlines()
        place = next(number for number, line in enumerate(lines) if line.lstrip().startswith(key))
        above = []
        while lines[place - 1].lstrip().startswith("#"):
            place -= 1
            above.insert(0, lines[place])
        assert any("# guess: " in line for line in above), key
    assert "candidates on 10 images (probability of the right class): ImageNet mean and std RGB" in " ".join(
        line.strip(" #") for line in text.splitlines()
    )
    assert max(map(len, text.splitlines())) <= 130


def test_what_stands_in_the_file_stays_byte_for_byte(folder):
    before = (
        "# Ours. Do not touch.\n"
        "models:\n"
        "    first:   # four spaces\n"
        + "".join(f"        {line}\n" for line in yaml.safe_dump(project_params()["models"]["small"]).splitlines())
        + "    # the end, without a newline"
    ).encode()
    Path("params.yaml").write_bytes(before)
    Path("params.yaml").chmod(0o640)
    succeed("mine.onnx")
    after = Path("params.yaml").read_bytes()
    assert after.startswith(before)
    assert b"\n    mine:\n        task: classification\n" in after
    assert list(load("params.yaml").models) == ["first", "mine"]
    assert Path("params.yaml").stat().st_mode & 0o777 == 0o640
    succeed("mine.onnx", "--name", "again")
    assert Path("params.yaml").read_bytes().startswith(after)
    assert list(load("params.yaml").models) == ["first", "mine", "again"]


def test_line_endings_of_windows_and_a_link_stay(folder):
    text = yaml.safe_dump(project_params()).replace("\n", "\r\n").encode()
    Path("real.yaml").write_bytes(text)
    Path("params.yaml").symlink_to("real.yaml")
    succeed("mine.onnx")
    assert Path("params.yaml").is_symlink()
    after = Path("real.yaml").read_bytes()
    assert after.startswith(text)
    assert after.count(b"\n") == after.count(b"\r\n")
    assert list(load("params.yaml").models) == ["small", "mine"]


@pytest.mark.parametrize("before", ["", "# nothing yet\n", "models:\n", "models:   # mine\n"])
def test_files_without_a_model(folder, before):
    Path("params.yaml").write_text(before)
    succeed("mine.onnx")
    assert Path("params.yaml").read_text().startswith(before)
    assert list(load("params.yaml").models) == ["mine"]


@pytest.mark.parametrize("none", ["{}", "{ }", "null", "~"])
def test_models_dumped_as_none(tmp_path, none):
    path = tmp_path / "params.yaml"
    path.write_bytes(f"# mine\r\nmodels: {none}  # yet\r\n".encode())
    append_entry(path, "small", yaml.safe_dump(project_params()["models"]["small"]).splitlines())
    assert path.read_bytes().startswith(b"# mine\r\nmodels:  # yet\r\n  small:\r\n")
    assert list(load(path).models) == ["small"]


def test_files_that_cannot_be_appended_to(folder):
    Path("params.yaml").write_text(json.dumps(project_params()))
    refuse("mine.onnx", expected="nothing was written")
    Path("params.yaml").write_text("models: [1, 2]\n")
    refuse("mine.onnx", expected="expected a map")
    Path("params.yaml").write_text("models:\n  a: {b: [}\n")
    refuse("mine.onnx", expected="not readable YAML")
    params = project_params()
    params["models"]["small"]["int8"]["metod"] = "mse"
    Path("params.yaml").write_text(yaml.safe_dump(params))
    refuse("mine.onnx", expected="models.small.int8.metod: unknown key")
    assert not list(folder.glob(".params*"))


def test_a_name_that_is_there(folder):
    Path("params.yaml").write_text(yaml.safe_dump(project_params()))
    refuse("mine.onnx", "--name", "small", expected="has a model 'small' already")
    refuse("mine.onnx", "--name", "small_int8", expected="with 'small_int8' both would have the artifact 'small-int8'")
    refuse("mine.onnx", "--name", "no/name", expected="must be letters")


def test_what_is_missing_or_unfit(folder):
    refuse("other.onnx", expected="other.onnx: does not exist")
    refuse("mine.onnx", data="nowhere", expected="nowhere: does not exist")
    (folder / "empty").mkdir()
    refuse("mine.onnx", data="empty", expected="holds no image")
    refuse("mine.onnx", "--calibration", "nowhere", expected="nowhere: does not exist")
    refuse("mine.onnx", task="segmentation", expected="no output is that of segmentation")
    refuse("mine.onnx", task="detection", expected="no known family of detectors")
    refuse("mine.onnx", "--size", "64", expected="the graph takes 32x32")
    # The labelled photos calibrate, and would be validated on.
    refuse("mine.onnx", "--calibration", "photos/0", expected="share 5 image(s) by content")
    assert not Path("params.yaml").exists()


def test_a_graph_of_several_inputs_or_in_half_precision(folder):
    tensors = {"w": he(np.random.default_rng(0), 4, 3, 1, 1)}
    conv = oh.make_node("Conv", ["x", "w"], ["a"], "conv")
    added = [conv, oh.make_node("Add", ["a", "threshold"], ["y"], "add")]
    save(network(added, tensors, ["y"], inputs={"x": [1, 3, 16, 16], "threshold": [1]}), folder / "two.onnx")
    refuse("two.onnx", task="segmentation", expected="takes 'threshold' float")
    half = onnx.load(folder / "mine.onnx")
    half.graph.input[0].type.tensor_type.elem_type = 10
    half.graph.node.insert(0, oh.make_node("Cast", ["image"], ["image32"], "cast", to=1))
    half.graph.node[1].input[0] = "image32"
    onnx.save(half, folder / "half.onnx")
    refuse("half.onnx", expected="is float16")


def test_labels_that_do_not_fit_leave_fidelity(folder):
    write_images(folder / "others/cat", 4, seed=50)
    write_images(folder / "others/dog", 4, seed=51)
    told = succeed("mine.onnx", data="others")
    assert "fidelity to FP32, not accuracy" in told
    data = load("params.yaml").models["mine"].data
    assert (data.validation.format, data.validation.path) == ("folder", "others")
    assert "2 class folders, the model has 4 classes" in " ".join(
        line.strip(" #") for line in Path("params.yaml").read_text().splitlines()
    )


@pytest.mark.parametrize(
    ("values", "count", "expected"),
    [
        # Foreground that is written as white, and white that is void.
        ((0, 255), 2, {"class_map": {"255": 1}}),
        ((0, 1, 255), 2, {"void": 255}),
        ((0, 1), 2, {}),
        ((0, 1, 2, 11), 11, {"void": 11}),
        # What would leave one class is no void.
        ((0, 255), 11, None),
        ((1, 255), 2, None),
        ((0, 1, 254, 255), 2, None),
        ((0, 255), None, {}),
    ],
)
def test_what_masks_have_beyond_the_model_s_classes(tmp_path, values, count, expected):
    for place in range(4):
        for part in ("images", "masks"):
            (tmp_path / part).mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), place, np.uint8)).save(tmp_path / f"images/{place}.png")
        Image.fromarray(np.resize(np.array(values, np.uint8), (4, 4))).save(tmp_path / f"masks/{place}.png")
    task = TaskGuess({"name": "segmentation"}, classes=count)
    data = guessed_data(task, tmp_path, None)
    if expected is None:
        assert not data.labelled
        assert "do not fit: masks have the values" in data.why["validation"]
        assert "void" not in task.keys
        return
    assert data.labelled
    assert data.validation.get("class_map") == expected.get("class_map")
    assert task.keys.get("void") == expected.get("void")
    if "class_map" in expected:
        assert np.unique(data.items[0].mask.read((4, 4), 2, None)).tolist() == [0, 1]
        assert "255 is the second of two classes" in data.why["validation"]


def test_maps_are_read_as_the_stages_will():
    def guess(nodes: str, value: np.ndarray) -> TaskGuess:
        text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[1, 3, 8, 8] x) => (float[1] y) {{ {nodes} }}"""
        model = ir.from_proto(onnx.parser.parse_model(text))
        return guessed_task("segmentation", {"y": value}, (8, 8), model)

    sigmoid = guess("y = Sigmoid(x)", np.zeros((1, 1, 8, 8), np.float32))
    assert (sigmoid.block().threshold, sigmoid.classes, sigmoid.keys) == (0.5, 2, {"name": "segmentation"})
    last = guess("y = Relu(x)", np.zeros((1, 8, 8, 5), np.float32))
    assert (last.block().layout, last.classes) == ("nhwc", 5)
    # Without this a void would be looked for among the classes of logits alone.
    assert guess("m = ArgMax <axis = 1> (x) y = Cast <to = 2> (m)", np.zeros((1, 1, 8, 8), np.uint8)).classes == 3
    either = guess("y = Relu(x)", np.zeros((1, 8, 8, 8), np.float32))
    assert (either.keys["layout"], either.block().layout) == ("nchw", "nchw")
    assert "fits nchw and nhwc" in either.why["layout"]


def test_of_networks_that_find_nothing_none_is_clearly_better():
    nothing, hardly = np.zeros(8), np.full(8, 0.002)
    assert not Tried(hardly).clearly_beats(Tried(nothing)), "no figure that the entry shows"
    assert Tried(hardly + 0.05).clearly_beats(Tried(nothing))
    assert not Tried(nothing).clearly_beats(Tried(nothing))


@pytest.mark.parametrize(("labelled", "firm"), [(True, False), (False, False), (True, True)])
def test_the_images_own_mean_is_tried_where_labels_can_tell(folder, labelled, firm):
    """Networks for dark scenes, say, that were trained on these alone; CGNet of CamVid has .61 of mIoU under ImageNet's mean."""
    generator = np.random.default_rng(0)
    for name, level in (("0", 30), ("1", 50)):
        kind = f"dark/{name}" if labelled else "dark"
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for place in range(10):
            pixels = generator.integers(level - 3, level + 4, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{name}{place}.png")
    task = TaskGuess({"name": "classification"}, classes=2)
    data = guessed_data(task, folder / "dark", None)
    first = Guessed({"size": [32, 32], "resize": {"rule": "stretch"}}, label="0..1", firm=firm)
    # Darker than the set, or brighter.
    mean, words = choosing.chosen(first, task, data, lambda image: {"logits": np.array([[-1, 1]], np.float32) * image.mean()})
    assert ("these images' mean" in words) == (labelled and not firm)
    if labelled and not firm:
        assert "0..255 less these images' mean RGB is clearly better" in words
        assert mean.keys["scale"] == 1
        assert mean.keys["mean"] == pytest.approx([40, 40, 40], abs=2)


@pytest.mark.parametrize("labelled", [True, False])
def test_what_is_usual_does_not_run_and_another_scale_does(folder, labelled):
    """A family that tells its numbers is held to them, unless its network cannot take them; the others were not looked at."""
    generator = np.random.default_rng(0)
    for level in range(10):
        kind = folder / (f"lights/{level}" if labelled else "lights")
        kind.mkdir(parents=True, exist_ok=True)
        for place in range(2):
            pixels = generator.integers(25 * level + 9, 25 * level + 16, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(kind / f"{level}{place}.png")
    task = TaskGuess({"name": "classification"}, classes=10)
    first = Guessed({"size": [32, 32], "resize": {"rule": "stretch"}, "scale": 1}, label="0..255", firm=True)

    def run(image: np.ndarray) -> dict[str, np.ndarray]:
        if image.max() > 10:
            raise DataError("not finite", "other pixels")
        return {"logits": -2000 * np.square(image.mean() - np.arange(0.05, 1, 0.1, dtype=np.float32))[None]}

    found, words = choosing.chosen(first, task, guessed_data(task, folder / "lights", None), run)
    assert "0..255 RGB does not run" in words
    assert words.endswith(": 0..1 RGB is clearly better than what is usual")
    assert found.label == "0..1"


def test_where_no_candidate_runs_nothing_is_measured(folder):
    def run(image: np.ndarray) -> dict[str, np.ndarray]:
        raise DataError("not finite", "other pixels")

    task = TaskGuess({"name": "classification"}, classes=2)
    first = Guessed({"size": [32, 32], "resize": {"rule": "stretch"}})
    found, words = choosing.chosen(first, task, guessed_data(task, folder / "photos", None), run)
    assert (found, words) == (first, "nothing: the network does not run on these images so")


def test_where_nothing_matches_what_is_usual_is_not_called_best(folder):
    write_squares(folder / "squares", 4, seed=5)
    task = TaskGuess({"name": "detection", "decoder": "yolov8"}, family="yolov8", classes=2)
    first = Guessed({"size": [32, 32], "resize": {"rule": "stretch"}})
    data = guessed_data(task, folder / "squares", None)
    rows = np.zeros((1, 6, 21), np.float32)
    rows[0, :5] = [[2.0], [2], [4], [4], [0.9]]
    _, words = choosing.chosen(first, task, data, lambda _: {"output": rows})
    assert words.endswith("BGR 0.00: nothing matches under any of them: the decoder, the boxes' units or the classes are in doubt")


def test_labels_without_any_object_do_not_decide_about_preprocessing(folder):
    write_squares(folder / "squares", 4, seed=5)
    file = folder / "squares/instances.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"annotations": []}))
    task = TaskGuess({"name": "detection", "decoder": "yolov8"}, family="yolov8", classes=2)
    data = guessed_data(task, folder / "squares", None)
    assert data.labelled
    first = Guessed({"size": [32, 32], "resize": {"rule": "stretch"}})
    rows = np.zeros((1, 6, 21), np.float32)
    rows[0, :5] = [[16.0], [16], [4], [4], [0.9]]
    _, words = choosing.chosen(first, task, data, lambda _: {"output": rows})
    assert "F1 of a photo's boxes to its mirror image's" in words


@pytest.mark.parametrize(("seconds", "images"), [(1e9, 10), (0.5, None), (0.05, 0)])
def test_of_slow_networks_fewer_images_are_tried_and_at_last_none(folder, monkeypatch, seconds, images):
    """A run of four seconds, for each of seven candidates and eight photos, mirrored ones too, took ten minutes without a word."""
    monkeypatch.setattr(choosing, "_SECONDS", seconds)
    task, first, ran = TaskGuess({"name": "embedding"}), Guessed({"size": [32, 32], "resize": {"rule": "stretch"}}), []
    # A clock of its own: on a busy machine the real one has fewer images tried.
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: 0.01 * len(ran)))

    def run(tensor: np.ndarray) -> dict[str, np.ndarray]:
        ran.append(tensor)
        return {"features": tensor.mean((2, 3))}

    data = guessed_data(task, folder / "photos", None)
    _, words = choosing.chosen(first, task, data, run)
    # Two of the images' own numbers, and the best once more with colours turned.
    candidates = len([first, *tried_instead(first)]) + 3
    if images == 0:
        assert len(ran) == 1
        assert words.startswith("nothing: a run takes 0.0 s here")
    else:
        tried = int(re.search(r"on (\d+) images", words)[1])
        assert tried == images if images else 4 <= tried < 10
        assert len(ran) == 1 + candidates * tried


BOX = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
XML = f"<annotation><object><name>a</name>{BOX}</object></annotation>"


def write_labelled(photos: Path, labels: Path, suffix: str, seed: int, count: int = 3) -> list[str]:
    """Photos with a label file each; their stems."""
    labels.mkdir(parents=True, exist_ok=True)
    paths = write_images(photos, count, seed=seed)
    for path in paths:
        (labels / f"{path.stem}{suffix}").write_text(XML if suffix == ".xml" else "0 .5 .5 .1 .1\n")
    return [path.stem for path in paths]


def detection_data(root: Path, classes: int = 1) -> tuple[list[dict], DataGuess]:
    """Both sets' blocks without `split`, and the guess."""
    data = guessed_data(TaskGuess({"name": "detection"}, classes=classes), root, None)
    blocks = [{key: value for key, value in each.items() if key != "split"} for each in (data.calibration, data.validation)]
    return [block | {"path": block["path"].relative_to(root).as_posix()} for block in blocks], data


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("train", "val"), None),
        (("training", "valid"), None),
        (("train2017", "val2017"), "path: ../elsewhere\ntrain: images/train2017\nval: images/val2017"),
        (("a/fit", "a/judge"), "train: [/data/set/images/a/fit]\ntest: ./images/a/judge"),
    ],
)
def test_a_yolo_set_s_parts_within_images(tmp_path, names, told):
    for seed, name in enumerate(names):
        write_labelled(tmp_path / "images" / name, tmp_path / "labels" / name, ".txt", seed)
    if told is not None:
        (tmp_path / "data.yaml").write_text(f"names: [a]\n{told}\n")
    blocks, data = detection_data(tmp_path)
    assert blocks == [{"format": "yolo", "path": f"images/{name}"} for name in names]
    assert data.labelled
    assert len(data.items) == 3
    assert data.why["calibration"] == f"the folder has parts named images/{names[0]} and images/{names[1]}"


def test_of_several_folders_for_training_one_is_calibrated_on(tmp_path):
    """Parted at random, photos of training were validated on."""
    for seed, (name, count) in enumerate((("a", 2), ("b", 5), ("judge", 3))):
        write_labelled(tmp_path / "images" / name, tmp_path / "labels" / name, ".txt", seed, count)
    (tmp_path / "data.yaml").write_text("names: [a]\ntrain: [images/a, images/b, images/none]\nval: images/judge\n")
    blocks, data = detection_data(tmp_path)
    assert blocks == [{"format": "yolo", "path": f"images/{name}"} for name in ("b", "judge")]
    assert data.samples == 5


@pytest.mark.parametrize(
    "told",
    [
        "train: [images/a, images/b]\nval: images/a",
        "train: images/a\nval: [images/b, images/c]",
        "train: images/a\nval: images/a",
        "train: images\nval: images/a",
        "train: images/c\nval: images/a",
        "val: images/a",
    ],
)
def test_a_yolo_set_whose_parts_are_none_is_parted(tmp_path, told):
    for seed, name in enumerate("ab"):
        write_labelled(tmp_path / "images" / name, tmp_path / "labels" / name, ".txt", seed)
    (tmp_path / "mine.yaml").write_text(f"names: [a]\n{told}\n")
    blocks, data = detection_data(tmp_path)
    assert {block["path"] for block in blocks} == {"."}
    assert data.why["calibration"].startswith("6 images in one folder")


def test_a_voc_set_s_parts_are_lists(tmp_path):
    stems = [write_labelled(tmp_path / "JPEGImages", tmp_path / "Annotations", ".xml", seed) for seed in range(2)]
    lists = tmp_path / "ImageSets/Main"
    lists.mkdir(parents=True)
    for name, names in (
        ("train", stems[0]),
        ("val", stems[1][:1]),
        ("trainval", [*stems[0], *stems[1][:1]]),
        ("test", stems[1][1:]),
    ):
        (lists / f"{name}.txt").write_text("".join(f"{stem} -1\n" for stem in names))
    for chosen, count in ((("trainval", "test"), 2), (("train", "val"), 1)):
        blocks, data = detection_data(tmp_path)
        assert [block["annotations"] for block in blocks] == [f"ImageSets/Main/{name}.txt" for name in chosen]
        assert data.labelled
        assert len(data.items) == count
        # Judged on an image that is not there, or that trainval has, too.
        (lists / "test.txt").write_text("absent\n")
    # Without their labels, lists choose nothing.
    blocks, data = detection_data(tmp_path, classes=5)
    assert blocks == [{"format": "folder", "path": "JPEGImages"}] * 2
    assert data.validation["split"] == {"start": 0.5, "stop": 1.0}
    (lists / "val.txt").write_text((lists / "train.txt").read_text())
    assert "annotations" not in detection_data(tmp_path)[0][0]


def test_roboflow_s_xml_beside_the_images(tmp_path):
    for seed, part in enumerate(("train", "valid")):
        write_labelled(tmp_path / part, tmp_path / part, ".xml", seed)
    blocks, data = detection_data(tmp_path)
    assert blocks == [{"format": "voc", "path": part} for part in ("train", "valid")]
    assert data.labelled


@pytest.mark.parametrize(("inner", "year"), [("", "2017"), ("images", "2017"), ("", "")])
def test_coco_s_own_folders(tmp_path, inner, year):
    parts = [f"train{year}", f"val{year}"]
    (tmp_path / "annotations").mkdir()
    for seed, part in enumerate(parts):
        write_squares(tmp_path / part, 3, seed=seed)
        instances = json.loads((tmp_path / part / "instances.json").read_text())
        (tmp_path / inner / part).parent.mkdir(exist_ok=True)
        # Both parts have images of the same names.
        (tmp_path / part / "images").rename(tmp_path / "moved")
        shutil.rmtree(tmp_path / part)
        (tmp_path / "moved").rename(tmp_path / inner / part)
        (tmp_path / f"annotations/instances_{part}.json").write_text(json.dumps(instances))
        people = instances | {"categories": [{"id": 1, "name": "person"}], "annotations": []}
        (tmp_path / f"annotations/a_keypoints_{part}.json").write_text(json.dumps(people))
        (tmp_path / f"annotations/captions_{part}.json").write_text("{}")
    blocks, data = detection_data(tmp_path, classes=2)
    files = [f"annotations/instances_{part}.json" for part in parts]
    assert blocks == [{"format": "coco", "path": ".", "annotations": file} for file in files]
    assert data.labelled
    assert {item.path.parent for item in data.items} == {tmp_path / inner / parts[1]}
    assert data.why["calibration"] == f"the folder has parts named {parts[0]} and {parts[1]}"
    # Calibration needs no labels; those of other classes are no use to either.
    for file in (tmp_path / "annotations").glob(f"*_{parts[0]}.json"):
        file.unlink()
    assert detection_data(tmp_path, classes=2)[0][0] == {"format": "folder", "path": str(Path(inner, parts[0]))}
    assert detection_data(tmp_path, classes=5)[0][1] == {"format": "folder", "path": str(Path(inner, parts[1]))}


def test_a_detector_with_coco_s_boxes(folder):
    onnx.save(grid_detector(size=64), folder / "grid.onnx")
    write_squares(folder / "squares", 32, seed=5)
    told = succeed("grid.onnx", task="detection", data="squares")
    spec = load("params.yaml").models["grid"]
    assert spec.task.decoder == "nanodet"
    assert spec.data.validation.format == "coco"
    assert spec.data.validation.annotations == "instances.json"
    assert (spec.input.resize.rule, spec.input.resize.antialias) == ("letterbox", False)
    assert "# antialias: false is OpenCV's resize" in Path("params.yaml").read_text()
    # The network tells red from green in RGB, which NanoDet takes as BGR: the boxes say so.
    assert spec.input.colour == "rgb"
    assert "nanodet RGB is clearly better" in " ".join(line.strip(" #") for line in Path("params.yaml").read_text().splitlines())
    assert "not accuracy" not in told
    for stage in ("export", "calibrate"):
        done = run_stage(stage, "--model", "grid")
        assert done.returncode == 0, done.stderr


def cut_before_its_boxes() -> onnx.ModelProto:
    """A detector that ends in a plugin without a body; what that reads, 1 x 21 x 1 x 4 and 1 x 21 x 6, looks like a YOLOv4."""
    tensors = {
        "weight": he(np.random.default_rng(0), 210, 3, 1, 1),
        "rows": np.array([1, 21, 10], np.int64),
        "parts": np.array([4, 6], np.int64),
        "one": np.array([2], np.int64),
    }
    nodes = [
        oh.make_node("GlobalAveragePool", ["image"], ["mean"], "mean"),
        oh.make_node("Conv", ["mean", "weight"], ["all"], "head"),
        oh.make_node("Reshape", ["all", "rows"], ["table"], "table"),
        oh.make_node("Split", ["table", "parts"], ["corners", "logits"], "split", axis=2),
        oh.make_node("Unsqueeze", ["corners", "one"], ["boxes"], "boxes"),
        oh.make_node("Sigmoid", ["logits"], ["scores"], "scores"),
        oh.make_node("BatchedNMS_TRT", ["boxes", "scores"], ["n", "b", "s", "c"], "nms", keepTopK=10),
    ]
    graph = oh.make_graph(
        nodes,
        "cut",
        [oh.make_tensor_value_info("image", 1, [1, 3, 32, 32])],
        [oh.make_tensor_value_info(*one) for one in (("n", 6, [1, 1]), ("b", 1, [1, 10, 4]), ("s", 1, [1, 10]), ("c", 1, [1, 10]))],
        [onh.from_array(value, name) for name, value in tensors.items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


def test_of_a_graph_cut_before_its_boxes_no_family_is_told(folder):
    """With its own rows it was taken for a YOLOX of one class, and the images were to be fed as that takes them: BGR, 0..255."""
    onnx.save(cut_before_its_boxes(), folder / "cut.onnx")
    write_squares(folder / "squares", 8, seed=5)
    succeed("cut.onnx", task="detection", data="squares")
    spec = load("params.yaml").models["cut"]
    assert (spec.task.decoder, spec.input.colour, spec.input.scale) == ("auto", "rgb", 255)
    assert "Measured nothing: the graph is cut before its outputs" in Path("params.yaml").read_text()
    told = octavo("inspect", "cut.onnx").stdout
    assert "detector family  none: the graph is cut before its outputs, at a custom operator that has no body" in told


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("{0: 'red', 1: 'green'}", ("red", "green")),
        ("{1: 'red', 0: 'green'}", ("green", "red")),
        ("{0: 'red', 2: 'green'}", None),
        ("{0: 'red', 1: 'green', 2: 'blue'}", None),
        ("{0: 'rot', 1: 'gruen'}", None),
        ("{0: red", None),
        ("{[]: 'red'}", None),
        ("{0: 'red', 1: 'red'}", None),
    ],
)
def test_class_names_that_the_exporter_wrote(folder, names, expected):
    model = grid_detector(size=64)
    onnx.helper.set_model_props(model, {"names": names})
    onnx.save(model, folder / "grid.onnx")
    write_squares(folder / "squares", 6, seed=5)
    succeed("grid.onnx", task="detection", data="squares")
    assert load("params.yaml").models["grid"].task.classes == expected
    assert ("as the file's own metadata names them" in Path("params.yaml").read_text()) == bool(expected)


def test_chosen_boxes_of_coco_have_the_classes_that_the_exporter_wrote(folder):
    """Boxes that the graph has chosen do not tell how many classes there are: a set's own few were taken in their order, and its
    person, index 1 by name, was scored against what the model calls a bicycle."""
    write_squares(folder / "squares", 4, seed=5)
    file = folder / "squares/instances.json"
    table = json.loads(file.read_text())
    table["categories"] = [{"id": 1, "name": "dog"}, {"id": 2, "name": "person"}]
    file.write_text(json.dumps(table))
    task = TaskGuess({"name": "detection"}, family="yolov10", names=COCO80)
    data = guessed_data(task, folder / "squares", None)
    assert data.labelled
    assert (task.keys["classes"], task.why["classes"]) == ("coco80", "as the file's own metadata names them")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[64, 128]", (64, 128)),
        ("[64]", (640, 640)),
        ("[0, 64]", (640, 640)),
        ("['64', 64]", (640, 640)),
        ("64", (640, 640)),
        ("[64, ", (640, 640)),
    ],
)
def test_an_open_size_is_the_one_that_the_exporter_wrote(folder, written, expected):
    """An export with `dynamic=True, imgsz=320` was entered at 640x640, and so calibrated and scored."""
    model = grid_detector()
    onnx.helper.set_model_props(model, {"imgsz": written})
    onnx.save(model, folder / "grid.onnx")
    write_squares(folder / "squares", 6, seed=5)
    succeed("grid.onnx", task="detection", data="squares")
    assert load("params.yaml").models["grid"].input.size == expected
    page = " ".join(Path("params.yaml").read_text().replace("#", "").split())
    assert ("and its exporter wrote this size beside it; `--size HxW` sets another" in page) == (expected == (64, 128))
    succeed("grid.onnx", "--name", "asked", "--size", "96x96", task="detection", data="squares")
    assert load("params.yaml").models["asked"].input.size == (96, 96)


def test_raw_pixels_in_channels_last(folder):
    onnx.save(grid_detector(raw=True), folder / "raw.onnx")
    write_squares(folder / "squares", 6, seed=5)
    succeed("raw.onnx", "--size", "64x128", task="detection", data="squares")
    found = load("params.yaml").models["raw"].input
    assert (found.dtype, found.layout, found.size, found.scale) == ("uint8", "nhwc", (64, 128), 1)
    assert "as the graph has it" in Path("params.yaml").read_text()


def test_a_segmentation_network_with_masks(folder):
    generator = np.random.default_rng(0)
    tensors = {"w": he(generator, 3, 3, 3, 3)}
    node = oh.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    save(network([node], tensors, ["y"], inputs={"x": [1, 3, 16, 16]}), folder / "masks.onnx")
    for name, seed in (("train", 1), ("val", 2)):
        for path in write_images(folder / f"streets/{name}/images", 6, seed=seed, size=(20, 30)):
            mask = generator.integers(0, 3, (20, 30), dtype=np.uint8)
            mask[0] = 255
            (folder / f"streets/{name}/masks").mkdir(exist_ok=True)
            Image.fromarray(mask).save(folder / f"streets/{name}/masks/{path.name}")
    succeed("masks.onnx", task="segmentation", data="streets")
    spec = load("params.yaml").models["masks"]
    assert spec.task.void == 255
    assert (spec.data.calibration.path, spec.data.validation.path) == ("streets/train", "streets/val")
    assert spec.data.validation.format == "masks"
    assert spec.calibrate.samples == 6
    done = run_stage("export", "--model", "masks")
    assert done.returncode == 0, done.stderr


def test_embeddings(folder):
    succeed("mine.onnx", task="embedding")
    text = Path("params.yaml").read_text()
    assert "format: identities, path: photos" in text
    assert load("params.yaml").models["mine"].task.name == "embedding"
    photos = folder / "photos"
    people = {one.name: sorted(path.relative_to(photos) for path in one.iterdir()) for one in photos.iterdir()}
    lines = [f"{a} {b} 1" for paths in people.values() for a, b in itertools.pairwise(paths)]
    names = sorted(people)
    lines += [f"{people[a][0]} {people[b][0]} 0" for a, b in itertools.pairwise(names)]
    (photos / "pairs.txt").write_text("\n".join(lines) + "\n")
    succeed("mine.onnx", "--name", "paired", task="embedding")
    block = yaml.safe_load(Path("params.yaml").read_text())["models"]["paired"]["data"]["validation"]
    assert (block["format"], block["annotations"]) == ("pairs", "pairs.txt")


def test_a_params_file_elsewhere(folder):
    (folder / "project").mkdir()
    told = succeed("mine.onnx", "--params", "project/params.yaml")
    assert "project" in told
    spec = load("project/params.yaml").models["mine"]
    # Stages run in the project's folder: what lies beside it is found from there.
    assert spec.source.file == str(folder / "mine.onnx")
    assert spec.data.validation.path == str(folder / "photos")


def test_formats_by_their_looks(tmp_path):
    write_images(tmp_path / "flat", 2, seed=0)
    assert recognised(tmp_path / "flat", "classification").format == "folder"
    write_images(tmp_path / "yolo/images", 2, seed=0)
    (tmp_path / "yolo/labels").mkdir()
    (tmp_path / "yolo/labels/image_0_000.txt").write_text("0 .5 .5 .1 .1\n")
    assert recognised(tmp_path / "yolo", "detection").format == "yolo"
    write_images(tmp_path / "voc/JPEGImages", 1, seed=0)
    (tmp_path / "voc/Annotations").mkdir()
    (tmp_path / "voc/Annotations/image_0_000.xml").write_text("<annotation/>")
    assert recognised(tmp_path / "voc", "detection").format == "voc"
    # A JSON file of something else is no annotation.
    write_squares(tmp_path / "coco", 1, seed=0)
    (tmp_path / "coco/a.json").write_text("{}")
    assert recognised(tmp_path / "coco", "detection").annotations == "instances.json"
    assert recognised(tmp_path / "coco", "segmentation").format == "folder"


MEAN, STD = np.array([123.7, 116.3, 103.5], np.float32), np.array([58.4, 57.1, 57.4], np.float32)


def begins(*nodes: onnx.NodeProto, **tensors: np.ndarray) -> ir.Value:
    conv = oh.make_node("Conv", [nodes[-1].output[0] if nodes else "x", "w"], ["y"], "conv")
    all_ = tensors | {"w": np.zeros((4, 3, 1, 1), np.float32)}
    return network([*nodes, conv], all_, ["y"]).graph.inputs[0]


def test_normalisation_that_the_graph_does_itself():
    sub, div = oh.make_node("Sub", ["x", "m"], ["a"], "sub"), oh.make_node("Div", ["a", "s"], ["b"], "div")
    found = inside(begins(sub, div, m=MEAN.reshape(1, 3, 1, 1), s=STD.reshape(1, 3, 1, 1)))
    np.testing.assert_allclose(found.factor, 1 / STD, rtol=1e-6)
    np.testing.assert_allclose(found.offset, -MEAN / STD, rtol=1e-6)
    assert (found.pixels, found.bgr, found.nodes) == ("0..255", False, ("Sub sub", "Div div"))
    assert inside(begins(sub, div, m=MEAN[::-1].reshape(1, 3, 1, 1).copy(), s=STD.reshape(1, 3, 1, 1))).bgr
    shares = inside(begins(sub, div, m=MEAN.reshape(1, 3, 1, 1) / 255, s=STD.reshape(1, 3, 1, 1) / 255))
    assert shares.pixels == "0..1"
    scaled = inside(begins(oh.make_node("Mul", ["x", "k"], ["b"], "scale"), k=np.float32(1 / 255)))
    assert scaled.pixels == "0..255"
    numbers = {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32), "m": MEAN, "v": STD**2}
    norm = oh.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"], "norm")
    assert inside(begins(norm, **numbers)).pixels == "0..255"
    assert inside(begins()) is None
    unclear = inside(begins(oh.make_node("Mul", ["x", "k"], ["b"], "scale"), k=np.float32(2)))
    assert unclear.pixels == ""


@pytest.mark.parametrize(
    "turn",
    [oh.make_node("Slice", ["x", "last", "first", "axis", "back"], ["t"]), oh.make_node("Gather", ["x", "bgr"], ["t"], axis=1)],
)
def test_a_graph_that_turns_rgb_into_bgr_and_subtracts_the_means_of_bgr_takes_rgb(turn):
    sub = oh.make_node("Sub", ["t", "m"], ["a"], "sub")
    places = {
        "last": np.array([2]),
        "first": np.array([-9]),
        "axis": np.array([1]),
        "back": np.array([-1]),
        "bgr": np.array([2, 1, 0]),
    }
    found = inside(begins(turn, sub, m=MEAN[::-1].reshape(1, 3, 1, 1).copy(), **{name: places[name] for name in turn.input[1:]}))
    np.testing.assert_allclose(found.offset, -MEAN, rtol=1e-6)
    assert (found.pixels, found.bgr) == ("0..255", False)


@pytest.mark.parametrize(("found", "decoder"), [(0, None), (1, "chosen-shares")])
def test_where_nothing_is_found_no_decoder_is_guessed(found, decoder):
    box, score = np.float32([[[0.1, 0.2, 0.3, 0.4]]]) * found, np.float32([[0.9]]) * found
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    task = guessed_task("detection", {"boxes": box, "scores": score, "labels": np.zeros((1, 1), np.int64)}, (64, 64), model)
    assert task.keys.get("decoder") == decoder
    assert task.family == (decoder or "chosen")


def test_families_whose_preprocessing_is_known_yield_to_labels_alone():
    image = ImageInput.of(ir.Value(name="x", shape=ir.Shape([1, 3, 64, 64]), type=ir.TensorType(ir.DataType.FLOAT)))

    def guess(family: str, outputs: int) -> Guessed:
        values = [ir.Value(name=f"y{place}") for place in range(outputs)]
        return guessed("detection", family, image, (64, 64), found=None, outputs=values)

    known = {"ssd": 2, "efficientnms": 4, "chosen": 3, "rtdetr": 2, "yolov5": 1}
    assert all(guess(family, outputs).firm for family, outputs in known.items())
    assert guess("chosen", 3).keys == guess("rtdetr", 2).keys
    assert guess("detr", 2).firm
    assert guess("detr", 2).block().mean == (0.485, 0.456, 0.406)
    # The unit of boxes says nothing of pixels; chosen boxes in shares are not RT-DETR's.
    assert guess("yolov5-shares", 1).keys == guess("yolov5", 1).keys
    assert not guess("chosen-shares", 3).firm
    # MMDeploy's boxes and labels, and what PaddleDetection chose: of networks that differ.
    assert not guess("chosen", 2).firm
    assert not guess("paddle", 2).firm
    # As their training code resizes: of OpenCV, of Pillow.
    assert guess("paddle", 2).block().resize == Resize(rule="stretch", resample="bicubic", antialias=False)
    plain = ("yolov5", "yolov8", "yolox", "nanodet", "ssd", "tflite", "yolov4", "rtdetr-chosen", "chosen-shares", "yolonas")
    assert not any(guess(family, 1).block().resize.antialias for family in plain)
    assert all(guess(family, 2).block().resize.antialias for family in ("rtdetr", "torchvision", "yolov3-keras"))


def test_a_classifier_that_is_not_square_is_not_cropped():
    """Of lines of text (48x192) and persons (256x128) a crop would show the middle alone."""
    image = ImageInput.of(ir.Value(name="x", shape=ir.Shape([1, 3, None, None]), type=ir.TensorType(ir.DataType.FLOAT)))

    def guess(*size: int) -> Guessed:
        return guessed("classification", None, image, size, found=None, outputs=[ir.Value(name="y")])

    square, line, person = guess(224, 224), guess(48, 192), guess(256, 128)
    assert (square.block().resize, square.keys["crop"]) == (Resize(rule="shorter", to=256), "center")
    for wide in (line, person):
        assert (wide.block().resize, wide.block().crop) == (Resize(rule="stretch"), "none")
        assert wide.why["resize"] != wide.why["scale"] == square.why["resize"]


def test_a_graph_that_normalises_settles_the_input(folder):
    proto = small_network()
    tensors = {"pixel.mean": MEAN.reshape(1, 3, 1, 1), "pixel.std": STD.reshape(1, 3, 1, 1)}
    proto.graph.initializer.extend(onh.from_array(value, name) for name, value in tensors.items())
    proto.graph.node[0].input[0] = "normal"
    proto.graph.node.insert(0, oh.make_node("Div", ["less", "pixel.std"], ["normal"], "div"))
    proto.graph.node.insert(0, oh.make_node("Sub", ["image", "pixel.mean"], ["less"], "sub"))
    onnx.save(proto, folder / "normal.onnx")
    succeed("normal.onnx")
    spec = load("params.yaml").models["normal"].input
    assert (spec.scale, spec.mean, spec.std) == (1, (0.0,), (1.0,))
    assert "the graph begins with Sub sub, Div div" in Path("params.yaml").read_text()


def test_a_file_for_several_images_at_a_time(folder):
    onnx.save(small_network(batch=4), folder / "four.onnx")
    succeed("four.onnx")
    assert load("params.yaml").models["four"].source.dynamic_batch
    assert "# the file is for 4 images at a time, the stages run one." in Path("params.yaml").read_text()
    done = run_stage("export", "--model", "four")
    assert done.returncode == 0, done.stderr
    assert "not compared" not in done.stdout
    # What is joined to all four, nothing opens.
    proto = small_network(batch=4)
    proto.graph.initializer.append(onh.from_array(np.zeros((4, 1), np.float32), "each"))
    proto.graph.node[-1].output[0] = "scores"
    proto.graph.node.append(oh.make_node("Concat", ["scores", "each"], ["logits"], axis=1))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value += 1
    onnx.save(proto, folder / "held.onnx")
    done = init("held.onnx")  # ONNX Runtime says itself that it fails, before
    assert done.returncode == 2
    assert "; the file is for 4 images at a time\n  to mend: export it for one image" in done.stderr


def test_layouts_and_names():
    def value(*shape: int | str) -> ImageInput:
        return ImageInput.of(ir.Value(name="x", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)))

    assert value("n", 3, 32, 48).sides == (32, 48)
    assert (value(1, 32, 48, 3).layout, value(1, 32, 48, 3).sides) == ("nhwc", (32, 48))
    assert value("n", "c", "h", "w").channels is None
    assert value("n", 3, "h", 3).layout == "nchw"
    assert model_name(Path("a/Mein Modell (v2).onnx"), None) == "Mein_Modell_v2"
    assert model_name(Path("resnet/model.onnx"), None) == "resnet"


def test_nothing_is_written_of_an_entry_that_does_not_load(tmp_path):
    from octavo.errors import ParamsError

    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(project_params()))
    before = path.read_bytes()
    with pytest.raises(ParamsError, match="cannot be appended"):
        append_entry(path, "mine", ["task: classification", "source: {kind: onnx}"])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["params.yaml"]
