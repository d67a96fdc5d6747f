"""The whole pipeline in a real DVC repository on a small network: what runs, what does not run again, what a reviewer sees."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import project_params
from repositories import commit, pipeline_repository, ran

pytestmark = pytest.mark.usefixtures("own_settings")
BIN = Path(sys.executable).parent

NETWORK = '''
import torch


def build(width):
    """A small convolutional classifier with batch norm, ReLU6 and a residual."""
    return Net(width)


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), torch.nn.BatchNorm2d(width), torch.nn.ReLU6()
        )
        self.block = torch.nn.Sequential(torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.ReLU())
        self.head = torch.nn.Linear(width, 4)

    def forward(self, image):
        features = self.stem(image)
        features = features + self.block(features)
        return self.head(features.mean((2, 3)))
'''


# Stages that DVC's run-cache leaves aside: outputs with `persist`, and such that are in git and neither metrics nor plots.
UNCACHED = {"qat@small", "report@small"}


def sh(repository: Path, *command: str, ok: bool = True, env: dict[str, str] | None = None) -> str:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(repository)}
    environment.pop("OCTAVO_RUN", None)
    environment |= env or {}
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout + done.stderr


def digests(repository: Path) -> dict[str, str]:
    """Of everything that must be equal between two clean runs."""
    found = [*repository.glob("models/**/*.onnx"), *repository.glob("models/*/calibration/*")]
    return {str(path.relative_to(repository)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def change(repository: Path, block: str, **values: object) -> None:
    params = yaml.safe_load((repository / "params.yaml").read_text())
    params["models"]["small"][block].update(values)
    (repository / "params.yaml").write_text(yaml.safe_dump(params))


def weights() -> dict[str, torch.Tensor]:
    """The same at every call."""
    module: dict = {}
    exec(NETWORK, module)  # noqa: S102
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = module["build"](16)
        net.stem[1].running_mean.normal_()
        net.stem[1].running_var.uniform_(0.5, 2)
    return net.state_dict()


def make_repository(folder: Path) -> Path:
    weights_file = folder.parent / "weights.pth"
    torch.save(weights(), weights_file)
    source = {"kind": "torch", "entry": "network:build", "args": {"width": 16}, "file": "weights.pth", "trace": True}
    files = {"network.py": NETWORK.encode(), "weights.pth": weights_file.read_bytes()}
    return pipeline_repository(folder, project_params(source=source), files)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = make_repository(tmp_path_factory.mktemp("dvc") / "with space")
    assert ran(sh(folder, "dvc", "repro")) == {
        f"{stage}@small"
        for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "qat", "validate", "benchmark", "report", "package")
    }
    commit(folder, "first run")
    return folder


@pytest.mark.slow
class TestPipeline:
    def test_models_are_dvc_s_and_metrics_are_git_s(self, repository):
        tracked = sh(repository, "git", "ls-files").splitlines()
        assert "metrics/small/accuracy.json" in tracked
        assert "metrics/small/latency.json" in tracked
        assert {f"metrics/small/{name}.csv" for name in ("layers", "sensitivity", "roc")} <= set(tracked)
        assert (repository / "metrics/small/roc.csv").read_text() == "variant,fpr,tpr\n", "of embeddings only"
        assert "dvc.lock" in tracked
        assert not [path for path in tracked if path.startswith("models/") or path.endswith((".onnx", ".npz"))]
        outputs = [
            out["path"]
            for stage in yaml.safe_load((repository / "dvc.lock").read_text())["stages"].values()
            for out in stage["outs"]
        ]
        assert {"models/small/fp32", "models/small/int8", "models/small/calibration"} <= set(outputs)
        assert (repository / "models/small/fp32/model.pt").is_file()

    def test_fp32_was_held_against_torch(self, repository):
        accuracy = json.loads((repository / "metrics/small/accuracy.json").read_text())
        assert accuracy["torch.images"] == 8
        assert accuracy["torch.max_abs_diff"] < 1e-4
        assert accuracy["torch.agreement"] == 1.0

    def test_nothing_changed_runs_nothing(self, repository):
        assert ran(sh(repository, "dvc", "repro")) == set()

    def test_metrics_params_and_plots_are_shown(self, repository):
        shown = sh(repository, "dvc", "metrics", "show")
        assert "int8.sqnr_db" in shown
        assert "int8.cpu.t1.b1.median_ms" in shown
        sh(repository, "dvc", "plots", "show", "-o", "dvc_plots")
        page = (repository / "dvc_plots/index.html").read_text()
        assert "SQNR of each INT8 layer" in page
        assert "accuracy against latency" in page

    def test_a_new_int8_method_touches_neither_export_nor_the_images(self, repository):
        before = digests(repository)
        change(repository, "int8", method="percentile", percentile=99.0)
        assert ran(sh(repository, "dvc", "repro")) == {
            "qat@small",
            "quantize_int8@small",
            "validate@small",
            "benchmark@small",
            "report@small",
            "package@small",
        }
        difference = sh(repository, "dvc", "metrics", "diff", "--md")
        assert "| metrics/small/accuracy.json | int8.sqnr_db |" in " ".join(difference.split())
        assert "int8.percentile" in sh(repository, "dvc", "params", "diff")
        sh(repository, "git", "checkout", "-q", "params.yaml", "dvc.lock")
        assert "percentile" not in (repository / "params.yaml").read_text()
        # What was made of the same inputs before is not made again.
        assert ran(sh(repository, "dvc", "repro")) <= UNCACHED
        assert digests(repository) == before
        changed = sh(repository, "git", "status", "--porcelain").split()
        # Figures are those of then; metrics/hosts/ has what was measured last, with the models' hashes.
        assert {path for path in changed if not path.startswith("metrics/hosts/")} <= {"M"}

    def test_gates_and_timing_settings_touch_no_model(self, repository):
        change(repository, "validate", gates={"similarity": 1.0})
        assert ran(sh(repository, "dvc", "repro")) == {"qat@small", "validate@small", "report@small", "package@small"}
        change(repository, "benchmark", rounds=6)
        # `validate` reads `benchmark.resolutions`.
        assert ran(sh(repository, "dvc", "repro")) == {
            "qat@small",
            "validate@small",
            "benchmark@small",
            "report@small",
            "package@small",
        }
        # By DVC's cache: running again what its run-cache leaves aside (`qat`, `report`) shows nothing.
        sh(repository, "git", "checkout", "-q", ".")
        sh(repository, "dvc", "checkout", "-q")

    def test_keys_of_data_that_may_be_missing_are_watched(self, repository):
        change(repository, "data", max_pixels=5_000_000)
        made = {f"{stage}@small" for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "qat", "validate")}
        assert made <= ran(sh(repository, "dvc", "repro"))
        sh(repository, "git", "checkout", "-q", ".")
        assert ran(sh(repository, "dvc", "repro")) <= UNCACHED

    def test_numbers_beside_words_are_named_before_dvc_trips_over_them(self, repository):
        data = project_params()["models"]["small"]["data"]
        for keys, ok in (({3: "a", "*": "b"}, False), ({"3": "a", "*": "b"}, True)):
            change(repository, "data", calibration=data["calibration"] | {"class_map": keys})
            told = sh(repository, "dvc", "repro", "export@small", ok=ok)
            assert "'<' not supported" not in told
            assert ("the key 3 beside them, which DVC cannot sort; write '3'" in told) != ok
        sh(repository, "git", "checkout", "-q", "params.yaml", "dvc.lock")
        sh(repository, "dvc", "checkout", "-q")

    def test_octavo_run_goes_before_every_command_without_a_new_hash(self, repository):
        log = repository / "wrapped.log"
        wrapper = repository / "wrap.sh"
        wrapper.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\nexec "$@"\n')
        wrapper.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(repository),
            "OCTAVO_RUN": "./wrap.sh",
        }
        subprocess.run(["dvc", "repro"], cwd=repository, check=True, env=environment, capture_output=True)
        assert log.read_text() == "python stages/machine.py\n", "nothing changed, so nothing else runs"
        log.unlink()
        subprocess.run(
            ["dvc", "repro", "-s", "-f", "report@small"], cwd=repository, check=True, env=environment, capture_output=True
        )
        assert log.read_text().strip() == "python stages/report.py --model small"
        wrapper.unlink()
        log.unlink()

    def test_the_previous_output_comes_back_after_a_stage_that_failed(self, repository):
        before = digests(repository)
        change(repository, "int8", keep_float=["NoSuchOp"])
        output = sh(repository, "dvc", "repro", "quantize_int8@small", ok=False)
        assert "'NoSuchOp'" in output
        assert "Traceback" not in output
        # DVC deleted what the stage had made before it ran; the stage left nothing half-written in its place.
        assert not [path for path in (repository / "models/small").iterdir() if "int8" in path.name]
        sh(repository, "dvc", "checkout", "quantize_int8@small")
        assert digests(repository) == before
        sh(repository, "git", "checkout", "-q", ".")
        assert ran(sh(repository, "dvc", "repro")) == set()
        change(repository, "int8", keep_float=["NoSuchOp"])
        sh(repository, "dvc", "repro", "quantize_int8@small", ok=False)
        sh(repository, "git", "checkout", "-q", ".")
        assert "is cached - skipping run" in sh(repository, "dvc", "repro")
        assert digests(repository) == before

    def test_figures_come_back_from_git(self, repository):
        folder = repository / "metrics/small"
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        change(repository, "validate", layer_samples=0)
        sh(repository, "dvc", "repro", "-s", "validate@small", ok=False)
        assert not (folder / "accuracy.json").exists()
        assert not (folder / "images.csv").exists()
        sh(repository, "git", "checkout", "-q", ".")
        sh(repository, "dvc", "checkout", "validate@small")
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
        assert ran(sh(repository, "dvc", "repro")) == set()

    def test_a_new_host_measures_and_nothing_else_runs(self, repository):
        # Another machine's fingerprint, as stage `machine` would write it there.
        wrapper = repository / "elsewhere.sh"
        edit = "import json; p = '.octavo/host.json'; d = json.load(open(p)); d['cores'] += 2; json.dump(d, open(p, 'w'))"
        wrapper.write_text(f'#!/bin/sh\n"$@" || exit\ncase "$*" in *machine.py*) python -c "{edit}";; esac\n')
        wrapper.chmod(0o755)
        output = sh(repository, "dvc", "repro", env={"OCTAVO_RUN": "./elsewhere.sh"})
        assert ran(output) == {"benchmark@small", "report@small", "package@small"}
        # Back on this one: its figures are in the run-cache, which takes no `report`.
        assert ran(sh(repository, "dvc", "repro")) == {"report@small"}
        wrapper.unlink()

    def test_two_clean_runs_give_the_same_bytes(self, repository, tmp_path):
        second = make_repository(tmp_path / "elsewhere")
        sh(second, "dvc", "repro", "quantize_fp16@small", "quantize_int8@small")
        # Its package has copies of them; the second run went no further than the models.
        first = {path: digest for path, digest in digests(repository).items() if "/package/" not in path}
        assert first == digests(second)
        assert {"models/small/fp32/model.onnx", "models/small/int8/model.onnx", "models/small/calibration/statistics.npz"} <= set(
            first
        )
