"""Masks and class maps: what readers refuse, the way from a network's maps to the photo, and mIoU against counting by hand."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
import yaml
from conftest import project_params
from forked import run_stage
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from octavo.errors import DataError
from octavo.evidence.series import resolutions, tradeoff
from octavo.evidence.validation import Validation
from octavo.graph.outputs import classes_told_apart, in_unit
from octavo.images.dataset import Classes, Item, open_set
from octavo.images.feeds import Feeds
from octavo.images.frame import Frame
from octavo.images.masks import VOID, Mask
from octavo.manifest import as_exported
from octavo.params.grammar import ImageSet, Input, Params, Segmentation, Validate
from octavo.runtime.session import Session
from octavo.tasks.outputs import class_axis
from octavo.tasks.score import Shown
from octavo.tasks.segmentation.confusion import confusion, ious, mean_iou
from octavo.tasks.segmentation.decode import class_count, class_map, classes_of_pixels, layout_of, logits_of
from octavo.tasks.segmentation.score import SegmentationScore
from octavo.tasks.segmentation.told import as_told

TASK = Segmentation(name="segmentation")
SPEC = Input(size=(8, 8))


def write(path: Path, values: np.ndarray, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8), mode).save(path)
    return path


def pair(root: Path, name: str, mask: np.ndarray, folder: str = "masks") -> None:
    write(root / "images" / f"{name}.png", np.full((*mask.shape[:2], 3), 100))
    write(root / folder / f"{name}.png", mask)


def masks(root: Path, **settings) -> ImageSet:
    return ImageSet(format="masks", path=str(root), **settings)


class TestMasks:
    def test_values_are_classes_unless_mapped(self, tmp_path):
        pair(tmp_path, "a", np.array([[0, 1], [2, 11]]))
        (item,) = open_set(masks(tmp_path), "here", Classes(12))
        assert item.labelled
        assert item.mask.read((2, 2), 12, 11).tolist() == [[0, 1], [2, VOID]]
        for two, eleven in ((2, 11), ("2", "11")):
            mapped = masks(tmp_path, class_map={two: "road", "*": 0, eleven: None})
            (item,) = open_set(mapped, "here", Classes(2, ("rest", "road")))
            assert item.mask.read((2, 2), 2, None).tolist() == [[0, 0], [1, VOID]]

    def test_several_datasets_beside_each_other(self, tmp_path):
        pair(tmp_path / "day", "a", np.zeros((2, 2)), "gt_masks")
        pair(tmp_path / "night", "a", np.ones((2, 2)), "gt_masks")
        found = open_set(masks(tmp_path), "here")
        assert [(item.name, item.dataset) for item in found] == [("day/images/a.png", "day"), ("night/images/a.png", "night")]

    def test_palette_images_and_masks_of_colours(self, tmp_path):
        indexed = Image.fromarray(np.array([[3, 0]], np.uint8), "P")
        indexed.putpalette([0, 0, 0] * 3 + [200, 0, 0])
        indexed.save(tmp_path / "p.png")
        assert Mask(tmp_path / "p.png", {}, None, {}).read((1, 2), None, None).tolist() == [[3, 0]]
        pair(tmp_path / "s", "a", np.array([[[255, 0, 0], [0, 0, 255], [9, 9, 9]]]))
        for zero in (0, "0"):
            palette = {"road": (255, 0, 0), zero: (0, 0, 255), "void": (9, 9, 9)}
            (item,) = open_set(masks(tmp_path / "s", palette=palette), "here", Classes(2, ("rest", "road")))
            assert item.mask.read((1, 3), 2, None).tolist() == [[1, 0, VOID]]
        # A class that is called by digits goes before an index.
        (item,) = open_set(masks(tmp_path / "s", palette=palette), "here", Classes(2, ("road", "0")))
        assert item.mask.read((1, 3), 2, None).tolist() == [[0, 1, VOID]]
        (item,) = open_set(masks(tmp_path / "s", palette={"road": (255, 0, 0)}), "here", Classes(2, ("rest", "road")))
        with pytest.raises(DataError, match=r"2 colour\(s\) that `palette` does not name: \[0, 0, 255\]"):
            item.mask.read((1, 3), 2, None)
        (item,) = open_set(masks(tmp_path / "s"), "here")
        with pytest.raises(DataError, match="nothing says what they mean"):
            item.mask.read((1, 3), 2, None)

    def test_a_mask_whose_name_has_an_accent_apart_from_its_letter(self, tmp_path):
        pair(tmp_path, "e\u0301", np.zeros((2, 2)))
        (tmp_path / "masks" / "e\u0301.png").rename(tmp_path / "masks" / "\u00e9.png")
        assert open_set(masks(tmp_path), "here")[0].labelled

    def test_greys_in_several_channels_are_values(self, tmp_path):
        values = np.array([[0, 3, 7]], np.uint8)
        for kind in ("RGB", "RGBA", "LA", "CMYK"):
            Image.fromarray(values).convert(kind).save(tmp_path / "m.tif")
            assert Mask(tmp_path / "m.tif", {}, None, {}).read((1, 3), 8, 7).tolist() == [[0, 3, VOID]], kind
        with pytest.raises(DataError, match="holds class 3"):
            Mask(tmp_path / "m.tif", {}, None, {}).read((1, 3), 2, 7)

    def test_values_of_one_bit_and_of_more_than_eight(self, tmp_path):
        def read(values: np.ndarray, others: int | None = None, void: int | None = None) -> list[list[int]]:
            Image.fromarray(values).save(tmp_path / "m.tif")
            return Mask(tmp_path / "m.tif", {}, others, {}).read((1, 2), 2, void).tolist()

        assert read(np.array([[False, True]])) == [[0, 1]]
        assert read(np.array([[1, 65535]], np.uint16), void=65535) == [[1, VOID]]
        assert read(np.array([[1, 40000]], np.int32), others=0) == [[0, 0]]
        # int16 would make void of it.
        with pytest.raises(DataError, match="holds class 40000, the model has classes 0..1"):
            read(np.array([[1, 40000]], np.uint16))
        for value in (-1, 70000):
            with pytest.raises(DataError, match="those of a mask are 0..65535"):
                read(np.array([[1, value]], np.int32), others=0)
        with pytest.raises(DataError, match="a mask of floating-point values"):
            read(np.array([[0, 1]], np.float32))

    def test_what_does_not_fit(self, tmp_path):
        pair(tmp_path, "a", np.array([[0, 7]]))
        (item,) = open_set(masks(tmp_path), "here")
        with pytest.raises(DataError, match="holds class 7, the model has classes 0..2"):
            item.mask.read((1, 2), 3, None)
        with pytest.raises(DataError, match=r"is 1x2 pixels, its image 5x5"):
            item.mask.read((5, 5), 8, None)
        (tmp_path / "masks/a.png").write_bytes(b"no image")
        with pytest.raises(DataError, match="not a readable mask"):
            item.mask.read((1, 2), 8, None)
        write(tmp_path / "images/b.png", np.zeros((2, 2)))
        with pytest.raises(DataError, match=r"1 image\(s\) have no mask of their name: .*b\.png"):
            open_set(masks(tmp_path), "here")
        (tmp_path / "images/b.png").rename(tmp_path / "masks/c.png")
        with pytest.raises(DataError, match=r"1 mask\(s\) have no image of their name: .*c\.png"):
            open_set(masks(tmp_path), "here")
        write(tmp_path / "images/a.bmp", np.zeros((1, 2)))
        with pytest.raises(DataError, match=r"a\.bmp and .*a\.png have the same name"):
            open_set(masks(tmp_path), "here")
        (tmp_path / "images/a.bmp").unlink()
        with pytest.raises(DataError, match="'sky' is no value of a mask"):
            open_set(masks(tmp_path, class_map={"sky": 1}), "here")
        with pytest.raises(DataError, match="'sky' is no class of the model"):
            open_set(masks(tmp_path, class_map={1: "sky"}), "here", Classes(2, ("a", "b")))
        with pytest.raises(DataError, match="has no folder of masks"):
            open_set(masks(tmp_path, annotations="gt"), "here")
        with pytest.raises(DataError, match="no folder `images`"):
            open_set(masks(tmp_path / "masks"), "here")


class TestDecode:
    def test_which_output_and_which_shape(self):
        maps = {"road": np.zeros((1, 2, 4, 4), np.float32), "lane": np.ones((1, 2, 4, 4), np.float32)}
        assert logits_of(maps, Segmentation(name="segmentation", output="lane"), (4, 4)).max() == 1
        with pytest.raises(DataError, match="which output holds the class maps"):
            logits_of(maps, TASK, (4, 4))
        with pytest.raises(DataError, match="holds no class maps"):
            logits_of({"y": np.zeros((1, 10), np.float32)}, TASK, (4, 4))

    def test_one_map_is_a_class_against_the_rest_and_whole_numbers_are_classes(self):
        frame = Frame.of(8, 8, SPEC)
        scores = np.full((1, 8, 8), -1, np.float32)
        scores[0, :4] = 1
        assert class_map(scores, frame)[:, 0].tolist() == [1] * 4 + [0] * 4
        assert class_map(np.full((8, 8), 5, np.int64), frame).tolist() == [[5] * 8] * 8

    @pytest.mark.parametrize(
        ("shape", "size", "layout"),
        [
            ((11, 360, 480), (360, 480), "nchw"),
            ((360, 480, 11), (360, 480), "nhwc"),
            ((11, 90, 120), (360, 480), "nchw"),
            ((12, 15, 9), (360, 480), "nhwc"),
            ((21, 20, 20), (320, 320), "nchw"),
            ((128, 128, 150), (512, 512), "nhwc"),
            ((1, 8, 8), (8, 8), "nchw"),
            ((2, 388, 516), (572, 700), "nchw"),
            # Either might be meant.
            ((8, 8, 8), (32, 32), None),
            ((9, 12, 15), (360, 480), None),
            # Neither is a form of the input.
            ((3, 5, 100), (32, 32), None),
        ],
    )
    def test_the_layout_is_told_by_the_input_s_size_or_not_at_all(self, shape, size, layout):
        assert layout_of(shape, size) == layout

    def test_channels_last_is_read_as_channels_first(self):
        scores = np.random.default_rng(0).standard_normal((1, 3, 4, 6)).astype(np.float32)
        last = {"y": scores.transpose(0, 2, 3, 1)}
        assert (logits_of(last, TASK, (8, 12)) == scores[0]).all()
        with pytest.raises(DataError, match="may be 1 x classes x rows x columns or 1 x rows x columns x classes") as caught:
            logits_of({"y": np.zeros((1, 4, 4, 4), np.float32)}, TASK, (8, 8))
        assert "`layout: nhwc`" in caught.value.mend
        said = Segmentation(name="segmentation", layout="nhwc")
        assert logits_of({"y": np.eye(4, dtype=np.float32)[None, :, :, None]}, said, (8, 8)).shape == (1, 4, 4)

    @pytest.mark.parametrize("shape", [(1, 4, 4), (1, 1, 4, 4), (1, 4, 4, 1)])
    def test_numbers_of_classes_are_never_mixed(self, shape):
        """Halfway between class 0 and class 10 lies no class 5."""
        numbers = np.zeros((4, 4), np.int64)
        numbers[:, 2:] = 10
        found = classes_of_pixels({"y": numbers.reshape(shape)}, TASK, Frame.of(8, 8, Input(size=(4, 4))))
        assert found.tolist() == [[0] * 4 + [10] * 4] * 8
        assert class_count(logits_of({"y": numbers.reshape(shape)}, TASK, (4, 4))) is None

    def test_truths_are_numbers_of_classes_and_several_maps_of_numbers_are_refused(self):
        assert logits_of({"y": np.ones((1, 1, 4, 4), bool)}, TASK, (4, 4)).tolist() == [[1] * 4] * 4
        with pytest.raises(DataError, match="holds no class maps"):
            logits_of({"y": np.zeros((1, 2, 4, 4), np.int64)}, TASK, (4, 4))

    @pytest.mark.parametrize("rule", [{"rule": "stretch"}, {"rule": "letterbox"}, {"rule": "letterbox", "align": "top-left"}])
    @pytest.mark.parametrize("shape", [(40, 80), (96, 32), (32, 32)])
    def test_a_rectangle_comes_back_to_its_place(self, rule, shape):
        frame = Frame.of(*shape, Input.model_validate({"size": [64, 64], "resize": rule}))
        box = np.array([[0.25 * shape[1], 0.25 * shape[0], 0.75 * shape[1], 0.5 * shape[0]]])
        left, top, right, bottom = np.rint(frame.forth(box)[0]).astype(int)
        logits = np.zeros((2, 64, 64), np.float32)
        logits[1, top:bottom, left:right] = 1
        logits[0] = 1 - logits[1]
        found = class_map(logits, frame)
        assert found.shape == shape
        truth = np.zeros(shape, int)
        truth[int(box[0, 1]) : int(box[0, 3]), int(box[0, 0]) : int(box[0, 2])] = 1
        assert (found == truth).mean() > 0.9

    def test_what_a_crop_cuts_off_counts_for_nothing(self):
        spec = Input.model_validate({"size": [8, 8], "resize": {"rule": "shorter", "to": 8}, "crop": "center"})
        found = class_map(np.zeros((2, 8, 8), np.float32), Frame.of(8, 16, spec))
        assert (found[:, 4:12] == 0).all()
        assert (found[:, :3] == VOID).all()


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(deadline=None, max_examples=40)
def test_miou_is_counted_over_all_pixels_at_once(seed, classes):
    generator = np.random.default_rng(seed)
    truth, found = generator.integers(-1, classes, (2, 3, 6, 5))
    whole = sum(confusion(one, other, classes) for one, other in zip(truth, found, strict=True))
    counts = (truth >= 0) & (found >= 0)
    expected = []
    for kind in range(classes):
        both = ((truth == kind) & (found == kind) & counts).sum()
        either = (((truth == kind) | (found == kind)) & counts).sum()
        expected.append(both / either if either else np.nan)
    np.testing.assert_allclose(ious(whole), expected)
    assert mean_iou(whole) == pytest.approx(np.nanmean(expected) if not np.isnan(expected).all() else 0)


class TestScore:
    def scores(self, wrong: float, seed: int = 0) -> tuple[dict, dict, Mask]:
        generator = np.random.default_rng(seed)
        truth = generator.integers(0, 3, (8, 8))
        flipped = np.where(generator.random((8, 8)) < wrong, (truth + 1) % 3, truth)
        return *({"y": np.eye(3, dtype=np.float32)[maps].transpose(2, 0, 1)[None]} for maps in (truth, flipped)), truth

    def test_miou_agreement_and_resamples(self, tmp_path):
        reference, variant = SegmentationScore(TASK, SPEC), SegmentationScore(TASK, SPEC)
        for place in range(6):
            right, worse, truth = self.scores(0.1 * place, place)
            mask = Mask(write(tmp_path / f"{place}.png", truth), {}, None, {})
            item = Item(Path(), str(place), "", shape=(8, 8), mask=mask, dataset="day" if place < 3 else "night")
            reference.update(right, right, item)
            variant.update(worse, right, item)
        assert reference.metrics(reference)["miou"] == 1
        figures = variant.metrics(reference)
        assert 0.4 < figures["miou"] < 1
        assert figures["miou.day"] > figures["miou"] > figures["miou.night"]
        assert figures["agreement"] == figures["pixel_accuracy"]
        assert figures["mask_iou"] == figures["miou"]
        assert {"iou.0", "iou.1", "iou.2"} <= set(figures)
        once, twice = variant.resampled(np.array([[1] * 6, [2] * 6]))
        assert once == twice == pytest.approx(figures["miou"])
        assert variant.resampled(np.array([[1, 1, 1, 0, 0, 0]]))[0] == pytest.approx(figures["miou.day"])
        assert variant.likeness(reference, 0) == 1 > variant.likeness(reference, 5)

    def test_shares_are_held_against_a_half_and_maps_of_one_class_are_named(self):
        """All of a Sigmoid's values lie above 0: each variant agreed with FP32 that every pixel is foreground."""
        half = Segmentation(name="segmentation", classes=("rest", "road"), threshold=0.5)
        shares, other = np.full((2, 1, 1, 8, 8), 0.1, np.float32)
        shares[..., :4], other[..., :2] = 0.9, 0.9
        item = Item(Path(), "a", "", shape=(8, 8))
        for task, agreement in ((half, 0.75), (half.model_copy(update={"threshold": None}), 1.0)):
            score = SegmentationScore(task, SPEC)
            score.update({"y": other}, {"y": shares}, item)
            assert score.metrics(score)["agreement"] == agreement
            warned = "FP32 calls every pixel of all images 'road': no figure tells variants apart; its map is everywhere above 0"
            assert score.about().get("warning", "").startswith(warned if agreement == 1 else "")
            assert bool(score.about()) == (agreement == 1)

    def test_without_masks_there_is_fidelity_alone(self):
        right, worse, _ = self.scores(0.2)
        score = SegmentationScore(TASK, SPEC)
        score.update(worse, right, Item(Path(), "a", "", shape=(8, 8)))
        assert set(score.metrics(score)) == {"agreement", "mask_iou"}
        assert score.labelled == 0


