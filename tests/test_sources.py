"""FP32 models from torch modules and ONNX files: exported, cleaned, run in ONNX Runtime and held against the original."""

import os
import pickle
import subprocess
import sys
import textwrap
from hashlib import sha256

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octavo.errors import ModelRunError, SourceError
from octavo.graph.io import load, save
from octavo.intake.described import described
from octavo.params.grammar import Input, OnnxSource, TorchSource
from octavo.runtime.session import Session
from octavo.sources import fetch
from octavo.sources.against_file import compare_with_file
from octavo.sources.checks import compare_at_another_size
from octavo.sources.loaded import loaded_session

torch = pytest.importorskip("torch")

SIZE = 16
INPUT = Input(size=(SIZE, SIZE))
SAMPLES = [np.random.default_rng(seed).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32) for seed in range(3)]

# A user's own package, in the folder that the pipeline runs in.
FACTORIES = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=4, returns="tensor"):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6())
        self.head = nn.Linear(8, classes)
        self.returns = returns

    def forward(self, image):
        features = self.stem(image)
        logits = self.head(features.mean((2, 3)))
        values = {
            "tensor": logits,
            "tuple": (logits, None, features),
            "dict": {"scores": logits, "maps": [features, features * 2]},
            "detection": [{"boxes": logits, "input": features}],
            "number": 3.0,
        }
        return values[self.returns]


class Stuck(Net):
    def forward(self, image):
        return super().forward(image) if image.sum() > 0 else super().forward(-image)


class Unwritten(Net):
    # An operator that the torchscript exporter knows nothing of.
    def forward(self, image):
        return super().forward(nn.functional.interpolate(image, (8, 8), mode="bicubic", antialias=True))


class FixedBatch(Net):
    def forward(self, image):
        return super().forward(image.reshape(2, 3, 16, 16))


class Shares(Net):
    # In shares of an image whose sides tracing takes for constants.
    def forward(self, image):
        return super().forward(image) / (int(image.shape[2]) * int(image.shape[3]) / 1000)


class Places(Net):
    # A grid of the size that was traced.
    def forward(self, image):
        return self.stem(image) * torch.arange(int(image.shape[3]))


class OwnSize(Net):
    def forward(self, image):
        assert image.shape[2:] == (64, 128)
        return super().forward(image)


class ChannelsLast(Net):
    # Trained as torch's recipes do it.
    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)

    def forward(self, image):
        features = self.stem(image)
        return self.head(nn.functional.adaptive_avg_pool2d(features, 1).flatten(1))


class Named:
    @classmethod
    def build(cls, classes):
        return Net(classes)


def raises():
    raise RuntimeError("no such backbone\\nand a second line")


def number():
    return 3


CONSTANT = 3
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with `mynets.py`, and a state dict of its Net; the tests run in it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "mynets.py").write_text(FACTORIES)
    (folder / "broken.py").write_text("import no_such_dependency_at_all\n")
    (folder / "syntax.py").write_text("def (\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        from mynets import Net

        torch.manual_seed(0)
        module = Net()
        module.stem[1].running_mean.normal_()
        module.stem[1].running_var.uniform_(0.5, 2)
        torch.save(module.state_dict(), "net.pth")
    sys.modules.pop("mynets")
    return folder


@pytest.fixture(autouse=True)
def in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    yield
    for name in ("mynets", "broken", "syntax"):
        sys.modules.pop(name, None)


def source(**settings):
    return TorchSource(**{"kind": "torch", "entry": "mynets:Net", "file": "net.pth", **settings})


def run(path, image):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: image}), strict=True))


def same(path, reference, image):
    got, expected = run(path, image), reference(image)
    assert list(got) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-5, err_msg=name)


