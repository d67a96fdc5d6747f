"""Several heads of one segmentation network in one run: grammar, masks and figures of each, their mean, pictures, stages."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
import yaml
from conftest import project_params
from forked import run_stage
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_segmentation import SPEC, pair, write

from octavo.calibration.statistics import Statistics
from octavo.errors import DataError, ParamsError
from octavo.evidence.pictures import write_pictures
from octavo.evidence.report import part_tables
from octavo.evidence.validation import Validation
from octavo.images.dataset import Classes, Images, Item, open_set
from octavo.images.feeds import Feeds
from octavo.images.masks import VOID, Mask
from octavo.params import load_model
from octavo.params.grammar import ImageSet, Input, Segmentation, Validate
from octavo.runtime.session import Session
from octavo.tasks.segmentation.score import SegmentationScore

HEADS = {"road": {"output": "a", "classes": ["rest", "road"], "void": 9}, "lane": {"output": "b"}}
TASK = Segmentation.model_validate({"name": "segmentation", "heads": HEADS})


def two_heads() -> onnx.ModelProto:
    """Dark and bright by the mean of 3x3 pixels; and red, green or neither by the pixel."""
    weight = np.stack([np.full((3, 3, 3), -1 / 27), np.full((3, 3, 3), 1 / 27)]).astype(np.float32) * 8
    colours = np.array([[0.5, 0.5, 0.5], [3, -2, 0], [-2, 3, 0]], np.float32)[:, :, None, None]
    graph = oh.make_graph(
        [
            oh.make_node("Conv", ["image", "weight", "bias"], ["bright"], "bright", pads=[1] * 4),
            oh.make_node("Conv", ["image", "colours"], ["colour"], "colour"),
        ],
        "two",
        [oh.make_tensor_value_info("image", 1, ["batch", 3, 32, 32])],
        [oh.make_tensor_value_info(name, 1, ["batch", count, 32, 32]) for name, count in (("bright", 2), ("colour", 3))],
        [
            onh.from_array(weight, "weight"),
            onh.from_array(np.array([4, -4], np.float32), "bias"),
            onh.from_array(colours, "colours"),
        ],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


def road_set(root: Path, **heads: dict) -> ImageSet:
    blocks = heads or {"road": {"annotations": "gt_road"}, "lane": {"annotations": "gt_lane"}}
    return ImageSet(format="masks", path=str(root), heads=blocks)


class TestGrammar:
    def test_a_head_reads_the_output_of_its_name_unless_said(self):
        assert {name: head.output for name, head in TASK.each.items()} == {"road": "a", "lane": "b"}
        bare = Segmentation.model_validate({"name": "segmentation", "heads": {"road": {}, "lane": {"output": "x"}}})
        assert {name: head.output for name, head in bare.each.items()} == {"road": "road", "lane": "x"}
        single = Segmentation(name="segmentation", output="y", classes=("a", "b"), void=3)
        assert dict(single.each) == {"": single}

    @pytest.mark.parametrize(
        ("task", "masks", "expected"),
        [
            ({"heads": HEADS, "output": "a"}, {}, ["models.small.task", "`output` stands beside `heads`"]),
            ({"heads": {"a.b": {}}}, {}, ["models.small.task", "'a.b' must be letters"]),
            ({"heads": {"road": {"output": "x"}, "x": {}}}, {}, ["2 heads read one output, 'x'"]),
            ({"heads": {"road": {"clases": ["a"]}}}, {}, ["small.task.heads.road.clases", "did you mean 'classes'"]),
            ({"heads": HEADS}, {}, ["data.validation: `task.heads` are several, which masks are whose?", "lane: {annotations"]),
            (
                {"heads": HEADS},
                {"heads": {"lan": {"annotations": "x"}}},
                ["data.validation.heads.lan", "did you mean 'lane'? it has: lane, road"],
            ),
            ({}, {"heads": {"lane": {"annotations": "x"}}}, ["data.validation.heads.lane", "it has none"]),
            ({"heads": HEADS}, {"heads": {"lane": {}}}, ["data.validation.heads.lane.annotations", "required"]),
            (
                {"heads": HEADS},
                {"heads": {"lane": {"annotations": "x"}}, "annotations": "y"},
                ["small.data.validation", "`annotations` stands beside `heads`"],
            ),
            ({"heads": HEADS}, {"format": "folder", "heads": {"lane": {"annotations": "x"}}}, ["the format is folder"]),
        ],
    )
    def test_mistakes(self, tmp_path, task, masks, expected):
        data = {"calibration": {"format": "folder", "path": "c"}, "validation": {"format": "masks", "path": "v"} | masks}
        params = project_params(task={"name": "segmentation"} | task, data=data)
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(params))
        with pytest.raises(ParamsError) as caught:
            load_model(tmp_path / "p.yaml", "small")
        for part in expected:
            assert part in str(caught.value)


class TestMasks:
    def test_each_head_has_its_folder_and_what_its_values_mean(self, tmp_path):
        pair(tmp_path, "a", np.array([[0, 1], [2, 9]]), "gt")
        classes = Classes(scored=True, heads={"road": Classes(2, ("rest", "road")), "lane": Classes(3)})
        shared = {"road": {"annotations": "gt", "class_map": {1: "road", 9: None, "*": "rest"}}, "lane": {"annotations": "gt"}}
        (item,) = open_set(road_set(tmp_path, **shared), "here", classes)
        assert item.labelled
        assert not item.unlabelled().labelled
        assert item.masks["road"].read((2, 2), 2, None).tolist() == [[0, 1], [0, VOID]]
        assert item.masks["lane"].read((2, 2), 3, 9).tolist() == [[0, 1], [2, VOID]]
        with pytest.raises(DataError, match="here.heads.road: 'lane' is no class of the model"):
            open_set(road_set(tmp_path, road={"annotations": "gt", "class_map": {1: "lane"}}), "here", classes)
        wrong = Classes(scored=True, heads={"lane": Classes(3, ("a", "b"))})
        with pytest.raises(ParamsError, match=r"`task\.heads\.lane\.classes` names 2 classes, the model tells 3 apart"):
            open_set(road_set(tmp_path, **shared), "here", wrong)

    def test_a_dataset_may_lack_a_head_s_folder_but_an_image_not_its_mask(self, tmp_path):
        for dataset, folder in (("day", "gt_road"), ("day", "gt_lane"), ("night", "gt_road"), ("rain", "other")):
            pair(tmp_path / dataset, "a", np.zeros((2, 2)), folder)
        found = {item.dataset: set(item.masks) for item in open_set(road_set(tmp_path), "here")}
        assert found == {"day": {"road", "lane"}, "night": {"road"}, "rain": set()}
        with pytest.raises(DataError, match=r"heads\.lane\.annotations: no folder .*day/lanes, nor in the 2 dataset"):
            open_set(road_set(tmp_path, lane={"annotations": "lanes"}), "here")
        write(tmp_path / "day/images/b.png", np.zeros((2, 2)))
        write(tmp_path / "day/gt_road/b.png", np.zeros((2, 2)))
        with pytest.raises(DataError, match=r"heads\.lane: 1 image\(s\) have no mask of their name: .*b\.png"):
            open_set(road_set(tmp_path), "here")

    def test_a_dataset_named_as_a_head_would_be_two_things(self, tmp_path):
        for dataset in ("day", "lane"):
            pair(tmp_path / dataset, "a", np.zeros((2, 2)), "gt_road")
        block = road_set(tmp_path, road={"annotations": "gt_road"})
        with pytest.raises(DataError, match="lane is named as a head of the task"):
            open_set(block, "here", Classes(heads={"road": Classes(2), "lane": Classes(2)}))


def maps(generator: np.random.Generator, truth: np.ndarray, classes: int, wrong: float) -> np.ndarray:
    flipped = np.where(generator.random(truth.shape) < wrong, (truth + 1) % classes, truth)
    return np.eye(classes, dtype=np.float32)[np.maximum(flipped, 0)].transpose(2, 0, 1)[None]


class TestScore:
    @given(st.integers(0, 10_000), st.lists(st.sampled_from(["both", "road", "lane", "none"]), min_size=1, max_size=6))
    @settings(deadline=None, max_examples=40)
    def test_figures_without_a_head_s_name_are_means_over_heads(self, tmp_path_factory, seed, shown):
        folder, generator = tmp_path_factory.mktemp("masks"), np.random.default_rng(seed)
        kinds = {"road": 2, "lane": 3}
        both = reference, variant = SegmentationScore(TASK, SPEC), SegmentationScore(TASK, SPEC)
        alone = {name: SegmentationScore(Segmentation(name="segmentation", **dict(head)), SPEC) for name, head in TASK.each.items()}
        for place, labelled in enumerate(shown):
            truth = {name: generator.integers(0, kinds[name], (8, 8)) for name in kinds}
            masks = {
                name: Mask(write(folder / f"{seed}_{place}_{name}.png", truth[name]), {}, None, {})
                for name in kinds
                if labelled in ("both", name)
            }
            right, worse = (
                {TASK.each[name].output: maps(generator, truth[name], kinds[name], wrong) for name in kinds} for wrong in (0, 0.3)
            )
            dataset = "day" if place % 2 else "night"
            item = Item(Path(), str(place), "", shape=(8, 8), masks=masks, dataset=dataset)
            reference.update(right, right, item)
            variant.update(worse, right, item)
            for name, score in alone.items():
                score.update(worse, right, Item(Path(), str(place), "", shape=(8, 8), mask=masks.get(name), dataset=dataset))
        for score in both:
            figures = score.metrics(reference)
            for key in ("miou", "pixel_accuracy", "mask_iou", "agreement", "miou.day", "miou.night"):
                figure, dot, dataset = key.partition(".")
                each = [figures[f"{figure}.{name}{dot}{dataset}"] for name in kinds if f"{figure}.{name}{dot}{dataset}" in figures]
                assert (key in figures) == bool(each)
                if each:
                    assert figures[key] == pytest.approx(np.mean(each))
            if score.labelled:
                once = score.resampled(np.array([[1] * score.labelled, [3] * score.labelled]))
                np.testing.assert_allclose(once, figures["miou"])
        # A head's figures are what it has as the only head of a model.
        figures = variant.metrics(reference)
        for name, score in alone.items():
            own = {key: value for key, value in score.metrics(score).items() if "." not in key}
            assert {key: figures[f"{key}.{name}"] for key in own} == pytest.approx(own)

    def test_a_resample_without_a_head_s_images_is_of_the_other_alone(self, tmp_path):
        score = SegmentationScore(TASK, SPEC)
        generator = np.random.default_rng(0)
        for name, classes in (("road", 2), ("lane", 3)):
            truth = {"road": np.zeros((8, 8), int), "lane": np.zeros((8, 8), int)}
            truth[name] = generator.integers(0, classes, (8, 8))
            outputs = {"a": maps(generator, truth["road"], 2, 0.2), "b": maps(generator, truth["lane"], 3, 0.2)}
            mask = Mask(write(tmp_path / f"{name}.png", truth[name]), {}, None, {})
            score.update(outputs, outputs, Item(Path(), name, "", shape=(8, 8), masks={name: mask}))
        figures = score.metrics(score)
        np.testing.assert_allclose(
            score.resampled(np.array([[2, 0], [0, 2], [1, 1]])), [figures["miou.road"], figures["miou.lane"], figures["miou"]]
        )
        assert score.row(0) == {
            "miou": round(figures["miou.road"], 6),
            "miou.road": round(figures["miou.road"], 6),
            "miou.lane": "",
        }

    def test_a_void_of_one_head_is_no_void_of_the_other(self, tmp_path):
        truth = np.array([[0, 1], [9, 9]]).repeat(4, 0).repeat(4, 1)
        road, lane = (Mask(write(tmp_path / f"{name}.png", truth), {}, None, {}) for name in ("road", "lane"))
        outputs = {"a": maps(np.random.default_rng(0), truth % 2, 2, 0), "b": np.zeros((1, 3, 8, 8), np.float32)}
        SegmentationScore(TASK, SPEC).update(outputs, outputs, Item(Path(), "", "", shape=(8, 8), masks={"road": road}))
        with pytest.raises(DataError, match="holds class 9, the model has classes 0..2"):
            SegmentationScore(TASK, SPEC).update(outputs, outputs, Item(Path(), "", "", shape=(8, 8), masks={"lane": lane}))

    def test_a_head_whose_output_is_not_there_is_named_before_an_image_is_opened(self):
        with pytest.raises(DataError, match="the graph has a, and no 'b'"):
            SegmentationScore.classes(TASK, {"a": np.zeros((1, 2, 8, 8), np.float32)}, (8, 8))


def scene(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(photo, bright or dark, red, green or neither)."""
    bright = np.kron(generator.integers(0, 2, (4, 4)), np.ones((10, 12), int))
    colour = np.kron(generator.integers(0, 3, (4, 4)), np.ones((10, 12), int))
    tint = np.array([[0, 0, 0], [45, -45, 0], [-45, 45, 0]])[colour]
    pixels = np.where(bright[:, :, None] > 0, 180, 60) + tint + generator.normal(0, 6, (40, 48, 3))
    return pixels.clip(0, 255), bright, colour


