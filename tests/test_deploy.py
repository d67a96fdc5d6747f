"""What leaves the pipeline: complete folders, and a loader that takes the best variant, checks it and falls back with a reason."""

import importlib.resources
import io
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from conftest import CLASSES, ROOT, project_params, small_network, write_images
from forked import run_stage
from grid_detector import NAMES, grid_detector, write_squares
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from PIL import Image
from test_embedding import network as embedding_network
from test_embedding_stages import people
from test_segmentation import network as bright_network

from octavo.deploy import choice, loader
from octavo.deploy.artifact import Artifact, artifacts
from octavo.deploy.choice import ALIKE, FALLBACK, chain, fastest
from octavo.deploy.figures import accuracy_of, gates_of, latency_of
from octavo.deploy.loader import load
from octavo.errors import DataError, ModelRunError, SourceError
from octavo.evidence.validation import Validation
from octavo.files import sha256_file
from octavo.images.dataset import Images, open_set
from octavo.images.feeds import Feeds
from octavo.images.purpose import open_images
from octavo.params import load_model
from octavo.params.grammar import ImageSet
from octavo.runtime.host import fingerprint
from octavo.runtime.session import Session
from octavo.tasks.embedding.flip import answering
from octavo.tasks.labels import labels_of

SCHEMA = json.loads((importlib.resources.files("octavo.deploy") / "schemas" / "manifest.schema.json").read_text())
STAGES = ("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark", "package")


def run(*stages: str) -> None:
    for stage in stages:
        done = run_stage(stage, "--model", "small")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """models/small with all its variants and its package; tests copy it."""
    folder = tmp_path_factory.mktemp("made")
    onnx.save(small_network(), folder / "small.onnx")
    write_images(folder / "images/calibration", 8, seed=1)
    for label in range(CLASSES):
        write_images(folder / f"images/validation/{label}", 3, seed=10 + label)
    names = {"task": {"name": "classification", "classes": ["one", "two", "three", "four"]}}
    (folder / "params.yaml").write_text(yaml.safe_dump(project_params(**names)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(*STAGES)
    return folder


@pytest.fixture
def project(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(path: Path, **keys: object) -> None:
    """Edit a manifest; a key of None goes."""
    manifest = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}))


def images(project: Path) -> list[Path]:
    return sorted((project / "images/validation").rglob("*.png"))


