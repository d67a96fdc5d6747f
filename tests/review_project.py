"""A real git and DVC project with two models and measured records, small enough that `dvc repro` takes a second."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import yaml
from conftest import ROOT
from repositories import sh

BIN = Path(sys.executable).parent
# Records that this project's own stages once wrote (of `road` and `lite0_features`) lie in evidence/.
MODELS = ("road", "faces")
EVIDENCE = Path(__file__).parent / "evidence"

# Writes a model's evidence from `measured/<model>/`, as stages do; pictures are drawn.
STAGE = """
import shutil, sys
from pathlib import Path
from PIL import Image
model = sys.argv[1]
made = Path("metrics") / model
(made / "pictures").mkdir(parents=True, exist_ok=True)
for file in Path("measured", model).iterdir():
    shutil.copy(file, made / file.name)
for rank, grey in enumerate((40, 200), start=1):
    Image.new("RGB", (64, 32), (grey, len(model), 90)).save(made / "pictures" / f"{rank:02d}_{model}.jpg")
"""

TASKS = {"road": {"name": "segmentation", "classes": ["a", "b"]}, "faces": "embedding"}


def commit(folder: Path, message: str = "next") -> str:
    """Commit everything; the new commit."""
    sh(folder, "git", "add", "-A")
    sh(folder, "git", "commit", "-qm", message)
    return sh(folder, "git", "rev-parse", "HEAD").strip()


def model_params(model: str) -> dict:
    """An entry of params.yaml that the grammar takes."""
    return {
        "task": TASKS[model],
        "source": {"kind": "onnx", "file": f"{model}.onnx"},
        "input": {"size": [64, 64]},
        "data": {purpose: {"format": "folder", "path": "images"} for purpose in ("calibration", "validation")},
        "calibrate": {"samples": 8},
        "fp16": {},
        "int8": {},
        "validate": {"gates": {"retained": 0.99, "similarity": 0.995}},
        "benchmark": {"threads": [1, 2], "batch": [1]},
    }


def make_project(folder: Path) -> None:
    """Write, run and commit it on branch main."""
    folder.mkdir(parents=True)
    for model in MODELS:
        measured = folder / "measured" / model
        measured.mkdir(parents=True)
        for name in ("accuracy.json", "latency.json", "tradeoff.csv", "roc.csv"):
            shutil.copy(EVIDENCE / model / name, measured / name)
        write_resolutions(measured)
    (folder / "evidence.py").write_text(STAGE)
    (folder / "params.yaml").write_text(
        yaml.safe_dump({"models": {model: model_params(model) for model in MODELS}}, sort_keys=False)
    )
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"validate": _stage()}}, sort_keys=False))
    (folder / ".gitignore").write_text("/metrics/*/pictures\n__pycache__\n/dvc_plots\n")
    templates = folder / ".dvc/plots"
    sh(folder, "git", "init", "-q")
    sh(folder, "dvc", "init", "-q")
    shutil.copytree(ROOT / ".dvc/plots", templates, dirs_exist_ok=True)
    sh(folder, "dvc", "config", "core.autostage", "false")
    sh(folder, "dvc", "repro", "-q")
    commit(folder, "first")


def write_resolutions(folder: Path, further: tuple[str, ...] = (), worse: float = 0.0) -> None:
    """resolutions.csv of what tradeoff.csv has, of the model's own size and further ones."""
    header, *rows = [line.split(",") for line in (folder / "tradeoff.csv").read_text().splitlines()]
    lines = ["variant,resolution,accuracy,retained,latency_ms,speedup"]
    for place, size in enumerate(("own", *further)):
        for row in rows:
            one = dict(zip(header, row, strict=True))
            accuracy, latency = float(one["accuracy"]) - worse - 0.1 * place, float(one["latency_ms"]) / (place + 1)
            lines.append(f"{one['variant']},{size},{accuracy:.4f},,{latency:.3f},")
    (folder / "resolutions.csv").write_text("\n".join(lines) + "\n")


def _stage() -> dict:
    """The evidence of this project's stages `validate`, `benchmark` and `report`, made by one command."""
    own = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    plots = [one for name in ("validate", "report") for one in own[name]["do"]["plots"]]
    kept = ("pictures", "roc.csv", "tradeoff.csv", "resolutions.csv")
    return {
        "foreach": "${models}",
        "do": {
            "cmd": "python evidence.py ${key}",
            "deps": ["evidence.py", "measured/${key}"],
            "params": ["models.${key}.task", "models.${key}.int8", "models.${key}.validate"],
            "metrics": [{f"metrics/${{key}}/{name}.json": {"cache": False}} for name in ("accuracy", "latency")],
            "plots": [one for one in plots if (one if isinstance(one, str) else next(iter(one))).endswith(kept)],
        },
    }


def change_record(folder: Path, model: str, kind: str, change: Callable[[dict], None]) -> None:
    """Edit metrics/<model>/<kind>.json as another run of its stage would."""
    path = folder / "metrics" / model / f"{kind}.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def change_params(folder: Path, change: Callable[[dict], None]) -> None:
    """Edit params.yaml."""
    params = yaml.safe_load((folder / "params.yaml").read_text())
    change(params["models"])
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
