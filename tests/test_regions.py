"""Few regions stand for all where layers on regions make most of the work."""

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest

from octavo.calibration.collector import collect
from octavo.graph.clean import clean
from octavo.graph.selection import choosing, held
from octavo.params.grammar import Int8
from octavo.quantization.choices import with_choices
from octavo.quantization.fp16 import proof, quantize_fp16
from octavo.quantization.fp16.measure import compare
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.regions import feeds_of
from octavo.runtime.session import Session
from octavo.runtime.shapes import fed_shape, shape_of

BOXES = 300


def detector(width: int, side: int = 32) -> ir.Model:
    """A stem, whose scores suppression goes by, and two Convs on each of the 300 regions that are left."""
    generator = np.random.default_rng(0)
    low = generator.uniform(0, 16, (BOXES, 2))
    boxes = np.concatenate([low, low + generator.uniform(4, 16, (BOXES, 2))], 1)[None]

    def weights(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))

    tensors = {
        "stem.w": weights(16, 3, 3, 3),
        "score.w": weights(3, 16, 1, 1),
        "first.w": weights(width, 16, 3, 3),
        "last.w": weights(4, width, 1, 1),
        "boxes": boxes,
        "iou": np.array([1.0]),
    }
    tensors = {name: array.astype(np.float32) for name, array in tensors.items()}
    tensors |= {"most": np.array([BOXES]), "two": np.array([2]), "row": np.array([1, 1, -1]), "flat": np.array([-1])}
    tensors |= {"of": np.array([BOXES]), "axis": np.array([0]), "end": np.array([2])}
    node = oh.make_node
    nodes = [
        node("Conv", ["image", "stem.w"], ["map"], "stem", pads=[1] * 4),
        node("Relu", ["map"], ["bent"], "stem.bend"),
        node("Conv", ["bent", "score.w"], ["scores"], "score"),
        node("Reshape", ["scores", "row"], ["in.row"], "rows"),
        node("Slice", ["in.row", "axis", "of", "end"], ["some"], "some"),
        node("NonMaxSuppression", ["boxes", "some", "most", "iou"], ["left"], "suppress"),
        node("Gather", ["left", "two"], ["column"], "column", axis=1),
        node("Reshape", ["column", "flat"], ["places"], "places"),
        node("Squeeze", ["boxes", "axis"], ["all"], "all"),
        node("Gather", ["all", "places"], ["rois"], "rois", axis=0),
        node("Shape", ["places"], ["count"], "count"),
        node("ConstantOfShape", ["count"], ["images"], "images", value=onh.from_array(np.array([0], np.int64))),
        node("RoiAlign", ["bent", "rois", "images"], ["regions"], "regions", output_height=4, output_width=4),
        node("Conv", ["regions", "first.w"], ["hidden"], "first", pads=[1] * 4),
        node("Relu", ["hidden"], ["cut"], "first.bend"),
        node("Conv", ["cut", "last.w"], ["found"], "last"),
    ]
    value = oh.make_tensor_value_info
    graph = oh.make_graph(
        nodes,
        "regions",
        [value("image", 1, [1, 3, side, side])],
        [value("found", 1, ["rows", 4, 4, 4])],
        [onh.from_array(array, name) for name, array in tensors.items()],
    )
    model = ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9))
    clean(model, 18)
    return model


def feeds(count: int, seed: int, side: int = 32) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [{"image": generator.standard_normal((1, 3, side, side)).astype(np.float32)} for _ in range(count)]


def run(model: ir.Model, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return Session(ir.to_proto(model).SerializeToString()).run(feed)


def test_every_fifth_region_is_fed_where_those_of_all_are_dear():
    model, images = detector(128), feeds(3, 1)
    names = choosing(model, before_layers=True)
    assert names == ["suppress"]
    ready = held(model, names)
    counted, others = feeds_of(model, ready, names, (images[:2], images[2:]))
    assert (len(counted), len(others)) == (2, 1)
    for few, all_of_it in zip([*counted, *others], with_choices(model, names, images), strict=True):
        assert all_of_it["left"].shape == (BOXES, 3)
        # Of 300 every fifth is 60: no more than 64.
        np.testing.assert_array_equal(few["left"], all_of_it["left"][::5])
        np.testing.assert_allclose(run(ready, few)["found"], run(ready, all_of_it)["found"][::5], atol=1e-5)
    # Times are of all regions, work that is done while measuring of few.
    hidden = next(one for node in ready.graph for one in node.outputs if one.name == "hidden")
    assert shape_of(hidden) == (300, 128, 4, 4)
    assert fed_shape(hidden) == (60, 128, 4, 4)


@pytest.mark.parametrize(("calibration", "width", "side"), [(2, 2, 96), (0, 128, 32)])
def test_all_regions_are_fed_where_they_cost_little_or_nothing_is_known(calibration, width, side):
    model, images = detector(width, side), feeds(2, 1, side)
    names = choosing(model, before_layers=True)
    ready = held(model, names)
    for fed in feeds_of(model, ready, names, (images[:calibration], images)):
        assert all(feed["left"].shape == (BOXES, 3) for feed in fed)


def test_so_many_regions_need_no_more_than_eight_images_to_judge_by():
    model, images = detector(128), feeds(12, 4)
    names = choosing(model, before_layers=True)
    assert [len(fed) for fed in feeds_of(model, held(model, names), names, (images[:10], images))] == [10, 8]


def test_no_region_is_left_of_none():
    model, images = detector(128), feeds(2, 1)
    model.graph.initializers["most"].const_value = ir.tensor(np.array([0], np.int64))
    names = choosing(model, before_layers=True)
    (fed,) = feeds_of(model, held(model, names), names, (images,))
    assert all(feed["left"].shape == (0, 3) for feed in fed)


def test_the_file_looks_at_all_of_them():
    model, calibration, held_out = detector(128), feeds(12, 2), feeds(6, 3)
    statistics = collect(model, lambda: [(str(place), feed) for place, feed in enumerate(calibration)])
    result = quantize_static(model, statistics, Int8(placement="all"), Images(calibration[:4], held_out))
    assert {one.node for one in result.decisions if one.precision == "int8"} >= {"first", "last"}
    assert run(result.model, held_out[0])["found"].shape == (BOXES, 4, 4, 4)
    cut = held(result.model, ["suppress"])
    fed = with_choices(model, ["suppress"], held_out)
    wanted, got = (np.stack([run(one, feed)["found"] for feed in fed]) for one in (held(model, ["suppress"]), cut))
    db = 10 * np.log10(np.var(wanted) / np.mean(np.square(wanted - got)))
    assert min(db, result.measured["db"]) >= result.measured["fidelity_db"]


def test_float16_is_chosen_on_few_regions_and_its_figure_is_of_all(monkeypatch):
    """Up to 33 runs tell where noise arises, and a round runs all samples: with all 1000 regions of a Faster R-CNN."""
    rows: list[int] = []

    def watched(reference, half, samples, *others):
        rows.extend(len(feed["left"]) for feed in samples)
        return compare(reference, half, samples, *others)

    monkeypatch.setattr(proof, "compare", watched)
    model, images = detector(128), feeds(2, 1)
    result = quantize_fp16(model, samples=images)
    # The last comparison is what the manifest has.
    assert rows == [60, 60, BOXES, BOXES]
    assert result.sqnr_db["found"] > 44
    rows.clear()
    quantize_fp16(detector(2, 96), samples=feeds(1, 1, 96))
    assert set(rows) == {BOXES}