class TestPackage:
    def test_every_variant_that_gates_hold_is_there_with_all_that_is_known_of_it(self, made):
        folder = made / "models/small/package"
        assert sorted(path.name for path in folder.iterdir()) == ["fp16", "fp32", "int8", "runtime.json"]
        for variant in ("fp32", "fp16", "int8"):
            manifest = json.loads((folder / variant / "manifest.json").read_text())
            Draft202012Validator(SCHEMA).validate(manifest)
            assert (folder / variant / "model.onnx").read_bytes() == (made / f"models/small/{variant}/model.onnx").read_bytes()
            assert manifest["labels"] == ["one", "two", "three", "four"]
            assert manifest["opset"] >= 13
            assert manifest["latency"]["host"]["id"] == fingerprint()["id"]
            assert {figures["threads"] for figures in manifest["latency"]["figures"]} == {1}
            assert manifest["accuracy"]["images"] == 12
            assert "top1" in manifest["accuracy"]
            assert str(made) not in json.dumps(manifest), "no path of this machine leaves it"
            assert set(manifest["gates"]) >= (set() if variant == "fp32" else {"retained", "similarity", "agreement"})
        assert manifest["accuracy"]["fp32"]["top1"] == json.loads((made / "metrics/small/accuracy.json").read_text())["fp32.top1"]
        assert manifest["target"] == "cpu"

    def test_runtime_json_begins_with_the_fastest_and_leaves_out_what_failed(self, project):
        accuracy = json.loads((project / "metrics/small/accuracy.json").read_text())
        latency = json.loads((project / "metrics/small/latency.json").read_text())
        for variant, ms in {"fp32": 2.0, "fp16": 3.0, "int8": 1.0}.items():
            latency[f"{variant}.cpu.t1.b1.median_ms"] = ms
        accuracy |= {key: "pass" for key in accuracy if ".gate." in key}
        told = []
        for verdict, ms in (("pass", 1.0), ("pass", 9.0), ("fail", 1.0)):
            accuracy["int8.gate.retained"], latency["int8.cpu.t1.b1.median_ms"] = verdict, ms
            (project / "metrics/small/accuracy.json").write_text(json.dumps(accuracy))
            (project / "metrics/small/latency.json").write_text(json.dumps(latency))
            run("package")
            told.append(json.loads((project / "models/small/package/runtime.json").read_text())["fallback"])
        assert told == [["int8", "fp16", "fp32"], ["fp32", "int8", "fp16"], ["fp32", "fp16"]]

    def test_what_stages_write_holds_the_schema_too(self, made):
        for path in (made / "models/small").glob("*/manifest.json"):
            Draft202012Validator(SCHEMA).validate(json.loads(path.read_text()))

    def test_the_schema_can_refuse(self, made):
        manifest = json.loads((made / "models/small/package/int8/manifest.json").read_text())
        for key in ("sha256", "preprocessing", "gates", "labels"):
            broken = {name: value for name, value in manifest.items() if name != key}
            assert not Draft202012Validator(SCHEMA).is_valid(broken), key
        assert not Draft202012Validator(SCHEMA).is_valid(manifest | {"providers": ["abacus"]})
        assert not Draft202012Validator(SCHEMA).is_valid(manifest | {"colour": 1})

    def test_a_folder_of_one_variant_needs_nothing_else_of_the_project(self, made, tmp_path):
        """A user with ONNX Runtime: model, preprocessing and labels from the folder alone."""
        folder = shutil.copytree(made / "models/small/package/int8", tmp_path / "pulled")
        script = f"""
import json, numpy as np, onnxruntime, PIL.Image, sys
about = json.load(open(r"{folder}/manifest.json"))
pre = about["preprocessing"]
assert pre["resize"]["rule"] == "stretch" and pre["layout"] == "nchw" and pre["colour"] == "rgb" and pre["crop"] == "none"
photo = PIL.Image.open(r"{images(made)[0]}").convert("RGB").resize(pre["size"][::-1], PIL.Image.BILINEAR)
x = ((np.asarray(photo, np.float32) / pre["scale"] - pre["mean"]) / pre["std"]).astype(np.float32).transpose(2, 0, 1)[None]
options = onnxruntime.SessionOptions()
for key, value in about["session"].items():
    options.add_session_config_entry(key, value)
session = onnxruntime.InferenceSession(r"{folder}/" + about["file"], options, providers=["CPUExecutionProvider"])
scores = session.run([about["outputs"][0]["name"]], {{about["image_input"]: x}})[0][0]
print(about["labels"][int(scores.argmax())])
"""
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
        mine = load(folder).predict([images(made)[0]])[0]
        assert told.stdout.strip() == load(folder).labels[mine.best(1)[0]]

    def test_without_metrics(self, project):
        (project / "metrics/small/latency.json").unlink()
        done = run_stage("package", "--model", "small")
        assert done.returncode == 2
        assert "latency.json: no such file" in done.stderr
        assert (project / "models/small/package/int8/model.onnx").is_file(), "the previous package is untouched"

    def test_a_model_that_is_not_the_manifest_s(self, project):
        with open(project / "models/small/int8/model.onnx", "ab") as stream:
            stream.write(b"x")
        done = run_stage("package", "--model", "small")
        assert done.returncode == 2
        assert "int8/model.onnx is damaged, or not the file" in done.stderr