# ---------------------------------------------------------------- torch: what comes out


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("returns", ["tensor", "tuple", "dict", "detection"])
def test_a_torch_module_becomes_a_graph_with_the_same_outputs(tmp_path, capfd, exporter, returns):
    names = {
        "tensor": ("output",),
        "tuple": ("output_0", "output_2"),
        "dict": ("scores", "maps_0", "maps_1"),
        "detection": ("boxes", "output_input"),
    }[returns]
    fetched = fetch(source(exporter=exporter, args={"returns": returns}), INPUT, tmp_path, SAMPLES)
    assert capfd.readouterr() == ("", "")  # exporters chatter
    assert fetched.input_name == "input"
    assert fetched.output_names == names
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    for images in (SAMPLES[0], np.concatenate(SAMPLES)):
        same(tmp_path / "model.onnx", fetched.reference, images)
    assert load(tmp_path / "model.onnx").opset_imports == {"": 18}
    content = (tmp_path / "model.onnx").read_bytes()
    assert b"mynets.py" not in content
    assert b"site-packages" not in content


def test_nodes_and_tensors_are_named_after_the_modules(tmp_path):
    fetched = fetch(source(), INPUT, tmp_path, SAMPLES)
    # The BatchNorm is folded into the convolution, which keeps its own name.
    assert [node.name for node in fetched.model.graph] == ["stem.0/Conv", "stem.2/Clip", "ReduceMean", "head/Gemm"]
    written = load(tmp_path / "model.onnx")
    assert [node.outputs[0].name for node in written.graph] == ["stem.0/Conv", "stem.2/Clip", "ReduceMean", "output"]
    assert {"stem.0.weight", "head.weight"} <= set(written.graph.initializers)


@pytest.mark.parametrize("batch", [True, False])
def test_a_module_that_lies_channels_last_has_the_same_graph(tmp_path, batch):
    fetched = fetch(source(entry="mynets:ChannelsLast", dynamic_batch=batch), INPUT, tmp_path, SAMPLES)
    assert [node.op_type for node in fetched.model.graph] == ["Conv", "Clip", "ReduceMean", "Reshape", "Gemm"]
    same(tmp_path / "model.onnx", fetched.reference, SAMPLES[1])


def test_a_fixed_batch_stays_fixed(tmp_path):
    fetched = fetch(source(dynamic_batch=False), INPUT, tmp_path, SAMPLES[:1])
    assert list(load(tmp_path / "model.onnx").graph.inputs[0].shape) == [1, 3, SIZE, SIZE]
    same(tmp_path / "model.onnx", fetched.reference, SAMPLES[1])


@pytest.mark.parametrize(
    ("exporter", "opset", "written"), [("dynamo", 17, 18), ("dynamo", 21, 21), ("torchscript", 17, 17), ("torchscript", 23, 23)]
)
def test_the_opset_asked_for_is_written_or_a_note_says_which(tmp_path, exporter, opset, written):
    fetched = fetch(source(exporter=exporter, opset=opset), INPUT, tmp_path, SAMPLES)
    assert load(tmp_path / "model.onnx").opset_imports[""] == written
    assert any("lowest that the dynamo exporter writes" in note for note in fetched.notes) == (written > opset)
    same(tmp_path / "model.onnx", fetched.reference, SAMPLES[0])


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("batch", [True, False])
def test_height_and_width_may_stay_open(tmp_path, exporter, batch):
    chosen = source(exporter=exporter, dynamic_size=True, dynamic_batch=batch, args={"returns": "tuple"})
    fetched = fetch(chosen, INPUT, tmp_path, SAMPLES)
    session = ort.InferenceSession(tmp_path / "model.onnx")
    shape = session.get_inputs()[0].shape
    assert shape[1:] == [3, "height", "width"]
    assert isinstance(shape[0], str) == batch
    wide = np.random.default_rng(5).standard_normal((2 if batch else 1, 3, 8, 24)).astype(np.float32)
    truth = fetched.reference(wide)
    for name, got in zip(truth, session.run(list(truth), {"input": wide}), strict=True):
        np.testing.assert_allclose(got, truth[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("Net", []),
        ("OwnSize", ["the torch module does not run at 32x96 (AssertionError)"]),
        ("Shares", "the exported graph at 32x96 differs from the torch module"),
        ("Places", "the exported graph does not run at 32x96, the torch module does"),
    ],
)
def test_open_sides_are_held_against_the_module_at_another_size(tmp_path, entry, expected):
    sample = np.random.default_rng(0).standard_normal((1, 3, 64, 128)).astype(np.float32)
    chosen = source(entry=f"mynets:{entry}", dynamic_size=True, exporter="torchscript")
    fetched = fetch(chosen, Input(size=(64, 128)), tmp_path, [sample])
    session = Session(tmp_path / "model.onnx")

    def run(image):
        return session.run({"input": image})

    np.testing.assert_allclose(run(sample)["output"], fetched.reference(sample)["output"], rtol=1e-4, atol=1e-5)
    if isinstance(expected, str):
        with pytest.raises(SourceError, match=expected) as refused:
            compare_at_another_size(fetched.reference, run, sample)
        assert "an entry of its own" in refused.value.mend
        return
    notes = compare_at_another_size(fetched.reference, run, sample)
    assert len(notes) == len(expected)
    assert all(part in note for part, note in zip(expected, notes, strict=True))


