"""From raw outputs to boxes on the photo: every family by hand, which family outputs are of, suppression, AP."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import DataError
from octavo.images.frame import Frame
from octavo.images.preprocess import preprocess
from octavo.params.grammar import Detection, Input
from octavo.params.task import DECODERS
from octavo.tasks.detection import FAMILIES, Boxes, Reading, detect, family_of
from octavo.tasks.detection.ap import average_precision
from octavo.tasks.detection.boxes import suppressed
from octavo.tasks.detection.family import centres
from octavo.tasks.detection.matching import overlaps

TASK = Detection(name="detection", score=0.05, iou=0.5)
BOXES = [[10.0, 20.0, 100.0, 50.0], [200.0, 40.0, 30.0, 60.0]]
SMALL = (32, 32)


def spec(rule: str = "letterbox", size: tuple[int, int] = (416, 416), **resize) -> Input:
    crop = "center" if rule in ("shorter", "none") else "none"
    return Input.model_validate({"size": size, "resize": {"rule": rule, "antialias": False, **resize}, "crop": crop, "scale": 1})


def decoded(name: str, outputs: dict[str, np.ndarray], size: tuple[int, int] = SMALL) -> Boxes:
    assert FAMILIES[name].fits(outputs, size)
    return FAMILIES[name].boxes(outputs, size, TASK.score)


class TestFrame:
    @pytest.mark.parametrize(
        ("rule", "resize"),
        [("letterbox", {}), ("letterbox", {"align": "top-left"}), ("stretch", {}), ("shorter", {"to": 450}), ("none", {})],
    )
    def test_what_preprocessing_shows_is_mapped_back_to_the_photo(self, rule, resize):
        asked = spec(rule, pad=0, **resize) if rule == "letterbox" else spec(rule, **resize)
        photo = np.zeros((533, 700, 3), np.uint8)
        photo[200:300, 300:500] = 255
        rows, columns = np.nonzero(preprocess(photo, asked)[0, 0] > 127)
        seen = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]], float)
        assert np.abs(Frame.of(533, 700, asked).back(seen) - [[300, 200, 500, 300]]).max() < 1.5

    def test_boxes_beyond_the_photo_are_clipped_to_it(self):
        assert Frame.of(333, 500, spec()).back(np.array([[-50.0, -50.0, 999.0, 999.0]])).tolist() == [[0, 0, 500, 333]]

    @settings(max_examples=200, deadline=None)
    @given(
        photo=st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
        size=st.tuples(st.integers(8, 1280), st.integers(8, 1280)),
        rule=st.sampled_from(["letterbox", "stretch", "shorter"]),
        align=st.sampled_from(["centre", "top-left"]),
        corners=st.tuples(*[st.floats(0, 1)] * 4),
    )
    def test_forth_and_back_is_exact_whatever_the_sizes(self, photo, size, rule, align, corners):
        resize = {"to": max(size)} if rule == "shorter" else ({"align": align} if rule == "letterbox" else {})
        frame = Frame.of(*photo, spec(rule, size, **resize))
        box = np.array([corners]) * np.tile(photo[::-1], 2)
        assert np.allclose(frame.back(frame.forth(box)), box, rtol=0, atol=1e-6 * max(photo))
        inside = frame.forth(np.array([[0, 0, *photo[::-1]]], float))[0]
        if rule != "shorter":
            # The whole photo lies in the input, and fills one side of it at least.
            assert (inside[:2] >= 0).all()
            assert inside[2] <= size[1] + 1e-6
            assert inside[3] <= size[0] + 1e-6
            assert abs(inside[2] - inside[0] - size[1]) < 1e-6 or abs(inside[3] - inside[1] - size[0]) < 1e-6
        else:
            assert (inside[:2] <= 0).all()
            assert inside[2] >= size[1] - 1e-6
            assert inside[3] >= size[0] - 1e-6


class TestFamilies:
    def test_yolox_is_decoded_on_its_grid(self):
        rows = np.zeros((1, 16 + 4 + 1, 7), np.float32)
        # 32 pixels have 4x4 cells of stride 8, 2x2 of 16, one of 32. Cell (row 2, column 1) of the first, (1, 0) of the second.
        rows[0, 2 * 4 + 1] = [0.5, 0.25, np.log(2), np.log(3), 0.5, 0.0, 0.8]
        rows[0, 16 + 1 * 2 + 0] = [0.5, 0.5, 0.0, 0.0, 1.0, 1.0, 0.0]
        boxes = decoded("yolox", {"output": rows})
        # centre ((1 + .5) * 8, (2 + .25) * 8) = (12, 18), size (16, 24); centre (8, 24), size (16, 16)
        assert boxes.xyxy == pytest.approx(np.array([[4, 6, 20, 30], [0, 16, 16, 32]]), abs=1e-5)
        assert boxes.scores == pytest.approx([0.4, 1.0])
        assert boxes.classes.tolist() == [1, 0]
        # The same boxes in pixels are the other family's, and come out alike.
        rows[0, 9, :4], rows[0, 18, :4] = [12, 18, 16, 24], [8, 24, 16, 16]
        assert not FAMILIES["yolox"].fits({"output": rows}, SMALL)
        assert decoded("yolox-decoded", {"output": rows}).xyxy == pytest.approx(boxes.xyxy, abs=1e-5)

    def test_centres_far_from_their_cells_are_yolox_where_the_decoder_says_so(self):
        """Of an image of another scale than a network was trained on (0..255 for -2..2) centres lie 200 cells away."""
        rows = np.random.default_rng(0).normal(0, 60, (1, 16 + 4 + 1, 7)).astype(np.float32)
        rows[..., 4:] = rows[..., 4:] > 0
        assert np.abs(rows[..., :2]).max() > 32
        assert family_of({"output": rows}, SMALL, "yolox").name == "yolox"
        # Centres that follow their cells are decoded, whatever it says.
        grid, step = centres(SMALL, (8, 16, 32), 0.5)
        rows[0, :, :2], rows[0, :, 2:4] = grid * step, 8
        with pytest.raises(DataError, match="use yolox-decoded"):
            family_of({"output": rows}, SMALL, "yolox")

    @pytest.mark.parametrize("classes", [2, 6])
    def test_yolov4_has_its_scores_apart(self, classes):
        boxes, scores = np.zeros((1, 3 * 21, 1, 4), np.float32), np.zeros((1, 3 * 21, classes), np.float32)
        boxes[0, 5, 0], scores[0, 5, 1] = [0.25, 0.5, 0.5, 1], 0.9
        # Of six classes the fifth is no objectness.
        outputs = {"boxes": boxes, "confs": scores}
        family = family_of(outputs, SMALL)
        assert (family.name, family.classes(outputs, SMALL), family.overlaps) == ("yolov4", classes, True)
        found = family.boxes(outputs, SMALL, 0.5)
        assert found.xyxy.tolist() == [[8, 16, 16, 32]]
        assert found.classes.tolist() == [1]
        assert not FAMILIES["yolov4"].fits({"boxes": boxes + 100, "confs": scores}, SMALL)

    def test_yolov5_rows_are_corners_and_products_of_scores(self):
        rows = np.zeros((1, 3 * 21, 7), np.float32)
        rows[0, 5] = [50, 40, 20, 10, 0.5, 0.2, 0.8]
        # Exports with the undecoded heads beside the rows are the same family.
        boxes = decoded("yolov5", {"output0": rows, "raw": np.zeros((1, 3, 4, 4, 7), np.float32)})
        assert boxes.xyxy.tolist() == [[40, 35, 60, 45]] * 2
        assert boxes.scores == pytest.approx([0.1, 0.4])

    @pytest.mark.parametrize("strides", [(16, 32), (4, 8, 16, 32), (8, 16), (8, 16, 32, 64, 128)])
    @pytest.mark.parametrize("size", [(128, 160), (416, 224)])
    def test_anchors_on_other_strides(self, strides, size):
        grid, step = centres(size, strides, 0.5)
        rows = np.zeros((1, 3 * len(grid), 6), np.float32)
        rows[0, :, :2] = np.repeat(grid * step, 3, axis=0)
        rows[0, :, 2:4] = 8
        assert family_of({"output": rows}, size).name == "yolov5"
        rows[0, :, :4] /= np.tile(size[::-1], 2)
        assert family_of({"output": rows}, size).name == "yolov5-shares"

    @pytest.mark.parametrize(("columns", "expected"), [(6, "yolov10"), (84, "rtdetr")])
    def test_as_many_queries_as_a_tiny_grid_has_anchors_are_no_anchors(self, columns, expected):
        rows = np.zeros((1, 300, columns), np.float32)
        assert family_of({"output0": rows}, (128, 160)).name == expected
        rows[..., :4] = 0.5 if expected == "rtdetr" else [2, 4, 100, 90]
        assert family_of({"output0": rows}, (128, 160)).name == expected

    @pytest.mark.parametrize("size", [(416, 416), (128, 160), (416, 224)])
    def test_cells_of_two_strides(self, size):
        rows = np.zeros((1, 4 + 3, sum((size[0] // stride) * (size[1] // stride) for stride in (16, 32))), np.float32)
        rows[0, :, 7] = [16, 10, 8, 4, 0, 0.9, 0]
        assert family_of({"output0": rows}, size).name == "yolov8"
        assert decoded("yolov8", {"output0": rows}, size).xyxy.tolist() == [[12, 8, 20, 12]]

    def test_yolov7_s_boxes_say_which_image_of_the_batch_they_are_of(self):
        rows = np.float32([[0, 1, 2, 3, 4, 7, 0.9], [0, 5, 6, 7, 8, 2, 0.01]])
        assert family_of({"output": rows}, SMALL).name == "yolov7-end2end"
        found = decoded("yolov7-end2end", {"output": rows})
        assert found.xyxy.tolist() == [[1, 2, 3, 4]]
        assert (found.classes.tolist(), found.scores) == ([7], pytest.approx([0.9]))
        # An image without a box is read so, too.
        assert len(decoded("yolov7-end2end", {"output": rows[:0]})) == 0
        for column, value in ((0, 1), (5, 0.5), (6, 3)):
            other = rows.copy()
            other[1, column] = value
            assert not FAMILIES["yolov7-end2end"].fits({"output": other}, SMALL)

    def test_yolo_nas_flat_rows_have_the_score_before_the_class(self):
        rows = np.float32([[0, 1, 2, 3, 4, 0.9, 7], [0, 5, 6, 7, 8, 0.01, 2]])
        assert family_of({"output": rows}, SMALL).name == "yolonas-flat"
        found = decoded("yolonas-flat", {"output": rows})
        assert found.xyxy.tolist() == [[1, 2, 3, 4]]
        assert (found.classes.tolist(), found.scores) == ([7], pytest.approx([0.9]))
        # An image without a box, and one whose only box is as sure as can be, tell nothing.
        reading, sure = Reading(), np.float32([[0, 1, 2, 3, 4, 1, 1]])
        for nothing in (rows[:0], sure):
            reading.of(SMALL, {"output": nothing})
        assert reading.of(SMALL, {"output": rows}).name == "yolonas-flat"
        assert reading.of(SMALL, {"output": rows[:0]}).name == "yolonas-flat"

    def test_yolov8_has_channels_before_cells_and_no_objectness(self):
        rows = np.zeros((1, 6, 21), np.float32)
        rows[0, :, 7] = [16, 10, 8, 4, 0.0, 0.9]
        boxes = decoded("yolov8", {"output0": rows})
        assert boxes.xyxy.tolist() == [[12, 8, 20, 12]]
        assert boxes.classes.tolist() == [1]
        # YOLOv9's auxiliary branch stands before its main one.
        dual = {"output0": np.zeros_like(rows), "1713": rows}
        assert family_of(dual, SMALL).name == "yolov8"
        assert decoded("yolov8", dual).classes.tolist() == [1]

    @pytest.mark.parametrize("cells_first", [False, True])
    @pytest.mark.parametrize("classes", [1, 4, 80])
    def test_yolov8_s_boxes_and_scores_may_be_apart(self, cells_first, classes):
        size = (128, 160)
        rows = self.yolov8_rows(size, classes)
        expected = decoded("yolov8", {"output0": rows}, size)
        assert len(expected) == 1
        parts = [rows[:, 4:], rows[:, :4]]
        outputs = {name: part.swapaxes(1, 2) if cells_first else part for name, part in zip("ab", parts, strict=True)}
        family = family_of(outputs, size)
        assert (family.name, family.classes(outputs, size)) == ("yolov8-apart", classes)
        np.testing.assert_array_equal(family.boxes(outputs, size, 0.5).xyxy, expected.xyxy)
        # In shares of the image; four classes are told by the outputs' names then.
        named = dict(zip(("scores", "boxes"), outputs.values(), strict=True))
        extent = np.float32([160, 128, 160, 128])
        named["boxes"] = named["boxes"] / (extent if cells_first else extent[:, None])
        family = family_of(named, size)
        assert family.name == "yolov8-apart-shares"
        np.testing.assert_allclose(family.boxes(named, size, 0.5).xyxy, expected.xyxy, rtol=1e-5)

    def yolov8_rows(self, size, classes):
        """Boxes of 16 pixels at every cell, and an object at one."""
        grid, step = centres(size, (8, 16, 32), 0.5)
        rows = np.zeros((1, 4 + classes, len(grid)), np.float32)
        rows[0, :2], rows[0, 2:4] = (grid * step).T, 16
        rows[0, 3 + classes, 7] = 0.9
        return rows

    @pytest.mark.parametrize("form", ["parts", "logits", "joined", "last", "summed"])
    def test_yolov8_s_levels_are_decoded(self, form):
        size, classes = (64, 96), 3
        generator = np.random.default_rng(0)
        levels, corners, best = [], [], []
        for stride in (32, 8, 16):
            height, width = size[0] // stride, size[1] // stride
            distances = generator.normal(0, 2, (1, 64, height, width)).astype(np.float32)
            scores = generator.uniform(0, 0.2, (1, classes, height, width)).astype(np.float32)
            scores[0, 1, 0, 1] = 0.8
            levels.append([distances, scores])
            weight = np.exp(distances.reshape(4, 16, height, width))
            left, top, right, bottom = stride * (weight * np.arange(16)[:, None, None]).sum(1) / weight.sum(1)
            x, y = (np.arange(width) + 0.5)[None] * stride, (np.arange(height) + 0.5)[:, None] * stride
            corners.append(np.stack([x - left, y - top, x + right, y + bottom])[:, 0, 1])
            best.append(0.8)
        if form == "joined":
            outputs = {f"{place}": np.concatenate([d, np.log(s / (1 - s))], 1) for place, (d, s) in enumerate(levels)}
        else:
            outputs = {f"{kind}{place}": value for place, pair in enumerate(levels) for kind, value in enumerate(pair)}
        if form == "logits":
            outputs = {name: np.log(v / (1 - v)) if v.shape[1] == classes else v for name, v in outputs.items()}
        if form == "last":
            outputs = {name: value.transpose(0, 2, 3, 1) for name, value in outputs.items()}
        if form == "summed":
            outputs |= {f"sum{place}": scores.sum(axis=1, keepdims=True) for place, (_, scores) in enumerate(levels)}
        family = family_of(outputs, size)
        assert (family.name, family.classes(outputs, size)) == ("yolov8-levels", classes)
        found = family.boxes(outputs, size, 0.5)
        assert found.classes.tolist() == [1, 1, 1]
        np.testing.assert_allclose(found.scores, best, rtol=1e-5)
        np.testing.assert_allclose(found.xyxy, np.stack([corners[1], corners[2], corners[0]]), rtol=1e-4)

    def test_levels_of_anchors_are_none_of_yolov8_s(self):
        """YOLOv5's last layers have 3 x 85 channels, coordinates around 0 among them."""
        values = {
            str(side): np.random.default_rng(side).normal(0, 1, (1, 255, side, side)).astype(np.float32) for side in (8, 4, 2)
        }
        assert not FAMILIES["yolov8-levels"].fits(values, (64, 64))
        # A network that is sure of a class nearly everywhere looks like that, and `task.decoder` says what it is.
        assert family_of(values, (64, 64), "yolov8-levels").name == "yolov8-levels"

    def test_maps_of_yolox_s_levels_are_none_of_yolov8_s(self):
        """Boxes, objectness and 80 classes in one map, with sigmoid: 64 of the channels are no distances."""
        generator = np.random.default_rng(0)
        values = {}
        for side in (8, 4, 2):
            scores = generator.uniform(0, 0.2, (1, 81, side, side))
            boxes = generator.normal(0, 1, (1, 4, side, side))
            values[str(side)] = np.concatenate([boxes, scores], axis=1).astype(np.float32)
        with pytest.raises(DataError, match="of no known family"):
            family_of(values, (64, 64))
        with pytest.raises(DataError, match="check the export"):
            family_of(values, (64, 64), "yolov8-levels")

    @pytest.mark.parametrize(
        ("family", "rows", "column"),
        [
            ("yolov8", (1, 4 + 2 + 3, 21), (0, slice(None), 7)),
            ("yolov5", (1, 3 * 21, 5 + 2 + 3), (0, 5)),
            ("yolov10", (1, 300, 6 + 3), (0, 0)),
        ],
    )
    def test_the_coefficients_of_masks_are_no_classes(self, family, rows, column):
        values = np.zeros(rows, np.float32)
        row = {
            "yolov8": [16, 10, 8, 4, 0, 0.9],
            "yolov5": [16, 10, 8, 4, 1, 0, 0.9],
            "yolov10": [12, 8, 20, 12, 0.9, 1],
        }[family]
        values[column] = [*row, -2, 3, 0.5]
        maps = np.zeros((1, 3, SMALL[0] // 4, SMALL[1] // 4), np.float32)
        outputs = {"output0": values, "output1": maps}
        assert family_of(outputs, SMALL).name == family
        boxes = decoded(family, outputs)
        assert boxes.xyxy.tolist() == [[12, 8, 20, 12]]
        assert boxes.scores == pytest.approx([0.9])
        assert boxes.classes.tolist() == [1]
        classes = FAMILIES[family].classes
        assert classes is None or classes(outputs, SMALL) == 2
        # Without the maps the same rows would have coefficients for scores.
        assert not FAMILIES[family].fits({"output0": values}, SMALL)
        # More maps than a row has columns are none of these.
        outputs["output1"] = np.zeros((1, 32, SMALL[0] // 4, SMALL[1] // 4), np.float32)
        assert not FAMILIES[family].fits(outputs, SMALL)

    @pytest.mark.parametrize(("shape", "size"), [((1, 56, 8400), (640, 640)), ((1, 300, 57), (640, 640))])
    def test_key_points_are_no_classes(self, shape, size):
        values = np.random.default_rng(0).uniform(0, 600, shape).astype(np.float32)
        with pytest.raises(DataError, match="of no known family"):
            family_of({"output0": values}, size)

    @pytest.mark.parametrize(
        ("layout", "told"),
        [
            (lambda rows: rows[:, :56].T, "a network for poses(.|\n)*the first 4 . c of 56 channels"),
            (lambda rows: rows[:300, :57], "51 more"),
        ],
    )
    def test_key_points_are_refused_by_name(self, layout, told):
        generator = np.random.default_rng(0)
        places, step = centres(SMALL, (8, 16, 32), 0.5)
        rows = np.zeros((len(places), 57))
        rows[:, :4] = np.concatenate([places * step, np.full_like(places, 20)], axis=1)
        rows[:, 4] = generator.uniform(0.1, 0.9, len(places))
        rows[:, 6:] = generator.uniform(0, 30, (len(places), 51))
        with pytest.raises(DataError, match=f"no known family(.|\\n)*to mend(.|\\n)*{told}"):
            family_of({"output0": np.float32(layout(rows))[None]}, SMALL)

    def test_people_that_no_photo_shows_are_no_queries(self):
        """Rows of zeros are of no family for good: the next photo's, with key points, would be read as queries of 53 classes."""
        reading, rows = Reading(), np.zeros((1, 300, 57), np.float32)
        reading.of((640, 640), {"output0": rows})
        rows[0, 0, :6] = [10, 20, 90, 60, 0.9, 0]
        rows[0, 0, 6:] = 50
        with pytest.raises(DataError, match="no known family"):
            reading.of((640, 640), {"output0": rows})

    def test_a_class_where_the_score_is_due_is_no_whole_box(self):
        rows = np.zeros((1, 300, 6), np.float32)
        rows[0, 0] = [10, 20, 90, 60, 16, 0.9]
        with pytest.raises(DataError, match="no known family"):
            family_of({"output0": rows}, (640, 640))

    def test_chosen_rotated_boxes_are_read_as_what_encloses_them(self):
        rows = np.zeros((1, 300, 7), np.float32)
        rows[0, 0] = [40, 30, 20, 10, 0.9, 2, np.pi / 2]
        outputs = {"output0": rows}
        assert family_of(outputs, (64, 96)).name == "yolov10-obb"
        found = FAMILIES["yolov10-obb"].boxes(outputs, (64, 96), 0.5)
        assert found.xyxy == pytest.approx(np.array([[35, 20, 45, 40]]), abs=1e-4)
        assert (found.classes.tolist(), found.scores.tolist()) == ([2], [pytest.approx(0.9)])
        # Queries of three classes are in shares, all of them.
        queries = np.random.default_rng(0).uniform(0, 1, rows.shape).astype(np.float32)
        assert family_of({"output0": queries}, (64, 96)).name == "rtdetr"

    def test_rotated_boxes_are_read_as_what_encloses_them(self):
        rows = np.zeros((1, 4 + 2 + 1, 21), np.float32)
        angles = np.linspace(-np.pi / 4, 3 * np.pi / 4, 21)
        rows[0, :4], rows[0, 5], rows[0, 6] = [[16], [12], [8], [4]], 0.9, angles
        family = family_of({"output0": rows}, SMALL)
        assert (family.name, family.classes({"output0": rows}, SMALL)) == ("yolov8-obb", 2)
        found = family.boxes({"output0": rows}, SMALL, 0.5)
        assert found.classes.tolist() == [1] * 21
        # The four corners, turned about the centre.
        turned = np.array([[4, 2], [4, -2], [-4, -2], [-4, 2]]) @ np.array(
            [[np.cos(angles), np.sin(angles)], [-np.sin(angles), np.cos(angles)]]
        ).transpose(2, 0, 1)
        expected = np.concatenate([turned.min(axis=1), turned.max(axis=1)], axis=1)
        np.testing.assert_allclose(found.xyxy - [16, 12, 16, 12], expected, atol=1e-5)

        # Of an untrained network, or where no object is, all angles may be scores; a class that is sure of some cells is one.
        rows[0, 5, 2:], rows[0, 6] = 0.1, np.linspace(0.7, 1, 21)
        assert family_of({"output0": rows}, SMALL).name == "yolov8-obb"
        rows[0, 6, 9:] = 0.2
        assert family_of({"output0": rows}, SMALL).name == "yolov8"

    def test_key_points_in_shares_are_no_scores(self):
        size, generator = (64, 96), np.random.default_rng(0)
        places, step = centres(size, (8, 16, 32), 0.5)
        centre = (places + generator.uniform(-1, 1, places.shape)) * step / size[::-1]
        extent = np.full_like(centre, 0.2)
        certain = generator.uniform(0, 0.05, (len(centre), 1))
        points = [np.clip(centre + generator.normal(0, 0.05, centre.shape), 0, 1) for _ in range(3)]
        seen = generator.random((len(centre), 3))
        posed = np.concatenate([centre, extent, certain, *(np.c_[point, seen[:, :1]] for point in points)], axis=1)
        boxes = np.concatenate([centre, extent, certain, generator.uniform(0, 0.05, (len(centre), 9))], axis=1)
        for layout in (lambda rows: rows.T, lambda rows: rows):
            assert family_of({"output0": np.float32(layout(boxes))[None]}, size).name.startswith("yolov8")
            with pytest.raises(DataError, match="no known family"):
                family_of({"output0": np.float32(layout(posed))[None]}, size)
        with pytest.raises(DataError, match="no known family"):
            family_of({"output0": np.float32(np.repeat(posed, 3, axis=0))[None]}, size)

    @pytest.mark.parametrize(("order", "batched"), [((0, 1, 2), False), ((2, 1, 0), True)])
    def test_keras_yolov3_says_which_boxes_are_kept(self, order, batched):
        generator = np.random.default_rng(0)
        boxes = np.float32(generator.uniform(-20, 420, (1, 2535, 4)))
        scores = np.float32(generator.uniform(0, 0.04, (1, 80, 2535)))
        boxes[0, 7], scores[0, 3, 7], scores[0, 5, 7] = [20, 30, 90, 220], 0.9, 0.3
        kept = np.int32([[0, 3, 7], [0, 5, 7], [0, 1, 9], [-1, -1, -1]])
        values = boxes, scores, kept[None] if batched else kept
        outputs = {f"yolonms_layer_1:{place}": values[which] for place, which in enumerate(order)}
        family = family_of(outputs, (416, 416))
        assert (family.name, family.classes(outputs, (416, 416)), family.overlaps) == ("yolov3-keras", 80, False)
        found = family.boxes(outputs, (416, 416), 0.05)
        assert found.xyxy.tolist() == [[30, 20, 220, 90]] * 2
        assert found.classes.tolist() == [3, 5]
        corners, each = family.rows(outputs, (416, 416))
        assert (corners[7].tolist(), each.shape, each[7, 3]) == ([30, 20, 220, 90], (2535, 80), np.float32(0.9))
        nothing = {name: value[:, :0] if batched else value[:0] for name, value in outputs.items() if value.dtype == np.int32}
        assert len(family.boxes(outputs | nothing, (416, 416), 0.05)) == 0
        assert family_of(outputs | nothing, (416, 416)).name == "yolov3-keras"

    def test_yolov10_gives_whole_boxes_that_are_not_suppressed(self):
        rows = np.zeros((1, 300, 6), np.float32)
        rows[0, :2] = [[0, 0, 8, 8, 0.9, 3], [0, 0, 8, 8, 0.8, 3]]
        outputs = {"output0": rows}
        boxes = detect(outputs, family_of(outputs, SMALL), Frame.of(32, 32, spec(size=SMALL)), TASK)
        assert boxes.scores == pytest.approx([0.9, 0.8])
        assert boxes.classes.tolist() == [3, 3]

    def test_nanodet_outputs_are_told_apart_by_shape_and_decoded(self):
        outputs = {}
        for place, side in enumerate((1, 4, 2)):
            # Names say nothing: as in the real file, scores and distances of the strides come in any order.
            outputs[f"bbox_pred{place}"] = np.full((side * side, 3), side / 10, np.float32)
            outputs[f"cls_score{place}"] = np.zeros((side * side, 32), np.float32)
        outputs["cls_score1"][5] = np.where(np.arange(32) % 8 == 2, 100.0, 0.0)
        boxes = decoded("nanodet", outputs)
        first = boxes.taken(boxes.classes == 0)
        assert first.scores == pytest.approx([0.4] * 16 + [0.2] * 4 + [0.1])
        # Cell (row 1, column 1) of stride 8: centre (12, 12), all four distances 2 * 8.
        assert first.xyxy[5] == pytest.approx([-4, -4, 28, 28])
        # Equal weights expect 3.5 bins.
        assert first.xyxy[20] == pytest.approx([16 - 3.5 * 32] * 2 + [16 + 3.5 * 32] * 2)

    @pytest.mark.parametrize("bins", [8, 11])
    @pytest.mark.parametrize("logits", [False, True])
    @pytest.mark.parametrize(
        ("strides", "name", "shift"),
        [((8, 16, 32), "nanodet", 0.5), ((8, 16, 32, 64), "nanodet-plus", 0), ((4, 8, 16, 32, 64), "nanodet-plus", 0)],
    )
    def test_nanodet_in_one_output(self, strides, name, shift, bins, logits):
        size = (64, 96)
        grid, step = centres(size, strides, shift)
        rows = np.random.default_rng(0).normal(size=(1, len(grid), 3 + 4 * bins)).astype(np.float32)
        rows[..., :3] = 0.01
        rows[0, -1, :3] = [1.0004, 0.01, 0.01]
        # Cell (row 0, column 1) of the first stride, all four distances twice that.
        rows[0, 1] = [0.01, 0.9, 0.01, *np.where(np.arange(4 * bins) % bins == 2, 100.0, 0.0)]
        if logits:
            scores = np.clip(rows[..., :3], 0.01, 0.999)
            rows[..., :3] = np.log(scores / (1 - scores))
        family = family_of({"output": rows}, size)
        assert (family.name, family.classes({"output": rows}, size)) == (name, 3)
        found = decoded(name, {"output": rows}, size)
        assert found.classes.tolist() == [1, 0]
        x, y = grid[1] * step[1]
        assert found.xyxy[0] == pytest.approx([x - 2 * step[1, 0], y - 2 * step[1, 0], x + 2 * step[1, 0], y + 2 * step[1, 0]])
        if name == "nanodet":
            # A NanoDet-Plus of three strides, which only `task.decoder` can tell.
            assert family_of({"output": rows}, size, "nanodet-plus").boxes({"output": rows}, size, 0.5).xyxy[0] == pytest.approx(
                found.xyxy[0] - step[1, 0] / 2
            )
        else:
            with pytest.raises(DataError, match="use nanodet-plus"):
                family_of({"output": rows}, size, "nanodet")

    @pytest.mark.parametrize("bins", [8, 11])
    @pytest.mark.parametrize("classes", [5, 32])
    def test_picodet_s_distances_are_from_the_middles_of_its_cells(self, classes, bins):
        """Of strides 8 to 64, by stride, as PaddleDetection's picodet_postprocess.py reads them."""
        size, outputs = (128, 192), {}
        for stride in (64, 8, 32, 16):
            count = size[0] // stride * size[1] // stride
            distances = np.random.default_rng(stride).normal(size=(1, count, 4 * bins)).astype(np.float32)
            outputs[f"a{stride}"], outputs[f"b{stride}"] = np.full((1, count, classes), 0.01, np.float32), distances
        outputs["a16"][0, 1, 3], outputs["b16"][0, 1] = 0.9, np.where(np.arange(4 * bins) % bins == 1, 100.0, 0.0)
        assert family_of(outputs, size).name == "nanodet"
        assert decoded("nanodet", outputs, size).xyxy == pytest.approx(np.array([[8, -8, 40, 24]]))

    @pytest.mark.parametrize("name", ["yolox-decoded", "yolov8-rows"])
    def test_objectness_is_told_from_a_class(self, name):
        rows = np.zeros((1, 21, 4 + 3), np.float32)
        rows[0, :, :4] = [16, 10, 8, 4]
        rows[0, :, 4:] = [0.01, 0.3, 0.2] if name == "yolox-decoded" else [0.01, 0.01, 0.01]
        rows[0, 3:5, 4:] = [[0.9, 0.01, 0.8]] * 2 if name == "yolox-decoded" else [[0.9, 0.01, 0.01], [0.01, 0.01, 0.8]]
        assert family_of({"output0": rows}, SMALL).name == name
        best = decoded(name, {"output0": rows}).best(2)
        assert best.xyxy[0].tolist() == [12, 8, 20, 12]
        assert best.classes.tolist() == ([1, 1] if name == "yolox-decoded" else [0, 2])
        assert family_of({"output0": rows}, SMALL, "yolov8-rows").name == "yolov8-rows"

    def test_columns_that_are_no_scores_are_no_yolox(self):
        rows = np.random.default_rng(0).normal(size=(1, 8400, 9)).astype(np.float32)
        with pytest.raises(DataError, match="of no known family"):
            family_of({"output0": rows}, (640, 640))

    def test_yolonas_has_corners_in_pixels_and_no_background(self):
        boxes, scores = np.tile(np.float32([4, 8, 12, 28]), (1, 21, 1)), np.zeros((1, 21, 4), np.float32)
        scores[0, 9] = [0.9, 0, 0, 0]
        outputs = {"a": scores, "b": boxes}
        assert family_of(outputs, SMALL).name == "yolonas"
        found = decoded("yolonas", outputs)
        assert found.xyxy.tolist() == [[4, 8, 12, 28]]
        assert found.classes.tolist() == [0]

    @pytest.mark.parametrize("classes", [3, 4, 80])
    @pytest.mark.parametrize("cells", [84, 85, 86, 340])
    def test_scores_by_class_beside_corners_are_turned(self, classes, cells):
        # PP-YOLOE, PicoDet with its fourth stride, FCOS with a fifth; strides from 4 on.
        boxes, scores = np.tile(np.float32([4, 8, 12, 28]), (1, cells, 1)), np.zeros((1, classes, cells), np.float32)
        scores[0, 1, 9] = 0.9
        outputs = {"tmp_17": boxes, "concat_14.tmp_0": scores}
        assert family_of(outputs, (64, 64)).name == "yolonas"
        assert FAMILIES["yolonas"].classes(outputs, (64, 64)) == classes
        found = decoded("yolonas", outputs, (64, 64))
        assert found.xyxy.tolist() == [[4, 8, 12, 28]]
        assert found.classes.tolist() == [1]

    @pytest.mark.parametrize("together", [False, True])
    def test_queries_are_boxes_in_shares_of_the_image(self, together):
        boxes, logits = np.zeros((1, 300, 4), np.float32), np.full((1, 300, 5), -9.0, np.float32)
        boxes[0, 4], logits[0, 4, 2] = [0.5, 0.25, 0.5, 0.25], 2.0
        outputs = {"logits": logits, "pred_boxes": boxes}
        if together:
            outputs = {"output0": np.concatenate([boxes, 1 / (1 + np.exp(-logits))], axis=2)}
        found = decoded("rtdetr", outputs, (64, 128))
        assert found.xyxy == pytest.approx(np.array([[32, 8, 96, 24]]))
        assert found.scores == pytest.approx([1 / (1 + np.exp(-2))])
        assert found.classes.tolist() == [2]

    @pytest.mark.parametrize("classes", [1, 2])
    def test_whole_boxes_in_shares_are_not_read_in_pixels(self, classes):
        rows = np.random.default_rng(0).uniform(0, 1, (1, 300, 6)).astype(np.float32)
        rows[..., 5] = np.arange(300) % classes
        rows[0, 0] = [0.5, 0.25, 0.5, 0.25, 0.9, classes - 1]
        assert family_of({"output0": rows}, SMALL).name == "rtdetr-chosen"
        found = decoded("rtdetr-chosen", {"output0": rows}, (64, 128))
        assert found.xyxy[0] == pytest.approx([32, 8, 96, 24])
        assert (found.scores[0], found.classes[0]) == (pytest.approx(0.9), classes - 1)
        side_by_side = {"output0": np.random.default_rng(0).uniform(0, 1, (1, 300, 4 + classes)).astype(np.float32)}
        assert family_of(side_by_side, SMALL).name == "rtdetr"
        assert FAMILIES["rtdetr"].classes(side_by_side, SMALL) == classes
        as_corners = np.concatenate([rows[..., :2] / 2, rows[..., :2] / 2 + 0.2, rows[..., 4:]], axis=2)
        assert family_of({"output0": as_corners}, SMALL).name == "yolov10-shares"
        assert decoded("yolov10-shares", {"output0": as_corners}, (64, 128)).xyxy[0] == pytest.approx([32, 8, 57.6, 20.8])

    def test_whole_boxes_in_pixels_by_centre_and_size_are_not_read_as_corners(self):
        """A box of (40, 30) with 16 x 12 pixels would be one from (40, 30) to (16, 12): without area, AP 0."""
        rows = np.zeros((1, 300, 6), np.float32)
        rows[0, :3] = [[40, 30, 16, 12, 0.9, 1], [50, 20, 60, 40, 0.6, 0], [12, 12, 10, 10, 0.3, 2]]
        with pytest.raises(DataError, match="centre and size in pixels(.|\n)*rtdetr-chosen"):
            family_of({"output0": rows}, (64, 96))
        assert family_of({"output0": rows}, (64, 96), "yolov10").name == "yolov10"
        rows[0, 0, 2:4], rows[0, 2, 2:4] = [56, 42], [22, 22]
        assert family_of({"output0": rows}, (64, 96)).name == "yolov10"

    def test_whole_boxes_of_one_image_without_a_batch(self):
        rows = np.array([[12, 8, 20, 12, 0.9, 1], [0, 0, 31, 31, 0.2, 0]], np.float32)
        found = decoded("yolov10", {"detections": rows})
        assert (found.xyxy.tolist(), found.classes.tolist()) == (rows[:, :4].tolist(), [1, 0])
        assert decoded("yolov10-shares", {"detections": rows / [32, 32, 32, 32, 1, 1]}).xyxy == pytest.approx(rows[:, :4])
        nothing = {"detections": rows[:0]}
        assert len(family_of(nothing, SMALL).boxes(nothing, SMALL, 0)) == 0
        # The score first, PaddleDetection's without their number: of no family.
        with pytest.raises(DataError, match="of no known family"):
            family_of({"detections": rows[:, [5, 4, 0, 1, 2, 3]]}, SMALL)

    @pytest.mark.parametrize("shaped", [lambda h, w: (1, 3, h, w, 85), lambda h, w: (1, 255, h, w), lambda h, w: (1, h, w, 3, 85)])
    @pytest.mark.parametrize("strides", [(8, 16, 32), (16, 32)])
    def test_maps_of_anchors_are_refused_with_the_way_out(self, shaped, strides):
        generator = np.random.default_rng(0)
        maps = {str(s): generator.normal(0, 2, shaped(256 // s, 320 // s)).astype(np.float32) for s in strides}
        with pytest.raises(DataError, match="YOLOv5's kind before decoding, 3 anchors a cell with 5 . 80 numbers"):
            family_of(maps, (256, 320))

    def test_detection_output_is_refused_with_the_way_out(self):
        rows = np.zeros((1, 1, 200, 7), np.float32)
        rows[0, 0, :2] = [[0, 1, 0.9, 0.1, 0.2, 0.5, 0.6], [-1, 0, 0, 0, 0, 0, 0]]
        with pytest.raises(DataError, match="DetectionOutput's rows(.|\n)*which is `chosen`"):
            family_of({"detection_out": rows}, SMALL)
        told = {"boxes": rows[0, ..., 3:], "scores": rows[0, ..., 2], "labels": rows[0, ..., 1].astype(np.int64)}
        assert family_of(told, SMALL).name == "chosen-shares"

    @pytest.mark.parametrize("names", [("logits", "pred_boxes"), ("a", "b")])
    def test_four_classes_are_told_from_four_coordinates(self, names):
        generator = np.random.default_rng(0)
        boxes = generator.uniform(0, 1, (1, 300, 4)).astype(np.float32)
        outputs = dict(zip(names, [generator.normal(-3, 3, (1, 300, 4)).astype(np.float32), boxes], strict=True))
        assert family_of(outputs, SMALL).name == "rtdetr"
        assert FAMILIES["rtdetr"].classes(outputs, SMALL) == 4
        found = FAMILIES["rtdetr"].boxes(outputs, SMALL, 0)
        assert (found.xyxy[:, 2:] - found.xyxy[:, :2]).max() <= 32
        if names[0] == "logits":
            outputs["last_hidden_state"] = np.zeros((1, 300, 256), np.float32)
            assert len(decoded("rtdetr", outputs)) == len(found)
        else:
            with pytest.raises(DataError, match="of no known family"):
                family_of({"a": boxes, "b": boxes}, SMALL)

    def test_characters_of_a_line_of_text_are_no_queries(self):
        """Steps x characters behind a softmax, as text recognition puts them out."""
        logits = np.random.default_rng(0).normal(0, 3, (1, 80, 97))
        steps = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        with pytest.raises(DataError, match="of no known family"):
            family_of({"probs": np.float32(steps)}, (48, 320))

    def test_no_object_is_no_class(self):
        logits = np.zeros((1, 100, 6), np.float32)
        logits[..., 5] = 9
        logits[0, 3] = [0, 12, 0, 0, 0, 10]
        outputs = {"logits": logits, "pred_boxes": np.full((1, 100, 4), 0.5, np.float32)}
        assert family_of(outputs, SMALL).name == "detr"
        assert FAMILIES["detr"].classes(outputs, SMALL) == 5
        found = decoded("detr", outputs)
        assert found.classes.tolist() == [1]
        assert found.scores == pytest.approx([1 / (1 + np.exp(-2))], abs=1e-3)

    def test_no_object_is_no_class_behind_a_softmax_of_the_graph(self):
        logits = np.zeros((1, 100, 6), np.float32)
        logits[..., 5] = 9
        logits[0, 3] = [0, 12, 0, 0, 0, 10]
        boxes = np.full((1, 100, 4), 0.5, np.float32)
        weights = np.exp(logits)
        outputs = {"probs": weights / weights.sum(axis=2, keepdims=True), "boxes": boxes}
        assert family_of(outputs, SMALL).name == "detr"
        alike = FAMILIES["detr"].boxes({"logits": logits, "boxes": boxes}, SMALL, 1e-6)
        found = FAMILIES["detr"].boxes(outputs, SMALL, 1e-6)
        assert found.classes.tolist() == alike.classes.tolist()
        np.testing.assert_allclose(found.scores, alike.scores, rtol=1e-5)

    def test_logits_from_0_to_1_may_be_asked_for_as_detr_s(self):
        logits = np.random.default_rng(0).uniform(0, 1, (1, 100, 6)).astype(np.float32)
        outputs = {"logits": logits, "boxes": np.full((1, 100, 4), 0.5, np.float32)}
        assert family_of(outputs, SMALL).name == "rtdetr"
        assert family_of(outputs, SMALL, "detr").name == "detr"
        weights = np.exp(logits[0].astype(np.float64))
        scores = (weights / weights.sum(axis=1, keepdims=True))[:, :-1]
        found = FAMILIES["detr"].boxes(outputs, SMALL, 0)
        # A query is of its best class alone.
        np.testing.assert_allclose(found.scores, np.sort(scores.max(axis=1))[::-1])
        assert sorted(found.classes.tolist()) == sorted(scores.argmax(axis=1).tolist())

    @pytest.mark.parametrize("name", ["logits", "pred_logits"])
    def test_what_is_called_logits_is_no_score(self, name):
        """On an image on which they lie in 0 to 1 they are read as on all others."""
        generator, boxes = np.random.default_rng(0), np.full((1, 100, 4), 0.5, np.float32)
        for low, high in ((0, 1), (-3, 3)):
            logits = generator.uniform(low, high, (1, 100, 6)).astype(np.float32)
            outputs = {name: logits, "pred_boxes": boxes}
            assert family_of(outputs, SMALL).name == "rtdetr"
            found = FAMILIES["rtdetr"].boxes(outputs, SMALL, 0)
            np.testing.assert_allclose(found.scores[0], 1 / (1 + np.exp(-np.float64(logits.max()))), rtol=1e-6)
        scores = {"scores": logits.clip(0, 1), "pred_boxes": boxes}
        assert FAMILIES["rtdetr"].boxes(scores, SMALL, 0).scores[0] == 1

    def test_suppression_that_found_nothing_is_no_query(self):
        nothing = {"output0": np.zeros((1, 300, 6), np.float32)}
        assert [family.name for family in FAMILIES.values() if family.fits(nothing, SMALL)] == ["yolov10", "yolov10-shares"]
        assert family_of(nothing, SMALL, "rtdetr-chosen").name == "rtdetr-chosen"

    @pytest.mark.filterwarnings("error")
    def test_no_row_at_all_is_no_warning(self):
        nothing = {"output0": np.zeros((1, 0, 6), np.float32)}
        assert len(family_of(nothing, SMALL).boxes(nothing, SMALL, 0)) == 0

    def test_a_score_rounded_above_one_is_no_logit(self):
        scores = np.full((1, 300, 3), 0.01, np.float32)
        scores[0, 0, 0] = 1.0004
        assert len(decoded("rtdetr", {"boxes": np.full((1, 300, 4), 0.5, np.float32), "scores": scores})) == 1

    @pytest.mark.parametrize(("points", "sides"), [(10, [16, 512]), (8, [24, 768])])
    def test_retinaface_has_two_anchors_a_cell(self, points, sides):
        """Offsets of 0 are the anchors themselves: the first of the finest level, and the last of the coarsest."""
        size, rows = (50, 90), 2 * (7 * 12 + 4 * 6 + 2 * 3)
        scores = np.tile(np.float32([1, 0]), (1, rows, 1))
        scores[0, [0, -1, 3]] = [0.1, 0.9]
        offsets = np.zeros((1, rows, 4), np.float32)
        # A side to the right, and e times as high.
        offsets[0, 3] = [10, 0, 0, 5]
        outputs = {"landms": np.full((1, rows, points), 7, np.float32), "conf": scores, "loc": offsets}
        assert family_of(outputs, size).name == "retinaface"
        assert FAMILIES["retinaface"].classes(outputs, size) == 1
        first, moved, last = decoded("retinaface", outputs, size).xyxy
        assert first.tolist() == [4 - sides[0] / 2, 4 - sides[0] / 2, 4 + sides[0] / 2, 4 + sides[0] / 2]
        assert last.tolist() == [80 - sides[1] / 2, 48 - sides[1] / 2, 80 + sides[1] / 2, 48 + sides[1] / 2]
        # The second anchor of the second cell.
        side = 2 * sides[0]
        assert moved == pytest.approx([12 + side / 2, 4 - side * np.e / 2, 12 + side * 1.5, 4 + side * np.e / 2])
        # Of another size, or with scores that are none, they are nothing known.
        for wrong, at in ((outputs, (64, 90)), (outputs | {"conf": 3 * scores}, size)):
            assert not FAMILIES["retinaface"].fits(wrong, at)

    @pytest.mark.parametrize(("batch", "points"), [((), True), ((1,), True), ((), False)])
    def test_scrfd_has_its_levels_apart(self, batch, points):
        """Distances are in strides from the corner of a cell, which has two anchors."""
        size, outputs = (64, 96), {}
        for stride, rows in ((8, 192), (16, 48), (32, 12)):
            score, distance = np.zeros((rows, 1), np.float32), np.tile(np.float32([1, 1, 2, 3]), (rows, 1))
            if stride == 16:
                score[7] = 0.8  # the second anchor of the fourth cell
            parts = [score, distance, np.ones((rows, 10), np.float32)][: 3 if points else 2]
            outputs |= {f"{stride} {place}": part.reshape(*batch, *part.shape) for place, part in enumerate(parts)}
        assert family_of(outputs, size).name == "scrfd"
        assert FAMILIES["scrfd"].classes(outputs, size) == 1
        found = decoded("scrfd", dict(reversed(outputs.items())), size)
        assert found.xyxy.tolist() == [[48 - 16, 0 - 16, 48 + 32, 0 + 48]]
        assert found.scores == pytest.approx([0.8])
        assert not FAMILIES["scrfd"].fits(outputs, (64, 64))
        assert not FAMILIES["scrfd"].fits(outputs | {"8 0": outputs["8 0"] + 9}, size)

    def test_yunet_has_two_scores_and_yolox_boxes(self):
        size, outputs = (64, 96), {}
        for stride, rows in ((8, 96), (16, 24), (32, 6)):
            for name, columns in (("kps", 10), ("bbox", 4), ("obj", 1), ("cls", 1)):
                outputs[f"{name}_{stride}"] = np.zeros((1, rows, columns), np.float32)
        outputs["cls_16"][0, 8], outputs["obj_16"][0, 8] = 0.81, 1.0001
        outputs["bbox_16"][0, 8] = [0.5, 0.25, np.log(2), 0]
        assert family_of(outputs, size).name == "yunet"
        found = decoded("yunet", outputs, size)
        # The third cell of the second row, 16 pixels each: centre (40, 20), 32 wide and 16 high.
        assert found.xyxy == pytest.approx(np.float32([[40 - 16, 20 - 8, 40 + 16, 20 + 8]]))
        assert found.scores == pytest.approx([0.9])
        assert not FAMILIES["yunet"].fits(outputs, (64, 64))
        assert not FAMILIES["yunet"].fits(outputs | {"cls_8": outputs["cls_8"] + 9}, size)

    def test_ssd_leaves_its_background_out(self):
        boxes, scores = np.zeros((1, 4420, 4), np.float32), np.zeros((1, 4420, 2), np.float32)
        scores[0, :, 0] = 1
        boxes[0, 9], scores[0, 9] = [0.25, 0.5, 0.5, 1.0], [0.1, 0.9]
        outputs = {"scores": scores, "boxes": boxes}
        assert family_of(outputs, (240, 320)).name == "ssd"
        found = decoded("ssd", outputs, (240, 320))
        assert found.xyxy.tolist() == [[80, 120, 160, 240]]
        assert found.classes.tolist() == [0]

    @pytest.mark.parametrize("classes", [1, 3, 20])
    def test_ssd_of_few_rows_is_told_from_queries(self, classes):
        size = (96, 160)
        places, step = centres(size, (16, 32), 0.5)
        centre, side = np.repeat(places * step, 3, axis=0) / size[::-1], np.repeat(step, 3, axis=0) / size[::-1]
        generator = np.random.default_rng(0)
        centre = centre + generator.uniform(-0.5, 0.5, centre.shape) * side
        logits = generator.normal(size=(len(centre), 1 + classes)) + 4 * (np.arange(1 + classes) == 0)
        logits[7, classes] = 12
        scores = np.float32(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
        boxes = np.float32(np.concatenate([centre - side, centre + side], axis=1))
        outputs = {"a": boxes[None], "b": scores[None]}
        family = family_of(outputs, size)
        assert (len(boxes), family.name, family.classes(outputs, size)) == (225, "ssd", classes)
        found = family.boxes(outputs, size, 0.9)
        assert found.classes.tolist() == [classes - 1]
        np.testing.assert_allclose(found.xyxy[0], boxes[7] * [160, 96, 160, 96], rtol=1e-6)
        # Queries: centre and size, or no object behind all classes, or boxes where objects are.
        sized = np.float32(np.concatenate([centre, 2 * side], axis=1))
        gathered = np.float32(0.2 * boxes + 0.1)
        for queries in ((sized, scores), (boxes, scores[:, ::-1]), (gathered, scores)):
            assert not FAMILIES["ssd"].fits({"a": queries[0][None], "b": queries[1][None]}, size)

    @pytest.mark.parametrize("size", [(240, 320), (320, 240), (96, 160), (300, 300)])
    @pytest.mark.parametrize("offset", [0.1, 0.5])
    def test_ssd_with_y_before_x_is_told_by_the_order_of_its_cells(self, size, offset):
        places, step = centres(size, (8, 16, 32), 0.5)
        generator = np.random.default_rng(0)
        centre, side = (np.repeat(values, 3, axis=0) for values in (places * step, step))
        centre = (centre + generator.uniform(-offset, offset, centre.shape) * side) / size[::-1]
        half = side / size[::-1]
        logits = generator.normal(size=(len(centre), 4)) + 6 * (np.arange(4) == 0)
        scores = np.float32(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
        boxes = np.float32(np.concatenate([centre - half, centre + half], axis=1))
        for order, name in (([0, 1, 2, 3], "ssd"), ([1, 0, 3, 2], "ssd-yx")):
            outputs = {"boxes": boxes[None, :, order], "scores": scores[None]}
            family = family_of(outputs, size)
            assert family.name == name
            np.testing.assert_allclose(family.rows(outputs, size)[0], boxes * np.tile(size[::-1], 2), rtol=1e-5)

    @pytest.mark.parametrize("turned", [False, True])
    @pytest.mark.parametrize("unit", ["", "-shares"])
    @pytest.mark.parametrize(("classes", "background"), [(1, False), (3, False), (4, True), (90, True)])
    def test_corners_by_anchors_with_a_score_for_each_class_by_itself(self, turned, unit, classes, background):
        """TensorFlow's SSD: a trained one of faces was of no known family, and called undecoded."""
        size = (160, 256)
        places, step = centres(size, (8, 16), 0.5)
        centre, side = (np.repeat(values, 3, axis=0) for values in (places * step, step))
        generator = np.random.default_rng(0)
        centre = centre + generator.uniform(-0.5, 0.5, centre.shape) * side
        boxes = np.concatenate([centre - side, centre + 2 * side], axis=1) / (np.tile(size[::-1], 2) if unit else 1)
        scores = generator.uniform(0, 0.04, (len(boxes), classes))
        scores[7] = np.arange(classes) == classes - 1
        if background:
            scores = np.concatenate([1 - scores.max(axis=1, keepdims=True), scores], axis=1)
        outputs = {"a": np.float32(boxes[None, :, [1, 0, 3, 2] if turned else [0, 1, 2, 3]]), "b": np.float32(scores[None])}
        for values in (outputs, outputs | {"b": outputs["b"].swapaxes(1, 2)}):
            family = family_of(values, size)
            assert (len(boxes), family.name) == (2400, f"decoded{'-yx' if turned else ''}{unit}")
            assert family.classes(values, size) == classes
            found = family.boxes(values, size, 0.9)
            assert found.classes.tolist() == [classes - 1]
            np.testing.assert_allclose(found.xyxy[0], np.append(centre[7] - side[7], centre[7] + 2 * side[7]), rtol=1e-4)

    def test_what_is_no_grid_s_corners_is_not_decoded(self):
        generator = np.random.default_rng(0)
        size = (96, 160)
        first, sides = generator.uniform(0, 80, (1, 1200, 2)), generator.uniform(1, 40, (1, 1200, 2))
        scores = np.float32(generator.uniform(0, 0.04, (1, 1200, 3)))
        even = first * [2, 1.2] - sides / 2
        corners = np.float32(np.concatenate([even, even + sides], axis=2))
        assert family_of({"a": corners, "b": scores}, size).name.startswith("decoded")
        for boxes, values in (
            # Centre and size; in one corner of the input; distances; few rows.
            (np.concatenate([first * [2, 1.2], sides], axis=2), scores),
            (corners / 3, scores),
            (np.concatenate([sides, sides], axis=2), scores),
            (corners[:, :900], scores[:, :900]),
            (corners, 4 * scores - 2),
        ):
            outputs = {"a": np.float32(boxes), "b": np.float32(values)}
            assert not any(family.fits(outputs, size) for name, family in FAMILIES.items() if name.startswith("decoded"))

    def test_what_ssd_leaves_undecoded_is_no_ssd(self):
        generator = np.random.default_rng(0)
        offsets, logits = generator.normal(size=(1, 4420, 4)), generator.normal(size=(1, 4420, 3))
        scores = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        corners = np.concatenate([offsets[..., :2] / 9, offsets[..., :2] / 9 + 0.2], axis=2)
        assert FAMILIES["ssd"].fits({"boxes": corners, "scores": scores}, (240, 320))
        assert not FAMILIES["ssd"].fits({"boxes": corners, "scores": logits}, (240, 320))
        assert not FAMILIES["ssd"].fits({"boxes": offsets, "scores": scores}, (240, 320))
        # The background behind all classes.
        scores[0, :3000] = [0.05, 0.05, 0.9]
        assert not FAMILIES["ssd"].fits({"boxes": corners, "scores": scores}, (240, 320))

    def test_torchvision_outputs_are_told_apart_by_type(self):
        outputs = {
            "a": np.array([0.9, 0.01], np.float32),
            "b": np.array([17, 3]),
            "c": np.array([[1, 2, 3, 4], [0, 0, 9, 9]], np.float32),
        }
        found = decoded("torchvision", outputs)
        assert found.xyxy.tolist() == [[1, 2, 3, 4]]
        assert found.classes.tolist() == [17]
        nothing = {"a": np.zeros(0, np.float32), "b": np.zeros(0, np.int64), "c": np.zeros((0, 4), np.float32)}
        assert len(decoded("torchvision", nothing)) == 0

    def test_torchvision_s_layout_in_shares_is_told_by_the_first_boxes(self):
        """lufficc's SSD exports so."""
        outputs = {
            "boxes": np.float32([[0.25, 0.5, 0.75, 1.02]]), "scores": np.float32([0.9]), "labels": np.array([17])
        }  # fmt: skip
        nothing = {name: value[:0] for name, value in outputs.items()}
        reading = Reading()
        reading.of((200, 400), nothing)
        family = reading.of((200, 400), outputs)
        assert family.name == "torchvision-shares"
        assert family.background
        assert family.boxes(outputs, (200, 400), 0.5).xyxy == pytest.approx(np.array([[100, 100, 300, 204]]))
        assert family_of({**outputs, "boxes": outputs["boxes"] * 100}, (200, 400)).name == "torchvision"

    @pytest.mark.parametrize("classes", [1, 3, 20])
    @pytest.mark.parametrize("turned", [False, True])
    def test_ssd_that_leaves_decoding_is_read_by_the_priors_that_it_puts_out(self, classes, turned):
        torch, coder = pytest.importorskip("torch"), pytest.importorskip("torchvision.models.detection._utils").BoxCoder
        size = (96, 160)
        places, step = centres(size, (8, 16, 32), 0.5)
        centre, side = np.repeat(places * step, 4, axis=0) / size[::-1], np.repeat(step, 4, axis=0) / size[::-1]
        priors = np.float32(np.concatenate([centre, side * np.tile([[1, 1], [1, 2], [2, 1], [3, 3]], (len(places), 1))], axis=1))
        generator = np.random.default_rng(0)
        offsets = generator.normal(size=(1, len(priors), 4)).astype(np.float32)
        logits = generator.normal(size=(1, len(priors), 1 + classes)).astype(np.float32) + 5 * (np.arange(1 + classes) == 0)
        values = [offsets, np.float32(logits), priors]
        if turned:
            # NVIDIA's has channels first.
            values = [values[0].swapaxes(1, 2), values[1].swapaxes(1, 2), priors[None]]
        softmax = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        corners = np.concatenate([priors[:, :2] - priors[:, 2:] / 2, priors[:, :2] + priors[:, 2:] / 2], axis=1)
        scale = np.float32([160, 96, 160, 96])
        expected = coder(weights=(10.0, 10.0, 5.0, 5.0)).decode_single(
            torch.from_numpy(offsets[0]), torch.from_numpy(corners * scale)
        )
        for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
            for scores in (values[1], softmax.swapaxes(1, 2) if turned else softmax):
                each = [values[0], scores, values[2]]
                outputs = {f"o{place}": each[place] for place in order}
                family = family_of(outputs, size)
                assert (family.name, family.classes(outputs, size)) == ("ssd-raw", classes)
                boxes, found = family.rows(outputs, size)
                np.testing.assert_allclose(boxes, expected.numpy(), rtol=1e-4, atol=1e-3)
                np.testing.assert_allclose(found, softmax[0, :, 1:], rtol=1e-4, atol=1e-6)
        with pytest.raises(DataError) as error:
            family_of({"loc": values[0], "conf": values[1]}, size)
        assert "SSD's offsets and logits; put its prior boxes out, too" in error.value.mend
        # Of RetinaNet and EfficientDet, whose sigmoid knows no background, neither is said.
        if classes > 1:
            sure = generator.normal(-4, 1, values[1].shape).astype(np.float32)
            with pytest.raises(DataError) as error:
                family_of({"loc": values[0], "conf": sure}, size)
            assert "SSD" not in error.value.mend
            assert not FAMILIES["ssd-raw"].fits({"loc": values[0], "conf": sure, "priors": values[2]}, size)
            assert family_of({"loc": values[0], "conf": sure, "priors": values[2]}, size, "ssd-raw").name == "ssd-raw"

    @pytest.mark.parametrize("classes", [1, 4, 7])
    @pytest.mark.parametrize("shares", [False, True])
    @pytest.mark.parametrize("centred", [False, True])
    @pytest.mark.parametrize("turned", [False, True])
    def test_offsets_are_read_by_the_anchors_beside_them(self, classes, shares, centred, turned):
        torch, coder = pytest.importorskip("torch"), pytest.importorskip("torchvision.models.detection._utils").BoxCoder
        size = (96, 160)
        places, step = (np.repeat(each, 4, axis=0) for each in centres(size, (8, 16, 32), 0.5))
        centre, side = places * step, step * np.tile([[4, 4], [3, 6], [6, 3], [5, 5]], (len(step) // 4, 1))
        edges = np.concatenate([centre - side / 2, centre + side / 2], axis=1)
        generator = np.random.default_rng(0)
        offsets = generator.normal(size=(1, len(edges), 4)).astype(np.float32)
        logits = generator.normal(-4, 1, (1, len(edges), classes)).astype(np.float32)
        expected = coder(weights=(1.0, 1.0, 1.0, 1.0)).decode_single(
            torch.from_numpy(offsets[0]), torch.from_numpy(np.float32(edges))
        )
        anchors = (np.concatenate([centre, side], axis=1) if centred else edges) / (np.tile(size[::-1], 2) if shares else 1)
        axes = [1, 0, 3, 2] if turned else [0, 1, 2, 3]
        offsets, anchors = offsets[..., axes], np.float32(anchors[:, axes])[None]
        scores = 1 / (1 + np.exp(-logits))
        for written in (logits, scores):
            for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
                outputs = {f"o{place}": [offsets, written, anchors][place] for place in order}
                outputs |= {"features": np.zeros((1, 8, 12, 20), np.float32)}
                family = family_of(outputs, size)
                assert (family.name, family.classes(outputs, size)) == ("anchored", classes)
                boxes, found = family.rows(outputs, size)
                np.testing.assert_allclose(boxes, expected.numpy(), rtol=1e-4, atol=2e-3)
                np.testing.assert_allclose(found, scores[0], rtol=1e-4, atol=1e-6)
        for outputs, said in (
            ({"deltas": offsets, "scores": logits}, "look like offsets from anchors and scores"),
            ({"distances": np.abs(offsets), "scores": logits, "centre": logits[..., :1]}, "look like distances from cells"),
            ({"distances": np.abs(offsets), "scores": logits, "anchors": anchors}, "look like distances from cells"),
            # Boxes of as many sizes are no anchors.
            (
                {"deltas": offsets, "scores": logits, "boxes": anchors * generator.uniform(0.9, 1, anchors.shape)},
                "export the graph",
            ),
        ):
            with pytest.raises(DataError) as error:
                family_of({name: np.float32(value) for name, value in outputs.items()}, size)
            assert said in error.value.mend

    def test_maps_of_offsets_at_each_level_are_told_what_to_do(self):
        levels = {
            f"{name}{stride}": np.zeros((1, channels, 320 // stride, 320 // stride), np.float32)
            for stride in (8, 16, 32, 64)
            for name, channels in (("class", 720), ("box", 36))
        }
        with pytest.raises(DataError) as error:
            family_of(levels, (320, 320))
        assert "put all levels together as rows" in error.value.mend

    def test_detectron2_s_image_size_is_no_labels(self):
        outputs = {
            "boxes": np.array([[1, 2, 3, 4], [0, 0, 9, 9]], np.float32),
            "classes": np.array([17, 3]),
            "scores": np.array([0.9, 0.8], np.float32),
            "size": np.array([480, 640]),
        }
        family = family_of(outputs, (480, 640))
        assert family.name == "torchvision"
        assert family.boxes(outputs, (480, 640), 0.5).classes.tolist() == [17, 3]
        three = {name: value if name == "size" else np.concatenate([value, value[:1]]) for name, value in outputs.items()}
        assert family.boxes(three, (480, 640), 0.5).classes.tolist() == [17, 3, 17]

    def test_efficientnms_says_how_many_boxes_count(self):
        outputs = {
            "num_dets": np.array([[1]], np.int32),
            "det_boxes": np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]], np.float32),
            "det_scores": np.array([[0.7, 0.6]], np.float32),
            "det_classes": np.array([[2, 1]], np.int32),
        }
        found = decoded("efficientnms", outputs)
        assert found.xyxy.tolist() == [[1, 2, 3, 4]]
        assert found.classes.tolist() == [2]

    @pytest.mark.parametrize("name", ["tensorflow", "tflite"])
    @pytest.mark.parametrize("share", [False, True])
    def test_tensorflow_s_corners_are_y_before_x(self, name, share):
        size, pixels = (240, 320), np.array([[30.0, 20, 90, 220], [0, 300, 240, 320]])
        boxes = np.float32([*(pixels / [240, 320, 240, 320] if share else pixels), [0] * 4])[None]
        scores, classes = np.float32([[0.9, 0.4, 0]]), np.float32([[17, 1, 0]])
        outputs = {"detection_boxes": boxes, "detection_classes": classes, "detection_scores": scores}
        outputs |= {"num_detections": np.float32([2])}
        if name == "tflite":
            outputs = {f"StatefulPartitionedCall:{place}": outputs[key] for place, key in enumerate(sorted(outputs, reverse=True))}
        else:
            raw = {f"raw_{key}": np.ones((1, 900, last), np.float32) for key, last in (("detection_boxes", 4), ("scores", 91))}
            frozen = {f"{key}:0": value for key, value in (outputs | raw).items()}
            uncounted = {key: value for key, value in outputs.items() if key != "num_detections"}
            assert {family_of(one, size).name for one in (frozen, outputs | raw, uncounted)} == {family_of(outputs, size).name}
        family = family_of(outputs, size)
        assert family.name == name + ("-shares" if share else "")
        assert (family.background, family.overlaps, family.rows) == (name == "tensorflow", False, None)
        found = family.boxes(outputs, size, 0.001)
        np.testing.assert_allclose(found.xyxy, pixels[:, [1, 0, 3, 2]], atol=1e-4)
        assert found.classes.tolist() == [17, 1]
        assert found.scores == pytest.approx([0.9, 0.4])
        nothing = {key: 0 * value for key, value in outputs.items()}
        assert len(family.boxes(nothing, size, 0.001)) == 0
        assert family_of(nothing, size).name == name

    @pytest.mark.parametrize(
        ("shapes", "size", "expected", "classes"),
        [
            ([(1, 25200, 85)], (640, 640), "yolov5", 80),
            ([(1, 25500, 6)], (1280, 320), "yolov5", 1),
            ([(1, 84, 8400)], (640, 640), "yolov8", 80),
            ([(1, 5, 2100)], (320, 320), "yolov8", 1),
            ([(1, 3549, 85)], (416, 416), "yolox", 80),
            ([(1, 300, 6)], (640, 640), "yolov10", None),
            ([(1, 300, 80), (1, 300, 4)], (640, 640), "rtdetr", 80),
            ([(1, 300, 84)], (640, 640), "rtdetr", 80),
        ],
    )
    def test_the_family_is_told_by_the_outputs(self, shapes, size, expected, classes):
        outputs = {f"output{place}": np.zeros(shape, np.float32) for place, shape in enumerate(shapes)}
        family = family_of(outputs, size)
        assert family.name == expected
        assert (family.classes and family.classes(outputs, size)) == classes
        assert family_of(outputs, size, expected).name == expected

    def test_params_know_every_family(self):
        assert set(DECODERS) == set(FAMILIES)

    def test_outputs_of_no_family_are_refused_with_their_shapes_and_what_is_known(self):
        outputs = {"masks": np.zeros((1, 32, 160, 160), np.float32)}
        with pytest.raises(DataError, match=r"(?s)masks float32 \[1, 32, 160, 160\].*yolov8: 1 x \(4 \+ c\) x n"):
            family_of(outputs, (640, 640))

    def test_a_decoder_that_does_not_fit_names_those_that_would(self):
        outputs = {"output0": np.zeros((1, 84, 8400), np.float32)}
        with pytest.raises(DataError, match=r"(?s)task.decoder: yolov5.*\[1, 84, 8400\].*use yolov8, which would fit"):
            family_of(outputs, (640, 640), "yolov5")
        with pytest.raises(DataError, match=r"(?s)no detector family 'yolov7'.*one of: .*yolov8"):
            family_of(outputs, (640, 640), "yolov7")

    @pytest.mark.parametrize(
        ("guessed", "asked"),
        [
            ("yolov8-obb", "yolov8"),
            ("yolov8", "yolov8-obb"),
            ("yolov8-rows", "yolox-decoded"),
            ("detr", "rtdetr"),
            ("ssd-yx", "ssd"),
            ("decoded-yx-shares", "decoded-shares"),
        ],
    )
    def test_a_guess_by_values_is_overruled(self, guessed, asked):
        """Of two families of one layout `task.decoder` takes the one that the values do not look like."""
        size = (256, 256)
        cell = grid("yolov8", size)["output"]
        sure = np.full((1, 1, cell.shape[2]), 0.9, np.float32)
        boxes = grid("yolonas", size)["boxes"] / 256
        outputs = {
            "yolov8-obb": {"rows": np.concatenate([cell, sure], axis=1)},
            "yolov8": {"rows": cell},
            "yolov8-rows": {"rows": cell.swapaxes(1, 2)},
            "detr": {"logits": np.tile(np.float32([0, 0, 9]), (1, 100, 1)), "boxes": np.full((1, 100, 4), 0.5, np.float32)},
            "ssd-yx": {"boxes": boxes[..., [1, 0, 3, 2]], "scores": np.tile(np.float32([0.9, 0.05, 0.05]), (1, boxes.shape[1], 1))},
            # Not all of them, which are the cells of three strides.
            "decoded-yx-shares": {"boxes": boxes[:, 40:, [1, 0, 3, 2]], "scores": np.float32(0.01 * np.ones((1, 1304, 2)))},
        }[guessed]
        assert family_of(outputs, size).name == guessed
        assert family_of(outputs, size, asked).name == asked


def grid(name: str, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Outputs of a family in pixels, whose boxes lie near their cells; one cell has a score."""
    generator = np.random.default_rng(0)
    places = centres(size, (8, 16, 32), 0.5)
    centre, step = places[0] * places[1], places[1]
    if name == "yolov5":
        # Anchor by anchor, as YOLOv5 has them, the strides one by one.
        parts = np.split(np.concatenate([centre, step], axis=1), np.flatnonzero(np.diff(step[:, 0])) + 1)
        rows = np.concatenate([part for part in parts for _ in range(3)])
        centre, step = rows[:, :2], rows[:, 2:]
    box = np.concatenate([centre + generator.uniform(-1, 1, centre.shape) * step, step * [2, 3]], axis=1)
    scores = np.full((len(box), 3), 0.001)
    if name == "yolox-decoded":
        scores[:, 1:] = 0.3
    scores[7] = [0.9, 0.01, 0.8] if name in ("yolov5", "yolox-decoded") else [0.9, 0.01, 0.01]
    rows = np.float32(np.concatenate([box, scores], axis=1))[None]
    if name == "yolonas":
        edges = np.concatenate([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], axis=1)
        return {"boxes": np.float32(edges)[None], "scores": np.float32(scores)[None]}
    return {"output": rows.swapaxes(1, 2) if name == "yolov8" else rows}


def chosen(name: str, boxes: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of a family of chosen boxes, each of class 1; behind them a row that holds none."""
    count = len(boxes)
    found = {
        "num_dets": np.array([[count]], np.int32),
        "boxes": np.float32([*np.asarray(boxes, np.float32).reshape(-1, 4), np.zeros(4)])[None],
        "scores": np.float32([[0.9] * count + [0]]),
        "classes": np.array([[1] * count + [-1]]),
    }
    return {key: value for key, value in found.items() if name == "efficientnms" or key != "num_dets"}


class TestShares:
    size = (64, 96)
    whole = np.tile(size[::-1], 2)

    def divided(self, name: str, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if name == "yolonas":
            return outputs | {"boxes": np.float32(outputs["boxes"] / self.whole)}
        rows = outputs["output"].swapaxes(1, 2) if name == "yolov8" else outputs["output"]
        rows = np.concatenate([rows[..., :4] / self.whole, rows[..., 4:]], axis=2).astype(np.float32)
        return {"output": rows.swapaxes(1, 2) if name == "yolov8" else rows}

    @pytest.mark.parametrize("name", ["yolov5", "yolov8", "yolov8-rows", "yolonas", "yolox-decoded"])
    def test_a_grid_s_boxes_in_shares_are_told_from_pixels(self, name):
        pixels = grid(name, self.size)
        shares = self.divided(name, pixels)
        assert family_of(pixels, self.size).name == name
        family = family_of(shares, self.size)
        assert family.name == f"{name}-shares"
        expected = FAMILIES[name].boxes(pixels, self.size, 0.5)
        found = family.boxes(shares, self.size, 0.5)
        assert len(found) == len(expected) > 0
        np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=1e-4)
        assert found.classes.tolist() == expected.classes.tolist()
        corners = family.rows(shares, self.size)[0]
        np.testing.assert_allclose(corners, FAMILIES[name].rows(pixels, self.size)[0], atol=1e-4)
        assert (corners.dtype, family.classes(shares, self.size)) == (np.float32, FAMILIES[name].classes(pixels, self.size))
        with pytest.raises(DataError, match=f"use {name}-shares"):
            family_of(shares, self.size, name)
        with pytest.raises(DataError, match=f"use {name}"):
            family_of(pixels, self.size, f"{name}-shares")

    def test_offsets_from_cells_are_no_shares(self):
        rows = np.random.default_rng(0).uniform(0, 1, (1, 96 + 24 + 6, 8)).astype(np.float32)
        assert family_of({"output": rows}, self.size).name == "yolox"

    @pytest.mark.parametrize("name", ["efficientnms", "chosen"])
    def test_chosen_boxes_in_shares_are_told_from_pixels(self, name):
        boxes = np.array([[8.0, 4, 24, 60], [0, 0, 1, 1]])
        shares = chosen(name, boxes / self.whole)
        assert family_of(chosen(name, boxes), self.size).name == name
        family = family_of(shares, self.size)
        assert family.name == f"{name}-shares"
        np.testing.assert_allclose(family.boxes(shares, self.size, 0.5).xyxy, boxes, atol=1e-4)
        if name == "chosen":
            apart = {key: value[..., None] if value.ndim == 2 else value for key, value in shares.items()}
            assert family_of(apart, self.size).name == "chosen-shares"
            np.testing.assert_allclose(family.boxes(apart, self.size, 0.5).xyxy, boxes, atol=1e-4)
        # Where nothing is found either may be asked for.
        nothing = chosen(name, boxes[:0])
        assert [family_of(nothing, self.size, asked).name for asked in (name, f"{name}-shares")] == [name, f"{name}-shares"]

    @pytest.mark.parametrize("unit", ["", "-shares"])
    def test_y_before_x_in_chosen_boxes_is_said_by_hand(self, unit):
        boxes = np.array([[8.0, 4, 24, 60], [0, 0, 1, 1]])
        turned = (boxes / self.whole if unit else boxes)[:, [1, 0, 3, 2]]
        outputs = chosen("efficientnms", turned)
        assert family_of(outputs, self.size).name == f"efficientnms{unit}"
        family = family_of(outputs, self.size, f"efficientnms-yx{unit}")
        np.testing.assert_allclose(family.boxes(outputs, self.size, 0.5).xyxy, boxes, atol=1e-4)

    @pytest.mark.parametrize("name", ["efficientnms", "chosen"])
    def test_the_unit_is_told_once_by_the_first_boxes(self, name):
        box, tiny = np.array([[8.0, 4, 24, 60]]), np.array([[0.0, 0, 1.5, 1]])
        nothing = chosen(name, box[:0])
        pixels, shares = Reading(), Reading()
        read = [pixels.of(self.size, chosen(name, boxes)).name for boxes in (box[:0], box, tiny)]
        assert read == [name] * 3
        assert shares.of(self.size, nothing).name == name
        # FP32 finds nothing, and a variant does.
        read = [shares.of(self.size, nothing, chosen(name, box / self.whole)).name, shares.of(self.size, nothing).name]
        assert read == [f"{name}-shares"] * 2


class TestSuppression:
    def test_it_is_class_wise_and_sorted(self):
        near = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60]], np.float32)
        boxes = Boxes.above(near, np.array([[0.9, 0.3], [0.8, 0.0], [0.0, 0.95]]), 0.001)
        kept = suppressed(boxes, 0.5, 300)
        # The second box gives way to the first of its class; the first comes back under the other class.
        assert kept.classes.tolist() == [1, 0, 1]
        assert kept.scores == pytest.approx([0.95, 0.9, 0.3])
        assert kept.xyxy[0].tolist() == [50, 50, 60, 60]
        assert len(suppressed(boxes, 0.5, 1)) == 1

    @given(st.integers(1, 50), st.integers(0, 2**32 - 1), st.integers(1, 400), st.integers(1, 40))
    @settings(deadline=None, max_examples=60)
    def test_fewer_are_the_first_of_more(self, first, seed, count, most):
        generator = np.random.default_rng(seed)
        corner = generator.uniform(0, 40, (count, 2))
        boxes = Boxes(
            np.concatenate([corner, corner + generator.uniform(1, 20, (count, 2))], axis=1),
            # As an INT8 network's: many are equal.
            generator.integers(1, 9, count) / 8,
            generator.integers(0, 3, count),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("octavo.tasks.detection.boxes._FIRST", first)
            some = suppressed(boxes, 0.3, most)
        every = suppressed(boxes, 0.3, count)
        assert len(some) == min(most, len(every))
        assert np.array_equal(some.xyxy, every.xyxy[:most])
        assert np.array_equal(some.scores, every.scores[:most])
        assert (np.diff(every.scores) <= 0).all()
        overlap = overlaps(every.xyxy, every.xyxy)
        same = every.classes[:, None] == every.classes[None]
        assert (overlap[same & ~np.eye(len(every), dtype=bool)] <= 0.3 + 1e-6).all()

    def test_a_broken_model_has_no_boxes_and_does_not_fail(self):
        nothing = Boxes.above(np.full((3, 4), np.nan), np.full((3, 2), np.nan), 0.001)
        assert len(suppressed(nothing, 0.5, 300)) == 0
        everything = Boxes.above(np.full((20000, 4), np.inf), np.ones((20000, 2)), 0.001)
        assert len(suppressed(everything, 0.5, 300)) <= 300


def annotated(score: float | None = None, shift: float = 0.0) -> list[dict]:
    found = []
    for image in (1, 2):
        for category, (x, y, width, height) in enumerate(BOXES):
            box = {"image_id": image, "category_id": category, "bbox": [x + shift, y, width, height]}
            found.append(box if score is None else box | {"score": score})
    return found


class TestAveragePrecision:
    def test_of_perfect_detections_it_is_one_and_of_none_zero(self):
        perfect = average_precision(annotated(), annotated(0.9), [1, 2])
        # 5000 and 1800 square pixels: nothing small, nothing large.
        assert perfect.figures == pytest.approx({"ap": 1, "ap50": 1, "ap75": 1, "ar": 1, "ap_medium": 1})
        assert perfect.classes == pytest.approx({0: 1, 1: 1})
        nothing = average_precision(annotated(), [], [1, 2])
        assert nothing.figures == {"ap": 0, "ap50": 0, "ap75": 0, "ar": 0, "ap_medium": 0}
        assert nothing.classes == {0: 0, 1: 0}
        wrong_class = [box | {"category_id": 1 - box["category_id"]} for box in annotated(0.9)]
        assert average_precision(annotated(), wrong_class, [1, 2]).figures["ap"] == pytest.approx(0)

    def test_missed_images_and_loose_boxes_count(self):
        one_image = [box for box in annotated(0.9) if box["image_id"] == 1]
        # Every second box found at precision 1: the interpolated curve covers recalls 0, .01 ... .5, which is 51 of 101 points.
        assert average_precision(annotated(), one_image, [1, 2]).figures["ap"] == pytest.approx(51 / 101)
        shifted = average_precision(annotated(), annotated(0.9, shift=6.0), [1, 2])
        # IoU 94/106 = .887 and 24/36 = .667: of the ten thresholds .5 ... .95 the first passes 8, the second 4.
        assert shifted.classes == pytest.approx({0: 0.8, 1: 0.4})
        assert shifted.figures["ap"] == pytest.approx((0.8 + 0.4) / 2)
        assert shifted.figures["ap75"] == pytest.approx(0.5)

    def test_a_class_found_but_not_there_has_no_figure_of_its_own(self):
        extra = [*annotated(0.9), {"image_id": 1, "category_id": 7, "bbox": BOXES[0], "score": 0.99}]
        found = average_precision(annotated(), extra, [1, 2])
        assert found.classes == pytest.approx({0: 1, 1: 1})
        assert found.figures["ap"] == pytest.approx(1)
