"""What the pipeline runs on: providers and their devices, I/O binding, each host's own latencies, the container image."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import onnxruntime as ort
import pytest
import yaml
from conftest import ROOT, small_network
from forked import run_stage
from packages import write_package
from scmrepo.git import Git

from octavo.deploy.loader import load
from octavo.errors import ModelRunError
from octavo.evidence.report import markdown, provider_table
from octavo.evidence.series import headline_setting
from octavo.files import read_json, write_json
from octavo.layout import HOSTS, host_record
from octavo.manifest import own_manifest
from octavo.quantization.fp16 import convert
from octavo.runtime import environment, providers
from octavo.runtime.benchmark import figures, latencies, on_device, peak_memory_mib
from octavo.runtime.host import fingerprint
from octavo.runtime.session import Session
from octavo.runtime.timing import Latency

FEEDS = {"image": np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)}


@pytest.fixture
def network(tmp_path) -> Path:
    path = tmp_path / "network.onnx"
    path.write_bytes(small_network().SerializeToString())
    return path


class Machine:
    """An ONNX Runtime with CUDA, with or without a GPU: neither can be had here."""

    def __init__(self, patch: pytest.MonkeyPatch, gpu: str | None) -> None:
        patch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
        patch.setattr(providers, "gpu", lambda: gpu)


class TestProviders:
    def test_without_cuda_nothing_is_said(self):
        assert providers.usable_providers() == ["cpu"]
        assert providers.chosen_providers(["auto"]) == ["cpu"]
        assert providers.provider_warning() is None

    def test_cuda_without_a_gpu(self, monkeypatch, network):
        Machine(monkeypatch, None)
        assert providers.available_providers() == ["cpu", "cuda"]
        assert providers.usable_providers() == ["cpu"]
        assert providers.chosen_providers(["auto"]) == ["cpu"]
        assert "no GPU can be seen" in providers.provider_warning()
        with pytest.raises(ModelRunError, match="'cuda' is asked for and no GPU can be seen") as told:
            Session(network, provider="cuda")
        assert "[auto]" in str(told.value)
        Session(network, provider="cpu")

    def test_cuda_with_a_gpu(self, monkeypatch):
        Machine(monkeypatch, "NVIDIA Test")
        assert providers.provider_warning() is None
        assert providers.chosen_providers(["auto"]) == ["cpu", "cuda"]
        assert providers.chosen_providers(["cuda", "auto"]) == ["cuda", "cpu"]
        assert providers.chosen_providers(["cuda"]) == ["cuda"]

    def test_a_gpu_whose_libraries_do_not_load(self, monkeypatch, network):
        # ONNX Runtime is the real one: asked for CUDA, it has none and ends on the CPU, which must not pass for a GPU's time.
        Machine(monkeypatch, "NVIDIA Test")
        with pytest.warns(UserWarning, match="CUDAExecutionProvider"), pytest.raises(ModelRunError, match="fell back to"):
            Session(network, provider="cuda")

    def test_a_provider_that_is_not_installed(self, network):
        with pytest.raises(ModelRunError, match="'tensorrt' is not in this ONNX Runtime") as told:
            Session(network, provider="tensorrt")
        assert "EXTRA=gpu" in str(told.value)


class TestBinding:
    def test_it_computes_what_a_run_computes_each_time(self, network):
        session = Session(network)
        once = session.bound(FEEDS)
        for _ in range(2):
            once()
        # What is bound lies in the session's own buffers: read it there.
        binding = once.__closure__[[name == "binding" for name in once.__code__.co_freevars].index(True)].cell_contents
        (found,), (wanted,) = binding.copy_outputs_to_cpu(), session.run(FEEDS).values()
        np.testing.assert_array_equal(found, wanted)

    def test_a_layout_that_cannot_be_bound_is_copied(self, network):
        turned = np.ascontiguousarray(FEEDS["image"].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        Session(network).bound({"image": turned})()

    def test_inputs_that_do_not_fit_are_a_clear_error(self, network):
        with pytest.raises(ModelRunError, match=r"does not run on image \[1, 1, 32, 32\]"):
            Session(network).bound({"image": np.zeros((1, 1, 32, 32), np.float32)})()

    def test_what_fails_in_a_kernel_is_said_by_the_error_alone(self, capfd):
        shape = oh.make_tensor_value_info("shape", onnx.TensorProto.INT64, [1])
        x, y = (oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
        graph = oh.make_graph([oh.make_node("Reshape", ["x", "shape"], ["y"])], "g", [x, shape], [y])
        proto = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=10)
        session = Session(proto.SerializeToString())
        with pytest.raises(ModelRunError, match="cannot be reshaped to the requested shape"):
            session.run({"x": np.zeros((2, 3), np.float32), "shape": np.array([5])})
        assert capfd.readouterr().err == ""


class TestFloat16:
    """`fp16: {keep_io: false}`: the file takes and puts out float16, whoever runs it has float32 images."""

    @pytest.fixture
    def half(self, network, tmp_path) -> Path:
        path = tmp_path / "half.onnx"
        path.write_bytes(ir.to_proto(convert(ir.load(network), keep_io=False).model).SerializeToString())
        return path

    def test_float32_is_cast_and_sums_are_of_float32(self, network, half):
        session = Session(half)
        (name,) = session.inputs
        assert session.input_types[name] == "tensor(float16)"
        assert session.fed(FEEDS)[name].dtype == np.float16
        assert session.fed(session.fed(FEEDS))[name].dtype == np.float16
        (raw,), (found,), (wanted,) = (
            each.values() for each in (session.run(FEEDS), session.run_finite(FEEDS, "it"), Session(network).run(FEEDS))
        )
        assert (raw.dtype, found.dtype) == (np.float16, np.float32)
        np.testing.assert_array_equal(found, raw)
        np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())
        session.bound(FEEDS)()

    def test_it_is_timed_beside_fp32(self, network, half):
        timed = latencies({"fp32": network, "fp16": half}, FEEDS, provider="cpu", threads=1, rounds=2, warmup=0)
        assert timed.keys() == {"fp32", "fp16"}
        assert peak_memory_mib(half, FEEDS, provider="cpu", threads=1) > 10

    def test_its_memory_is_not_that_of_the_process_that_asks(self, half):
        """All variants had the benchmark's own peak, in which all of them are loaded."""
        alone = peak_memory_mib(half, FEEDS, provider="cpu", threads=1)
        held = np.ones(400 << 20, np.uint8)
        assert held.all()
        assert peak_memory_mib(half, FEEDS, provider="cpu", threads=1) < alone + 100

    def test_what_float16_cannot_hold_is_found(self, half):
        with pytest.raises(ModelRunError, match="holds (NaN|infinity) on it"):
            Session(half).run_finite({"image": FEEDS["image"] * np.float32(1e6)}, "it")


