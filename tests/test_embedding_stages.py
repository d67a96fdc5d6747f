"""Embeddings through the stage scripts, and the demo's own: views of photos and the pooled features that tell them apart."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from conftest import ROOT, project_params, write_images
from forked import run_stage
from own_networks import own_network
from PIL import Image
from test_embedding import network

from octavo.errors import ParamsError
from octavo.images.decode import decode
from octavo.images.packaged import make_set
from octavo.images.views import view
from octavo.params import load_model, load_sets
from octavo.params.grammar import Packaged

CHELSEA = {"package": "scikit-image", "file": "skimage/data/chelsea.png", "licence": "CC0", "to": "cat", "views": 3}


def people(root: Path, names: str, count: int, seed: int) -> None:
    """Photos of a colour each, under noise."""
    generator = np.random.default_rng(seed)
    for name in names:
        (root / name).mkdir(parents=True)
        colour = generator.integers(0, 256, (4, 4, 3))
        for place in range(count):
            pixels = np.kron(colour, np.ones((5, 5, 1))) + generator.normal(0, 60, (20, 20, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / name / f"{name}_{place + 1:04d}.png")


@pytest.mark.slow
def test_through_the_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(12, two=True), "small.onnx")
    people(Path("people"), "abcdefgh", 4, 0)
    lines = [f"{name} {first} {first + 1}\n" for name in "abcdefgh" for first in (1, 2, 3)]
    lines += [f"{'abcdefgh'[place]} 1 {'bcdefgha'[place]} {other}\n" for place in range(8) for other in (1, 2, 3)]
    Path("list.txt").write_text("24\n" + "".join(lines))
    write_images(Path("calibration"), 8, seed=1)
    blocks = {
        "task": {"name": "embedding", "output": "vector", "flip": True},
        "input": {
            "size": [16, 16],
            "mean": [0.5],
            "std": [0.25],
            "resize": {"rule": "similarity", "template": [[4, 8], [12, 8]], "points": [[0.2, 0.5], [0.8, 0.5]]},
        },
        "data": {
            "calibration": {"format": "folder", "path": "calibration"},
            "validation": {"format": "pairs", "path": "people", "annotations": "list.txt"},
        },
    }
    params = project_params(**blocks)
    Path("params.yaml").write_text(yaml.safe_dump(params))
    for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "qat", "validate", "benchmark", "report"):
        done = run_stage(stage, "--model", "small")
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr
        if stage == "validate":
            assert "vectors: mean of the image's and its mirror's vector" in said
            assert "note: 32 labelled images; auc needs 50 to say much" in said
    record = json.loads(Path("metrics/small/accuracy.json").read_text())
    assert (record["genuine_pairs"], record["impostor_pairs"], record["identities"]) == (24, 24, 8)
    assert 0.6 < record["fp32.auc"] <= 1
    assert record["compared"] == "vector"
    assert {"int8.auc_drop_low", "int8.gate.auc_drop", "int8.gate.similarity_min", "fp32.tar_1e-1", "int8.accuracy"} <= set(record)
    assert not {"fp32.rank1", "fp32.tar_1e-2"} & set(record)
    assert "| AUC | EER | accuracy |" in Path("metrics/small/report.md").read_text()
    assert "24 genuine and 24 impostor pairs of 8 identities" in Path("metrics/small/report.md").read_text()
    header, *rows = Path("metrics/small/roc.csv").read_text().splitlines()
    assert header == "variant,fpr,tpr"
    assert {row.split(",")[0] for row in rows} == {"fp32", "fp16", "int8", "int8_dynamic"}
    assert len(list(Path("metrics/small/pictures").iterdir())) == 6
    assert "int8.nearest" in Path("metrics/small/images.csv").read_text().splitlines()[0]

    # By identity, each on one side: nobody calibrated on is validated on.
    for purpose, part in (("calibration", {"stop": 0.5}), ("validation", {"start": 0.5})):
        params["models"]["small"]["data"][purpose] = {"format": "identities", "path": "people", "split": part}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    for stage in ("calibrate", "quantize_int8", "validate"):
        done = run_stage(stage, "--model", "small")
        assert done.returncode == 0, done.stderr
    record = json.loads(Path("metrics/small/accuracy.json").read_text())
    assert (record["genuine_pairs"], record["impostor_pairs"], record["identities"]) == (24, 96, 4)
    assert "fp32.rank1" in record


class TestViews:
    def test_the_same_seed_gives_the_same_bytes_and_each_view_is_another(self, tmp_path):
        files = [Packaged.model_validate(CHELSEA)]
        assert [make_set(tmp_path / name, files) for name in ("one", "two")] == [3, 3]
        one, two = ({path.name: path.read_bytes() for path in (tmp_path / name / "cat").iterdir()} for name in ("one", "two"))
        assert one == two
        views = sorted((tmp_path / "one/cat").iterdir())
        assert [path.name for path in views] == ["chelsea_00.jpg", "chelsea_01.jpg", "chelsea_02.jpg"]
        assert len({path.read_bytes() for path in views}) == 3
        assert "3 views of skimage/data/chelsea.png" in (tmp_path / "one/SOURCES.md").read_text()

    def test_a_view_is_of_the_photo_in_other_light(self):
        photo = np.zeros((300, 400, 3), np.uint8)
        photo[:, :] = (200, 40, 90)
        means = []
        for seed in range(12):
            seen = decode(view(photo, np.random.default_rng(seed), 64), "view")
            assert seen.shape == (64, 64, 3)
            means.append(seen.mean())
            assert np.ptp(seen.reshape(-1, 3).mean(0)) > 20, "its colour is still told"
        assert np.ptp(means) > 20

    def test_crops_or_views(self, tmp_path):
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({"sets": {"a": [CHELSEA | {"crops": 2}]}}))
        with pytest.raises(ParamsError, match="`crops` stands beside `views`"):
            load_sets(tmp_path / "s.yaml")

    def test_the_demo_s_photos_are_no_calibration_photos(self):
        sets = load_sets(ROOT / "data/sources.yaml").sets
        views, photos = ({(one.package, one.file) for one in sets[name]} for name in ("photo_views", "photos"))
        assert not views & photos
        assert len({one.to for one in sets["photo_views"]}) == len(views) == 26


def test_pooled_features_are_what_the_classifier_decides_by(monkeypatch):
    """The demo's network holds all of the classifier's weights: its last layer on the features gives the classifier's answer."""
    from efficientnet_lite_pytorch import EfficientNet

    monkeypatch.chdir(ROOT)
    spec = load_model("params.yaml", "lite0_features")
    torch.manual_seed(0)
    from data.features import features

    module, whole = features().eval(), EfficientNet.from_name("efficientnet-lite0").eval()
    whole.load_state_dict(module.state_dict())
    with torch.inference_mode():
        image = torch.rand(1, 3, 224, 224)
        found = module(image)
        assert found.shape == (1, 1280)
        assert torch.allclose(module._fc(found), whole(image), atol=1e-5)
    if Path(spec.source.file).is_file():
        assert own_network(spec).state_dict().keys() == module.state_dict().keys()
