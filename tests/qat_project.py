"""A small torch classifier and a small segmentation network with real images, calibrated, for tests of training."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import yaml
from conftest import ROOT, write_images
from PIL import Image
from small_module import small, with_statistics
from torch import nn

__all__ = ["NETWORK", "change", "classifier_project", "main_of", "segmenter_project"]

# A module of the user's own, beside params.yaml.
NETWORK = Path(__file__).with_name("small_module.py")


def _weights(path: Path, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    module = with_statistics(small(**settings))
    torch.save(module.state_dict(), path)
    return module


def _params(folder: Path, **changes: object) -> None:
    model = {
        "source": {"kind": "torch", "entry": "own_network:small", "file": "small.pth", "exporter": "torchscript"},
        "input": {"size": [32, 32], "resize": {"rule": "stretch"}, "mean": [0.5], "std": [0.25]},
        "calibrate": {"samples": 8},
        "fp16": {},
        "int8": {"method": "minmax", "fidelity": 5, "placement": "all"},
        "qat": {
            "freeze_batch_norm": 1,
            "enabled": True,
            "epochs": 3,
            "batch": 8,
            "held_out": 4,
            "learning_rate": 1e-3,
            "calibration_samples": 8,
            "checkpoint_every": 2,
            "device": "cpu",
        },
        "validate": {"bootstrap": 200, "layer_samples": 2, "pictures": 1},
        "benchmark": {"threads": [1], "rounds": 5, "warmup": 1},
    } | changes
    shutil.copyfile(NETWORK, folder / "own_network.py")
    (folder / "params.yaml").write_text(yaml.safe_dump({"models": {"small": model}}), encoding="utf-8")


def classifier_project(folder: Path) -> Path:
    """24 labelled training images of four classes, beside sets for calibration and validation."""
    _weights(folder / "small.pth")
    write_images(folder / "images/calibration", 8, seed=1)
    for label in range(4):
        write_images(folder / f"images/validation/{label}", 3, seed=10 + label)
        write_images(folder / f"images/train/{label}", 6, seed=30 + label)
    sets = {name: {"format": "imagefolder", "path": f"images/{name}"} for name in ("validation", "train")}
    _params(folder, task="classification", data={"calibration": {"format": "folder", "path": "images/calibration"}, **sets})
    return folder


def segmenter_project(folder: Path) -> Path:
    """Training images with masks of three classes; bright pixels, dark ones, and the rest."""
    _weights(folder / "small.pth", classes=3, maps=True)
    sets = {}
    for name, count, seed in (("calibration", 8, 1), ("validation", 6, 10), ("train", 16, 30)):
        for path in write_images(folder / f"images/{name}/images", count, seed=seed):
            grey = np.asarray(Image.open(path).convert("L"))
            masks = folder / f"images/{name}/masks"
            masks.mkdir(exist_ok=True)
            Image.fromarray(np.digitize(grey, (90, 160)).astype(np.uint8)).save(masks / path.name)
        sets[name] = {"format": "masks", "path": f"images/{name}"}
    source = {
        "kind": "torch",
        "entry": "own_network:small",
        "args": {"classes": 3, "maps": True},
        "file": "small.pth",
        "exporter": "torchscript",
    }
    _params(folder, task={"name": "segmentation", "void": 255}, data=sets, source=source)
    return folder


def change(folder: Path, **blocks: object) -> None:
    """Set keys of some blocks of params.yaml; a block that is no map is replaced."""
    path = folder / "params.yaml"
    params = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, value in blocks.items():
        old = params["models"]["small"].get(name)
        params["models"]["small"][name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(params), encoding="utf-8")


def main_of(stage: str, *arguments: str) -> None:
    """Run a stage's `main` in this process and folder: errors come as they are."""
    path = ROOT / "stages" / f"{stage}.py"
    spec = importlib.util.spec_from_file_location(f"stage_{stage}", path)
    module = importlib.util.module_from_spec(spec)
    before = sys.argv
    sys.argv = [str(path), "--model", "small", *arguments]
    try:
        spec.loader.exec_module(module)
        module.main()
    finally:
        sys.argv = before
        sys.modules.pop("own_network", None)


def copied(project: Path, folder: Path) -> Path:
    """The project in a folder of a test's own."""
    return shutil.copytree(project, folder, dirs_exist_ok=True)
