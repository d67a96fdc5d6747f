"""Stage scripts as a user runs them: a mistake gives one clear error, exit code 2, no traceback, and no half-written output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
import yaml
from conftest import ROOT, project_params, small_network, write_images
from forked import run_stage

ORDER = ("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark", "report")


def run(stage: str, *arguments: str, model: str | None = "small") -> subprocess.CompletedProcess:
    return run_stage(stage, *(["--model", model] if model else []), *arguments)


def succeed(*stages: str) -> None:
    for stage in stages:
        done = run(stage)
        assert done.returncode == 0, done.stderr


def refuse(stage: str, *parts: str, **options: str) -> str:
    before = snapshot()
    done = run(stage, **options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr
    assert snapshot() == before, "a refused stage leaves every file as it was"
    return done.stderr


def snapshot() -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for root in ("models", "metrics", "data") for path in Path(root).rglob("*") if path.is_file()
    }


def params(**changes: object) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(project_params(**changes)), encoding="utf-8")


def test_the_stages_make_every_variant_and_the_evidence(project):
    succeed(*ORDER)
    params(validate={"bootstrap": 200, "layer_samples": 2, "gates": {"allow_larger": False, "allow_slower": False}})
    succeed("validate", "report")
    for variant in ("fp32", "fp16", "int8", "int8_dynamic"):
        manifest = json.loads((project / f"models/small/{variant}/manifest.json").read_text())
        assert manifest["sha256"]
        assert manifest["preprocessing"]["size"] == [32, 32]
        assert str(project) not in json.dumps(manifest), "no path of this machine leaves it"
    accuracy = json.loads((project / "metrics/small/accuracy.json").read_text())
    assert accuracy["images"] == 14
    assert accuracy["labelled"] == 12
    assert accuracy["int8.cosine_mean"] > 0.98
    assert accuracy["fp16.sqnr_db"] > 40
    assert accuracy["int8.gate.size"] == "fail", "on so small a network Q and DQ weigh more than weights"
    assert accuracy["int8.gate.speed"] in ("pass", "inconclusive", "fail")
    assert accuracy["fp16.gate.size"] == "pass"
    assert "int8 is larger than FP32" in (project / "metrics/small/report.md").read_text()
    latency = json.loads((project / "metrics/small/latency.json").read_text())
    assert latency["int8.cpu.t1.b1.median_ms"] > 0
    assert latency["int8.peak_memory_mib"] > 10
    assert "int8" in (project / "metrics/small/report.md").read_text()
    shown = run("report", model=None)
    assert shown.returncode == 0
    assert "int8_dynamic" in shown.stdout
    header, *lines = (project / "metrics/small/images.csv").read_text().splitlines()
    assert header.startswith("image,sha256,label,fp32.prediction")
    assert len(lines) == 14
    documented = (ROOT / "docs/metrics.md").read_text()
    for key in {key.split(".", 1)[-1] for key in accuracy if "." in key}:
        assert f"`{key}`" in documented, f"{key} is not described in docs/metrics.md"


def test_a_quantized_file_comes_with_what_was_decided_what_runs_and_how_it_ran(project):
    succeed("export", "calibrate", "quantize_int8")
    folders = [project / "models/small" / variant for variant in ("int8", "int8_dynamic")]
    fp32 = json.loads((project / "models/small/fp32/manifest.json").read_text())
    for folder in folders:
        manifest = json.loads((folder / "manifest.json").read_text())
        made = manifest["made"]
        assert made["from_sha256"] == fp32["sha256"]
        assert made["calibration"]["held_out"] == 2
        assert made["calibration"]["images"]
        assert made["settings"]["method"] == "minmax"
        assert {"onnxruntime", "octavo"} <= set(manifest["versions"])
        assert manifest["host"]["id"]
        assert made["accepted"]["images"] == 4
        assert made["accepted"]["agreement"] == 1.0
        assert made["executed"]["unexpected"] == made["executed"]["unresolved"] == []
        assert {node["node"] for node in made["nodes"] if "runs" in node} >= {"stem", "depth", "point", "head"}
    made = json.loads((folders[0] / "manifest.json").read_text())["made"]
    assert made["executed"]["int8_layers"] == made["executed"]["int8_layers_integer"] == 4
    assert made["measured"]["chosen"] in made["measured"]["tried_db"]
    pages = [(folder / "report.md").read_bytes() for folder in folders]
    assert b"# small: int8" in pages[0]
    done = run("quantize_int8")
    assert "warning: models/small/int8/model.onnx: the file is larger than FP32" in done.stdout
    assert [(folder / "report.md").read_bytes() for folder in folders] == pages, "equal input, equal page"


@pytest.mark.parametrize("stage", ORDER)
def test_an_unknown_model(project, stage):
    refuse(stage, "params.yaml has no model 'smal'", "did you mean 'small'?", model="smal")


def test_params_mistakes_come_first(project):
    params(int8={"metod": "mse"})
    refuse("calibrate", "models.small.int8.metod: unknown key; did you mean 'method'?")
    Path("params.yaml").unlink()
    refuse("export", "params.yaml: no such file")


def test_a_stage_out_of_order_says_what_to_run(project):
    refuse("calibrate", "models/small/fp32/manifest.json: no such file", "dvc repro")
    succeed("export")
    refuse("quantize_int8", "models/small/calibration has no statistics", "run the calibrate stage")
    refuse("report", "accuracy.json: no such file")


class TestBadModels:
    def test_missing_and_truncated(self, project):
        data = Path("small.onnx").read_bytes()
        Path("small.onnx").write_bytes(data[: len(data) // 2])
        refuse("export", "small.onnx", "truncated")
        Path("small.onnx").unlink()
        refuse("export", "small.onnx", "does not exist")

    def test_a_custom_op(self, project):
        model = small_network()
        model.graph.node.append(oh.make_node("EfficientNMS_TRT", ["logits"], ["boxes"], "nms", domain="trt"))
        model.graph.output.append(oh.make_tensor_value_info("boxes", onnx.TensorProto.FLOAT, None))
        model.opset_import.append(oh.make_opsetid("trt", 1))
        onnx.save(model, "small.onnx")
        refuse("export", "EfficientNMS_TRT", "nms")

    def test_no_float_input(self, project):
        graph = oh.make_graph(
            [oh.make_node("Identity", ["ids"], ["same"], "i")],
            "g",
            [oh.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, 4])],
            [oh.make_tensor_value_info("same", onnx.TensorProto.INT64, [1, 4])],
        )
        onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8), "small.onnx")
        refuse("export", "input")

    def test_a_model_that_is_quantized_already(self, project):
        succeed("export", "calibrate", "quantize_int8")
        Path("models/small/int8/model.onnx").replace("small.onnx")
        refuse("export", "small.onnx: the graph is quantized already: QuantizeLinear 'q0'", "give the FP32 model", "source.file")

    def test_statistics_of_another_model_and_of_other_images(self, project):
        succeed("export", "calibrate")
        params(calibrate={"samples": 7})
        refuse("quantize_int8", "models/small/calibration was made from other images", "run the calibrate stage again")
        params()
        onnx.save(small_network(seed=5), "small.onnx")
        succeed("export")
        refuse("quantize_int8", "models/small/calibration was made for another model", "run the calibrate stage again")

    def test_an_int8_file_whose_outputs_are_not_finite_is_not_written(self, project):
        """Log of what rounding makes zero: FP32 is finite, and nothing before the Log shows it."""
        model = small_network(
            weights={"point.weight": np.abs(np.random.default_rng(0).standard_normal((8, 8, 1, 1))).astype(np.float32) * 1e-3}
            | {"point.bias": np.full(8, 1e-9, np.float32)}
        )
        del model.graph.node[5:]
        model.graph.node.extend(
            [
                oh.make_node("Log", ["point"], ["log"], "log"),
                oh.make_node("ReduceMean", ["log", "spatial"], ["logits"], "pool", keepdims=0),
            ]
        )
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 8
        onnx.save(model, "small.onnx")
        succeed("export", "calibrate")
        params = yaml.safe_load(Path("params.yaml").read_text())
        params["models"]["small"]["int8"]["float_heads"] = False
        Path("params.yaml").write_text(yaml.safe_dump(params))
        refuse("quantize_int8", "models/small/int8/model.onnx: output 'logits' holds infinity on image_1_", "int8.keep_float")
        assert not Path("models/small/int8").exists()

    def test_an_output_that_is_nan(self, project):
        onnx.save(small_network(weights={"head.bias": np.array([np.nan, 0, 0, 0], np.float32)}), "small.onnx")
        refuse("export", "output 'logits' holds NaN")

    def test_a_size_that_the_graph_does_not_take(self, project):
        onnx.save(small_network(size=16), "small.onnx")
        refuse("export", "does not run on image [1, 3, 32, 32]", "`input:`")

    def test_a_model_that_was_swapped_under_its_manifest(self, project):
        succeed("export")
        onnx.save(small_network(seed=5), "models/small/fp32/model.onnx")
        refuse("calibrate", "is damaged, or not the file that its manifest describes")

    @pytest.mark.slow
    def test_weights_that_do_not_fit_the_architecture(self, project):
        import torch

        Path("network.py").write_text(
            "import torch\n\ndef build(width):\n    return torch.nn.Sequential(torch.nn.Conv2d(3, width, 3))\n"
        )
        torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)).state_dict(), "weights.pth")
        params(source={"kind": "torch", "entry": "network:build", "args": {"width": 8}, "file": "weights.pth"})
        refuse(
            "export", "weights.pth: the weights do not fit the module", "0.weight ([4, 3, 3, 3] in the file, [8, 3, 3, 3] in the"
        )

    @pytest.mark.slow
    def test_a_torch_module_whose_graph_of_open_sides_is_right_at_one_size_alone(self, project):
        import torch

        Path("network.py").write_text(
            "import torch\n\nclass Net(torch.nn.Sequential):\n"
            "    def forward(self, image):\n        return super().forward(image).mean((2, 3)) / int(image.shape[2])\n\n"
            "def build():\n    return Net(torch.nn.Conv2d(3, 4, 3))\n"
        )
        torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)).state_dict(), "weights.pth")
        source = {"kind": "torch", "entry": "network:build", "file": "weights.pth", "exporter": "torchscript"}
        params(source=source | {"dynamic_size": True}, input={"size": [64, 64], "resize": {"rule": "stretch"}})
        refuse("export", "the exported graph at 32x64 differs from the torch module", "`source.dynamic_size: false`")


class TestBadImages:
    def test_truncated_under_both_policies(self, project):
        succeed("export")
        broken = Path("images/calibration/image_1_003.png")
        broken.write_bytes(broken.read_bytes()[:60])
        refuse("calibrate", "image_1_003.png is not a readable image", "on_bad_image: skip")
        data = project_params()["models"]["small"]["data"]
        params(data={**data, "on_bad_image": "skip"})
        done = run("calibrate")
        assert done.returncode == 0, done.stderr
        assert "skipped: image_1_003.png" in done.stdout
        origin = json.loads(Path("models/small/calibration/statistics.json").read_text())
        assert len(origin["held_out"]) == 2
        assert origin["samples"] == 8 - 2 - 1
        assert len(origin["skipped"]) == 1

    def test_empty_missing_and_too_few(self, project):
        succeed("export")
        params(calibrate={"samples": 9})
        refuse("calibrate", "has 8 different images, 9 are asked for", "calibrate.samples: 8")
        Path("empty").mkdir()
        data = project_params()["models"]["small"]["data"]
        params(data={**data, "calibration": {"format": "folder", "path": "empty"}})
        refuse("calibrate", "empty holds no image")
        params(data={**data, "calibration": {"format": "folder", "path": "nowhere"}})
        refuse("calibrate", "no folder nowhere")

    @pytest.mark.slow
    def test_shared_images_and_labels_outside_the_classes(self, project):
        succeed("export", "calibrate", "quantize_fp16", "quantize_int8")
        extra = Path("images/validation/0/renamed.png")
        extra.write_bytes(Path("images/calibration/image_1_000.png").read_bytes())
        refuse("validate", "calibration and validation share 1 image(s) by content", "renamed.png")
        extra.unlink()
        write_images(Path("images/validation/9"), 1, seed=99)
        refuse("validate", "labelled class 9, the model has classes 0..3")


def test_fp16_names_the_nodes_that_stay_float32_and_not_those_that_compute_nothing_in_it(project):
    network = small_network()
    graph = network.graph
    flat = [
        oh.make_node("Shape", ["pooled"], ["sizes"], "sizes", end=1),
        oh.make_node("Concat", ["sizes", "eight"], ["shape"], "shape", axis=0),
        oh.make_node("Expand", ["row", "shape"], ["rows"], "rows"),
        oh.make_node("Concat", ["pooled", "rows"], ["flat"], "flat", axis=1),
    ]
    graph.initializer.append(onh.from_array(np.array([8], np.int64), "eight"))
    graph.initializer.append(onh.from_array(np.ones((1, 8), np.float32), "row"))
    graph.initializer.append(onh.from_array(np.ones((4, 16), np.float32), "wide.weight"))
    graph.node[-1].input[1] = "wide.weight"
    graph.node[-1].input[0] = "flat"
    for node in flat:
        graph.node.insert(len(graph.node) - 1, node)
    onnx.save(network, "small.onnx")
    params(fp16={"keep_float": ["point"]})
    succeed("export")
    done = run("quantize_fp16")
    kept = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("stays float32:")]
    assert kept == ["point"], done.stdout
    assert "float: 1 Concat, 1 Conv, 1 Shape" in done.stdout


@pytest.mark.slow
def test_what_cannot_be_quantized_or_timed(project):
    succeed("export", "calibrate")
    params(int8={"keep_float": ["Convolution"]})
    refuse("quantize_int8", "'Convolution'", "Conv")
    params(benchmark={"providers": ["cuda"], "rounds": 5})
    if "cuda" not in _providers():
        refuse("benchmark", "execution provider 'cuda' is not in this ONNX Runtime")
    params(input={"size": [32, 32]})
    refuse("quantize_int8", "was made for another input")


def _providers() -> list[str]:
    from octavo.runtime.providers import available_providers

    return available_providers()


def test_a_disk_that_is_full_leaves_the_previous_statistics(project):
    succeed("export", "calibrate")
    before = snapshot()
    limit = "import resource, signal, runpy, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)); sys.argv = sys.argv[1:]; "
    limit += "sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0]); runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", limit, str(ROOT / "stages/calibrate.py"), "--model", "small"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "could not be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert snapshot() == before


def test_prepare_asks_for_one_thing_and_knows_its_sets(project):
    assert run("prepare", model=None).returncode == 2
    Path("data").mkdir()
    Path("data/sources.yaml").write_text(
        "sets: {tiny: [{package: scikit-image, file: skimage/data/chelsea.png, to: cat.png, licence: CC0}]}"
    )
    done = run("prepare", "--set", "tiny", model=None)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in Path("data/tiny").iterdir()) == ["SOURCES.md", "cat.png"]
    wrong = run("prepare", "--set", "tinny", model=None)
    assert wrong.returncode == 2
    assert "has no set 'tinny'" in wrong.stderr
    assert "nothing to prepare" in run("prepare").stdout
    data = project_params()["models"]["small"]["data"]
    params(data={**data, "calibration": {"format": "folder", "path": "data/tiny"}})
    assert "data/tiny: 1 files" in run("prepare").stdout


def test_a_bug_is_not_dressed_up(project):
    """Exit code 1 and a traceback are for our mistakes."""
    script = "from octavo import cli\ndef main(): raise KeyError('bug')\ncli.run(main)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_sigterm_takes_temporary_files_along(tmp_path):
    """Of a killed process they stay: hundreds of megabytes of tensors in groups, say."""
    words = f"with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}): os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"
    script = f"import os, signal, tempfile, time\nfrom octavo import cli\ndef main():\n  {words}\ncli.run(main)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "terminated; outputs are as they were\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("stdout", "print('few')"),
        ("stdout", "print('many ' * 99999)"),
        ("stdout", "print('few'); raise DataError('wrong')"),
        ("stderr", "raise DataError('wrong')"),
    ],
)
def test_a_reader_that_goes_away_ends_it_as_sigpipe_would(stream, words):
    """As `| head` and `| grep -q` do; 1 would be a bug, or a failed gate."""
    read, write = os.pipe()
    os.close(read)
    script = f"from octavo import cli\nfrom octavo.errors import DataError\ndef main(): {words}\ncli.run(main)"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    done = subprocess.run([sys.executable, "-c", script], **streams, text=True, check=False)
    os.close(write)
    assert done.returncode == 141
    assert not done.stderr