def test_one_sample_is_enough_for_a_dynamic_batch(tmp_path):
    fetched = fetch(source(), INPUT, tmp_path, SAMPLES[:1])
    same(tmp_path / "model.onnx", fetched.reference, np.concatenate(SAMPLES))


def test_a_trace_for_libtorch_computes_the_same(tmp_path):
    fetched = fetch(source(trace=True, args={"returns": "dict"}), INPUT, tmp_path, SAMPLES)
    traced = torch.jit.load(str(tmp_path / "model.pt"))(torch.from_numpy(SAMPLES[2]))
    np.testing.assert_allclose(traced["scores"].numpy(), fetched.reference(SAMPLES[2])["scores"], atol=1e-5)


@pytest.mark.slow
def test_two_processes_write_the_same_bytes_and_say_nothing(tmp_path, workspace):
    program = textwrap.dedent("""
        import sys, pathlib, numpy as np
        from octavo.params.grammar import Input, TorchSource
        from octavo.sources import fetch
        for exporter in ("dynamo", "torchscript"):
            out = pathlib.Path(sys.argv[1]) / exporter
            out.mkdir(parents=True)
            net = dict(kind="torch", entry="mynets:Net", file="net.pth", args={"returns": "tuple"})
            block = TorchSource(**net, exporter=exporter, trace=True)
            fetch(block, Input(size=(16, 16)), out, [np.ones((1, 3, 16, 16), np.float32)])
    """)
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "default", "-c", program, tmp_path / seed],
            cwd=workspace,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in ("1", "2")
    ]
    said = [process.communicate()[0] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], said
    # A None among the outputs makes the dynamo exporter log warnings, the other one warns that it is old.
    assert said == ["", ""]
    first, second = (
        {
            str(path.relative_to(tmp_path / seed)): sha256(path.read_bytes()).hexdigest()
            for path in (tmp_path / seed).rglob("model.*")
        }
        for seed in ("1", "2")
    )
    assert len(first) == 4
    assert first == second


# ---------------------------------------------------------------- torch: state dicts


@pytest.mark.parametrize("key", [None, "state_dict", "model", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_state_dict_is_found_where_training_scripts_put_it(tmp_path, key, prefix):
    from octavo.sources.torch_module import module_of

    state = {prefix + name: value for name, value in torch.load("net.pth", weights_only=True).items()}
    torch.save(state if key is None else {key: state, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "w.pth")
    module = module_of(source(file=str(tmp_path / "w.pth")))
    assert not module.training
    torch.testing.assert_close(module.head.weight, torch.load("net.pth", weights_only=True)["head.weight"])


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil was here",))


def damage(kind, path):
    state = torch.load("net.pth", weights_only=True)
    if kind == "text":
        path.write_text("hello, this is not a torch file")
    elif kind == "empty":
        path.touch()
    elif kind == "truncated":
        torch.save(state, path)
        path.write_bytes(path.read_bytes()[:1000])
    elif kind == "evil zip":
        torch.save({"a": Evil()}, path)
    elif kind == "evil pickle":
        path.write_bytes(pickle.dumps({"a": Evil()}, protocol=2))
    elif kind == "module":
        torch.save(torch.nn.Linear(2, 2), path)
    elif kind == "list":
        torch.save([1, 2], path)
    elif kind == "other dict":
        torch.save({"epoch": 3, "weights": state}, path)
    elif kind == "torchscript":
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), path)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "does not exist"),
        ("text", "truncated or not a torch file"),
        ("empty", "truncated or not a torch file"),
        ("truncated", "truncated or not a torch file"),
        ("evil zip", r"wants to run code \(.*mkdir\)"),
        ("evil pickle", "wants to run code"),
        ("module", r"wants to run code \(torch.nn.modules.linear.Linear\)"),
        ("list", "holds no state dict"),
        ("other dict", "holds no state dict.*'epoch', 'weights'"),
        ("torchscript", "is a TorchScript archive"),
    ],
)
def test_a_bad_weights_file_is_named_with_what_is_wrong(tmp_path, workspace, kind, says):
    path = tmp_path / "w.pth"
    damage(kind, path)
    with pytest.raises(SourceError, match=says) as caught:
        fetch(source(file=str(path)), INPUT, tmp_path, SAMPLES)
    assert str(path) in caught.value.problem
    assert caught.value.mend
    assert not (workspace / "evil was here").exists()


