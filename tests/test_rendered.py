"""Rendered scenes: same numbers, same bytes; boxes are what is seen; the committed detector finds shapes in them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT
from forked import run_stage
from own_networks import own_network

from octavo.errors import DataError, ParamsError
from octavo.images.decode import read_image
from octavo.images.frame import Frame
from octavo.images.preprocess import preprocess
from octavo.images.rendered import render_set
from octavo.images.scenes import shapes
from octavo.images.scenes.shapes import SHAPES, VISIBLE, render
from octavo.params import load_model, load_sets
from octavo.params.grammar import Rendered
from octavo.tasks.detection import detect, family_of
from octavo.tasks.detection.ap import average_precision


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestScenes:
    def test_the_same_numbers_give_the_same_pixels_and_others_do_not(self):
        one, again, next_one, other_seed = render(3, 5), render(3, 5), render(3, 6), render(4, 5)
        assert np.array_equal(one.image, again.image)
        assert np.array_equal(one.owner, again.owner)
        assert np.array_equal(one.classes, again.classes)
        for other in (next_one, other_seed):
            assert one.image.shape != other.image.shape or not np.array_equal(one.image, other.image)

    def test_boxes_are_the_extent_of_what_is_seen(self):
        for number in range(12):
            scene = render(11, number)
            rows, columns = scene.image.shape[:2]
            corners, areas = scene.boxes()
            assert scene.image.dtype == np.uint8
            assert scene.owner.shape == (rows, columns)
            assert len(corners) == len(scene.classes) == scene.owner.max()
            for place, (left, top, right, bottom) in enumerate(corners.astype(int)):
                assert 0 <= left < right <= columns
                assert 0 <= top < bottom <= rows
                seen = scene.owner == place + 1
                assert seen.sum() == seen[top:bottom, left:right].sum() == areas[place]
                # Each edge of the box touches the shape.
                part = seen[top:bottom, left:right]
                assert part[0].any() and part[-1].any() and part[:, 0].any() and part[:, -1].any()  # noqa: PT018

    def test_a_drawn_shape_is_where_its_box_says(self, monkeypatch):
        """On a plain canvas without blur and noise, exactly the pixels of shapes differ from it."""
        plain = lambda generator, rows, columns: np.full((rows, columns, 3), 128, np.float32)  # noqa: E731
        monkeypatch.setattr(shapes, "_background", plain)
        monkeypatch.setattr(shapes, "photographed", lambda generator, canvas: canvas)
        for number in range(6):
            scene = render(12, number)
            changed = np.abs(scene.image - 128).max(axis=2) > 0
            assert changed[scene.owner > 0].mean() > 0.999
            # What is changed outside is an edge, covered by less than half.
            grown = np.zeros_like(changed)
            padded = np.pad(scene.owner > 0, 1)
            for down in range(3):
                for right in range(3):
                    grown |= padded[down : down + changed.shape[0], right : right + changed.shape[1]]
            assert not (changed & ~grown).any()

    def test_there_are_all_kinds_and_many_small_ones_and_nothing_is_mostly_hidden(self):
        kinds, sides = [], []
        for number in range(40):
            scene = render(13, number)
            corners, areas = scene.boxes()
            kinds += scene.classes.tolist()
            sides += (corners[:, 2:] - corners[:, :2]).max(axis=1).tolist()
            # The thinnest kind fills an eighth of its box when whole.
            assert (areas >= VISIBLE * 0.1 * shapes.SHORTEST**2).all()
        assert set(kinds) == set(range(len(SHAPES)))
        assert min(sides) >= 0.5 * shapes.SHORTEST
        assert max(sides) <= shapes.LONGEST + 2
        assert 0.3 < np.mean(np.asarray(sides) < 32) < 0.8

    def test_no_scene_has_a_negative_number(self):
        with pytest.raises(DataError, match="seed -1 cannot be rendered"):
            render(-1, 0)


class TestSets:
    def test_a_set_is_images_and_a_coco_file_and_the_same_bytes_again(self, tmp_path):
        spec = Rendered(scenes=4, seed=5)
        assert render_set(tmp_path / "one", spec) == 4
        render_set(tmp_path / "two", spec)
        assert contents(tmp_path / "one") == contents(tmp_path / "two")

        listed = json.loads((tmp_path / "one/instances.json").read_text())
        assert [entry["name"] for entry in listed["categories"]] == list(SHAPES)
        assert len({entry["id"] for entry in listed["annotations"]}) == len(listed["annotations"])
        for number, entry in enumerate(listed["images"]):
            scene = render(5, number)
            assert np.array_equal(read_image(tmp_path / "one" / entry["file_name"]), scene.image)
            assert (entry["height"], entry["width"]) == scene.image.shape[:2]
            own = [item for item in listed["annotations"] if item["image_id"] == entry["id"]]
            corners, areas = scene.boxes()
            assert [item["bbox"] for item in own] == np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
            assert [item["area"] for item in own] == areas.tolist()
            assert [item["category_id"] - 1 for item in own] == scene.classes.tolist()
            assert {item["iscrowd"] for item in own} <= {0}

    def test_a_set_appears_whole_or_not_at_all(self, tmp_path, monkeypatch):
        render_set(tmp_path / "set", Rendered(scenes=2, seed=5))
        before = contents(tmp_path / "set")

        def broken(seed: int, number: int):
            if number == 1:
                raise KeyboardInterrupt
            return render(seed, number)

        monkeypatch.setattr(shapes, "render", broken)
        for name in ("set", "new"):
            with pytest.raises(KeyboardInterrupt):
                render_set(tmp_path / name, Rendered(scenes=2, seed=6))
        assert contents(tmp_path / "set") == before
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def test_prepare_renders_a_set(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sources.yaml").write_text("sets: {drawn: {scenes: 2, seed: 9}}\n")
        done = run_stage("prepare", "--set", "drawn", "--sources", "sources.yaml")
        assert done.returncode == 0, done.stderr
        assert "2 scenes rendered" in done.stdout
        assert len(list((tmp_path / "data/drawn/images").glob("*.png"))) == 2

    @pytest.mark.parametrize(
        ("made_of", "message"),
        [
            ({"scenes": 2, "sed": 1}, "sets.drawn.sed: unknown key; did you mean 'seed'? valid here: kind, scenes, seed"),
            ({"scenes": 2}, "sets.drawn.seed: this key is required and missing"),
            ({"scenes": 0, "seed": 1}, "sets.drawn.scenes: input should be greater than or equal to 1, found 0"),
            ({"scenes": 2, "seed": 1000}, "sets.drawn.seed: input should be less than 1000, found 1000"),
            ({"kind": "sea", "scenes": 2, "seed": 1}, "sets.drawn.kind: 'sea' is not possible"),
            (3, "sets.drawn: input should be a valid list, found 3"),
            ([{"package": "p", "file": "f", "licence": "l", "too": "t"}], "sets.drawn.0.too: unknown key; did you mean 'to'?"),
            ([{"package": "p", "file": "f", "licence": "l", "to": "/t"}], "sets.drawn.0.to: `to` '/t' must stay inside"),
        ],
    )
    def test_mistakes_in_a_set_are_named_by_their_place(self, tmp_path, made_of, message):
        (tmp_path / "sources.yaml").write_text(yaml.safe_dump({"sets": {"drawn": made_of}}))
        with pytest.raises(ParamsError) as raised:
            load_sets(tmp_path / "sources.yaml")
        assert message in str(raised.value)


class TestDetector:
    @pytest.fixture(scope="class")
    def spec(self):
        return load_model(ROOT / "params.yaml", "detector")

    @pytest.fixture
    def module(self, spec, monkeypatch):
        monkeypatch.chdir(ROOT)
        return own_network(spec)

    def test_its_classes_are_the_renderer_s(self, spec):
        assert spec.task.classes == SHAPES

    def test_its_sets_share_no_scene_with_each_other_or_with_training(self):
        sets = [made_of for made_of in load_sets(ROOT / "data/sources.yaml").sets.values() if isinstance(made_of, Rendered)]
        seeds = [made_of.seed for made_of in sets if made_of.kind == "shapes"]
        assert len(seeds) == len(set(seeds)) == 2
        assert max(seeds) < 1000

    def test_it_is_small(self, spec, module):
        assert (ROOT / spec.source.file).stat().st_size < 3_000_000
        assert sum(parameter.numel() for parameter in module.parameters()) < 700_000

    def test_any_multiple_of_32_is_read_as_yolov8_s(self, module):
        for size in ((192, 256), (64, 96), (256, 320)):
            with torch.inference_mode():
                output = module(torch.rand(2, 3, *size))
            assert output.shape[:2] == (2, 4 + len(SHAPES))
            assert family_of({"output": output[:1].numpy()}, size).name == "yolov8"

    def test_it_finds_shapes_and_not_all_of_them(self, spec, module):
        truth, found, scenes = [], [], range(24)
        for number in scenes:
            # A seed that no set and no training uses.
            scene = render(999, number)
            frame = Frame.of(*scene.image.shape[:2], spec.input)
            with torch.inference_mode():
                outputs = {"output": module(torch.from_numpy(preprocess(scene.image, spec.input))).numpy()}
            boxes = detect(outputs, family_of(outputs, spec.input.size), frame, spec.task)
            for many, kinds, corners in ((truth, scene.classes, scene.boxes()[0]), (found, boxes.classes, boxes.xyxy)):
                for kind, (left, top, right, bottom) in zip(kinds.tolist(), corners.tolist(), strict=True):
                    box = [left, top, right - left, bottom - top]
                    many.append({"image_id": number, "category_id": kind, "bbox": box})
            for item, score in zip(found[-len(boxes) or len(found) :], boxes.scores.tolist(), strict=True):
                item["score"] = score
        figures = average_precision(truth, found, scenes).figures
        assert 0.5 < figures["ap"] < 0.8
        assert figures["ap50"] > 0.7