class TestOnDevice:
    def test_the_same_arithmetic_loses_nothing(self, network):
        found = on_device({"fp32": network}, [FEEDS], provider="cpu")
        assert found == {"fp32": {"cosine_min": 1.0, "sqnr_db": 200.0}}

    def test_another_network_is_told_from_it(self, network, tmp_path):
        other = tmp_path / "other.onnx"
        other.write_bytes(small_network(seed=3).SerializeToString())
        found = on_device({"fp32": network, "fp16": other}, [FEEDS, FEEDS], provider="cpu")["fp16"]
        a, b = (np.concatenate([one.ravel() for one in Session(path).run(FEEDS).values()]) for path in (network, other))
        assert found["cosine_min"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
        assert found["sqnr_db"] == pytest.approx(10 * np.log10((a @ a) / ((a - b) @ (a - b))), abs=0.01)


def latency(host: str = "0" * 12) -> dict:
    samples = {name: Latency(np.full(9, ms)) for name, ms in (("fp32", 4.0), ("fp16", 2.0), ("int8", 8.0))}
    record = {"host.id": host, "host.cpu": "c", "host.cores": 2, "host.vnni": True, "host.session": "defaults"}
    for name in samples:
        record |= {f"{name}.size_mb": 1.0, f"{name}.size_ratio": 1.0, f"{name}.cuda.sqnr_db": 60.0, f"{name}.cuda.cosine_min": 1.0}
    for setting in ("cpu.t1.b1", "cuda.t1.b1", "cuda.t1.b16"):
        record |= figures(samples, setting, 1)
    return record


def test_the_table_is_of_the_cpu_and_the_gpu_has_its_own():
    assert headline_setting(latency()) == "cpu.t1.b1"
    only = {key: value for key, value in latency().items() if ".cpu." not in key}
    assert headline_setting(only) == "cuda.t1.b1"
    assert not provider_table(only)
    table = provider_table(latency())
    assert [row[:4] for row in table[1:]] == [
        (variant, setting, ms, speed)
        for setting in ("cuda.t1.b1", "cuda.t1.b16")
        for variant, ms, speed in (("fp32", "4.00", "1.00x"), ("fp16", "2.00", "2.00x"), ("int8", "8.00", "0.50x"))
    ]
    assert "| fp16 | cuda.t1.b16 | 2.00 | 2.00x | 60.0 | 1.00000 |" in markdown("m", {"images": 1, "labelled": 0}, latency())


class TestHosts:
    def test_another_host_does_not_overwrite_what_one_has_measured(self, project):
        """A model that another machine has measured, measured here."""
        assert run_stage("export", "--model", "small").returncode == 0
        theirs = {**latency("f" * 12), "note": "theirs"}
        write_json(host_record("f" * 12, "small"), theirs)
        write_json("metrics/small/latency.json", theirs)
        done = run_stage("benchmark", "--model", "small")
        assert done.returncode == 0, done.stderr
        here = fingerprint()["id"]
        assert f"host {here}; in metrics/hosts stay those of {'f' * 12}" in done.stdout
        assert read_json(host_record("f" * 12, "small")) == theirs
        mine, latest = read_json(host_record(here, "small")), read_json("metrics/small/latency.json")
        assert latest["host.id"] == mine["host.id"] == here
        assert {key: value for key, value in mine.items() if not key.endswith(".sha256")} == latest
        assert mine["fp32.sha256"] == own_manifest("models/small/fp32")["sha256"]
        assert {path.name for path in HOSTS.iterdir()} == {here, "f" * 12}


class TestMachineStage:
    def test_what_is_wrong_in_params_yaml_is_said_and_nothing_written(self, project):
        text = (project / "params.yaml").read_text()
        (project / "params.yaml").write_text(text + "  other: {int9: {}}\n")
        done = run_stage("machine")
        assert done.returncode == 2
        assert "models.other.int9: unknown key" in done.stderr
        assert not Path(".octavo").exists()

    @pytest.mark.usefixtures("project")
    def test_it_says_the_same_each_time(self):
        said = []
        for _ in range(2):
            assert run_stage("machine").returncode == 0
            files = [path for path in Path(".octavo").rglob("*") if path.is_file()]
            said.append({path.relative_to(".octavo").as_posix(): path.read_bytes() for path in files})
        assert said[0] == said[1]
        assert sorted(said[0]) == ["host.json", "images.json", "reading/small.json", "runtime.json", "training.json"]
        assert read_json(".octavo/host.json")["id"] == fingerprint()["id"]
        assert read_json(".octavo/runtime.json")["onnxruntime"] == ort.__version__

    def test_how_images_are_read_is_told_where_params_yaml_leaves_it_out(self, project):
        assert run_stage("machine").returncode == 0
        before = read_json(".octavo/reading/small.json")
        assert before == {"on_bad_image": "error", "max_pixels": 100_000_000, "holdout": []}
        params = yaml.safe_load((project / "params.yaml").read_text())
        further = {"on_bad_image": "skip", "max_pixels": 5000, "datasets": {"night": {"holdout": True}, "day": {}}}
        params["models"]["small"]["data"].update(further)
        (project / "params.yaml").write_text(yaml.safe_dump(params))
        assert run_stage("machine").returncode == 0
        assert read_json(".octavo/reading/small.json") == {"on_bad_image": "skip", "max_pixels": 5000, "holdout": ["night"]}

    def test_one_onnx_runtime_is_told_whatever_its_distribution(self, monkeypatch):
        asked = {"onnxruntime-gpu": "1.2.3"}

        def version(name: str) -> str:
            if name not in asked:
                raise environment.importlib.metadata.PackageNotFoundError(name)
            return asked[name]

        monkeypatch.setattr(environment.importlib.metadata, "version", version)
        assert environment.versions_of(["onnxruntime", "torch"]) == {"onnxruntime": "1.2.3", "torch": None}


class TestImage:
    def test_outside_of_one(self, monkeypatch, tmp_path):
        monkeypatch.setattr(environment, "IMAGE_FILE", tmp_path / "none.json")
        monkeypatch.setenv("OCTAVO_IMAGE_DIGEST", "sha256:1")
        assert environment.image() is None

    def test_inside_of_one(self, monkeypatch, tmp_path):
        built = {"image": "octavo-cpu", "target": "pipeline", "lock": "a" * 64}
        monkeypatch.setattr(environment, "IMAGE_FILE", tmp_path / "image.json")
        (tmp_path / "image.json").write_text(json.dumps(built))
        monkeypatch.delenv("OCTAVO_IMAGE_DIGEST", raising=False)
        assert environment.image() == {**built, "digest": None}
        monkeypatch.setenv("OCTAVO_IMAGE_DIGEST", "sha256:1")
        assert environment.image() == {**built, "digest": "sha256:1"}


def test_a_service_hears_once_that_its_gpu_is_missing(tmp_path, monkeypatch, caplog):
    write_package(tmp_path / "package")
    Machine(monkeypatch, None)
    with caplog.at_level("WARNING", "octavo.deploy"):
        model = load(tmp_path / "package", measure=False)
    assert model.provider == "cpu"
    assert len([line for line in caplog.messages if "no GPU can be seen" in line]) == 1


def test_machine_files_are_not_in_git():
    assert "/.octavo/" in (ROOT / ".gitignore").read_text().splitlines()


def test_what_dvc_add_writes_is_in_git(tmp_path):
    """Of `/data/*` DVC refuses the file (`... is git-ignored`), and looks into data/ for none: nothing is pushed or pulled."""
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    names = ["data/mine", "data/mine.dvc"]
    ignored = subprocess.run(["git", "check-ignore", *names], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert ignored.stdout.split() == names[:1]
    seen = Git(str(tmp_path))
    assert [seen.is_ignored(f"{tmp_path}/{name}") for name in ("data/", *names)] == [False, True, False]
