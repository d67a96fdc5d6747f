"""Detectors from torchvision, transformers and ultralytics: exported, run in ONNX Runtime and read by a family."""

import json
import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from octavo.errors import SourceError
from octavo.evidence.fidelity import Fidelity
from octavo.files import sha256_path
from octavo.graph.clean import clean
from octavo.params.grammar import Input, TorchSource, TransformersSource, UltralyticsSource
from octavo.runtime.rows import matched_rows, rows_of
from octavo.runtime.session import Session
from octavo.sources import fetch
from octavo.sources.checks import compare_with_reference, refuse_mixed_batch, told
from octavo.tasks.detection import family_of

torch = pytest.importorskip("torch")

from detectors import CLASSES, QUERIES, SIZE, photos, saved, spread  # noqa: E402

INPUT = Input(size=(SIZE, SIZE))


def checked(fetched, folder, images, selecting=True):
    """What `stages/export.py` does with a graph."""
    session = Session(folder / "model.onnx")
    outputs = [session.run({"input": image}) for image in images]
    named = [(str(place), image) for place, image in enumerate(images)]
    found = compare_with_reference(fetched.reference, named, outputs, folder, selecting=selecting)
    return session, outputs, found


# ---------------------------------------------------------------- transformers


@pytest.mark.parametrize("kind", ["rtdetr", "rtdetrv2", pytest.param("dfine", marks=pytest.mark.slow)])
def test_a_detector_of_transformers_is_exported_with_a_dynamic_batch(tmp_path, capfd, kind):
    pytest.importorskip("transformers")
    folder, images = saved(kind, tmp_path / kind), photos(3)
    capfd.readouterr()
    fetched = fetch(TransformersSource(kind="transformers", file=str(folder), dynamic_batch=True), INPUT, tmp_path, images)
    assert capfd.readouterr() == ("", "")
    assert fetched.output_names == ("logits", "pred_boxes")
    session, outputs, found = checked(fetched, tmp_path, images)
    assert outputs[0]["logits"].shape == (1, QUERIES, CLASSES)
    assert found["same_rows"] >= 0.9
    assert found["max_abs_diff"] < 1e-2
    refuse_mixed_batch(lambda batch: session.run({"input": batch}), images, outputs, selecting=True)
    assert family_of(outputs[0], (SIZE, SIZE)).name == "rtdetr"


@pytest.mark.parametrize("kind", ["rtdetr", pytest.param("dfine", marks=pytest.mark.slow)])
def test_one_image_leaves_no_shape_unknown(tmp_path, kind):
    """So that every layer's time can be measured: exporters compute sizes in the graph, and cleaning computes them at once."""
    pytest.importorskip("transformers")
    fetched = fetch(TransformersSource(kind="transformers", file=str(saved(kind, tmp_path / kind))), INPUT, tmp_path, photos(1))
    clean(fetched.model, 18)
    values = [value for node in fetched.model.graph for value in node.outputs]
    assert all(value.shape is not None and all(isinstance(size, int) for size in value.shape) for value in values)
    assert not {"ConstantOfShape", "Shape"} & {node.op_type for node in fetched.model.graph}


def test_a_folder_that_is_no_detector_is_explained(tmp_path):
    pytest.importorskip("transformers")
    source = TransformersSource(kind="transformers", file=str(tmp_path / "net"))
    with pytest.raises(SourceError, match=r"has no config.json and no model.safetensors"):
        fetch(source, INPUT, tmp_path, photos(1))
    folder = saved("rtdetr", tmp_path / "net")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_labels": 7, "id2label": None, "label2id": None}))
    with pytest.raises(SourceError, match="another shape") as caught:
        fetch(source, INPUT, tmp_path, photos(1))
    assert "save_pretrained" in caught.value.mend
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(SourceError, match="cannot read it"):
        fetch(source, INPUT, tmp_path, photos(1))


def test_a_folder_has_one_hash_wherever_it_lies(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "a.json").write_text("{}")
        (tmp_path / name / "inner" / "b.bin").write_bytes(b"b")
    assert sha256_path(tmp_path / "one") == sha256_path(tmp_path / "two")
    (tmp_path / "two" / "inner" / "b.bin").rename(tmp_path / "two" / "inner" / "c.bin")
    assert sha256_path(tmp_path / "one") != sha256_path(tmp_path / "two")


# ---------------------------------------------------------------- torchvision

ONE_IMAGE = {"exporter": "torchscript", "dynamic_batch": False}


