"""Quantization-aware training beside post-training quantization on real images, through the pipeline's own stages.

    PYTHONPATH=. python benchmarks/qat.py camvid --data FOLDER --work FOLDER
    PYTHONPATH=. python benchmarks/qat.py mobilenet_v2 --data FOLDER --work FOLDER

camvid: the demo's segmentation network (data/segmenter.py) with 11 classes, from the demo's weights, trained on CamVid's training
images (90 %; the rest is for calibration), then quantized both ways; mIoU on CamVid's validation images.
mobilenet_v2: torchvision's weights; trained towards FP32's answers on 60 % of the ImageNet samples, whose labels are not used, 10 %
are for calibration; agreement and Top-1 on the 30 % left. Agreement also on what is harder to tell and no part of ImageNet: the
four corners of 224x224 of each of COCO's photos, the shorter side at 256.

The FP32 weights and everything that the stages make stay in the work folder; what is there is not made again. The table is
metrics/<name>/report.md there. `--data` is as in peers.py, with `camvid/` and `imagenet-samples/` in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import yaml

from data.segmenter import segmenter
from octavo.images.decode import read_image
from octavo.images.preprocess import preprocess
from octavo.images.scenes.road import VOID
from octavo.params.grammar import Input
from octavo.runtime.noise import sqnr_db
from octavo.runtime.session import Session
from train_segmenter import train
from training import save

ROOT = Path(__file__).parents[1]
STAGES = ("export", "calibrate", "quantize_fp16", "quantize_int8", "qat", "validate", "benchmark", "report")
CAMVID = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"]
SPLITS = {"camvid": (0.1, 1.0), "mobilenet_v2": (0.1, 0.7)}
COMMON: dict[str, Any] = {"fp16": {}, "int8": {}, "validate": {}, "benchmark": {"threads": [2], "batch": [1]}}
SEGMENTER_INPUT = {"size": [240, 320], "resize": {"rule": "stretch"}, "mean": [0.5], "std": [0.25]}


def main() -> None:
    """Train FP32 where that is needed, write params.yaml, run the stages, show the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(SPLITS))
    parser.add_argument("--data", type=Path, required=True, help="the benchmark data")
    parser.add_argument("--work", type=Path, required=True, help="folder for weights, models and metrics")
    parser.add_argument("--weights", type=Path, default=ROOT / "data/weights/mobilenet_v2.pth", help="of mobilenet_v2")
    parser.add_argument("--fp32-steps", type=int, default=1500, help="length of CamVid's FP32 training")
    parser.add_argument("--threads", type=int, default=2, help="of CamVid's FP32 training")
    parser.add_argument("--bfloat16", action="store_true", help="as in train_segmenter.py")
    parser.add_argument("--qat", type=yaml.safe_load, default={}, metavar="YAML", help="settings of the qat block")
    chosen = parser.parse_args()
    chosen.data = chosen.data.absolute()  # the stages run in the work folder
    chosen.work.mkdir(parents=True, exist_ok=True)
    if chosen.name == "camvid":
        weights = chosen.work / "camvid.pth"
        if not weights.is_file():
            train_camvid(chosen, weights)
        model = camvid(chosen, weights)
    else:
        model = mobilenet(chosen)
    outside = [str(chosen.data), str(chosen.weights.absolute())]
    (chosen.work / "params.yaml").write_text(
        yaml.safe_dump({"allow_outside": outside, "models": {chosen.name: model}}, sort_keys=False), encoding="utf-8"
    )
    for stage in STAGES:
        if stage in STAGES[:4] and (chosen.work / "models" / chosen.name / made_by(stage)).is_dir():
            continue
        begun = time.monotonic()
        command = [sys.executable, ROOT / "stages" / f"{stage}.py", "--model", chosen.name]
        # The network's module lies in the project's data/.
        subprocess.run(command, cwd=chosen.work, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        print(f"{stage}: {time.monotonic() - begun:.0f} s", flush=True)
    print((chosen.work / "metrics" / chosen.name / "report.md").read_text(encoding="utf-8"))
    if chosen.name == "mobilenet_v2":
        corners(chosen, Input.model_validate(model["input"]))


def corners(chosen: argparse.Namespace, spec: Input) -> None:
    """Agreement with FP32, and SQNR of logits, on corners of photos."""
    models = {
        name: Session(chosen.work / "models" / chosen.name / name / "model.onnx", name=name) for name in ("fp32", "int8", "qat")
    }
    logits: dict[str, list[np.ndarray]] = {name: [] for name in models}
    high, wide = spec.size
    plain = Input.model_validate({**spec.model_dump(), "resize": {"rule": "none"}})
    for path in sorted((chosen.data / "coco/images").iterdir()):
        photo = read_image(path)
        by = spec.resize.to / min(photo.shape[:2])
        photo = cv2.resize(photo, None, fx=by, fy=by, interpolation=cv2.INTER_AREA)
        for corner in (photo[:high, :wide], photo[:high, -wide:], photo[-high:, :wide], photo[-high:, -wide:]):
            for name, model in models.items():
                logits[name] += model.run({model.inputs[0]: preprocess(corner, plain)}).values()
    fp32 = np.concatenate(logits.pop("fp32"))
    for name, rows in logits.items():
        found = np.concatenate(rows)
        agreement = np.mean(found.argmax(1) == fp32.argmax(1))
        db = sqnr_db(float(np.square(fp32).sum()), float(np.square(found - fp32).sum()))
        print(f"corners of {len(fp32) // 4} photos, {name}: agreement {agreement:.3f}, SQNR {db:.1f} dB")


def made_by(stage: str) -> str:
    """The folder, below models/<name>, that shows that a stage has run."""
    return {"export": "fp32", "calibrate": "calibration", "quantize_fp16": "fp16", "quantize_int8": "int8"}[stage]


def train_camvid(chosen: argparse.Namespace, out: Path) -> None:
    """FP32 from the demo's weights; all but the last layer fit."""
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    model = segmenter(len(CAMVID)).to(memory_format=torch.channels_last)
    state = torch.load(ROOT / "data/segmenter.pth", weights_only=True)
    own = model.state_dict()
    model.load_state_dict({name: value for name, value in state.items() if value.shape == own[name].shape}, strict=False)
    spec = Input.model_validate({**SEGMENTER_INPUT, "scale": 1.0, "mean": [0.0], "std": [1.0], "dtype": "uint8", "layout": "nhwc"})
    images, masks = [], []
    for path in sorted((chosen.data / "camvid/train/images").iterdir()):
        images.append(preprocess(read_image(path), spec)[0])
        mask = cv2.imread(str(chosen.data / "camvid/train/masks" / f"{path.stem}.png"), cv2.IMREAD_UNCHANGED)
        mask = cv2.resize(mask, spec.size[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
        masks.append(np.where(mask == len(CAMVID), VOID, mask).astype(np.uint8))
    settings = argparse.Namespace(steps=chosen.fp32_steps, batch=8, rate=1e-3, bfloat16=chosen.bfloat16, save_every=10**9, out=out)
    save(train(model, np.stack(images), np.stack(masks), settings), out)


def camvid(chosen: argparse.Namespace, weights: Path) -> dict[str, Any]:
    """The model's block: labels and FP32 teach together."""
    start, stop = SPLITS["camvid"]
    of = {"format": "masks", "path": str(chosen.data / "camvid/train")}
    return COMMON | {
        "task": {"name": "segmentation", "classes": CAMVID, "void": len(CAMVID)},
        "source": {
            "kind": "torch",
            "entry": "data.segmenter:segmenter",
            "args": {"classes": len(CAMVID)},
            "file": str(weights.absolute()),
        },
        "input": SEGMENTER_INPUT,
        "data": {
            "calibration": {**of, "split": {"start": 0.0, "stop": start}},
            "train": {**of, "split": {"start": start, "stop": stop}},
            "validation": {"format": "masks", "path": str(chosen.data / "camvid/val")},
        },
        "calibrate": {"samples": 32},
        "qat": {"enabled": True, "batch": 16, "epochs": 4, "learning_rate": 1e-4, **chosen.qat},
    }


def mobilenet(chosen: argparse.Namespace) -> dict[str, Any]:
    """The model's block: FP32's answers teach, no label does."""
    start, stop = SPLITS["mobilenet_v2"]
    of = {"format": "imagefolder", "path": str(chosen.data / "imagenet-samples")}
    return COMMON | {
        "task": "classification",
        "source": {"kind": "torch", "entry": "mobilenet_v2", "file": str(chosen.weights.absolute())},
        "input": {
            "size": [224, 224],
            "resize": {"rule": "shorter", "to": 256},
            "crop": "center",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        },
        "data": {
            "calibration": {**of, "split": {"start": 0.0, "stop": start}},
            "train": {**of, "split": {"start": start, "stop": stop}},
            "validation": {**of, "split": {"start": stop, "stop": 1.0}},
        },
        "calibrate": {"samples": 50},
        "qat": {
            "enabled": True,
            "distillation": 1.0,
            "batch": 8,
            "epochs": 8,
            "learning_rate": 2e-5,
            "scales": "learned",
            "freeze_observers": 0,
            "held_out": 40,
            **chosen.qat,
        },
    }


if __name__ == "__main__":
    main()