def test_weights_that_do_not_fit_are_counted_and_named(tmp_path):
    state = torch.load("net.pth", weights_only=True)
    del state["stem.0.weight"], state["stem.1.num_batches_tracked"]
    for place in range(5):
        state[f"extra.{place}"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(SourceError) as caught:
        fetch(source(file=str(tmp_path / "w.pth"), args={"classes": 10}), INPUT, tmp_path, SAMPLES)
    problem = caught.value.problem
    assert "1 missing from the file (stem.0.weight)" in problem
    assert "5 unknown to the module (extra.0, extra.1, extra.2, and 2 more)" in problem
    assert "2 of another shape (head.weight ([4, 8] in the file, [10, 8] in the module)" in problem


def test_nan_in_the_weights_is_an_error(tmp_path):
    state = torch.load("net.pth", weights_only=True)
    state["head.bias"][1] = float("nan")
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(SourceError, match=r"NaN inside \(head.bias\)"):
        fetch(source(file=str(tmp_path / "w.pth")), INPUT, tmp_path, SAMPLES)


# ---------------------------------------------------------------- torch: entries


def test_a_classmethod_is_a_factory_too(tmp_path):
    fetch(source(entry="mynets:Named.build", args={"classes": 4}), INPUT, tmp_path, SAMPLES)
    assert (tmp_path / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("entry", "args", "says"),
    [
        ("no_such_package.nets:Net", {}, "'no_such_package.nets' of `source.entry` cannot be found"),
        ("mynets.deeper:Net", {}, "cannot be found|cannot be imported"),
        ("broken:Net", {}, "'broken' cannot be imported: it needs 'no_such_dependency_at_all'"),
        ("syntax:Net", {}, "'syntax' cannot be imported: SyntaxError"),
        ("mynets:Nett", {}, "(?s)no 'Nett'.*did you mean Net"),
        ("mynets:CONSTANT", {}, "cannot be called: it is a int"),
        ("mynets:", {}, "not of the form 'package.module:factory'"),
        ("mynets:raises", {}, "fails to build its module: RuntimeError: no such backbone\n"),
        ("mynets:Net", {"clases": 3}, "(?s)TypeError.*clases.*source.args"),
        ("mynets:number", {}, "returns a int, not a torch.nn.Module"),
        ("mynets:Net", {"returns": "number"}, "returns no tensor but a float"),
        ("mobilenet_v22", {}, "(?s)no architecture 'mobilenet_v22'.*did you mean mobilenet_v2"),
        ("mobilenet_v2", {"weights": "DEFAULT"}, "weights` would download"),
    ],
)
def test_a_bad_entry_is_explained(tmp_path, entry, args, says):
    with pytest.raises(SourceError, match=says):
        fetch(source(entry=entry, args=args), INPUT, tmp_path, SAMPLES)
    assert not (tmp_path / "model.onnx").exists()


def test_an_input_that_does_not_fit_is_explained(tmp_path):
    with pytest.raises(SourceError, match=r"does not run on an input \[2, 1, 16, 16\]"):
        fetch(source(), INPUT, tmp_path, [np.zeros((1, 1, SIZE, SIZE), np.float32)])
    with pytest.raises(SourceError, match="there is none"):
        fetch(source(), INPUT, tmp_path, [])


def test_a_failing_exporter_points_to_the_other(tmp_path, capfd):
    # A branch on the data, which torch.export cannot follow.
    with pytest.raises(SourceError, match="the dynamo exporter fails") as caught:
        fetch(source(entry="mynets:Stuck"), INPUT, tmp_path, SAMPLES)
    assert "exporter: torchscript" in caught.value.mend
    assert len(caught.value.problem) < 400
    assert capfd.readouterr() == ("", "")


def test_a_graph_that_torchscript_cannot_write_is_not_printed(tmp_path, capfd):
    # By compiled code, past `sys.stdout`: all of it, in front of the error.
    with pytest.raises(SourceError, match="the torchscript exporter fails: UnsupportedOperatorError") as caught:
        fetch(source(entry="mynets:Unwritten", exporter="torchscript"), INPUT, tmp_path, SAMPLES)
    assert "exporter: dynamo" in caught.value.mend
    assert capfd.readouterr() == ("", "")
    os.write(1, b"heard again")
    assert capfd.readouterr().out == "heard again"


def test_an_export_that_does_not_load_points_to_the_other_exporter(tmp_path):
    """GridSample of integers stands for what an exporter writes and ONNX Runtime has no kernel for."""
    graph = """<ir_version: 8, opset_import: ["": 16]> g (int32[1,1,4,4] x, float[1,2,2,2] at) => (int32[1,1,2,2] y)
        { y = GridSample(x, at) }"""
    onnx.save(onnx.parser.parse_model(graph), tmp_path / "model.onnx")
    for exporter, other in (("dynamo", "torchscript"), ("torchscript", "dynamo")):
        with pytest.raises(ModelRunError, match="fp32: ONNX Runtime cannot load") as caught:
            loaded_session(source(exporter=exporter), tmp_path / "model.onnx", "fp32")
        assert f"`source.exporter: {other}`" in caught.value.mend
    with pytest.raises(ModelRunError) as caught:
        loaded_session(OnnxSource(kind="onnx", file="x.onnx"), tmp_path / "model.onnx", "fp32")
    assert "exporter" not in caught.value.mend


def test_a_module_with_a_fixed_batch_is_not_exported_as_dynamic(tmp_path):
    with pytest.raises(SourceError, match="the dynamo exporter fails") as caught:
        fetch(source(entry="mynets:FixedBatch"), INPUT, tmp_path, SAMPLES)
    assert "dynamic_batch: false" in caught.value.mend


# ---------------------------------------------------------------- torch: torchvision's architectures


def torchvision_state(name, path, **args):
    from torchvision import models

    torch.manual_seed(0)
    module = models.get_model_builder(name)(weights=None, **args)
    torch.save(module.state_dict(), path)


def test_a_torchvision_name_builds_its_architecture(tmp_path):
    torchvision_state("squeezenet1_1", tmp_path / "w.pth", num_classes=5)
    wide = [np.random.default_rng(0).random((1, 3, 64, 64), np.float32)]
    fetched = fetch(source(entry="squeezenet1_1", file=str(tmp_path / "w.pth"), args={"num_classes": 5}), INPUT, tmp_path, wide)
    same(tmp_path / "model.onnx", fetched.reference, wide[0])
    assert fetched.model.graph[0].name == "features.0/Conv"


@pytest.mark.parametrize("in_file", [True, False])
def test_inception_loads_with_or_without_the_auxiliary_head(tmp_path, in_file):
    from octavo.sources.torch_module import module_of
    from octavo.sources.torch_weights import read_state

    torchvision_state("inception_v3", tmp_path / "w.pth", init_weights=False, aux_logits=in_file)
    assert any(key.startswith("AuxLogits.") for key in read_state(tmp_path / "w.pth")) is in_file
    module = module_of(source(entry="inception_v3", file=str(tmp_path / "w.pth"), args={"transform_input": True}))
    assert module.transform_input
    assert (module.AuxLogits is not None) is in_file
    with torch.no_grad():
        assert module(torch.zeros(1, 3, 96, 96)).shape == (1, 1000)


@pytest.mark.slow
def test_inception_exports_the_main_logits_only(tmp_path):
    torchvision_state("inception_v3", tmp_path / "w.pth", init_weights=False)
    image = [np.random.default_rng(0).random((1, 3, 96, 96), np.float32)]
    fetched = fetch(
        source(entry="inception_v3", file=str(tmp_path / "w.pth"), args={"transform_input": True}), INPUT, tmp_path, image
    )
    assert fetched.output_names == ("output",)
    assert not any("AuxLogits" in name for name in fetched.model.graph.initializers)
    same(tmp_path / "model.onnx", fetched.reference, image[0])


def test_a_segmentation_nets_auxiliary_head_is_left_out(tmp_path):
    from octavo.sources.torch_export import named_outputs
    from octavo.sources.torch_module import module_of

    torchvision_state("lraspp_mobilenet_v3_large", tmp_path / "plain.pth", weights_backbone=None)
    torchvision_state("deeplabv3_mobilenet_v3_large", tmp_path / "w.pth", weights_backbone=None, aux_loss=True)
    module_of(source(entry="lraspp_mobilenet_v3_large", file=str(tmp_path / "plain.pth")))
    for args, outputs in (({}, ["out"]), ({"aux_loss": True}, ["out", "aux"])):
        module = module_of(source(entry="deeplabv3_mobilenet_v3_large", file=str(tmp_path / "w.pth"), args=args))
        with torch.no_grad():
            assert list(named_outputs(module(torch.zeros(1, 3, 32, 32)))) == outputs


# ---------------------------------------------------------------- ONNX files


def onnx_file(path, text):
    save(ir.from_onnx_text(text), path)
    return OnnxSource(kind="onnx", file=str(path))


FIXED = """<ir_version: 7, opset_import: ["": 11]> detect (float[1,3,16,16] image) => (float[1,768,2] scores)
<float[2] two = {1, -1}, int64[3] shape = {1, 768, 1}> { r = Reshape(image, shape) s = Mul(r, two) scores = Softmax<axis=2>(s) }"""


def test_an_onnx_file_is_cleaned_and_stays_fixed(tmp_path):
    fetched = fetch(onnx_file(tmp_path / "m.onnx", FIXED), INPUT, tmp_path, SAMPLES)
    assert fetched.reference is None
    assert (fetched.input_name, fetched.output_names) == ("image", ("scores",))
    assert "opset converted from 11 to 18" in fetched.notes
    written = load(tmp_path / "model.onnx")
    assert list(written.graph.inputs[0].shape) == [1, 3, 16, 16]
    assert all(node.name for node in written.graph)
    np.testing.assert_allclose(
        run(tmp_path / "model.onnx", SAMPLES[0])["scores"], run(tmp_path / "m.onnx", SAMPLES[0])["scores"], atol=1e-6
    )


@pytest.mark.parametrize("cast", ["f = Cast<to=1>(image)", "t = Transpose<perm=[0, 2, 1, 3]>(image) f = Cast<to=1>(t)"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_pixels_that_a_file_takes_as_whole_numbers_become_uint8(tmp_path, kind, cast):
    """MoveNet and other files out of TensorFlow."""
    body = "(%s[1,16,16,3] image) => (float[1,16,16,3] y) <float k = {127.5}> { %s y = Div(f, k) }"
    block = onnx_file(tmp_path / "m.onnx", '<ir_version: 8, opset_import: ["": 18]> g ' + body % (kind, cast))
    spec = Input(size=(16, 16), layout="nhwc", dtype="uint8", scale=1)
    fetched = fetch(block, spec, tmp_path, [])
    assert any(f"'image' is {kind} in the file" in note for note in fetched.notes)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), np.uint8)
    made = run(tmp_path / "model.onnx", pixels)
    np.testing.assert_array_equal(made["y"], run(tmp_path / "m.onnx", pixels.astype(kind))["y"])
    assert compare_with_file(block.file, "image", spec, [pixels], [made]) == []
    image = described(tmp_path / "m.onnx")["image_input"]
    assert image == {"name": "image", "layout": "nhwc", "dtype": kind}


def test_an_onnx_files_batch_is_made_dynamic_when_asked(tmp_path):
    block = onnx_file(tmp_path / "m.onnx", FIXED).model_copy(update={"dynamic_batch": True})
    fetched = fetch(block, INPUT, tmp_path, SAMPLES)
    assert any("batch dimension was made dynamic" in note for note in fetched.notes)
    alone = np.concatenate([run(tmp_path / "m.onnx", sample)["scores"] for sample in SAMPLES])
    np.testing.assert_allclose(run(tmp_path / "model.onnx", np.concatenate(SAMPLES))["scores"], alone, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    ("sides", "layout", "named"), [("3,h,w", "nchw", False), ("16,16,3", "nhwc", False), ("1,h,w", "nchw", True)]
)
def test_an_image_without_a_batch_dimension_gets_one(tmp_path, sides, layout, named, opset):
    """torchvision's detectors as torch.onnx.export writes them."""
    inputs = f"(float[{sides}] image, float[2] other) => (float[n] y) "
    body = inputs + "{ a = Relu(image) b = Abs(a) y = Flatten<axis=0>(b) }"
    block = onnx_file(tmp_path / "m.onnx", f'<ir_version: 7, opset_import: ["": {opset}]> g ' + body)
    block = block.model_copy(update={"dynamic_batch": True})
    spec = Input(size=(16, 16), layout=layout, name="image" if named else None, others={"other": [0]})
    fetched = fetch(block, spec, tmp_path, [])
    assert fetched.input_name == "image"
    assert any("no batch dimension" in note for note in fetched.notes)
    assert not any("made dynamic" in note for note in fetched.notes)
    image = (
        np.random.default_rng(0).standard_normal((1, *(int(s) if s.isdigit() else 16 for s in sides.split(",")))).astype(np.float32)
    )
    others = {"other": np.zeros(2, np.float32)}
    made = Session(tmp_path / "model.onnx").run({"image": image, **others})
    np.testing.assert_array_equal(made["y"], Session(tmp_path / "m.onnx").run({"image": image[0], **others})["y"])
    assert compare_with_file(block.file, "image", spec, [image], [made]) == []
    with pytest.raises(SourceError, match=r"m\.onnx"):
        compare_with_file(block.file, "image", spec, [image], [{"y": made["y"] + 1}])
    found = described(tmp_path / "m.onnx", input_name=spec.name)
    assert found["image_input"]["layout"] == layout
    assert len(found["inputs"][0]["shape"]) == 3
    assert any("no batch dimension in the file" in note for note in found["notes"])


def test_features_are_no_image(tmp_path):
    """A sequence of vectors has three dimensions, too."""
    block = onnx_file(
        tmp_path / "m.onnx", '<ir_version: 8, opset_import: ["": 18]> g (float[1,80,t] x) => (float[1,80,t] y) { y = Abs(x) }'
    )
    with pytest.raises(SourceError, match="no input of the graph has four dimensions"):
        fetch(block, INPUT, tmp_path, [])


def test_an_onnx_file_with_external_data_is_taken_in(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    weights = np.random.default_rng(0).standard_normal((768, 100)).astype(np.float32)  # large enough to stay mapped
    model = ir.from_onnx_text(
        """<ir_version: 7, opset_import: ["": 13]> g (float[1,3,16,16] image) => (float[1,100] y) {
        f = Flatten(image) y = MatMul(f, w) }""".replace("y) {", "y) <float[1,1] w = {0}> {")
    )
    model.graph.initializers["w"].const_value = ir.tensor(weights, name="w")
    model.graph.initializers["w"].shape = ir.Shape([768, 100])
    save(model, tmp_path / "in" / "m.onnx", inline_limit=0)
    assert (tmp_path / "in" / "m.data").stat().st_size == weights.nbytes
    fetched = fetch(OnnxSource(kind="onnx", file=str(tmp_path / "in" / "m.onnx")), INPUT, tmp_path / "out", SAMPLES)
    assert isinstance(fetched.model.graph.initializers["w"].const_value, ir.ExternalTensor)
    np.testing.assert_allclose(
        run(tmp_path / "out" / "model.onnx", SAMPLES[0])["y"], SAMPLES[0].reshape(1, 768) @ weights, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '<ir_version: 8, opset_import: ["": 18, "trt": 1]> g (float[1,3,4,4] x) => (float[1] y) { [n] y = trt.NMS(x) }',
            "nothing lies before the custom operator 'NMS'",
        ),
        ('<ir_version: 8, opset_import: ["": 18]> g (int64[1,3] ids) => (int64[1,3] y) { y = Neg(ids) }', "no float input"),
        (
            """<ir_version: 8, opset_import: ["": 18]> g (float[1,3,4,4] x) => (float[1,3,4,4] y)
            <float s = {0.1}, uint8 z = {0}> { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""",
            "quantized already",
        ),
        (
            """<ir_version: 8, opset_import: ["": 18]> g (float[1,3,4,4] x) => (float16[1,3,4,4] y)
            <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {
                h = Cast<to = 10>(x) v = Cast<to = 10>(w) [layer] y = MatMul(h, v) }""",
            "weights of MatMul 'layer' are float16",
        ),
        (
            '<ir_version: 8, opset_import: ["": 18]> g (float[1,3,4,4] a, float[1,3,4,4] b) => (float[1,3,4,4] y) { y = Add(a,b) }',
            "several inputs",
        ),
    ],
)
def test_an_onnx_file_that_cannot_be_used_is_named(tmp_path, text, says):
    block = onnx_file(tmp_path / "m.onnx", text)
    with pytest.raises(SourceError, match=says) as caught:
        fetch(block, INPUT, tmp_path, SAMPLES)
    assert str(tmp_path / "m.onnx") in caught.value.problem
    assert not (tmp_path / "model.onnx").exists()


