"""examples/cpp: compiled against ONNX Runtime's C++ API, linked to the library that Python uses, run on a small package."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime
import pytest
from conftest import ROOT, project_params
from packages import replace_model, write_package

from octavo.deploy.runtime_config import runtime_config
from octavo.deploy.selfcheck import PATTERN, reference
from octavo.files import write_json
from octavo.manifest import write_manifest
from octavo.params.grammar import Params

# Packages with the headers, which ONNX Runtime's own Python package lacks. Headers of an older version serve a newer library.
HEADERS = ("amd-quark==0.13", "nlohmann-json==3.12.0")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/cpp/infer.cpp, built."""
    if shutil.which("g++") is None or platform.system() != "Linux":
        pytest.skip("needs g++ on Linux")
    libraries = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("this package of ONNX Runtime has no shared library")
    folder = tmp_path_factory.mktemp("cpp")
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, *HEADERS],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # An index that knows the package and not the version pinned is no reason to skip.
    assert not re.search(r"from versions: (?!none)", fetched.stderr), fetched.stderr
    if fetched.returncode:
        pytest.skip(f"pip cannot fetch the headers: {fetched.stderr.strip().splitlines()[-1:]}")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if "/include/" in name])
    (folder / "libonnxruntime.so.1").symlink_to(libraries[0])
    api = next(folder.rglob("onnxruntime_cxx_api.h")).parent
    json = next(folder.rglob("nlohmann/json.hpp")).parents[1]
    source = [ROOT / "examples/cpp/infer.cpp", f"-I{api}", f"-isystem{json}"]
    linked = [folder / "libonnxruntime.so.1", f"-Wl,-rpath,{folder}"]
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *source, *linked, "-o", folder / "infer"], check=True)
    return folder / "infer"


def infer(program: Path, package: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, package], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_takes_the_first_variant_and_checks_it(program: Path, tmp_path: Path) -> None:
    write_package(tmp_path / "small")
    done = infer(program, tmp_path / "small")
    assert (done.returncode, done.stdout) == (0, "int8\n"), done.stderr
    assert "logits lies" in done.stderr


@pytest.mark.slow
def test_falls_back_and_says_why(program: Path, tmp_path: Path) -> None:
    write_package(tmp_path / "small")
    (tmp_path / "small/int8/model.onnx").write_bytes(b"no model at all")
    done = infer(program, tmp_path / "small")
    assert (done.returncode, done.stdout) == (0, "fp32\n"), done.stderr
    assert "int8 is skipped" in done.stderr


@pytest.mark.slow
def test_self_check_fails_on_another_network(program: Path, tmp_path: Path) -> None:
    config = write_package(tmp_path / "small")
    write_package(tmp_path / "other", seed=1)
    replace_model(tmp_path / "small", config, "int8", tmp_path / "other/int8/model.onnx")
    done = infer(program, tmp_path / "small")
    assert (done.returncode, done.stdout) == (1, "")
    assert "output logits is too far off" in done.stderr


@pytest.mark.slow
def test_what_is_not_the_file_is_skipped(program: Path, tmp_path: Path) -> None:
    """Where its hash is right ONNX Runtime says why: SHA-256's last block has room for the length, has none, or is empty."""
    config = write_package(tmp_path / "small")
    for length in (55, 56, 64):
        (tmp_path / "other").write_bytes(b"x" * length)
        replace_model(tmp_path / "small", config, "int8", tmp_path / "other")
        done = infer(program, tmp_path / "small")
        assert (done.returncode, done.stdout) == (0, "fp32\n"), done.stderr
        assert "int8 is skipped" in done.stderr
        assert "not the file" not in done.stderr, length
    (tmp_path / "small/int8/model.onnx").write_bytes(b"y" * 64)
    assert "int8 is skipped: it is not the file that runtime.json describes" in infer(program, tmp_path / "small").stderr


@pytest.mark.slow
def test_channels_last_and_outputs_of_any_float_type(program: Path, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    types = {"single": onnx.TensorProto.FLOAT, "double": onnx.TensorProto.DOUBLE, "half": onnx.TensorProto.FLOAT16}
    nodes = [oh.make_node("Transpose", ["image"], ["t"], perm=[0, 3, 1, 2]), oh.make_node("Conv", ["t", "w"], ["c"])]
    nodes += [oh.make_node("Cast", ["c"], [name], to=kind) for name, kind in types.items()]
    image = oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 32, 32, 3])
    outputs = [oh.make_tensor_value_info(name, kind, [1, 4, 30, 30]) for name, kind in types.items()]
    graph = oh.make_graph(nodes, "g", [image], outputs, [onh.from_array(weights, "w")])
    (tmp_path / "fp32").mkdir()
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8), tmp_path / "fp32/model.onnx")
    params = project_params()
    params["models"]["small"]["input"]["layout"] = "nhwc"
    spec = Params.model_validate(params).models["small"]
    manifest = write_manifest(
        tmp_path / "fp32", name="small", variant="fp32", spec=spec, image_input="image", made={"settings": {}}
    )
    manifest["selfcheck"] = reference(tmp_path / "fp32", manifest)
    config = runtime_config("small", {"fp32": manifest}, ["fp32"])
    write_json(tmp_path / "runtime.json", config)
    done = infer(program, tmp_path)
    assert (done.returncode, done.stdout) == (0, "fp32\n"), done.stderr
    assert [float(line.split(" lies ")[1].split()[0]) < 1e-4 for line in done.stderr.splitlines()] == [True] * 3
    config["selfcheck"]["input"]["values"][7] += 1
    write_json(tmp_path / "runtime.json", config)
    done = infer(program, tmp_path)
    assert done.returncode == 1
    assert "image is not painted as runtime.json has it" in done.stderr


@pytest.mark.slow
def test_mistakes_of_the_caller_are_told(program: Path, tmp_path: Path) -> None:
    for arguments, said in (((), "which package?"), ((tmp_path,), "runtime.json cannot be read")):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert said in done.stderr


def test_snippets_in_the_docs_are_the_examples() -> None:
    page = (ROOT / "docs/runtime.md").read_text(encoding="utf-8")
    for language, file in (("cpp", "examples/cpp/infer.cpp"), ("go", "examples/go/infer.go")):
        snippet = page.split(f"```{language}\n")[1].split("```")[0]
        assert snippet in (ROOT / file).read_text(encoding="utf-8")
        assert snippet.count("\n") > 10


def test_go_paints_the_same_image() -> None:
    # Go is not on every machine that tests; Python, Node and C++ are held to the numbers themselves.
    assert PATTERN == "pixel(row, column, channel) = (floor(row * (column + 16) / 8) + 85 * channel) mod 256"
    assert "(row*(column+16)/8 + 85*channel) % 256" in (ROOT / "examples/go/infer.go").read_text(encoding="utf-8")