def write_scenes(root: Path, count: int, seed: int, *folders: str) -> None:
    generator = np.random.default_rng(seed)
    for place in range(count):
        photo, bright, colour = scene(generator)
        write(root / "images" / f"{place}.png", photo)
        for folder, mask in (("gt_bright", bright), ("gt_colour", colour)):
            if folder in folders:
                write(root / folder / f"{place}.png", mask)


BLOCKS = {
    "task": {
        "name": "segmentation",
        "heads": {"light": {"output": "bright", "classes": ["dark", "bright"]}, "colour": {"classes": ["grey", "red", "green"]}},
    },
    "input": {"size": [32, 32], "resize": {"rule": "letterbox"}},
}
MASKS = {"light": {"annotations": "gt_bright"}, "colour": {"annotations": "gt_colour"}}


def test_a_picture_has_a_row_of_panels_for_each_head(tmp_path):
    write_scenes(tmp_path / "set", 3, 0, "gt_bright")
    task, spec = Segmentation.model_validate(BLOCKS["task"]), Input.model_validate(BLOCKS["input"])
    items = open_set(ImageSet(format="masks", path=str(tmp_path / "set"), heads={"light": MASKS["light"]}), "here")
    model = two_heads()
    coarse = two_heads()
    rounded = np.round(onh.to_array(coarse.graph.initializer[2]))
    coarse.graph.initializer[2].CopyFrom(onh.from_array(rounded * np.float32([[1], [1], [0.9]])[..., None, None], "colours"))
    sessions = {name: Session(one.SerializeToString()) for name, one in (("fp32", model), ("int8", coarse))}
    validation = Validation(task, spec, sessions, Feeds("image"))
    validation.run(Images(items, spec))
    names = write_pictures(tmp_path / "pictures", validation, 2)
    with Image.open(tmp_path / "pictures" / names[0]) as picture:
        width, height = picture.size
    # Photo, mask, FP32, INT8 and the difference; the second row has no mask, and is filled up with white.
    photo = (384, 320)
    assert height == 2 * (photo[1] + 22)
    assert width == 5 * photo[0] + 4 * 6
    pixels = np.asarray(Image.open(tmp_path / "pictures" / names[0]))
    assert pixels[height // 2 + 40 :, -photo[0] + 10 :].min() > 240
    assert pixels[: height // 2, -photo[0] + 10 :].min() < 200
    record = validation.record(Validate(bootstrap=100))
    assert record["heads"] == "light, colour"
    assert record["fp32.miou"] == record["fp32.miou.light"] > 0.7
    assert "fp32.miou.colour" not in record
    assert not [key for key in record if key.startswith("fp32.agreement")]
    assert record["int8.agreement"] == pytest.approx(
        (record["int8.agreement.light"] + record["int8.agreement.colour"]) / 2, abs=1e-6
    )
    ((headings, *rows),) = part_tables(record)
    assert headings[:3] == ("variant", "head", "mIoU")
    assert [row[:2] for row in rows] == [(variant, head) for variant in ("fp32", "int8") for head in ("light", "colour")]
    assert rows[1][2] == "-"


@pytest.mark.slow
def test_two_heads_and_a_holdout_through_the_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(two_heads(), "small.onnx")
    write_scenes(Path("road/day"), 14, 0, "gt_bright", "gt_colour")
    write_scenes(Path("road/rain"), 6, 1, "gt_bright")
    write_scenes(Path("road/night"), 5, 2, "gt_bright", "gt_colour")
    halves = {"calibration": {"split": {"stop": 0.5}}, "validation": {"split": {"start": 0.5}}}
    data = {part: {"format": "masks", "path": "road", "heads": MASKS} | split for part, split in halves.items()}
    blocks = BLOCKS | {"data": data | {"datasets": {"night": {"holdout": True}}}}
    Path("params.yaml").write_text(yaml.safe_dump(project_params(**blocks)))
    for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark", "report"):
        done = run_stage(stage, "--model", "small")
        assert done.returncode == 0, done.stderr
    record = json.loads(Path("metrics/small/accuracy.json").read_text())
    assert record["images"] == 10
    assert record["images.night"] == 5
    assert record["holdout"] == "night"
    assert record["fp32.miou"] == pytest.approx((record["fp32.miou.light"] + record["fp32.miou.colour"]) / 2, abs=1e-6)
    assert record["int8.retained"] > 0.98
    held_out = "retained.night retained_low.night miou.night miou.colour.night iou.colour.red.night agreement.night"
    figures = "iou.colour.red pixel_accuracy.light agreement.light mask_iou.colour miou.day miou.light.rain"
    assert {f"int8.{key}" for key in f"{held_out} {figures}".split()} <= set(record)
    assert "int8.miou.colour.rain" not in record, "there are no masks of that head"
    assert not [key for key in record if "gate" in key and "night" in key]
    page = Path("metrics/small/report.md").read_text()
    assert "| variant | head | mIoU |" in page
    assert "| variant | held out | kept [95 % interval] | mIoU |" in page
    assert "held out, never calibrated on: night (5 images)" in page
    calibrated = [name for name, _ in Statistics.load("models/small/calibration").origin["files"]]
    assert calibrated
    assert not [name for name in calibrated if name.startswith("night/")]
    # DVC does not watch `data.datasets`: what was calibrated on before it was held out is found.
    blocks["data"]["datasets"] = {"night": {"holdout": True}, calibrated[0].split("/")[0]: {"holdout": True}}
    Path("params.yaml").write_text(yaml.safe_dump(project_params(**blocks)))
    done = run_stage("validate", "--model", "small")
    assert done.returncode == 2
    assert "calibration and what is held out share" in done.stderr
    assert "dvc repro -f" in done.stderr