def graph_of(nodes: str, shape: str = "1, 1, 8, 8", weights: str = "", kind: str = "float") -> ir.Model:
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[1, 3, 8, 8] x) => ({kind}[{shape}] y) <{weights}> {{ {nodes} }}"""
    return ir.from_proto(onnx.parser.parse_model(text))


class TestTold:
    """What FP32's graph says of its maps, once and for all that read them."""

    @pytest.mark.parametrize(
        ("nodes", "weights", "told"),
        [
            ("y = Sigmoid(x)", "", True),
            ("y = HardSigmoid(x)", "", True),
            ("y = Relu(x)", "", False),
            ("y = Clip(x, zero, one)", "float zero = {0}, float one = {1}", True),
            ("y = Clip(x, zero, six)", "float zero = {0}, float six = {6}", False),
            ("y = Clip(x, zero)", "float zero = {0}", False),
            ("s = Softmax <axis = 1> (x) y = Slice(s, a, b, a)", "int64[1] a = {1}, int64[1] b = {2}", True),
            ("s = Sigmoid(x) c = Cast <to = 10> (s) t = Transpose(c) y = Reshape(t, f)", "int64[1] f = {-1}", True),
            ('s = Sigmoid(x) y = Resize <mode = "linear"> (s, , k)', "float[4] k = {1, 1, 2, 2}", True),
            ('s = Sigmoid(x) y = Resize <mode = "cubic"> (s, , k)', "float[4] k = {1, 1, 2, 2}", False),
            ("s = Sigmoid(x) y = Concat <axis = 1> (s, s)", "", True),
            ("s = Sigmoid(x) y = Concat <axis = 1> (s, x)", "", False),
            ("s = Sigmoid(x) r = Sub(one, s) y = Mul(r, s)", "float one = {1}", True),
            ("s = Sigmoid(x) y = Mul(s, n)", "float n = {255}", False),
            ("g = Greater(x, n) y = Cast <to = 1> (g)", "float n = {3}", True),
            ("s = Sigmoid(x) y = Pad(s, p)", "int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}", True),
            ("s = Sigmoid(x) y = Pad(s, p, n)", "int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}, float n = {-1}", False),
            ("y = Sub(x, x)", "", False),
        ],
    )
    def test_whether_a_graph_lets_values_lie_in_0_to_1_alone(self, nodes, weights, told):
        assert in_unit(graph_of(nodes, weights=weights).graph.outputs[0]) == told

    def test_layout_and_threshold_are_filled_in_where_params_leave_them_open(self):
        one, several = np.zeros((1, 1, 8, 8), np.float32), np.zeros((1, 8, 8, 3), np.float32)
        sigmoid = graph_of("y = Sigmoid(x)")

        def read(task: Segmentation, model: ir.Model, **outputs: np.ndarray) -> list[tuple]:
            return [(head.layout, head.threshold) for head in as_told(task, model, outputs, (8, 8)).each.values()]

        assert read(TASK, sigmoid, y=one) == [("nchw", 0.5)]
        assert read(TASK, graph_of("y = Relu(x)"), y=one) == [("nchw", 0.0)]
        assert read(TASK.model_copy(update={"threshold": 0.3}), sigmoid, y=one) == [("nchw", 0.3)]
        assert read(TASK, sigmoid, y=several) == [("nhwc", None)]
        assert read(TASK, sigmoid, y=one[0].astype(np.int64)) == [(None, None)]
        heads = Segmentation.model_validate({"name": "segmentation", "heads": {"y": {}, "z": {"output": "other"}}})
        assert read(heads, sigmoid, y=one, other=several) == [("nchw", 0.5), ("nhwc", None)]

    def test_later_stages_take_it_from_fp32_s_manifest(self):
        spec = Params.model_validate(project_params(task="segmentation")).models["small"]
        told = {"task": TASK.filled({"": {"layout": "nhwc", "threshold": 0.5}}).model_dump(mode="json")}
        assert (as_exported(spec, told).task.layout, as_exported(spec, told).task.threshold) == ("nhwc", 0.5)
        # Another output than the one that it was told of, and another task.
        for other in ({"name": "segmentation", "output": "z"}, "embedding"):
            changed = Params.model_validate(project_params(task=other)).models["small"]
            assert as_exported(changed, told) == changed

    def test_scores_lie_along_the_axis_that_the_layout_says(self):
        last = TASK.model_copy(update={"layout": "nhwc"})
        both = Segmentation.model_validate({"name": "segmentation", "heads": {"y": {"layout": "nhwc"}, "z": {"layout": "nchw"}}})
        assert [class_axis(task) for task in (TASK, last, both)] == [1, 3, None]

    @pytest.mark.parametrize(
        ("nodes", "count"),
        [
            ("y = ArgMax <axis = 1> (x)", 3),
            ("m = ArgMax <axis = -3, keepdims = 0> (x) y = Cast <to = 2> (m)", 3),
            ("g = Greater(x, x) y = Cast <to = 2> (g)", 2),
            ("y = Floor(x)", None),
        ],
    )
    def test_among_how_many_classes_an_argmax_chose(self, nodes, count):
        assert classes_told_apart(graph_of(nodes).graph.outputs[0]) == count