class TestFigures:
    RECORD = {
        "images": 3,
        "labelled": 2,
        "metric": "top1",
        "fp32.top1": 0.5,
        "int8.top1": 0.4,
        "int8.gate.retained": "fail",
        "int8_dynamic.top1": 0.1,
    }

    def test_of_one_variant(self):
        expected = {"images": 3, "labelled": 2, "metric": "top1", "top1": 0.4, "fp32": {"top1": 0.5}}
        assert accuracy_of(self.RECORD, "int8") == expected
        assert accuracy_of(self.RECORD, "fp32") == {"images": 3, "labelled": 2, "metric": "top1", "top1": 0.5}
        assert gates_of(self.RECORD, "int8") == {"retained": "fail"}
        assert gates_of(self.RECORD, "fp32") == {}

    def test_latency_by_provider_threads_batch_and_size(self):
        record = {
            "host.id": "abc",
            "host.cpu": "x",
            "int8.cpu.t2.b1.median_ms": 3.0,
            "int8.cpu.t2.b1.speedup": 2.0,
            "int8.cpu.t2.b4.256x320.median_ms": 9.0,
            "int8.load_ms": 5.0,
            "fp32.cpu.t2.b1.median_ms": 6.0,
        }
        assert latency_of(record, "int8") == {
            "host": {"id": "abc", "cpu": "x"},
            "figures": [
                {"provider": "cpu", "threads": 2, "batch": 1, "size": None, "median_ms": 3.0, "speedup": 2.0},
                {"provider": "cpu", "threads": 2, "batch": 4, "size": "256x320", "median_ms": 9.0},
            ],
            "load_ms": 5.0,
        }


def artifact(variant: str, size: int = 1, **accuracy: float) -> Artifact:
    return Artifact(Path(variant), {"variant": variant, "bytes": size, "accuracy": accuracy})


class TestChoice:
    def test_the_fastest(self):
        found = {name: artifact(name, retained=0.99) for name in ("fp32", "int8")}
        assert fastest({"fp32": 2.0, "int8": 1.0}, found) == "int8"
        assert fastest({"fp32": 1.0, "int8": 1.5}, found) == "fp32"

    def test_of_those_alike_the_one_that_keeps_more_then_the_smaller(self):
        found = {"int8": artifact("int8", retained=0.99), "qat": artifact("qat", retained=1.01)}
        assert fastest({"int8": 1.0, "qat": 1.0 + ALIKE / 2}, found) == "qat"
        found = {"int8": artifact("int8", 5, retained=1.0), "qat": artifact("qat", 9, retained=1.0)}
        assert fastest({"int8": 1.0, "qat": 1.0}, found) == "int8"

    @given(st.sets(st.sampled_from(FALLBACK), min_size=1), st.randoms())
    def test_a_chain_has_each_variant_once_and_fp32_last_unless_first(self, variants, random):
        first = random.choice(sorted(variants))
        order = chain(first, sorted(variants))
        assert order[0] == first
        assert sorted(order) == sorted(variants)
        assert order[-1] == "fp32" or "fp32" not in variants or first == "fp32"
        assert order[1:] == [name for name in FALLBACK if name in order[1:]]

    def test_int8_then_fp16_then_fp32(self):
        assert chain("int8", ["fp32", "fp16", "int8"]) == ["int8", "fp16", "fp32"]

    def test_figures_of_another_machine_are_no_figures(self, project):
        found = artifacts("models/small")
        known = choice.measured(found, lambda _: ["cpu"], 1)
        record = json.loads((project / "metrics/small/latency.json").read_text())
        assert known == {name: record[f"{name}.cpu.t1.b1.median_ms"] for name in ("fp32", "fp16", "int8")}
        assert choice.measured(found, lambda _: ["cuda", "cpu"], 1) == {}, "not timed where it would run"
        path = project / "models/small/package/fp16/manifest.json"
        latency = json.loads(path.read_text())["latency"]
        change(path, latency=latency | {"host": latency["host"] | {"id": "another"}})
        assert choice.measured(artifacts("models/small"), lambda _: ["cpu"], 1) == {}


