"""Road scenes: same numbers, same bytes; masks are what was painted; the committed network tells what colour does not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import ROOT
from forked import run_stage
from own_networks import own_network
from PIL import Image

from octavo.errors import DataError
from octavo.images.dataset import Classes, open_set
from octavo.images.decode import read_image
from octavo.images.frame import Frame
from octavo.images.preprocess import preprocess
from octavo.images.rendered import render_set
from octavo.images.scenes import cars, ground, road
from octavo.images.scenes.canvas import Camera, Canvas
from octavo.images.scenes.road import CLASSES, SIZES, VOID, render
from octavo.images.scenes.road_classes import BUILDING, CAR, MARKING, ROAD, SIDEWALK, SKY, VEGETATION
from octavo.params import load_model, load_sets
from octavo.params.grammar import ImageSet, Rendered
from octavo.tasks.segmentation.confusion import confusion, ious, mean_iou
from octavo.tasks.segmentation.decode import class_map


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def camera(rows: int = 160, columns: int = 320) -> Camera:
    return Camera((rows, columns), focal=280.0, height=1.5, horizon=0.4 * rows, middle=columns / 2)


def canvas(size: tuple[int, int], seed: int = 0) -> Canvas:
    return Canvas(np.random.default_rng(seed), np.full((3, *size), 100, np.float32), SKY, 1e4)


def truth_of(classes: np.ndarray) -> np.ndarray:
    return np.where(classes == VOID, -1, classes.astype(np.int64))


class TestScenes:
    def test_the_same_numbers_give_the_same_pixels_and_others_do_not(self):
        one, again, next_one, other_seed = render(3, 5), render(3, 5), render(3, 6), render(4, 5)
        assert np.array_equal(one.image, again.image)
        assert np.array_equal(one.classes, again.classes)
        for other in (next_one, other_seed):
            assert one.image.shape != other.image.shape or not np.array_equal(one.image, other.image)

    def test_a_mask_has_the_image_s_size_and_every_class_appears(self):
        counts, sizes = np.zeros(256, np.int64), []
        for number in range(40):
            scene = render(11, number)
            assert scene.image.dtype == scene.classes.dtype == np.uint8
            assert scene.image.shape == (*scene.classes.shape, 3)
            counts += np.bincount(scene.classes.ravel(), minlength=256)
            sizes.append(scene.classes.shape)
        assert set(np.flatnonzero(counts).tolist()) == {*range(len(CLASSES)), VOID}
        assert (counts[: len(CLASSES)] > 0.005 * counts.sum()).all()
        assert 0.002 < counts[VOID] / counts.sum() < 0.06
        assert set(sizes) <= set(SIZES)
        assert len(set(sizes)) > 2

    def test_every_pixel_has_the_class_of_the_paint_that_covers_it(self, monkeypatch):
        """With one colour a class, no details, no light and no camera, a pixel's colour is its class: exactly but at edges."""
        step = 20.0
        whole, soft = Canvas.paint, ground._Surface.blend

        def paint(self, outlines, colour, kind=None, depth=0.0, **others):
            return kind is None or whole(self, outlines, np.full(3, step * min(kind, 10)), kind, depth)

        def blend(self, share, colour, kind, *worn, **opacity):
            if kind is not None:
                soft(self, share, np.full(3, step * kind), kind)

        monkeypatch.setattr(Canvas, "paint", paint)
        monkeypatch.setattr(Canvas, "darken", lambda self, outlines, share: None)
        monkeypatch.setattr(ground._Surface, "blend", blend)
        monkeypatch.setattr(ground, "_shadows", lambda *arguments: None)
        monkeypatch.setattr(road, "_sky", lambda generator, camera: np.zeros((3, *camera.size), np.float32))
        monkeypatch.setattr(road, "_light", lambda canvas, **others: None)
        monkeypatch.setattr(road, "photographed", lambda generator, colour: colour.copy())
        seen = set()
        for number in range(12):
            scene = render(12, number)
            found = scene.image[:, :, 0] / step
            expected = np.where(scene.classes == VOID, 10, scene.classes)
            apart = np.abs(found - expected)
            # A pixel of two classes has a colour between theirs; it is nowhere far from an edge of the mask.
            edge = np.zeros(expected.shape, bool)
            padded = np.pad(expected, 2, mode="edge")
            for down in range(5):
                for right in range(5):
                    edge |= padded[down : down + edge.shape[0], right : right + edge.shape[1]] != expected
            assert edge.mean() < 0.5
            # Lines too thin to be of their class anywhere, those in the distance, are the rest.
            assert (apart[~edge] < 0.01).mean() > 0.995
            seen |= set(np.unique(expected[apart < 0.01]).tolist())
        assert seen >= set(range(len(CLASSES)))

    def test_light_lens_and_sensor_change_no_mask(self, monkeypatch):
        plain = [render(13, number) for number in range(8)]
        monkeypatch.setattr(road, "photographed", lambda generator, colour: np.zeros(colour.shape, np.uint8))
        for number, scene in enumerate(plain):
            dark = render(13, number)
            assert not dark.image.any()
            assert np.array_equal(dark.classes, scene.classes)

    def test_colour_alone_does_not_tell_the_classes(self):
        """The best that a table of colours can do, learnt on the very scenes that it is judged on."""
        scenes = [render(14, number) for number in range(24)]
        colours = np.concatenate([scene.image.reshape(-1, 3) for scene in scenes]) >> 4
        classes = np.concatenate([truth_of(scene.classes).ravel() for scene in scenes])
        cells = colours[:, 0].astype(np.int64) << 8 | colours[:, 1].astype(np.int64) << 4 | colours[:, 2]
        counts = np.zeros((4096, len(CLASSES)), np.int64)
        np.add.at(counts, (cells[classes >= 0], classes[classes >= 0]), 1)
        assert mean_iou(confusion(classes, counts.argmax(axis=1)[cells], len(CLASSES))) < 0.4

    def test_no_scene_has_a_negative_number(self):
        with pytest.raises(DataError, match="scene -1 of seed 0 cannot be rendered"):
            render(0, -1)


