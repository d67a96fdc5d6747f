"""Detectors of full size, with random weights, through every stage: what fidelity, size and speed come out.

    python benchmarks/large_detectors.py --data FOLDER --work FOLDER [--networks dfine,fasterrcnn_resnet50,yolo11n]

D-FINE, RT-DETR and Faster R-CNN unless told; YOLOs (ultralytics' YAMLs, which AGPL-3.0 covers) where `--networks` names them.

`--data` has `coco/images` and `coco/instances.json`. Weights, params.yaml, models and metrics lie in `--work` afterwards. Where no
trained weights can be had, fidelity to FP32 is the measure, and random ones must not blow rounding up by themselves. Heads are
drawn so that scores differ and boxes spread, and each normalisation divides by the root mean square of all its channels together
(by channel, as a fresh BatchNorm would learn it, rounding grows by 1 dB a layer: float16 then keeps 9 dB).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from octavo.files import read_json

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark", "report")
SIZE, CLASSES, IMAGES = 640, 80, 4
# The last convolutions of ultralytics' heads: boxes (cv2) and classes (cv3).
_YOLO_HEAD = re.compile(r"cv[23]\.\d\.2\.weight$")


def photos(folder: Path, count: int) -> torch.Tensor:
    """[count, 3, SIZE, SIZE] float32, 0 to 1."""
    files = sorted(folder.iterdir())[:count]
    pixels = [np.asarray(Image.open(path).convert("RGB").resize((SIZE, SIZE)), np.float32) / 255 for path in files]
    return torch.from_numpy(np.stack(pixels).transpose(0, 3, 1, 2).copy())


def spread(model: torch.nn.Module, run: Callable[[], Any]) -> None:
    """Draw heads and settle normalisations as the module's docstring says."""
    for name, parameter in model.named_parameters():
        head = any(word in name for word in ("score", "class_embed", "bbox", "cls_")) or _YOLO_HEAD.search(name)
        if parameter.ndim > 1 and (head or not parameter.abs().max()):
            torch.nn.init.normal_(parameter, std=(0.5 if "bbox" in name else 2.0) / parameter[0].numel() ** 0.5)

    def settle(norm: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        norm.running_mean.zero_()
        norm.running_var.fill_(inputs[0].square().mean() + 1e-4)

    hooks = [module.register_forward_pre_hook(settle) for module in model.modules() if "BatchNorm" in type(module).__name__]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()


def of_transformers(model: str, config: str) -> Callable[[Path, torch.Tensor], dict[str, Any]]:
    """A detector of transformers as its own config has it, with COCO's number of classes."""

    def make(path: Path, images: torch.Tensor) -> dict[str, Any]:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(num_labels=CLASSES)).eval()
        spread(made, lambda: made(pixel_values=images))
        made.save_pretrained(path)
        return {
            "source": {"kind": "transformers", "file": str(path)},
            "input": {"resize": {"rule": "stretch"}},
            "classes": "coco80",
        }

    return make


def of_torchvision(entry: str, build: Callable[[], torch.nn.Module]) -> Callable[[Path, torch.Tensor], dict[str, Any]]:
    """A detector of torchvision, which resizes and normalises in the graph."""

    def make(path: Path, images: torch.Tensor) -> dict[str, Any]:
        made = build().eval()
        spread(made, lambda: made(list(images)))
        torch.save(made.state_dict(), path)
        source = {"kind": "torch", "entry": entry, "args": {"min_size": SIZE, "max_size": SIZE}, "file": str(path)}
        exported = {"exporter": "torchscript", "dynamic_batch": False}
        return {"source": source | exported, "input": {"resize": {"rule": "letterbox"}, "scale": 255}, "classes": "coco91"}

    return make


def of_ultralytics(config: str) -> Callable[[Path, torch.Tensor], dict[str, Any]]:
    """A detector of ultralytics as its YAML has it."""

    def make(path: Path, images: torch.Tensor) -> dict[str, Any]:
        from ultralytics.nn.tasks import DetectionModel

        made = DetectionModel(config, verbose=False).eval()
        spread(made, lambda: made(images))
        torch.save(made.state_dict(), path)
        source = {"kind": "ultralytics", "entry": config, "file": str(path)}
        return {"source": source, "input": {"resize": {"rule": "letterbox"}}, "classes": "coco80"}

    return make