def test_variants_whose_outputs_are_classes_are_told_apart_by_their_pixels():
    """There was no figure of distance to take the least of: a traceback."""
    nodes = "m = Mul(x, k) y = ArgMax <axis = 1, keepdims = 0> (m)"
    graphs = {"fp32": graph_of(nodes, "1, 8, 8", "float[3, 1, 1] k = {1, 1, 1}", "int64")}
    graphs["int8"] = graph_of(nodes, "1, 8, 8", "float[3, 1, 1] k = {1, 1, 0.5}", "int64")
    sessions = {variant: Session(ir.to_proto(graph).SerializeToString()) for variant, graph in graphs.items()}
    validation = Validation(TASK, SPEC, sessions, Feeds("x"))
    generator = np.random.default_rng(0)
    items = [Item(Path(), f"{place}.png", "", shape=(8, 8)) for place in range(3)]
    validation.run((item, generator.random((1, 3, 8, 8)).astype(np.float32)) for item in items)
    record = validation.record(Validate(bootstrap=200))
    assert 0.3 < record["int8.agreement"] < 0.9
    assert record["int8.gate.agreement"] == "fail"
    assert not {key for key in record if "cosine" in key or "sqnr" in key or "similarity" in key}
    assert set(validation.rows()[0]) == {"image", "sha256", "label", "fp32.miou", "int8.miou"}
    latency = {f"{variant}.{key}": 1.0 for variant in sessions for key in ("size_mb", "cpu.t1.b1.median_ms")}
    assert [point["accuracy"] for point in tradeoff(record, latency)] == [1.0, record["int8.agreement"]]
    assert [row["accuracy"] for row in resolutions(record, latency)] == [1.0, record["int8.agreement"]]