class TestLoad:
    def test_by_the_figures(self, project, monkeypatch, caplog):
        caplog.set_level(logging.INFO, "octavo.deploy")
        monkeypatch.setattr(loader, "interleaved", None)  # Nothing may be timed.
        record = json.loads((project / "metrics/small/latency.json").read_text())
        accuracy = json.loads((project / "metrics/small/accuracy.json").read_text())
        for key in [key for key in accuracy if ".gate." in key]:
            accuracy[key] = "pass"
        record["int8.cpu.t1.b1.median_ms"] = record["fp32.cpu.t1.b1.median_ms"] / 3
        (project / "metrics/small/latency.json").write_text(json.dumps(record))
        (project / "metrics/small/accuracy.json").write_text(json.dumps(accuracy))
        run("package")
        model = load("models/small", threads=1)
        assert (model.name, model.variant, model.provider) == ("small", "int8", "cpu")
        assert "figures of a machine like this one" in model.reason
        assert "int8 on cpu" in caplog.text
        assert model.fallbacks == {}
        record["fp32.cpu.t1.b1.median_ms"] /= 9
        (project / "metrics/small/latency.json").write_text(json.dumps(record))
        run("package")
        assert load("models/small/package", threads=1).variant == "fp32"

    def test_by_a_quick_test_where_nothing_was_measured(self, project):
        shutil.rmtree("models/small/package")
        model = load("models/small")
        assert model.variant in ("fp32", "fp16", "int8", "int8_dynamic")
        assert "quick test" in model.reason
        assert load("models/small", measure=False).variant == "int8"

    def test_a_variant_that_validation_found_wanting_is_left_aside(self, project, caplog):
        change(project / "models/small/package/int8/manifest.json", gates={"retained": "fail", "similarity": "pass"})
        model = load("models/small")
        assert model.variant != "int8"
        assert model.fallbacks == {"int8": "validation failed retained"}
        assert "int8 is left aside: validation failed retained" in caplog.text
        assert load("models/small", variant="int8").variant == "int8", "unless asked for"

    def test_a_damaged_file_falls_back_with_its_reason(self, project, caplog):
        nothing_measured(project)
        for variant in ("int8", "fp16"):
            path = project / f"models/small/package/{variant}/model.onnx"
            path.write_bytes(path.read_bytes()[:-7])
        model = load("models/small", measure=False)
        assert model.variant == "fp32"
        assert list(model.fallbacks) == ["int8", "fp16"]
        assert all("is damaged" in why for why in model.fallbacks.values())
        assert caplog.text.count("does not run here") == 2
        with pytest.raises(SourceError, match="is damaged"):
            load("models/small", variant="int8")

    def test_one_that_fails_before_it_is_timed_is_left_aside_with_its_reason(self, project, caplog):
        path = project / "models/small/package/int8/model.onnx"
        path.write_bytes(path.read_bytes()[:-7])
        model = load("models/small", measure=True)
        assert "quick test" in model.reason
        assert list(model.fallbacks) == ["int8"]
        assert "is damaged" in model.fallbacks["int8"]
        assert caplog.text.count("does not run here") == 1

    @pytest.mark.parametrize("measure", [True, False])
    def test_one_of_which_nothing_can_be_compared_is_run_before_it_is_timed_or_taken(self, project, monkeypatch, measure):
        change(project / "models/small/package/int8/manifest.json", selfcheck={"outputs": [], "left_out": {"*": "choices"}})
        nothing_measured(project)
        whole = Session.run

        def run(self: Session, *given: object) -> object:
            if "int8" in str(self.name):
                raise ModelRunError("a kernel refuses", "take another")
            return whole(self, *given)

        monkeypatch.setattr(Session, "run", run)
        model = load("models/small", measure=measure)
        assert model.variant != "int8"
        assert model.fallbacks == {"int8": "a kernel refuses"}

    def test_a_graph_that_answers_otherwise_than_where_it_was_packaged(self, project):
        """As a machine whose kernels saturate would: the bytes are right, the numbers are not."""
        nothing_measured(project)
        other = small_network(seed=7)
        folder = project / "models/small/package/int8"
        onnx.save(other, folder / "model.onnx")
        manifest = json.loads((folder / "manifest.json").read_text())
        digest = sha256_file(folder / "model.onnx")
        change(folder / "manifest.json", sha256=digest, files={"model.onnx": digest})
        assert manifest["sha256"] != digest
        model = load("models/small", measure=False)
        assert model.variant == "fp16"
        assert "int8" in model.fallbacks

    def test_nothing_runs(self, project):
        nothing_measured(project)
        for path in (project / "models/small/package").glob("*/model.onnx"):
            path.write_bytes(b"nothing")
        with pytest.raises(ModelRunError, match=r"no variant runs on this machine:\n  int8: (.|\n)*\n  fp16: (.|\n)*\n  fp32: "):
            load("models/small", measure=False)

    def test_a_provider_that_is_not_there(self, project):
        with pytest.raises(ModelRunError, match="'cuda' is not in this ONNX Runtime"):
            load("models/small", variant="fp32", provider="cuda")

    @pytest.mark.parametrize(
        ("folder", "words"), [("models/none", "no such folder"), ("images", "holds no model"), ("models", "holds no model")]
    )
    def test_not_a_model(self, project, folder, words):
        with pytest.raises(SourceError, match=words):
            load(folder)

    def test_a_variant_that_is_not_there(self, project):
        with pytest.raises(SourceError, match="no variant 'qat'"):
            load("models/small", variant="qat")

    def test_a_manifest_of_another_version(self, project):
        change(project / "models/small/package/int8/manifest.json", preprocessing={"size": [32, 32], "warp": 9})
        with pytest.raises(SourceError, match=r"manifest\.json is no manifest that this version reads"):
            load("models/small")
        (project / "models/small/package/int8/manifest.json").write_text("{")
        with pytest.raises(SourceError, match=r"manifest\.json is no manifest"):
            load("models/small")

    def test_without_torch_dvc_and_graph_editors(self, made):
        """The loader and what it runs, with the pipeline's own packages made unimportable."""
        banned = ["torch", "torchvision", "dvc", "onnx", "onnx_ir", "onnxscript", "sklearn", "scipy", "faster_coco_eval", "rich"]
        script = (
            f"import sys; sys.modules.update(dict.fromkeys({banned}))\n"
            "from octavo.deploy.loader import load\n"
            f"model = load(r'{made / 'models/small'}')\n"
            f"print(model.variant, model.predict([r'{images(made)[0]}'])[0].best(1))"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def nothing_measured(project: Path) -> None:
    """As if nothing had been validated or timed: the chain is INT8, FP16, FP32."""
    for path in (project / "models/small/package").glob("*/manifest.json"):
        change(path, gates={}, latency={"host": {}, "figures": []})


def cut_short() -> Image.Image:
    """A file that ends too early, of which Pillow has read the header alone."""
    whole = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(whole, "PNG")
    return Image.open(io.BytesIO(whole.getvalue()[:-60]))


class TestPredict:
    def test_an_image_in_any_form(self, made):
        model, path = load(made / "models/small", variant="fp32"), images(made)[0]
        with Image.open(path) as photo:
            forms = [path, str(path), path.read_bytes(), photo.convert("RGB"), np.asarray(photo.convert("RGB"))]
        scores = [ranking.scores for ranking in model.predict(forms)]
        assert all(np.array_equal(scores[0], other) for other in scores[1:])
        assert np.array_equal(model.outputs(path)["logits"][0], scores[0])
        assert model.predict([]) == []

    def test_a_turned_photo_is_the_same_as_a_file_and_as_a_pillow_image(self, made, tmp_path):
        with Image.open(images(made)[0]) as photo:
            exif = photo.getexif()
            exif[0x0112] = 6
            photo.convert("RGB").save(tmp_path / "turned.jpg", exif=exif)
        model = load(made / "models/small", variant="fp32")
        with Image.open(tmp_path / "turned.jpg") as turned:
            first, second = model.predict([tmp_path / "turned.jpg", turned])
        assert np.array_equal(first.scores, second.scores)

    @pytest.mark.parametrize(
        ("image", "words"),
        [
            (Image.new("I;16", (4, 4)), "a Pillow image of mode I;16"),
            (Image.new("RGB", (4, 0)), "a Pillow image of mode RGB, 0x4"),
            (Image.new("La", (4, 4)), "image 0 is not a readable image: conversion from La"),
            (cut_short(), "image 0 is not a readable image: .*truncated"),
            (np.zeros((4, 4), np.uint8), r"image 0 is uint8 of shape \[4, 4\]"),
            (np.zeros((4, 4, 3), np.float32), "float32"),
            (np.zeros((0, 4, 3), np.uint8), "uint8 of shape"),
            (b"no image", "image 0 is not a readable image: it is none of JPEG, PNG"),
            ("no/such.png", "cannot be read"),
            (7, "image 0 is int"),
        ],
    )
    def test_not_an_image(self, made, image, words):
        with pytest.raises(DataError, match=words):
            load(made / "models/small", variant="fp32").predict([image])

    def test_one_image_is_no_list(self, made):
        with pytest.raises(DataError, match=r"predict\(\[image\]\)"):
            load(made / "models/small", variant="fp32").predict(images(made)[0])


class TestEqualToValidation:
    """Same preprocessing, same decoding: what `predict` gives is what `validate` scored."""

    def test_classification(self, made):
        lines = [line.split(",") for line in (made / "metrics/small/images.csv").read_text().splitlines()]
        header, rows = lines[0], lines[1:]
        for variant in ("fp32", "fp16", "int8"):
            model = load(made / "models/small", variant=variant)
            found = model.predict([made / "images/validation" / row[0] for row in rows])
            assert [str(one.best(1)[0]) for one in found] == [row[header.index(f"{variant}.prediction")] for row in rows]

    def served(self, monkeypatch, folder: Path, model: onnx.ModelProto, **blocks: object) -> tuple:
        """(the loaded FP32 model, what validation's score holds after the same images, the images)."""
        monkeypatch.chdir(folder)
        onnx.save(model, "small.onnx")
        Path("params.yaml").write_text(yaml.safe_dump(project_params(**blocks)), encoding="utf-8")
        run("export")
        spec = load_model(Path("params.yaml"), "small")
        items = open_images(spec.data, "validation", "models.small.data")
        session = Session("models/small/fp32/model.onnx")
        name = session.inputs[0]
        sessions = answering({"fp32": session}, spec.task, spec.input, name)
        validation = Validation(spec.task, spec.input, sessions, Feeds(name))
        validation.run(Images(items, spec.input))
        return load("models/small", threads=2), validation.scores["fp32"], items

    def test_detection(self, tmp_path, monkeypatch):
        write_squares(tmp_path / "squares/calibration", 4, seed=1, annotated=False)
        write_squares(tmp_path / "squares/validation", 6, seed=2)
        model, score, items = self.served(
            monkeypatch,
            tmp_path,
            grid_detector(),
            task={"name": "detection", "classes": list(NAMES)},
            input={"size": [64, 64], "resize": {"rule": "letterbox", "antialias": False}},
            data={
                "calibration": {"format": "folder", "path": "squares/calibration"},
                "validation": {"format": "coco", "path": "squares/validation"},
            },
        )
        found = model.predict(item.path for item in items)
        assert sum(map(len, found)) > 0
        for mine, theirs in zip(found, score.found, strict=True):
            assert np.array_equal(mine.xyxy, theirs.xyxy)
            assert np.array_equal(mine.scores, theirs.scores)
            assert np.array_equal(mine.classes, theirs.classes)

    @pytest.mark.parametrize("flip", [False, True])
    def test_embedding(self, tmp_path, monkeypatch, flip):
        people(tmp_path / "people", "abcd", 3, 0)
        write_images(tmp_path / "calibration", 4, seed=1)
        model, score, items = self.served(
            monkeypatch,
            tmp_path,
            embedding_network(12),
            task={"name": "embedding", "flip": flip},
            input={
                "size": [16, 16],
                "mean": [0.5],
                "resize": {"rule": "similarity", "template": [[4, 8], [12, 8]], "points": [[0.2, 0.5], [0.8, 0.5]]},
            },
            data={
                "calibration": {"format": "folder", "path": "calibration"},
                "validation": {"format": "identities", "path": "people"},
            },
        )
        paths = [item.path for item in items]
        assert np.array_equal(model.predict(paths), score.vectors)
        # The same points in pixels of each photo, as a detector of landmarks gives them.
        landmarks = [[(0.2 * 20, 0.5 * 20), (0.8 * 20, 0.5 * 20)]] * len(paths)
        assert np.array_equal(model.predict(paths, landmarks), score.vectors)
        assert not np.allclose(model.predict(paths[:1], [[(5, 5), (9, 14)]]), score.vectors[:1])
        with pytest.raises(DataError, match="12 images, points of 2"):
            model.predict(paths, landmarks[:2])
        with pytest.raises(DataError, match="the image has 1 points"):
            model.predict(paths[:1], [[(5, 5)]])
        assert model.outputs(paths[0])["vector"].shape == (1, 12, 1, 1)

    def test_segmentation(self, tmp_path, monkeypatch):
        write_images(tmp_path / "photos", 6, seed=3)
        half = [{"format": "folder", "path": "photos", "split": {"start": start, "stop": start + 0.5}} for start in (0.0, 0.5)]
        model, _, items = self.served(
            monkeypatch,
            tmp_path,
            bright_network(),
            task={"name": "segmentation", "classes": ["dark", "bright"]},
            input={"size": [32, 32], "resize": {"rule": "letterbox"}},
            data=dict(zip(("calibration", "validation"), half, strict=True)),
        )
        # What is predicted serves as masks: validation, which decodes by itself, must find every pixel right.
        for item, mine in zip(items, model.predict(item.path for item in items), strict=True):
            for part in ("images", "masks"):
                Path("found", part).mkdir(parents=True, exist_ok=True)
            shutil.copy(item.path, Path("found/images", item.path.name))
            Image.fromarray(mine.classes.astype(np.uint8)).save(Path("found/masks", item.path.name))
            assert set(np.unique(mine.classes)) == {0, 1}
        validation = Validation(
            model.artifact.task, model.artifact.spec, {"fp32": Session("models/small/fp32/model.onnx")}, Feeds("image")
        )
        found = open_set(ImageSet(format="masks", path="found"), "found")
        validation.run(Images(found, model.artifact.spec))
        assert len(validation.images) == len(items)
        assert validation.figures()["fp32"]["pixel_accuracy"] == 1.0
        flipped = Path("found/masks", items[0].path.name)
        with Image.open(flipped) as mask:
            wrong = 1 - np.asarray(mask)
        Image.fromarray(wrong).save(flipped)
        again = Validation(model.artifact.task, model.artifact.spec, validation.sessions, Feeds("image"))
        again.run(Images(open_set(ImageSet(format="masks", path="found"), "found"), model.artifact.spec))
        assert again.figures()["fp32"]["pixel_accuracy"] < 1.0, "the test can fail"


class TestLabels:
    def test_imagenet(self):
        from octavo.params.grammar import Classification

        names = labels_of(Classification(name="classification", classes="imagenet1k"))
        assert len(names) == 1000
        assert (names[0], names[281], names[999]) == ("tench", "tabby", "toilet tissue")

    def test_a_wrong_number_of_names_is_refused(self, project):
        params = project_params(task={"name": "classification", "classes": "imagenet1k"})
        Path("params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
        done = run_stage("validate", "--model", "small")
        assert done.returncode == 2
        assert "`task.classes` names 1000 classes, the model tells 4 apart" in done.stderr