def torchvision_source(tmp_path, name, **settings):
    """Random weights, spread; the source that reads them."""
    from octavo.sources.torch_build import build

    torch.manual_seed(0)
    module = build(name, settings, ()).eval()
    images = [torch.from_numpy(image[0] / 6 + 0.5) for image in photos(2, seed=9)]
    spread(module, lambda: module(images))
    torch.save(module.state_dict(), tmp_path / "w.pth")
    return TorchSource(kind="torch", entry=name, file=str(tmp_path / "w.pth"), args=settings, **ONE_IMAGE)


def test_ssdlite_is_exported_with_boxes_labels_and_scores(tmp_path):
    images = [image / 6 + 0.5 for image in photos(2)]
    source = torchvision_source(tmp_path, "ssdlite320_mobilenet_v3_large", topk_candidates=20, num_classes=4)
    fetched = fetch(source, INPUT, tmp_path, images)
    assert set(fetched.output_names) == {"boxes", "labels", "scores"}
    _, outputs, found = checked(fetched, tmp_path, images)
    assert found["same_rows"] >= 0.9
    assert family_of(outputs[0], (SIZE, SIZE)).name == "torchvision"


def test_a_detector_of_torchvision_names_the_settings_that_it_needs(tmp_path):
    source = torchvision_source(tmp_path, "ssdlite320_mobilenet_v3_large", num_classes=2)
    with pytest.raises(SourceError, match="one image at a time") as caught:
        fetch(source.model_copy(update={"exporter": "dynamo", "dynamic_batch": True}), INPUT, tmp_path, photos(2))
    assert "`source.exporter: torchscript` and `source.dynamic_batch: false`" in caught.value.mend


def test_faster_rcnn_has_a_resnet101(tmp_path):
    from octavo.sources.torch_build import build

    module = build("octavo.sources.torchvision_detection:fasterrcnn_resnet101_fpn", {"num_classes": 3}, ())
    assert len(module.backbone.body.layer3) == 23
    assert module.roi_heads.box_predictor.cls_score.out_features == 3


# ---------------------------------------------------------------- ultralytics