def test_an_onnx_file_needs_no_torch(tmp_path):
    onnx_file(tmp_path / "m.onnx", FIXED)
    program = f"""
import sys, pathlib
sys.modules["torch"] = None  # an import of it raises
from octavo.errors import SourceError
from octavo.params.grammar import Input, OnnxSource, TorchSource
from octavo.sources import fetch
folder = pathlib.Path({str(tmp_path)!r})
fetch(OnnxSource(kind="onnx", file=str(folder / "m.onnx")), Input(size=(16, 16)), folder, [])
try:
    fetch(TorchSource(kind="torch", entry="a:b", file="w.pth"), Input(size=(16, 16)), folder, [])
except SourceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs 'torch', which is not installed" in done.stdout
    assert (tmp_path / "model.onnx").is_file()


HEAD = '<ir_version: 8, opset_import: ["": 18]> g (float[1,3,16,16] image)'
FILES = {
    "values": HEAD + " => (float[1,3,16,16] y) { y = Abs(image) }",
    "counts": HEAD + " => (uint8[1,3,16,16] y) { a = Mul(image, image) y = Cast<to=2>(a) }",
    "rows": HEAD
    + """ => (float[1,5,16] v, int64[1,5,16] i) <int64[1] k = {5}, int64[1] one = {1}>
        { s = ReduceMean<keepdims=0>(image, one) v, i = TopK<axis=1>(s, k) }""",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_graph_is_held_against_the_file_it_was_made_of(tmp_path, kind):
    file = onnx_file(tmp_path / "m.onnx", FILES[kind]).file
    outputs = [run(file, image) for image in SAMPLES]
    settings = {"selecting": kind == "rows"}
    assert compare_with_file(file, "image", INPUT, SAMPLES, outputs, **settings) == []
    with pytest.raises(SourceError, match=r"m\.onnx"):
        other = [{name: value + 1 for name, value in each.items()} for each in outputs]
        compare_with_file(file, "image", INPUT, SAMPLES, other, **settings)
    with pytest.raises(SourceError, match=r"puts out \['z'"):
        renamed = [{name.replace("y", "z").replace("v", "z"): value for name, value in each.items()} for each in outputs]
        compare_with_file(file, "image", INPUT, SAMPLES, renamed, **settings)


def test_a_file_of_several_images_a_batch_is_filled_with_one(tmp_path):
    file = onnx_file(tmp_path / "m.onnx", FILES["values"].replace("[1,", "[4,")).file
    assert compare_with_file(file, "image", INPUT, SAMPLES, [{"y": np.abs(image)} for image in SAMPLES]) == []
    with pytest.raises(SourceError, match=r"m\.onnx"):
        compare_with_file(file, "image", INPUT, SAMPLES, [{"y": image - 1} for image in SAMPLES])
    with pytest.raises(ModelRunError, match="it takes 4 images at a time") as told:
        Session(file).run({"image": SAMPLES[0]})
    assert "source.dynamic_batch: true" in told.value.mend