class TestParts:
    def test_a_camera_sees_the_ground_below_its_horizon_and_what_is_twice_as_far_half_as_large(self):
        one = camera()
        near, far = one.seen(np.array([[2.0, 0.0, 10.0], [2.0, 0.0, 20.0]]))
        assert near == pytest.approx([160 + 280 * 2 / 10, 64 + 280 * 1.5 / 10])
        assert far - (160, 64) == pytest.approx((near - (160, 64)) / 2)
        assert one.row_of(10.0) == pytest.approx(near[1])
        # What is as high as the camera lies on the horizon at any distance.
        assert one.seen(np.array([[0.0, 1.5, 7.0], [3.0, 1.5, 70.0]]))[:, 1] == pytest.approx([64, 64])

    def test_paint_gives_its_class_where_it_covers_at_least_half(self):
        one = canvas((20, 30))
        assert one.paint([np.array([[5.3, 3.1], [12.2, 3.1], [12.2, 8.9], [5.3, 8.9]])], (200, 0, 50), CAR, 7.0)
        rows, columns = np.nonzero(one.classes == CAR)
        assert (rows.min(), rows.max(), columns.min(), columns.max()) == (3, 8, 5, 11)
        assert np.array_equal(one.depth == 7.0, one.classes == CAR)
        assert one.colour[:, 5, 8] == pytest.approx([200, 0, 50])
        assert one.colour[0, 5, [5, 12]] == pytest.approx([175, 125], abs=1)
        before = one.classes.copy()
        one.paint([np.array([[6.0, 4.0], [11.0, 4.0], [11.0, 8.0]])], (0, 0, 0))
        assert np.array_equal(one.classes, before)
        assert not one.paint([np.array([[-9.0, 4.0], [-3.0, 4.0], [-3.0, 8.0]])], (0, 0, 0), CAR)

    @pytest.mark.parametrize("bend", [0.0, 0.004])
    def test_the_road_lies_where_its_formula_says(self, bend):
        """To the pixel: it is the road's where its centre is."""
        # The first of the seeds by which grass grows beside the sidewalk, not more pavement.
        one, eye = canvas((160, 320), seed=1), camera()
        laid = ground.Road(offset=0.5, yaw=0.03, bend=bend, half=4.0, walks=(2.0, 0.0), verges=(3.0, 3.0), lanes=2)
        ground.paint_ground(one, eye, laid, shadows=True)
        rows, columns = np.indices((160, 320)) + 0.5
        shown = rows > eye.row_of(ground.FARTHEST)
        ahead = eye.focal * eye.height / (rows[shown] - eye.horizon)
        aside = (columns[shown] - eye.middle) * ahead / eye.focal - (0.5 + 0.03 * ahead + bend * ahead**2)
        drawn = one.classes[shown]
        expected = np.where(np.abs(aside) < 4, ROAD, np.where((aside < -4) & (aside > -6), SIDEWALK, VEGETATION))
        drawn_road = np.where(drawn == MARKING, ROAD, drawn)
        assert min(np.bincount(expected)[[ROAD, SIDEWALK, VEGETATION]]) > 1000
        assert (drawn_road == expected).mean() > 0.9995
        assert 0.01 < (drawn == MARKING).mean() < 0.1
        assert (one.classes[~shown] == SKY).all()
        assert one.depth[shown] == pytest.approx(ahead, rel=1e-4)

    def test_a_car_stands_on_its_place_and_one_that_is_too_near_is_left_out(self):
        one, eye = canvas((160, 320)), camera()
        cars.car(one, eye, (1.0, 12.0), 0.0, lit=False)
        rows, columns = np.nonzero(one.classes == CAR)
        # The wheels' lowest points lie on the ground between its two ends.
        assert eye.row_of(12 + 4) < rows.max() + 1 <= eye.row_of(12 - 4)
        left, right = eye.seen(np.array([[-0.5, 0.0, 8.0], [2.5, 0.0, 8.0]]))[:, 0]
        assert left < columns.min() < columns.max() < right
        before = one.classes.copy()
        cars.car(one, eye, (0.0, 2.0), 0.0, lit=False)
        assert np.array_equal(one.classes, before)

    def test_what_fog_hides_is_of_no_class_and_sky_stays_sky(self):
        one = canvas((40, 60))
        one.paint([np.array([[0.0, 20], [30, 20], [30, 40], [0, 40]])], (90, 90, 90), BUILDING, 80.0)
        one.paint([np.array([[30.0, 20], [60, 20], [60, 40], [30, 40]])], (90, 90, 90), BUILDING, 20.0)
        road._light(one, night=False, fog=20.0)
        assert (one.classes[:20] == SKY).all()
        assert (one.classes[20:, :30] == VOID).all()
        assert (one.classes[20:, 30:] == BUILDING).all()
        # Hidden: its colour is the sky's but for some hundredths.
        assert np.abs(one.colour[:, 25, 10] - one.colour[:, 5, 10]).max() < 6
        assert np.abs(one.colour[:, 25, 50] - one.colour[:, 5, 50]).max() > 6