def test_ultralytics_is_never_installed_and_its_licence_is_named(tmp_path):
    program = """
import sys, pathlib
sys.modules["ultralytics"] = None
from octavo.errors import SourceError
from octavo.evidence.fidelity import Fidelity
from octavo.params.grammar import Input, UltralyticsSource
from octavo.sources import fetch
try:
    fetch(UltralyticsSource(kind="ultralytics", entry="yolov8n.yaml", file="w.pth"), Input(size=(64, 64)), pathlib.Path("."), [])
except SourceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "'ultralytics'" in done.stdout
    assert "AGPL-3.0" in done.stdout


@pytest.mark.parametrize(
    ("entry", "family", "shape"), [("yolov8n.yaml", "yolov8", (1, 84, 336)), ("yolov10n.yaml", "yolov10", (1, 300, 6))]
)
def test_an_ultralytics_yaml_and_its_state_dict_are_exported(tmp_path, entry, family, shape):
    tasks = pytest.importorskip("ultralytics.nn.tasks")
    torch.manual_seed(0)
    module = tasks.DetectionModel(entry, verbose=False)
    torch.save(module.state_dict(), tmp_path / "w.pth")
    source = UltralyticsSource(kind="ultralytics", entry=entry, file=str(tmp_path / "w.pth"))
    fetched = fetch(source, INPUT, tmp_path, photos(2))
    output = Session(tmp_path / "model.onnx").run({"input": photos(1)[0]})
    assert output["output"].shape == shape
    assert family_of(output, (SIZE, SIZE)).name == family
    assert fetched.reference(photos(1)[0])["output"].shape == shape
    (tmp_path / "w.pth").rename(tmp_path / "w.pt")
    with pytest.raises(SourceError, match="pickle of a whole module"):
        fetch(source.model_copy(update={"file": str(tmp_path / "w.pt")}), INPUT, tmp_path, photos(1))


# ---------------------------------------------------------------- rows that a graph chose


def rows(count, seed=0):
    generator = np.random.default_rng(seed)
    return {"boxes": generator.random((count, 4), np.float32), "scores": generator.random(count, np.float32)}


def test_rows_find_their_counterparts_in_any_order():
    one = rows(9)
    order = np.random.default_rng(1).permutation(9)
    other = {name: value[order][:7] + np.float32(1e-4) for name, value in one.items()}
    first, second = matched_rows(one, other)
    for name, value in first.items():
        assert len(value) == 7
        np.testing.assert_allclose(value, second[name], atol=2e-4)


def test_masks_are_paired_by_some_of_their_pixels():
    """All pixels of all masks in float64 were a gigabyte and 4 s an image at 640x640."""
    one = rows(40) | {"masks": np.random.default_rng(2).random((40, 1, 192, 160), np.float32)}
    order = np.random.default_rng(1).permutation(40)
    other = {name: value[order] for name, value in one.items()}
    matched_rows(rows(3), rows(3))  # What it imports is no memory of a call.
    tracemalloc.start()
    first, second = matched_rows(one, other)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    # Both come back in copies.
    assert peak < 5 * one["masks"].nbytes
    # As many pixels are looked at of masks of other sizes, which have no rows in common.
    wider = other | {"masks": np.zeros((40, 1, 193, 160), np.float32)}
    assert matched_rows(one, wider)[1]["masks"] is wider["masks"]


@pytest.mark.parametrize("count", [0, 1])
def test_no_row_and_one_row_can_be_compared(count):
    first, second = matched_rows(rows(3), rows(count))
    assert {len(value) for value in (*first.values(), *second.values())} == {count}


@pytest.mark.parametrize("count", [0, 4])
def test_rows_that_are_lost_are_noise(count):
    truth = rows(5)
    fidelity = Fidelity()
    fidelity.update(*matched_rows(truth, {name: value[:count] for name, value in truth.items()}, lost=True))
    found = fidelity.metrics()
    gone = [float((value[count:] ** 2).sum() / (value**2).sum()) for value in truth.values()]
    assert found["sqnr_db"] == pytest.approx(-10 * np.log10(max(gone)), abs=1e-4)
    assert found["cosine_mean"] < 0.95


def test_rows_are_found_beside_outputs_that_have_others():
    """TensorFlow's detectors have chosen boxes beside all of them, YOLO's end-to-end ones maps of masks."""
    generator = np.random.default_rng(0)
    whole = {
        "detection_boxes": generator.random((1, 9, 4), np.float32),
        "detection_multiclass_scores": generator.random((1, 9, 3), np.float32),
        "detection_scores": generator.random((1, 9), np.float32),
        "num_detections": np.float32([9]),
        "raw_detection_boxes": generator.random((1, 30, 4), np.float32),
        "raw_detection_scores": generator.random((1, 30, 3), np.float32),
    }
    rows = {"rows": generator.random((1, 9, 38), np.float32), "maps": generator.random((1, 32, 8, 8), np.float32)}
    traced = {
        "boxes": generator.random((9, 4), np.float32),
        "scores": generator.random(9, np.float32),
        "size": np.array([80, 100], np.int64),
    }
    order = generator.permutation(9)
    for one, axis, names in (
        (whole, 1, ["detection_boxes", "detection_multiclass_scores", "detection_scores"]),
        (rows, 1, ["rows"]),
        (traced, 0, ["boxes", "scores"]),
    ):
        other = {name: np.take(value, order, axis) if name in names else value for name, value in one.items()}
        first, second = matched_rows(one, other)
        for name, value in first.items():
            np.testing.assert_array_equal(value, second[name])
            assert value.shape == one[name].shape
            assert name in names or value is one[name]


def test_outputs_without_common_rows_stay_as_they_are():
    one = {"boxes": np.zeros((5, 4)), "map": np.zeros((1, 3, 8, 8))}
    assert rows_of(one) is None
    assert matched_rows(one, one)[1]["map"] is one["map"]


def test_an_export_with_two_rows_exchanged_is_right_and_one_with_other_rows_is_not(tmp_path):
    truth = rows(20)
    exchanged = {name: value[[1, 0, *range(2, 20)]] for name, value in truth.items()}
    found = compare_with_reference(lambda _: truth, [("a", None)], [exchanged], tmp_path, selecting=True)
    assert found["same_rows"] == 1
    assert found["max_abs_diff"] == 0
    with pytest.raises(SourceError, match="differs from the torch module"):
        compare_with_reference(lambda _: truth, [("a", None)], [exchanged], tmp_path)
    image = np.ones((1, 3, 4, 4), np.float32)
    with pytest.raises(SourceError, match="of its rows are the same"):
        compare_with_reference(lambda _: truth, [("a", image)], [rows(20, seed=1)], tmp_path, selecting=True)
    nothing = rows(0)
    assert compare_with_reference(lambda _: nothing, [("a", None)], [nothing], tmp_path, selecting=True)["max_abs_diff"] == 0


def test_rows_that_the_module_itself_chooses_by_chance_refuse_no_export(tmp_path):
    """Random weights give scores that are all alike: the last bit of a pixel changes which are the best."""
    image = np.full((1, 3, 4, 4), 0.5, np.float32)

    def chance(tensor: np.ndarray) -> dict[str, np.ndarray]:
        assert np.allclose(tensor, image, atol=1e-6)
        return rows(20, seed=int(np.float32(tensor).view(np.uint32).sum()) % 1000)

    with_half = {name: np.concatenate([value[:10], rows(20, seed=1001)[name][10:]]) for name, value in chance(image).items()}
    found = compare_with_reference(chance, [("a", image)], [with_half], tmp_path, selecting=True)
    assert (found["same_rows"], found["max_abs_diff"]) == (0.5, 0)
    assert found["own_rows"] < 0.5
    assert "in 50.0% of the rows; other rows are chance: the module itself keeps " in told(found)


def test_scores_that_tie_refuse_no_export_that_breaks_ties_in_another_way(tmp_path):
    """torchvision's SSDlite and transformers' RT-DETR as built, without weights: all scores are the same, whatever the image."""
    boxes = np.random.default_rng(0).random((200, 4), np.float32)

    def tied(tensor: np.ndarray) -> dict[str, np.ndarray]:
        scores = torch.zeros(200) if tensor.mean() < 0.6 else torch.arange(200) / 200
        top = scores.topk(20)
        return {"boxes": boxes[top.indices], "scores": top.values.numpy()}

    image = np.full((1, 3, 4, 4), 0.5, np.float32)
    mine = {"boxes": boxes[:20], "scores": np.zeros(20, np.float32)}
    found = compare_with_reference(tied, [("a", image)], [mine], tmp_path, selecting=True)
    assert found["own_rows"] < 0.5
    # Where scores differ the module has its rows, and others are wrong.
    with pytest.raises(SourceError, match="of its rows are the same"):
        compare_with_reference(tied, [("a", 2 * image)], [mine], tmp_path, selecting=True)


@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (20, 1, 4, 4), (1, 20, 8, 8)])
def test_an_export_whose_outputs_have_not_their_rows_in_common_is_refused(tmp_path, shape):
    """Masks that came out as one row, of another size, along another axis."""
    truth = rows(20) | {"masks": np.zeros((20, 1, 8, 8), np.float32)}
    with pytest.raises(SourceError, match=re.escape(f"puts out {list(shape)} where the torch module puts out [20, 1, 8, 8]")):
        bad = truth | {"masks": np.zeros(shape, np.float32)}
        compare_with_reference(lambda _: truth, [("a", None)], [bad], tmp_path, selecting=True)


def test_maps_behind_places_of_maxima_may_differ_where_two_were_level(tmp_path):
    """ENet with unpooling, random weights: of 16 photos of CamVid pixels differed by .2 % of the largest, and no file was made."""
    truth = {"logits": np.random.default_rng(0).random((1, 11, 20, 20), np.float32)}

    def moved(columns: int) -> dict[str, np.ndarray]:
        other = truth["logits"].copy()
        other[:, :, :1, :columns] = 0
        return {"logits": other}

    found = compare_with_reference(lambda _: truth, [("a", None)], [moved(4)], tmp_path, selecting=True)
    assert found["same_values"] == pytest.approx(0.99, abs=1e-3)
    assert told(found).endswith(", in 99.00% of the values")
    with pytest.raises(SourceError, match="95% of its values are the same"):
        compare_with_reference(lambda _: truth, [("a", None)], [moved(20)], tmp_path, selecting=True)
    with pytest.raises(SourceError, match="differs from the torch module"):
        compare_with_reference(lambda _: truth, [("a", None)], [moved(4)], tmp_path)
    images, alone = [np.zeros((1, 3, 20, 20), np.float32)] * 2, [truth] * 2
    refuse_mixed_batch(lambda _: {"logits": np.repeat(moved(4)["logits"], 2, axis=0)}, images, alone, selecting=True)
    with pytest.raises(SourceError, match="the values of two images in one batch"):
        refuse_mixed_batch(lambda _: {"logits": np.repeat(moved(20)["logits"], 2, axis=0)}, images, alone, selecting=True)


def test_images_in_one_batch_are_held_against_each_alone_where_outputs_have_no_rows_in_common():
    images = [np.full((1, 3, 4, 4), place, np.float32) for place in range(2)]

    def run(batch, mix=0.0):
        one = batch.mean((1, 2, 3)) + mix * batch.mean()
        return {"boxes": np.tile(one[:, None, None], (1, 5, 4)), "maps": np.tile(one[:, None, None], (1, 3, 8))}

    alone = [run(image) for image in images]
    refuse_mixed_batch(run, images, alone, selecting=True)
    with pytest.raises(SourceError, match="the file has an open batch and mixes its images") as caught:
        refuse_mixed_batch(lambda batch: run(batch, mix=0.5), images, alone, selecting=True, own="N")
    assert "make_dynamic_shape_fixed --dim_param N --dim_value 1" in caught.value.mend
    with pytest.raises(SourceError, match="fixed batch size inside"):
        refuse_mixed_batch(lambda batch: run(batch, mix=0.5), images, alone, selecting=True)
