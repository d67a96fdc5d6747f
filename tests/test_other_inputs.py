"""Graphs that take more than the image, as detectors' own exporters write them: what they are fed, and how their boxes are read."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from forked import run_stage
from grid_detector import NAMES, grid_detector, write_squares
from hypothesis import given
from hypothesis import strategies as st
from test_detection_stages import DATA, INPUT, accuracy, params, refuse, succeed

from octavo.deploy.loader import load
from octavo.errors import ParamsError, SourceError
from octavo.graph.selection import held
from octavo.images.feeds import Feeds
from octavo.params.grammar import Input
from octavo.params.load import load_model
from octavo.runtime.rows import matched_rows
from octavo.tasks.detection import FAMILIES, family_of

SIZE, KEPT = 64, 20
IMAGE = {"name": "image", "shape": ["N", 3, SIZE, SIZE], "type": "tensor(float)"}


def other(name: str, shape: list, kind: str = "int64") -> dict:
    return {"name": name, "shape": shape, "type": f"tensor({kind})"}


def feeds(*others: dict, size: tuple[int, int] = (48, 64), **given: object) -> Feeds:
    return Feeds.of([IMAGE, *others], "image", Input(size=size, others=given))


class TestFeeds:
    def test_what_exporters_are_known_for_needs_no_setting(self):
        known = feeds(
            other("orig_target_sizes", ["N", 2]), other("im_shape", [1, 2], "float"), other("scale_factor", [1, 2], "float")
        )
        fed = known(np.zeros((3, 3, 48, 64), np.float32))
        assert fed["orig_target_sizes"].tolist() == [[64, 48]] * 3
        assert fed["orig_target_sizes"].dtype == np.int64
        assert fed["im_shape"].tolist() == [[48.0, 64.0]]
        assert fed["scale_factor"].tolist() == [[1.0, 1.0]]
        assert known.told[0] == "input 'orig_target_sizes' is fed [width, height] (`input.others`)"

    def test_sides_are_those_of_the_tensor_not_of_the_settings(self):
        known = feeds(other("im_shape", ["N", 2], "float"))
        assert known(np.zeros((1, 3, 96, 32), np.float32))["im_shape"].tolist() == [[96.0, 32.0]]
        swapped = Feeds.of([IMAGE, other("im_shape", ["N", 2])], "image", Input(size=(48, 64), layout="nhwc"))
        assert swapped(np.zeros((1, 96, 32, 3), np.float32))["im_shape"].tolist() == [[96, 32]]

    @pytest.mark.parametrize(
        ("shape", "values", "expected"),
        [
            ([], 0.5, 0.5),
            ([1], [0.5], [0.5]),
            (["k"], [1, 2, 3], [1, 2, 3]),
            (["N", 3], [7], [[7, 7, 7], [7, 7, 7]]),
            ([4, 1], [7], [[7]] * 4),
            (["N", "k"], [1, 2, 3], [[1, 2, 3], [1, 2, 3]]),
            (["N", 2, "k"], [1, 2, 3, 4], [[[1, 2], [3, 4]], [[1, 2], [3, 4]]]),
        ],
    )
    def test_values_fill_the_shape(self, shape, values, expected):
        found = feeds(other("x", shape, "float"), x=values)(np.zeros((2, 3, 48, 64), np.float32))["x"]
        assert found.tolist() == expected
        assert found.dtype == np.float32

    @given(
        st.lists(st.integers(1, 4), max_size=3), st.integers(1, 3), st.sampled_from(["float", "int64", "int32", "uint8", "bool"])
    )
    def test_any_fixed_shape_comes_out_as_it_is(self, shape, batch, kind):
        behind = int(np.prod(shape[1:] if len(shape) > 1 else shape))
        found = feeds(other("x", shape, kind), x=list(range(behind)) if behind > 1 else 1)
        assert list(found(np.zeros((batch, 3, 48, 64), np.float32))["x"].shape) == shape

    @pytest.mark.parametrize(
        ("others", "settings", "problem"),
        [
            ([other("threshold", [1], "float")], {}, r"takes 'threshold' float \[1\] beside the image 'image', and nothing says"),
            ([other("x", [1, 2])], {"x": [1, 2, 3]}, r"`input.others.x` has 3 values, the graph's input is int64 \[1, 2\]"),
            ([other("x", [1, 2])], {"x": []}, r"`input.others.x` has 0 values"),
            ([], {"x": [1]}, r"`input.others` names 'x', which is no input of the graph; inputs beside the image: none"),
            ([other("x", [1])], {"x": [1], "image": [1]}, r"names 'image', which is the image; inputs beside the image: 'x' int64"),
            ([other("prompt", [1], "string")], {"prompt": [1]}, r"takes 'prompt' string \[1\], which numbers cannot fill"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, others, settings, problem):
        with pytest.raises(SourceError, match=problem):
            feeds(*others, **settings)

    def test_words_that_are_no_sides_are_refused_by_their_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        params(input=INPUT | {"others": {"sizes": ["width", "depth"]}})
        with pytest.raises(ParamsError, match="input.others.sizes"):
            load_model("params.yaml", "small")


LABELS, SCORES = np.array([[3, 0, -1]]), np.array([[0.9, 0.5, 0.8]], np.float32)
CORNERS = np.array([[[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]]], np.float32)


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("chosen", {"labels": LABELS, "boxes": CORNERS, "scores": SCORES}),
        ("chosen", {"dets": np.concatenate([CORNERS, SCORES[..., None]], 2), "labels": LABELS}),
        ("paddle", {"n": np.int32([3]), "rows": np.concatenate([LABELS[0, :, None], SCORES[0, :, None], CORNERS[0]], 1)}),
    ],
)
def test_chosen_boxes_are_read_as_they_are(name, outputs):
    assert family_of(outputs, (SIZE, SIZE)).name == name
    found = FAMILIES[name].boxes(outputs, (SIZE, SIZE), 0.6)
    assert found.classes.tolist() == [3]
    assert found.xyxy.tolist() == [[1, 2, 3, 4]]
    assert np.allclose(found.scores, 0.9)
    assert not FAMILIES[name].overlaps


# TensorFlow's numbers are floats, that of the boxes too.
@pytest.mark.parametrize("number", [np.int32, np.float32])
def test_rows_are_paired_where_ranks_beside_them_have_no_columns(number):
    truth = {"labels": number(LABELS), "boxes": CORNERS, "scores": SCORES, "count": number([3])}
    order = [2, 0]
    other = {name: value[:, order] if name != "count" else number([2]) for name, value in truth.items()}
    first, second = matched_rows(truth, other)
    for name in ("labels", "boxes", "scores"):
        assert np.array_equal(first[name], second[name])
        assert first[name].shape[1] == 2
    assert (first["count"], second["count"]) == (3, 2)


def chosen_grid(kind: str) -> onnx.ModelProto:
    """The grid detector's finest stride with post-processing inside, boxes scaled by what is fed beside the image."""
    model = grid_detector(size=SIZE)
    graph = model.graph
    del graph.output[:]
    cells = (SIZE // 8) ** 2
    place = np.stack([np.arange(cells) % (SIZE // 8), np.arange(cells) // (SIZE // 8)], axis=1) * 8 / SIZE
    corners = np.concatenate([place, place + 8 / SIZE], axis=1).astype(np.float32)[None]
    constants = {
        "c.flat": np.int64([1, -1]),
        "c.k": np.int64([KEPT]),
        "c.classes": np.int64(len(NAMES)),
        "c.corners": corners,
        "c.last": np.int64([-1]),
        "c.four": np.int64([1, KEPT, 4]),
        "c.one": np.int64([1]),
        "c.six": np.int64([-1, 6]),
        "c.count": np.int32([KEPT]),
        "c.swap": np.int64([1, 0, 1, 0]),
    }
    nodes = [
        ("Reshape", ["score8", "c.flat"], ["flat"], {}),
        ("TopK", ["flat", "c.k"], ["scores", "at"], {"axis": -1}),
        ("Div", ["at", "c.classes"], ["cell"], {}),
        ("Mod", ["at", "c.classes"], ["labels"], {}),
        ("Unsqueeze", ["cell", "c.last"], ["cell1"], {}),
        ("Expand", ["cell1", "c.four"], ["cell4"], {}),
        ("GatherElements", ["c.corners", "cell4"], ["top"], {"axis": 1}),
    ]
    if kind == "detr":
        inputs = [oh.make_tensor_value_info("orig_target_sizes", 7, ["N", 2])]
        nodes += [
            ("Cast", ["orig_target_sizes"], ["sizes"], {"to": 1}),
            ("Concat", ["sizes", "sizes"], ["sizes4"], {"axis": 1}),
            ("Unsqueeze", ["sizes4", "c.one"], ["sizes1"], {}),
            ("Mul", ["top", "sizes1"], ["boxes"], {}),
        ]
        outputs = [("labels", 7, [1, KEPT]), ("boxes", 1, [1, KEPT, 4]), ("scores", 1, [1, KEPT])]
    else:
        inputs = [oh.make_tensor_value_info(name, 1, [1, 2]) for name in ("im_shape", "scale_factor")]
        nodes += [
            ("Div", ["im_shape", "scale_factor"], ["photo"], {}),
            ("Gather", ["photo", "c.swap"], ["sizes1"], {"axis": 1}),
            ("Mul", ["top", "sizes1"], ["boxes"], {}),
            ("Cast", ["labels"], ["kinds"], {"to": 1}),
            ("Unsqueeze", ["kinds", "c.last"], ["kinds1"], {}),
            ("Unsqueeze", ["scores", "c.last"], ["scores1"], {}),
            ("Concat", ["kinds1", "scores1", "boxes"], ["together"], {"axis": 2}),
            ("Reshape", ["together", "c.six"], ["nms_0.tmp_0"], {}),
            ("Identity", ["c.count"], ["nms_0.tmp_2"], {}),
        ]
        outputs = [("nms_0.tmp_0", 1, ["k", 6]), ("nms_0.tmp_2", 6, [1])]
    graph.initializer.extend(onh.from_array(value, name) for name, value in constants.items())
    graph.node.extend(oh.make_node(op, reads, made, f"post.{made[0]}", **more) for op, reads, made, more in nodes)
    graph.input.extend(inputs)
    graph.output.extend(oh.make_tensor_value_info(*one) for one in outputs)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(("kind", "decoder"), [("detr", "chosen"), pytest.param("paddle", "paddle", marks=pytest.mark.slow)])
def test_a_detector_with_its_post_processing_goes_through_the_stages(kind, decoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(chosen_grid(kind), "small.onnx")
    write_squares(Path("squares/calibration"), 8, seed=1, annotated=False)
    write_squares(Path("squares/validation"), 12, seed=2)
    params(int8={"placement": "all"})
    said = succeed("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark", "package")
    assert f"outputs read as {decoder}" in said
    assert "is fed [" in said
    found = accuracy()
    assert found["decoder"] == decoder
    assert found["fp32.ap50"] > 0.3
    for variant in ("fp16", "int8"):
        assert found[f"{variant}.match_f1"] > 0.9
    runtime = json.loads(Path("models/small/package/runtime.json").read_text())
    assert [each["name"] for each in runtime["other_inputs"]] == (
        ["orig_target_sizes"] if kind == "detr" else ["im_shape", "scale_factor"]
    )
    (boxes,) = load("models/small/package", variant="fp32").predict([next(Path("squares/validation/images").iterdir())])
    assert 8 < boxes.xyxy.max() <= SIZE


def test_what_nothing_says_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = chosen_grid("detr")
    model.graph.input[1].name = "sizes"
    for node in model.graph.node:
        node.input[:] = ["sizes" if name == "orig_target_sizes" else name for name in node.input]
        node.output[:] = ["sizes.float" if name == "sizes" else name for name in node.output]
        node.input[:] = [("sizes.float" if node.op_type == "Concat" and name == "sizes" else name) for name in node.input]
    onnx.save(model, "small.onnx")
    write_squares(Path("squares/calibration"), 4, seed=1, annotated=False)
    params()
    refuse("export", "takes 'sizes' int64 [N, 2] beside the image", "input: {others: {sizes: [...]}}")
    assert not Path("models/small/fp32").exists()
    params(input=INPUT | {"others": {"sizes": ["width", "height"]}})
    succeed("export")
    params(
        input=INPUT | {"others": {"sizes": ["width", "height"]}},
        data=DATA | {"train": DATA["calibration"]},
        calibrate={"samples": 4},
        qat={"enabled": True},
    )
    succeed("calibrate")
    assert "training feeds images alone" in run_stage("qat", "--model", "small").stderr


def test_init_writes_what_the_other_inputs_are_fed(tmp_path, monkeypatch):
    from octavo.commands import main

    monkeypatch.chdir(tmp_path)
    onnx.save(chosen_grid("detr"), "small.onnx")
    write_squares(Path("squares"), 6, seed=1)
    main(["init", "small.onnx", "--task", "detection", "--data", "squares"])
    assert "others: {orig_target_sizes: [width, height]}" in Path("params.yaml").read_text(encoding="utf-8")
    assert load_model("params.yaml", "small").input.others == {"orig_target_sizes": ("width", "height")}


def test_choices_that_are_outputs_are_fed_by_the_names_of_fp32():
    import onnx_ir as ir

    from octavo.quantization.fp16 import convert

    model = ir.from_proto(chosen_grid("detr"))
    half = convert(model).model
    names = ["post.scores"]
    mine, theirs = held(model, names), held(half, names, model)
    assert {value.name for value in mine.graph.inputs} == {value.name for value in theirs.graph.inputs} >= {"scores", "at"}
    assert "scores" not in {value.name for value in (*mine.graph.outputs, *theirs.graph.outputs)}