class TestSets:
    def test_a_set_is_images_and_masks_and_the_same_bytes_again(self, tmp_path):
        spec = Rendered(kind="road", scenes=3, seed=5)
        assert render_set(tmp_path / "one", spec) == 3
        render_set(tmp_path / "two", spec)
        assert contents(tmp_path / "one") == contents(tmp_path / "two")
        assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["images", "masks"]
        for number in range(3):
            scene = render(5, number)
            assert np.array_equal(read_image(tmp_path / f"one/images/scene_{number:04d}.png"), scene.image)
            with Image.open(tmp_path / f"one/masks/scene_{number:04d}.png") as mask:
                assert mask.mode == "L"
                assert np.array_equal(np.asarray(mask), scene.classes)

    def test_the_reader_of_masks_takes_it_as_it_is(self, tmp_path):
        render_set(tmp_path / "set", Rendered(kind="road", scenes=3, seed=6))
        images = ImageSet(format="masks", path=str(tmp_path / "set"))
        items = open_set(images, "data", Classes(len(CLASSES), CLASSES, scored=True))
        assert len(items) == 3
        for number, item in enumerate(items):
            scene = render(6, number)
            assert np.array_equal(item.mask.read(scene.classes.shape, len(CLASSES), VOID), truth_of(scene.classes))

    def test_a_set_appears_whole_or_not_at_all(self, tmp_path, monkeypatch):
        def broken(seed: int, number: int):
            if number == 1:
                raise KeyboardInterrupt
            return render(seed, number)

        monkeypatch.setattr(road, "render", broken)
        with pytest.raises(KeyboardInterrupt):
            render_set(tmp_path / "set", Rendered(kind="road", scenes=2, seed=6))
        assert list(tmp_path.iterdir()) == []

    def test_prepare_renders_a_set(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sources.yaml").write_text("sets: {drawn: {kind: road, scenes: 2, seed: 9}}\n")
        done = run_stage("prepare", "--set", "drawn", "--sources", "sources.yaml")
        assert done.returncode == 0, done.stderr
        assert "2 scenes rendered, masks beside images" in done.stdout
        assert len(list((tmp_path / "data/drawn/masks").glob("*.png"))) == 2


class TestSegmenter:
    @pytest.fixture(scope="class")
    def spec(self):
        return load_model(ROOT / "params.yaml", "road")

    @pytest.fixture
    def module(self, spec, monkeypatch):
        monkeypatch.chdir(ROOT)
        return own_network(spec)

    def test_its_classes_are_the_renderer_s(self, spec):
        assert spec.task.classes == CLASSES
        assert spec.task.void == VOID

    def test_its_sets_share_no_scene_with_each_other_or_with_training(self, spec):
        sets = load_sets(ROOT / "data/sources.yaml").sets
        used = [Path(images.path).name for images in (spec.data.calibration, spec.data.validation, spec.data.train)]
        assert all(sets[name].kind == "road" for name in used)
        seeds = [sets[name].seed for name in used]
        assert len(set(seeds)) == 3
        assert max(seeds) < 1000

    def test_it_is_small_and_wide_enough_for_integer_kernels(self, spec, module):
        assert (ROOT / spec.source.file).stat().st_size < 3_000_000
        convolutions = [layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)]
        assert all(layer.groups == 1 for layer in convolutions)
        assert all(layer.out_channels % 16 == 0 for layer in convolutions[:-1])
        with torch.inference_mode():
            assert module(torch.rand(2, 3, 160, 320)).shape == (2, len(CLASSES), 80, 160)

    def test_its_graph_has_operators_with_integer_kernels_only(self, module, tmp_path):
        file = tmp_path / "road.onnx"
        torch.onnx.export(module, (torch.rand(1, 3, 160, 320),), file, dynamo=False, opset_version=18)
        graph = onnx.load(file).graph
        assert {node.op_type for node in graph.node} - {"Constant"} == {"Conv", "Relu", "Add", "Concat", "Resize"}
        for node in graph.node:
            if node.op_type == "Resize":
                assert {attribute.name: attribute.s for attribute in node.attribute}["mode"] == b"nearest"

    def test_it_finds_what_is_there_and_not_all_of_it(self, spec, module):
        total = np.zeros((len(CLASSES), len(CLASSES)), np.int64)
        for number in range(24):
            # A seed that no set and no training uses.
            scene = render(999, number)
            with torch.inference_mode():
                scores = module(torch.from_numpy(preprocess(scene.image, spec.input)))[0].numpy()
            found = class_map(scores, Frame.of(*scene.image.shape[:2], spec.input))
            total += confusion(truth_of(scene.classes), found, len(CLASSES))
        assert 0.75 < mean_iou(total) < 0.95
        assert (ious(total) > 0.5).all()
