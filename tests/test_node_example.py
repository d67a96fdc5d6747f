"""examples/node: the INT8 model of a package in Node, held to Python's outputs on the same tensor."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from packages import noise, replace_model, write_package

from octavo.files import read_json, write_json
from octavo.runtime.session import Session

EXAMPLE = ROOT / "examples/node"
PINNED = json.loads((EXAMPLE / "package.json").read_text(encoding="utf-8"))["dependencies"]


def test_lock_names_no_registry() -> None:
    lock = read_json(EXAMPLE / "package-lock.json")["packages"]
    assert not [name for name, entry in lock.items() if "resolved" in entry]
    assert not [name for name, entry in lock.items() if name and "integrity" not in entry]
    for name, version in PINNED.items():
        assert lock[f"node_modules/{name}"]["version"] == version


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the example with its dependencies installed from the lock."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on this machine")
    folder = tmp_path_factory.mktemp("node") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))

    def npm(*arguments: str, timeout: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["npm", *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)

    try:
        asked = npm("view", f"onnxruntime-node@{PINNED['onnxruntime-node']}", "version", timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer")
    # A registry that knows the package and not the version pinned is no reason to skip.
    if asked.returncode and "No match found for version" not in asked.stderr:
        pytest.skip(f"npm cannot look the package up: {asked.stderr.strip().splitlines()[-1:]}")
    assert asked.stdout.strip() == PINNED["onnxruntime-node"], asked.stderr
    installed = npm("ci", timeout=540)
    assert installed.returncode == 0, installed.stderr
    yield folder
    # 430 MB, which pytest would keep three times.
    shutil.rmtree(folder)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write_package(tmp_path / "small")
    return tmp_path / "small"


def infer(example: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", example / "infer.mjs", *arguments], capture_output=True, text=True, timeout=120, check=False)


def in_python(package: Path, variant: str, tensor: np.ndarray) -> np.ndarray:
    return Session(package / variant / "model.onnx").run({"image": tensor})["logits"]


def apart(value: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the difference, by the spread of what is wanted."""
    return float(np.sqrt(np.mean((value - wanted) ** 2)) / wanted.std())


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["node", "web"])
def test_int8_gives_python_s_outputs(example: Path, package: Path, tmp_path: Path, runtime: str) -> None:
    tensor = np.concatenate([noise(100), noise(101)])
    tensor.tofile(tmp_path / "tensor.bin")
    done = infer(example, package, "--runtime", runtime, "--input", tmp_path / "tensor.bin", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["variant"], report["skipped"]) == ("int8", [])
    assert report["outputs"] == {"logits": {"dims": [2, 4], "type": "float32"}}
    value = np.fromfile(tmp_path / "out/logits.bin", np.float32).reshape(2, 4)
    tolerance = read_json(package / "runtime.json")["variants"]["int8"]["selfcheck"]["outputs"][0]["tolerance"]
    assert apart(value, in_python(package, "int8", tensor)) <= tolerance
    # It is the INT8 file that ran: FP32's outputs are not these.
    assert apart(value, in_python(package, "fp32", tensor)) > apart(value, in_python(package, "int8", tensor))


@pytest.mark.slow
def test_float_gives_python_s_outputs_to_rounding(example: Path, package: Path, tmp_path: Path) -> None:
    tensor = noise(102)
    tensor.tofile(tmp_path / "tensor.bin")
    done = infer(example, package, "--variant", "fp32", "--input", tmp_path / "tensor.bin", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # CUDA comes first for FP32 and is not in the npm package.
    assert report["providers"] == ["cpu"]
    assert report["selfcheck"]["logits"] < 1e-4
    value = np.fromfile(tmp_path / "out/logits.bin", np.float32).reshape(1, 4)
    np.testing.assert_allclose(value, in_python(package, "fp32", tensor), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_settings_of_the_file_reach_the_session(example: Path, package: Path) -> None:
    config = read_json(package / "runtime.json")
    config["variants"]["int8"]["session"]["config_entries"] = {"session.intra_op_thread_affinities": "no affinity"}
    config["variants"]["int8"]["session"]["intra_op_threads"] = 2
    write_json(package / "runtime.json", config)
    done = infer(example, package)
    assert done.returncode == 0, done.stderr
    # ONNX Runtime refuses the entry's value, so it got there.
    assert json.loads(done.stdout)["skipped"][0]["variant"] == "int8"


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["truncated", "gone", "another hash"])
def test_damaged_file_falls_back_and_says_why(example: Path, package: Path, harm: str) -> None:
    model = package / "int8/model.onnx"
    if harm == "truncated":
        model.write_bytes(model.read_bytes()[:-100])
    elif harm == "gone":
        model.unlink()
    else:
        config = read_json(package / "runtime.json")
        config["variants"]["int8"]["sha256"] = "0" * 64
        write_json(package / "runtime.json", config)
    done = infer(example, package)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["variant"] == "fp32"
    reason = "int8/model.onnx: no such file" if harm == "gone" else "int8/model.onnx has sha256"
    assert report["skipped"][0]["variant"] == "int8"
    assert report["skipped"][0]["reason"].startswith(reason)
    assert f"int8 is skipped: {reason}" in done.stderr


@pytest.mark.slow
def test_file_that_the_runtime_cannot_load_falls_back(example: Path, package: Path, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"no model at all")
    replace_model(package, read_json(package / "runtime.json"), "int8", tmp_path / "noise")
    done = infer(example, package)
    assert done.returncode == 0, done.stderr
    assert "ONNX Runtime cannot load int8/model.onnx" in json.loads(done.stdout)["skipped"][0]["reason"]


@pytest.mark.slow
def test_nothing_left_is_an_error(example: Path, package: Path) -> None:
    for variant in ("int8", "fp32"):
        (package / variant / "model.onnx").unlink()
    done = infer(example, package)
    assert done.returncode == 1
    assert "no variant of small opens: int8: int8/model.onnx: no such file; fp32:" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["node", "web"])
def test_self_check_names_the_difference(example: Path, package: Path, tmp_path: Path, runtime: str) -> None:
    write_package(tmp_path / "other", seed=1)
    replace_model(package, read_json(package / "runtime.json"), "int8", tmp_path / "other/int8/model.onnx")
    done = infer(example, package, "--runtime", runtime)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "self-check of int8: output logits lies" in done.stderr


@pytest.mark.slow
def test_mistakes_of_the_caller(example: Path, package: Path, tmp_path: Path) -> None:
    noise(0)[:, :, :-1].tofile(tmp_path / "short.bin")
    for arguments, told in (
        ((tmp_path / "nowhere",), "nowhere/runtime.json: no such file"),
        ((package, "--variant", "int4"), "no variant int4; there are: int8, fp32"),
        ((package, "--input", tmp_path / "short.bin"), "an image is 3 x 32 x 32"),
        ((package, "--threads", "many"), "--threads many: it is a whole number"),
        ((package, "--threds", "2"), "Unknown option '--threds'"),
        ((), "which package?"),
    ):
        done = infer(example, *arguments)
        assert done.returncode == 2, done.stderr
        assert told in done.stderr
    config = read_json(package / "runtime.json")
    write_json(package / "runtime.json", {**config, "format": 9})
    assert "has format 9, this program reads 1" in infer(example, package).stderr