def _resnet50() -> torch.nn.Module:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    return fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)


def _resnet101() -> torch.nn.Module:
    from octavo.sources.torchvision_detection import fasterrcnn_resnet101_fpn

    return fasterrcnn_resnet101_fpn()


NETWORKS = {
    "dfine": of_transformers("DFineForObjectDetection", "DFineConfig"),
    "rtdetr": of_transformers("RTDetrForObjectDetection", "RTDetrConfig"),
    "rtdetrv2": of_transformers("RTDetrV2ForObjectDetection", "RTDetrV2Config"),
    "fasterrcnn_resnet50": of_torchvision("fasterrcnn_resnet50_fpn", _resnet50),
    "fasterrcnn_resnet101": of_torchvision("octavo.sources.torchvision_detection:fasterrcnn_resnet101_fpn", _resnet101),
}
UNLESS_TOLD = list(NETWORKS)
NETWORKS |= {name: of_ultralytics(f"{name}.yaml") for name in ("yolov8n", "yolov9t", "yolov10n", "yolo11n", "yolo12n")}


def entry(made: dict[str, Any], coco: Path) -> dict[str, Any]:
    """A model's part of params.yaml: calibrated on half of the images, validated on the other."""

    def half(start: float, stop: float) -> dict[str, Any]:
        split = {"start": start, "stop": stop}
        return {"format": "coco", "path": str(coco), "annotations": "instances.json", "split": split}

    return {
        "task": {"name": "detection", "classes": made["classes"]},
        "source": made["source"],
        "input": {"size": [SIZE, SIZE], **made["input"]},
        "data": {"calibration": half(0.0, 0.5), "validation": half(0.5, 1.0)},
        "calibrate": {"samples": 64},
        "fp16": {},
        "int8": {},
        "validate": {},
        "benchmark": {"threads": [2], "batch": [1]},
    }


def main() -> None:
    """Draw weights, write params.yaml, run the stages, print a row a variant."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--networks", default=",".join(UNLESS_TOLD), help=f"of {', '.join(NETWORKS)}")
    chosen = arguments.parse_args()
    coco, work = chosen.data.resolve() / "coco", chosen.work.resolve()
    names = chosen.networks.split(",")
    if unknown := [name for name in names if name not in NETWORKS]:
        arguments.error(f"--networks: {unknown[0]!r} is none of {', '.join(NETWORKS)}")
    (work / "weights").mkdir(parents=True, exist_ok=True)
    images, models = photos(coco / "images", IMAGES), {}
    for name in names:
        torch.manual_seed(0)
        models[name] = entry(NETWORKS[name](work / "weights" / name, images), coco)
    (work / "params.yaml").write_text(yaml.safe_dump({"allow_outside": [str(coco)], "models": models}, sort_keys=False))

    def stage(name: str, *options: str) -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, ROOT / "stages" / f"{name}.py", *options], cwd=work, check=True)
        return time.perf_counter() - begun

    stage("machine")
    for name in names:
        seconds = {each: round(stage(each, "--model", name)) for each in STAGES}
        print(name, seconds)
        accuracy, latency = (read_json(work / "metrics" / name / f"{kind}.json") for kind in ("accuracy", "latency"))
        for variant in ("fp16", "int8"):
            kept = {key: accuracy[f"{variant}.{key}"] for key in ("sqnr_db", "match_f1", "match_iou", "match_score_diff")}
            made = read_json(work / "models" / name / variant / "manifest.json")
            ratio = made["bytes"] / read_json(work / "models" / name / "fp32" / "manifest.json")["bytes"]
            print(f"  {variant}: size {ratio:.0%}, speed {latency[f'{variant}.cpu.t2.b1.speedup']}x, {kept}")


if __name__ == "__main__":
    main()