def network() -> onnx.ModelProto:
    """Two classes, dark and bright, by a convolution over 3x3 pixels."""
    weight = np.stack([np.full((3, 3, 3), -1 / 27), np.full((3, 3, 3), 1 / 27)]).astype(np.float32) * 8
    graph = oh.make_graph(
        [oh.make_node("Conv", ["image", "weight", "bias"], ["maps"], "conv", pads=[1] * 4)],
        "bright",
        [oh.make_tensor_value_info("image", 1, ["batch", 3, 32, 32])],
        [oh.make_tensor_value_info("maps", 1, ["batch", 2, 32, 32])],
        [onh.from_array(weight, "weight"), onh.from_array(np.array([4, -4], np.float32), "bias")],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


class TestPanels:
    """One class map in the corner of a photo: what INT8 lost, what it won, and where both are wrong."""

    @staticmethod
    def maps(*rows: list[int]) -> dict[str, np.ndarray]:
        return {"maps": np.eye(3, dtype=np.float32)[np.array(rows)].transpose(2, 0, 1)[None]}

    def shown(self, tmp_path: Path, mask: np.ndarray | None) -> Shown:
        found = None if mask is None else Mask(write(tmp_path / "mask.png", mask), {}, None, {})
        item = Item(tmp_path / "a.png", "a.png", "0" * 64, mask=found, shape=(2, 4))
        return Shown(item, np.full((2, 4, 3), 100, np.uint8), 1.0)

    def panels(self, shown: Shown, found: list[list[int]], expected: list[list[int]]):
        (view,) = SegmentationScore(TASK, Input(size=(2, 4), resize={"rule": "stretch"})).views
        variant, reference = self.maps(*found), self.maps(*expected)
        return (
            view.first_panels(shown, variant),
            view.panels(shown, reference, reference),
            view.panels(shown, variant, reference),
        )

    def test_photo_truth_classes_and_difference(self, tmp_path):
        mask = np.array([[0, 1, 2, 0], [0, 0, 0, 0]])
        first, fp32, int8 = self.panels(self.shown(tmp_path, mask), [[0, 0, 2, 1], [0, 0, 0, 0]], [[0, 1, 0, 2], [0, 0, 0, 0]])
        assert [words for words, _ in first] == ["photo", "ground truth"]
        assert [words for words, _ in fp32] == ["its classes"]
        (_, _), (words, drawn) = int8
        assert words == "37.50% not as FP32: 12.50% lost (red), 12.50% won (green)"
        lost, won, neither, same = drawn[0, 1], drawn[0, 2], drawn[0, 3], drawn[1, 0]
        assert lost[0] > 2 * max(lost[1:])
        assert won[1] > 2 * max(won[0], won[2])
        assert min(neither[:2]) > 2 * neither[2]
        assert len(set(same.tolist())) == 1, "grey where nothing changed"

    def test_without_a_mask_all_that_changed_is_red(self, tmp_path):
        first, _, (_, (words, drawn)) = self.panels(self.shown(tmp_path, None), [[0] * 4, [1] * 4], [[0] * 4, [0] * 4])
        assert [name for name, _ in first] == ["photo"]
        assert words == "50.00% not as FP32"
        assert (drawn[1, :, 0] > 2 * drawn[1, :, 1]).all()
        assert (drawn[0, :, 0] == drawn[0, :, 1]).all()


@pytest.mark.slow
def test_through_the_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "small.onnx")
    generator = np.random.default_rng(0)
    for part, count in (("calibration", 8), ("validation/day", 5), ("validation/night", 4)):
        for place in range(count):
            truth = np.kron(generator.integers(0, 2, (4, 4)), np.ones((10, 12), int))
            pixels = np.where(truth[:, :, None] > 0, 200, 40) + generator.normal(0, 15, (40, 48, 3))
            write(Path(part, "images", f"{place}.png"), pixels.clip(0, 255))
            write(Path(part, "gt_masks", f"{place}.png"), truth)
    blocks = {
        "task": {"name": "segmentation", "classes": ["dark", "bright"]},
        "input": {"size": [32, 32], "resize": {"rule": "letterbox"}},
        "data": {part: {"format": "masks", "path": part} for part in ("calibration", "validation")},
    }
    Path("params.yaml").write_text(yaml.safe_dump(project_params(**blocks)))
    for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark", "report"):
        done = run_stage(stage, "--model", "small")
        assert done.returncode == 0, done.stderr
    record = json.loads(Path("metrics/small/accuracy.json").read_text())
    assert record["metric"] == "miou"
    assert record["fp32.miou"] > 0.75
    assert record["int8.retained"] > 0.98
    assert {"int8.miou.day", "int8.miou.night", "int8.iou.bright", "int8.mask_iou", "int8.pixel_accuracy"} <= set(record)
    assert "| mIoU | pixel accuracy |" in Path("metrics/small/report.md").read_text()
    assert len(list(Path("metrics/small/pictures").iterdir())) == 6
