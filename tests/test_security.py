"""What others may write (models, images, annotations, packages, checkpoints) held at the door: crafted files, the real attacks."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
import yaml
from conftest import CLASSES, ROOT, project_params, small_network, write_images
from forked import run_octavo, run_stage
from PIL import EpsImagePlugin, Image, ImageFile

from octavo.calibration.statistics import Statistics
from octavo.deploy.artifact import artifacts
from octavo.deploy.loader import load as load_package
from octavo.deploy.pictures import pixels_of
from octavo.deploy.registry.committed import shown_url
from octavo.deploy.registry.fetch import fetch
from octavo.errors import (
    CalibrationError,
    DataError,
    OctavoError,
    ParamsError,
    QuantizationError,
    RegistryError,
    SourceError,
)
from octavo.files import read_json, sha256_file, write_json
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load as load_graph
from octavo.images.dataset import Images, open_set
from octavo.images.decode import decode, read_image, read_shape
from octavo.images.formats.places import annotations_path
from octavo.images.masks import Mask
from octavo.images.preprocess import preprocess
from octavo.images.purpose import open_images
from octavo.intake.written import append_entry
from octavo.manifest import read_manifest
from octavo.params import load, load_model, load_sets
from octavo.params.grammar import Data, ImageSet, Input, Resize, UltralyticsSource
from octavo.params.places import inside

CANARY = "canary7h3"


# ---------------------------------------------------------------- pickles


class Evil:
    """What a pickle can do: its loading makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def evil(tmp_path) -> Evil:
    """One that works: what refuses it has refused something."""
    made = Evil(tmp_path / "pwned")
    pickle.loads(pickle.dumps(made))  # noqa: S301 - that is the point
    made.folder.rmdir()
    return made


def archive(path: Path, content: object) -> None:
    """A .pth as torch writes it today: a zip with the pickle in it."""
    import torch

    torch.save(content, path)


class TestPickles:
    @pytest.mark.parametrize("form", ["pickle", "torch", "nested", "renamed"])
    def test_weights_of_a_source(self, project, evil, form):
        path = Path("evil.safetensors" if form == "renamed" else "evil.pth")
        if form == "pickle":
            path.write_bytes(pickle.dumps({"weight": evil}, protocol=2))
        else:
            archive(path, {"state_dict": {"weight": evil}} if form == "nested" else {"weight": evil})
        params = project_params(source={"kind": "torch", "entry": "mobilenet_v2", "file": path.name})
        Path("params.yaml").write_text(yaml.safe_dump(params))
        done = run_stage("export", "--model", "small")
        assert done.returncode == 2
        # By its suffix torch takes the last for what it is not.
        told = "truncated or not a torch file" if form == "renamed" else "a pickle that wants to run code (posix.mkdir)"
        assert f"error: {path}: is {told}" in done.stderr
        assert "Traceback" not in done.stderr
        assert not evil.folder.exists()
        assert not Path("models/small/fp32").exists()

    def test_a_checkpoint_of_training(self, tmp_path, evil):
        from octavo.qat import checkpoint

        archive(tmp_path / "last.pt", {"key": {}, "step": 1, "model": {"w": evil}, "optimizer": {}})
        with pytest.raises(QuantizationError, match=r"last\.pt is no checkpoint that can be read.*Weights only load failed"):
            checkpoint.Checkpoint.load(tmp_path / "last.pt", {})
        assert not evil.folder.exists()
        # torch's own way out is to run it.
        for damage in (np.random.default_rng(0).bytes(5000), b""):
            (tmp_path / "last.pt").write_bytes(damage)
            with pytest.raises(QuantizationError, match=r"no checkpoint that can be read: .*\n  to mend: start anew: ") as told:
                checkpoint.Checkpoint.load(tmp_path / "last.pt", {})
            assert "weights_only" not in str(told.value)

    def test_statistics(self, tmp_path, evil):
        write_json(tmp_path / "statistics.json", {})
        np.savez(tmp_path / "statistics.npz", names=np.array([evil], object))
        with pytest.raises(CalibrationError, match="damaged statistics.*allow_pickle=False"):
            Statistics.load(tmp_path)
        (tmp_path / "statistics.npz").write_bytes(pickle.dumps(evil))
        with pytest.raises(CalibrationError, match="damaged statistics"):
            Statistics.load(tmp_path)
        assert not evil.folder.exists()

    def test_statistics_that_say_they_are_huge(self, tmp_path):
        write_json(tmp_path / "statistics.json", {})
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)})
        import zipfile

        with zipfile.ZipFile(tmp_path / "statistics.npz", "w") as made:
            made.writestr("names.npy", header.getvalue())
        with pytest.raises(CalibrationError, match="damaged statistics"):
            Statistics.load(tmp_path)

    def test_outputs_of_the_torch_module(self, tmp_path, evil):
        from octavo.evidence.baseline import torch_baseline

        np.savez(tmp_path / "torch_outputs.npz", **{"0/y": np.array([evil], object)})
        with pytest.raises(DataError, match="torch_outputs.npz is damaged"):
            torch_baseline(tmp_path, None, "x", None)
        assert not evil.folder.exists()

    def test_a_transformers_folder_without_safetensors(self, tmp_path, evil):
        from octavo.sources import transformers_model

        write_json(tmp_path / "config.json", {"model_type": "rt_detr"})
        archive(tmp_path / "pytorch_model.bin", {"weight": evil})
        source = types.SimpleNamespace(file=str(tmp_path))
        with pytest.raises(SourceError, match=r"has no model\.safetensors"):
            transformers_model.module_of(source)
        (tmp_path / "model.safetensors").write_bytes((tmp_path / "pytorch_model.bin").read_bytes())
        with pytest.raises(SourceError, match="transformers cannot read it"):
            transformers_model.module_of(source)
        assert not evil.folder.exists()

    def test_kernels_that_a_config_would_download(self, tmp_path):
        from octavo.sources import transformers_model

        (tmp_path / "model.safetensors").write_bytes(b"")
        write_json(
            tmp_path / "config.json", {"model_type": "rt_detr", "backbone_config": {"attn_implementation": "someone/kernel"}}
        )
        with pytest.raises(SourceError, match="names the kernels 'someone/kernel'"):
            transformers_model.module_of(types.SimpleNamespace(file=str(tmp_path)))

    def test_ultralytics(self, tmp_path, evil, monkeypatch):
        """Its package is none of ours; what stands before it is."""

        class Built:
            def __init__(self, found: dict, **_: object) -> None:
                eval(found["activation"])  # noqa: S307 - as theirs does

        tasks = types.ModuleType("ultralytics.nn.tasks")
        tasks.DetectionModel = tasks.RTDETRDetectionModel = Built
        tasks.yaml_model_load = lambda path: yaml.safe_load(Path(path).read_text())
        for name in ("ultralytics", "ultralytics.nn"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, "ultralytics.nn.tasks", tasks)
        monkeypatch.delitem(sys.modules, "octavo.sources.ultralytics_model", raising=False)
        from octavo.sources.ultralytics_model import module_of

        archive(tmp_path / "x.pt", evil)
        archive(tmp_path / "x.pth", {"weight": __import__("torch").zeros(1)})
        spec = {"activation": f"__import__('os').mkdir({str(evil.folder)!r})", "head": [[-1, 1, "Detect", []]]}
        (tmp_path / "x.yaml").write_text(yaml.safe_dump(spec))
        for entry, file, told in (
            ("x.yaml", "x.pt", "an ultralytics .pt is a pickle of a whole module"),
            ("https://example.org/x.yaml", "x.pth", "is a URL"),
            ("x.yaml", "x.pth", "`activation` .* is no activation of torch"),
        ):
            where = entry if "://" in entry else str(tmp_path / entry)
            with pytest.raises(SourceError, match=told):
                module_of(UltralyticsSource(kind="ultralytics", entry=where, file=str(tmp_path / file)))
        monkeypatch.delitem(sys.modules, "octavo.sources.ultralytics_model")
        assert not evil.folder.exists()

    @pytest.mark.parametrize("entry", ["../evil:make", "/srv/evil:make", "os:system;x", "a b:c", "evil/x:make", ":make", "evil:"])
    def test_a_factory_by_a_path(self, project, entry):
        from octavo.sources.torch_build import build

        Path("evil.py").write_text("raise SystemExit('ran')")
        with pytest.raises(SourceError, match="is not of the form|cannot be found|cannot be imported") as caught:
            build(entry, {}, [])
        assert "ran" not in str(caught.value)


# ---------------------------------------------------------------- images


def png(rows: int, columns: int, *, before: bytes = b"", depth: int = 1) -> bytes:
    """A whole PNG of zeros, grey, one bit a pixel: 60000 x 60000 pixels are some hundred kilobytes."""
    packer, line, data = zlib.compressobj(1), bytes(1 + -(-columns * depth // 8)), b""
    for _ in range(rows):
        data += packer.compress(line)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, depth, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + before + chunk(b"IDAT", data + packer.flush()) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def liar(form: str) -> bytes:
    """A small file whose header says 60000 x 60000, or the most that its format has."""
    made = io.BytesIO()
    Image.new("RGB", (8, 8)).save(made, form)
    data = bytearray(made.getvalue())
    if form == "BMP":
        data[18:26] = struct.pack("<ii", 60000, 60000)
    elif form == "GIF":
        data[6:10] = struct.pack("<HH", 60000, 60000)
    elif form == "JPEG":
        place = data.index(b"\xff\xc0") + 5
        data[place : place + 4] = struct.pack(">HH", 60000, 60000)
    elif form == "TIFF":
        for place in range(4, len(data) - 8):
            if data[place : place + 8] in (struct.pack("<HHI", tag, kind, 1) for tag in (256, 257) for kind in (3, 4)):
                data[place : place + 12] = data[place : place + 2] + struct.pack("<HII", 4, 1, 60000)
    elif form == "PPM":
        return b"P6 60000 60000 255\n" + bytes(64)
    return bytes(data)


@pytest.fixture
def undecoded(monkeypatch) -> None:
    """No pixel may be decoded."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)


@pytest.mark.usefixtures("undecoded")
class TestBombs:
    @pytest.mark.parametrize("form", ["BMP", "GIF", "JPEG", "TIFF", "PPM"])
    def test_headers_that_say_too_much(self, form):
        with pytest.raises(DataError, match="x is (60000x60000 pixels|too large|not a readable image: image dimensions)"):
            decode(liar(form), "x")

    def test_a_png_of_few_bytes(self, tmp_path):
        data = png(60000, 60000)
        assert len(data) < 2_000_000
        (tmp_path / "bomb.png").write_bytes(data)
        for read in (read_image, read_shape):
            with pytest.raises(DataError, match=r"bomb\.png is too large: Image size \(3600000000 pixels\)"):
                read(tmp_path / "bomb.png")

    def test_between_our_limit_and_pillow_s_the_setting_is_named(self, tmp_path):
        (tmp_path / "large.png").write_bytes(png(12000, 12000))
        with pytest.raises(
            DataError, match=r"large\.png is 12000x12000 pixels, more than `max_pixels` 100000000\n.*data\.max_pixels"
        ):
            read_image(tmp_path / "large.png")
        assert read_shape(tmp_path / "large.png") == (12000, 12000)

    def test_masks_are_held_against_their_image_first(self, tmp_path):
        (tmp_path / "mask.png").write_bytes(png(12000, 12000))
        for colours in ({}, {(0, 0, 0): 0}):
            with pytest.raises(DataError, match=r"mask\.png is 12000x12000 pixels, its image 40x48"):
                Mask(tmp_path / "mask.png", {}, None, colours).read((40, 48), 2, None)
        (tmp_path / "mask.png").write_bytes(png(60000, 60000))
        with pytest.raises(DataError, match=r"mask\.png is too large"):
            Mask(tmp_path / "mask.png", {}, None, {}).read((40, 48), 2, None)

    @pytest.mark.filterwarnings("ignore:Image size")
    def test_a_deployed_model(self, tmp_path):
        data = png(12000, 12000)
        (tmp_path / "large.png").write_bytes(data)
        with Image.open(tmp_path / "large.png") as opened:
            for picture in (data, tmp_path / "large.png", str(tmp_path / "large.png"), opened):
                with pytest.raises(DataError, match="12000x12000 pixels, more than `max_pixels`"):
                    pixels_of(picture, "image 0")

    def test_what_is_no_image_starts_nothing(self, monkeypatch):
        """Pillow hands PostScript to Ghostscript, whatever the file's name."""
        monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
        postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
        assert Image.open(io.BytesIO(postscript)).format == "EPS"
        with pytest.raises(DataError, match=r"photo\.png is not a readable image"):
            decode(postscript, "photo.png")


class TestImages:
    @pytest.mark.parametrize("kind", [b"zTXt", b"iCCP", b"iTXt"])
    def test_compressed_chunks_that_blow_up(self, kind):
        packed = zlib.compress(bytes(200_000_000), 9)
        head = {b"zTXt": b"a\0\0", b"iCCP": b"a\0\0", b"iTXt": b"a\0\1\0\0\0"}[kind]
        with pytest.raises(DataError, match="x is not a readable image: .*(too large|Text|large)"):
            decode(png(4, 4, before=chunk(kind, head + packed)), "x")

    def test_the_limit_is_a_setting_and_bad_images_are_skipped(self, tmp_path):
        write_images(tmp_path, 3, seed=1)
        (tmp_path / "wide.png").write_bytes(png(50, 60))
        images = ImageSet(format="folder", path=str(tmp_path))
        spec = Input(size=(32, 32))
        data = Data(calibration=images, validation=images, on_bad_image="skip", max_pixels=2000)
        read = Images(open_images(data, "calibration", "m.data"), spec, data.on_bad_image)
        assert len(list(read)) == 3
        assert read.skipped == ["wide.png: wide.png is 50x60 pixels, more than `max_pixels` 2000"]
        with pytest.raises(DataError, match=r"wide\.png is 50x60"):
            list(Images(open_images(data, "calibration", "m.data"), spec))
        larger = data.model_copy(update={"max_pixels": 3000})
        assert len(list(Images(open_images(larger, "calibration", "m.data"), spec))) == 4

    def test_a_stage_names_the_file_its_size_and_the_setting(self, project):
        Path("images/calibration/bomb.png").write_bytes(png(12000, 12000))
        done = run_stage("export", "--model", "small")
        assert done.returncode == 2
        assert "images/calibration/bomb.png is 12000x12000 pixels, more than `max_pixels` 100000000" in done.stderr
        params = project_params()
        params["models"]["small"]["data"] |= {"on_bad_image": "skip"}
        Path("params.yaml").write_text(yaml.safe_dump(params))
        assert run_stage("export", "--model", "small").returncode == 0
        done = run_stage("calibrate", "--model", "small")
        assert "skipped: bomb.png: bomb.png is 12000x12000 pixels" in done.stdout

    def test_more_than_pillow_reads_cannot_be_asked_for(self, tmp_path):
        params = project_params()
        params["models"]["small"]["data"]["max_pixels"] = 10**9
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(params))
        with pytest.raises(ParamsError, match=r"data\.max_pixels: input should be less than or equal to 178956970"):
            load(tmp_path / "p.yaml")

    def test_a_narrow_image_is_not_blown_up(self):
        narrow = np.zeros((1, 60000, 3), np.uint8)
        spec = Input(size=(224, 224), resize=Resize(rule="shorter", to=256), crop="center")
        with pytest.raises(DataError, match="an image of 1x60000 pixels would be resized to 256x15360000"):
            preprocess(narrow, spec)
        assert preprocess(narrow, Input(size=(32, 32), resize=Resize(rule="letterbox"))).shape == (1, 3, 32, 32)

    @pytest.mark.parametrize(
        ("block", "key"),
        [
            ({"input": {"size": [100_000, 100_000]}}, "input.size.0"),
            ({"input": {"size": [32, 32], "resize": {"rule": "shorter", "to": 10**7}, "crop": "center"}}, "input.resize.to"),
            ({"benchmark": {"resolutions": [10**6]}}, "benchmark.resolutions.0"),
            ({"benchmark": {"resolutions": [[64, 10**6]]}}, "benchmark.resolutions.0"),
        ],
    )
    def test_absurd_sizes_in_params(self, tmp_path, block, key):
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(project_params(**block)))
        with pytest.raises(ParamsError, match=rf"models\.small\.{key}(.|\n)*less than or equal to 8192"):
            load(tmp_path / "p.yaml")

    def test_exif_and_frames(self, tmp_path):
        """The first frame counts, turned as its EXIF data says; a file that ends early is an error."""
        frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue")]
        exif = Image.Exif()
        exif[0x0112] = 6
        for form in ("PNG", "WEBP", "TIFF"):
            made = io.BytesIO()
            options = {"lossless": True} if form == "WEBP" else {}
            frames[0].save(made, form, save_all=True, append_images=frames[1:], exif=exif, **options)
            assert decode(made.getvalue(), "x").shape == (20, 10, 3)
            assert decode(made.getvalue(), "x")[0, 0].tolist() == [255, 0, 0]
            (tmp_path / "x").write_bytes(made.getvalue())
            assert read_shape(tmp_path / "x") == (20, 10)
            with pytest.raises(DataError, match="x is not a readable image"):
                decode(made.getvalue()[:60], "x")


# ---------------------------------------------------------------- graphs


def graph(folder: Path, dims: list[int], *, raw: bytes | None = None, floats: int = 0, **external: object) -> Path:
    """One MatMul whose weights are said to be of these dimensions, and lie in the file or elsewhere."""
    weights = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=dims)
    if raw is not None:
        weights.raw_data = raw
    weights.float_data.extend([0.5] * floats)
    for key, value in external.items():
        weights.data_location = onnx.TensorProto.EXTERNAL
        weights.external_data.add(key=key, value=str(value))
    made = oh.make_graph(
        [oh.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
        [weights],
    )
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(oh.make_model(made, opset_imports=[oh.make_opsetid("", 18)], ir_version=8).SerializeToString())
    return path


class TestTelemetry:
    def test_onnx_runtime_reports_to_nobody(self, tmp_path):
        """What it would report goes out after ten seconds; the file that it begins with, `.ses`, lies there at once."""
        onnx.save(small_network(), tmp_path / "model.onnx")
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        # This process has set it, as every one that imports octavo.
        others = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
        program = "from octavo.runtime.session import Session; Session('model.onnx')"
        # Nothing gets out in any case.
        nowhere = {"https_proxy": "http://127.0.0.1:9", "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=others | nowhere, check=True)
        assert list(scratch.iterdir()) == []


class TestGraphs:
    @pytest.fixture
    def place(self, tmp_path) -> Path:
        """A folder for the model, beside weights that are not its own."""
        (tmp_path / "secret.bin").write_bytes(bytes(64))
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
        (folder / "up").symlink_to(tmp_path)
        os.link(tmp_path / "secret.bin", folder / "hard.bin")
        return folder

    @pytest.mark.parametrize(
        ("location", "told"),
        [
            ("{}/secret.bin", "weights lie outside its folder"),
            ("../secret.bin", "weights lie outside its folder"),
            ("a/../../secret.bin", "weights lie outside its folder"),
            ("link.bin", "is a link to"),
            ("up/secret.bin", "is a link to"),
            ("hard.bin", r"is a link \(hard\)"),
            ("..\\secret.bin", "is missing"),
            ("", "is missing"),
            (".", "is missing"),
        ],
    )
    def test_weights_elsewhere(self, place, location, told):
        path = graph(place, [4, 4], location=location.format(place.parent))
        with pytest.raises(SourceError, match=told):
            load_graph(path)

    def test_the_commands_say_so(self, place):
        path = graph(place, [4, 4], location="../secret.bin")
        for command in (("inspect", path), ("init", path, "--task", "classification", "--data", place)):
            done = run_octavo(place, tuple(map(str, command)), os.environ)
            assert done.returncode == 2
            assert "its weights lie outside its folder, in '../secret.bin'" in done.stderr
            assert "Traceback" not in done.stderr

    def test_weights_beside_are_read(self, tmp_path):
        path = graph(tmp_path / "m", [4, 4], location="w.bin")
        (tmp_path / "m/w.bin").write_bytes(bytes(64))
        assert load_graph(path).graph.initializers["w"].shape.numpy() == (4, 4)

    @pytest.mark.parametrize(
        ("dims", "stored"),
        [
            ([10**6, 10**6], {"raw": bytes(64)}),
            ([10**6, 10**6], {"floats": 16}),
            ([2**62] * 8, {"raw": bytes(64)}),
            ([-4, 4], {"raw": bytes(64)}),
            ([4, 5], {"raw": bytes(64)}),
            ([10**6, 10**6], {"location": "w.bin", "length": 64}),
            ([2**62] * 8, {"location": "w.bin", "length": 64}),
        ],
    )
    def test_dimensions_without_data(self, tmp_path, dims, stored):
        path = graph(tmp_path, dims, **stored)
        (tmp_path / "w.bin").write_bytes(bytes(64))
        with pytest.raises(SourceError, match=r"model\.onnx: tensor 'w' says .* and has \d+ bytes of data"):
            load_graph(path)

    def test_a_file_too_short_for_its_dimensions(self, tmp_path):
        path = graph(tmp_path, [10**6, 10**6], location="w.bin")
        (tmp_path / "w.bin").write_bytes(bytes(64))
        with pytest.raises(SourceError, match="is truncated"):
            load_graph(path)


# ---------------------------------------------------------------- paths


class TestPaths:
    @pytest.mark.parametrize("path", ["a", "a/../b", "./a", "a/b/../../c", "."])
    def test_inside(self, tmp_path, path):
        assert inside(path, [tmp_path])
        assert inside(tmp_path / path, [tmp_path])

    @pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/etc/passwd", "/", "../{}x/y"])
    def test_outside(self, tmp_path, path):
        assert not inside(path.format(tmp_path.name), [tmp_path])
        assert not inside(f"{tmp_path}x", [tmp_path])

    def test_links(self, tmp_path):
        """DVC's links into a cache elsewhere stay good; `..` behind a link is where the link leads."""
        project, cache = tmp_path / "project", tmp_path / "cache/deep/er"
        project.mkdir()
        cache.mkdir(parents=True)
        (project / "data").symlink_to(cache)
        assert inside("data/x", [project])
        assert not inside("data/../x", [project])
        assert inside("data/../x", [project, "../cache"])
        assert inside(tmp_path / "cache/y", [project, "../cache"])
        (tmp_path / "alias").symlink_to(project)
        assert inside(project / "a", [tmp_path / "alias"])

    @pytest.mark.parametrize(
        ("key", "block"),
        [
            ("source.file", {"source": {"kind": "onnx", "file": "{}"}}),
            ("source.file", {"source": {"kind": "torch", "entry": "a:b", "file": "{}"}}),
            ("source.file", {"source": {"kind": "transformers", "file": "{}"}}),
            ("source.entry", {"source": {"kind": "ultralytics", "entry": "{}", "file": "w.pth"}}),
            ("source.custom_ops.My", {"source": {"kind": "onnx", "file": "a.onnx", "custom_ops": {"My": "{}"}}}),
            ("int8.placement", {"int8": {"placement": "table:{}"}}),
            ("data.calibration.path", {"calibration": {"format": "folder", "path": "{}"}}),
            ("data.validation.path", {"validation": {"format": "imagefolder", "path": "{}"}}),
            ("data.train.path", {"train": {"format": "folder", "path": "{}"}}),
            ("data.validation.annotations", {"validation": {"format": "imagefolder", "path": "a", "annotations": "{}"}}),
            ("data.validation.annotations", {"validation": {"format": "coco", "path": "a", "annotations": "../{}"}}),
            ("data.validation.annotations", {"validation": {"format": "masks", "path": "a", "annotations": "../{}"}}),
            ("data.validation.annotations", {"validation": {"format": "coco", "path": "a", "annotations": "/etc/{}"}}),
        ],
    )
    def test_each_path_of_params(self, project, key, block):
        def filled(value: object) -> object:
            if isinstance(value, dict):
                return {name: filled(one) for name, one in value.items()}
            return value.format("../elsewhere/x") if isinstance(value, str) else value

        block = filled(block)
        params = project_params()
        sets = params["models"]["small"]["data"]
        whole = block.keys() <= params["models"]["small"].keys()
        params["models"]["small"] |= block if whole else {}
        sets |= {} if whole else block
        Path("params.yaml").write_text(yaml.safe_dump(params))
        with pytest.raises(ParamsError, match=rf"models\.small\.{re.escape(key)}: .* lies outside the project .*\n.*allow_outside"):
            load_model("params.yaml", "small")
        Path("params.yaml").write_text(yaml.safe_dump(params | {"allow_outside": ["../elsewhere", "/elsewhere"]}))
        assert load_model("params.yaml", "small")

    def test_landmarks_and_heads(self, project):
        params = project_params(
            task={"name": "segmentation", "heads": {"a": {}}}, input={"size": [32, 32]}, validate={"bootstrap": 200}
        )
        heads = {"a": {"annotations": "../../elsewhere"}}
        params["models"]["small"]["data"]["validation"] = {"format": "masks", "path": "images", "heads": heads}
        Path("params.yaml").write_text(yaml.safe_dump(params))
        with pytest.raises(ParamsError, match=r"data\.validation\.heads\.a\.annotations: images/\.\./\.\./elsewhere lies outside"):
            load("params.yaml")

    def test_a_stage_says_so(self, project):
        params = project_params(source={"kind": "onnx", "file": "/etc/hostname"})
        Path("params.yaml").write_text(yaml.safe_dump(params))
        done = run_stage("export", "--model", "small")
        assert done.returncode == 2
        assert "models.small.source.file: /etc/hostname lies outside the project" in done.stderr
        assert "`allow_outside: [/etc/hostname]`" in done.stderr
        assert "Traceback" not in done.stderr

    def test_data_behind_a_link_of_dvc_s(self, project):
        """`cache.type symlink`: files and folders in the tree lead into a cache elsewhere."""
        cache = project.parent / f"{project.name}_cache"
        cache.mkdir()
        for name in ("small.onnx", "images/calibration"):
            shutil.move(name, cache / Path(name).name)
            Path(name).symlink_to(cache / Path(name).name)
        done = run_stage("export", "--model", "small")
        assert done.returncode == 0, done.stderr

    def test_annotations_climb_from_the_set_s_folder_alone(self, project):
        """Below the project the name is looked for as it stands, never above it."""
        (project.parent / "labels.json").write_text("{}")
        images = ImageSet(format="coco", path="images/calibration", annotations="../labels.json")
        with pytest.raises(DataError, match=r"no file or folder images/calibration/\.\./labels\.json$"):
            try:
                annotations_path(Path(images.path), images, "here")
            except DataError as error:
                raise DataError(error.problem) from error
        Path("images/labels.json").write_text("{}")
        assert annotations_path(Path(images.path), images, "here") == Path("images/calibration/../labels.json")

    def test_a_name_with_a_zero_byte(self, project):
        Path("params.yaml").write_text(yaml.safe_dump(project_params(source={"kind": "onnx", "file": "a\0b.onnx"})))
        with pytest.raises(ParamsError, match="lies outside"):
            load("params.yaml")

    def test_names_that_become_folders(self, tmp_path):
        for name in ("../x", "a/b", "hosts", "Hosts", ".hidden", ""):
            (tmp_path / "p.yaml").write_text(yaml.safe_dump({"models": {name: project_params()["models"]["small"]}}))
            with pytest.raises(ParamsError, match="model name"):
                load(tmp_path / "p.yaml")
        for name in ("../x", "/srv/x", "a/b"):
            (tmp_path / "s.yaml").write_text(yaml.safe_dump({"sets": {name: {"scenes": 1, "seed": 1}}}))
            with pytest.raises(ParamsError, match="sets"):
                load_sets(tmp_path / "s.yaml")
        for to in ("../x", "/x", "a/../../x"):
            entry = {"package": "p", "file": "f", "licence": "l", "to": to}
            (tmp_path / "s.yaml").write_text(yaml.safe_dump({"sets": {"a": [entry]}}))
            with pytest.raises(ParamsError, match="must stay inside the set's folder"):
                load_sets(tmp_path / "s.yaml")

    @pytest.mark.parametrize("name", ["../../secret.png", "/etc/hostname", "a/../../x.png", "C:\\x.png", "..\\x.png"])
    @pytest.mark.parametrize("form", ["coco", "yolo", "voc", "pairs"])
    def test_names_inside_annotations(self, tmp_path, form, name):
        root = tmp_path / "set"
        write_images(root / "images", 2, seed=1)
        write_images(tmp_path, 1, seed=2)[0].rename(tmp_path / "secret.png")
        block = {"format": form, "path": str(root)}
        if form == "coco":
            content = {"images": [{"id": 1, "file_name": name}], "annotations": [], "categories": []}
            (root / "instances.json").write_text(json.dumps(content))
        elif form == "pairs":
            (root / "pairs.txt").write_text(f"{name} images/image_1_000.png 1\n")
        else:
            (root / "list.txt").write_text(f"{name}\n")
            block["annotations"] = "list.txt"
        with pytest.raises(DataError, match="leads out of the set's folder"):
            open_set(ImageSet.model_validate(block), "here")


class TestInitAllows:
    LINES = ("task: classification", "source: {kind: onnx, file: ../m.onnx}", "input: {size: [8, 8]}")
    REST = (
        "data: {calibration: {format: folder, path: ../photos}, validation: {format: folder, path: '/mnt/a b'}}",
        "calibrate: {}",
        "fp16: {}",
        "int8: {}",
        "validate: {}",
        "benchmark: {}",
    )
    OUTSIDE = ("../m.onnx", "../photos", "/mnt/a b")

    @pytest.mark.parametrize(
        "head",
        [
            "",
            "# ours\n",
            "models:\n",
            "allow_outside: [/mnt/x]   # a disk\nmodels:\n",
            "allow_outside: []\n\nmodels:\n",
            "allow_outside:   # disks\n- /mnt/x\n- ../photos\nmodels:\n",
            "allow_outside:\r\n    - /mnt/x\r\nmodels:\r\n",
        ],
    )
    def test_the_list_grows_and_the_rest_stays(self, tmp_path, head):
        path = tmp_path / "params.yaml"
        path.write_bytes(head.encode())
        append_entry(path, "mine", [*self.LINES, *self.REST], self.OUTSIDE)
        text = path.read_bytes().decode()
        found = load(path, tmp_path)
        assert set(found.allow_outside) == {*self.OUTSIDE, *(["/mnt/x"] if "/mnt/x" in head else [])}
        assert len(found.allow_outside) == len(set(found.allow_outside))
        assert ("\r\n" in text) == ("\r\n" in head)
        kept = iter(text.splitlines())
        for line in head.splitlines():
            assert any(line.split("]")[0] in one for one in kept), line

    def test_what_is_allowed_already_is_not_named_again(self, tmp_path):
        path = tmp_path / "params.yaml"
        head = "allow_outside: [.., /mnt]\nmodels:\n"
        path.write_text(head)
        assert append_entry(path, "mine", [*self.LINES, *self.REST], self.OUTSIDE) == []
        assert path.read_text().startswith(head)
        path.write_text("allow_outside: [/mnt]\nmodels:\n")
        assert append_entry(path, "mine", [*self.LINES, *self.REST], self.OUTSIDE) == ["../m.onnx", "../photos"]
        assert load(path, tmp_path).allow_outside == ("/mnt", "../m.onnx", "../photos")

    def test_a_list_that_it_cannot_read_is_left_alone(self, tmp_path):
        path = tmp_path / "params.yaml"
        path.write_text("allow_outside: [\n  /mnt/x,\n]\nmodels:\n")
        before = path.read_bytes()
        with pytest.raises(ParamsError, match="cannot be appended"):
            append_entry(path, "mine", [*self.LINES, *self.REST], self.OUTSIDE)
        assert path.read_bytes() == before

    def test_the_command(self, project):
        outside = project.parent / f"{project.name} elsewhere"
        for label in range(CLASSES):
            write_images(outside / f"photos/{label}", 4, seed=40 + label)
        shutil.copy("small.onnx", outside / "other.onnx")
        command = ("init", str(outside / "other.onnx"), "--task", "classification", "--data", f"../{outside.name}/photos")
        done = run_octavo(Path.cwd(), command, os.environ)
        assert done.returncode == 0, done.stderr
        assert load("params.yaml").allow_outside == (f"{outside}/other.onnx", f"../{outside.name}/photos")
        assert done.stdout.count("lies outside of the project: `allow_outside` names it now") == 2
        assert run_stage("export", "--model", "other").returncode == 0


# ---------------------------------------------------------------- packages


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A project under a folder, a user and secrets with names to look for, run by the stages up to its package."""
    folder = tmp_path_factory.mktemp("security") / f"home_{CANARY}" / "project"
    folder.mkdir(parents=True)
    onnx.save(small_network(), folder / "small.onnx")
    elsewhere = folder.parent / "pictures"
    write_images(elsewhere / "calibration", 9, seed=1)
    (elsewhere / "calibration/broken.png").write_bytes(b"no image")
    for label in range(CLASSES):
        write_images(elsewhere / f"validation/{label}", 3, seed=10 + label)
    (elsewhere / "validation/0/broken.png").write_bytes(b"nor is this")
    params = project_params()
    params["allow_outside"] = [str(elsewhere)]
    params["models"]["small"]["source"]["file"] = str(folder / "small.onnx")
    params["models"]["small"]["data"] |= {"on_bad_image": "skip"}
    params["models"]["small"]["calibrate"] = {"samples": 10, "held_out": 2}
    for purpose in ("calibration", "validation"):
        params["models"]["small"]["data"][purpose]["path"] = str(elsewhere / purpose)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HOME", f"/home/{CANARY}_home")
        for name in (
            "USER",
            "LOGNAME",
            "HOSTNAME",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "GITHUB_TOKEN",
            "DVC_STUDIO_TOKEN",
        ):
            patch.setenv(name, f"{CANARY}_{name}")
        for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "qat", "validate", "benchmark", "report", "package"):
            done = run_stage(stage, "--model", "small")
            assert done.returncode == 0, (stage, done.stderr)
    return folder


class TestPackages:
    @pytest.fixture
    def package(self, made, tmp_path) -> Path:
        shutil.copytree(made / "models/small/package", tmp_path / "package")
        return tmp_path / "package"

    @pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "..", "", "model.onnx/../x", "other.bin", "model.onnx\n"])
    @pytest.mark.parametrize("key", ["files", "file"])
    def test_a_manifest_that_names_files_elsewhere(self, package, name, key):
        (package.parent / "secret").write_text("s")
        manifest = read_json(package / "int8/manifest.json")
        if key == "files":
            manifest["files"][name] = sha256_file(package.parent / "secret")
        else:
            manifest["file"] = name
        write_json(package / "int8/manifest.json", manifest)
        with pytest.raises(SourceError, match="names the file .* which is none of a variant's folder"):
            read_manifest(package / "int8")
        with pytest.raises(OctavoError, match="names the file"):
            load_package(package, variant="int8")

    def test_a_manifest_that_nests_without_end(self, package):
        (package / "int8/manifest.json").write_text('{"a":' * 100_000)
        with pytest.raises(SourceError, match="is no manifest"):
            artifacts(package)
        with pytest.raises(SourceError, match="is no manifest"):
            read_manifest(package / "int8")

    def test_an_input_that_would_fill_the_memory(self, package):
        manifest = read_json(package / "int8/manifest.json")
        manifest["inputs"][0]["shape"] = [1, 3, 10**6, 10**6]
        write_json(package / "int8/manifest.json", manifest)
        with pytest.raises(SourceError, match="1x3x1000000x1000000: nobody feeds that"):
            load_package(package, variant="int8")

    def test_a_body_elsewhere(self, tmp_path):
        (tmp_path / "fp32").mkdir()
        (tmp_path / "secret.onnx").write_bytes(b"s")
        record = {"body": "../secret.onnx", "sha256": sha256_file(tmp_path / "secret.onnx"), "origin": "secret.onnx"}
        with pytest.raises(SourceError, match="is not the body that the manifest describes"):
            CustomOps.read(tmp_path / "fp32", {"custom_ops": {"My": record}})

    def test_weights_elsewhere_in_a_package(self, package):
        """ONNX Runtime reads them, and refuses them."""
        secret = package.parent / "secret.bin"
        secret.write_bytes(bytes(64))
        path = graph(package / "evil", [4, 4], location="../../secret.bin")
        manifest = read_json(package / "fp32/manifest.json")
        path.rename(package / "fp32/model.onnx")
        manifest["files"] = {"model.onnx": sha256_file(package / "fp32/model.onnx")}
        write_json(package / "fp32/manifest.json", manifest)
        with pytest.raises(OctavoError, match="outside|escapes|External data"):
            load_package(package, variant="fp32")


class TestFetch:
    @pytest.mark.parametrize("stray", ["../../../evil", "{}/evil", "a\\..\\evil"])
    def test_a_list_that_climbs_out(self, tmp_path, monkeypatch, stray):
        """DVC's list of a folder is a file that its owner writes; this one names a file elsewhere."""
        for key, value in {"DVC_NO_ANALYTICS": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}.items():
            monkeypatch.setenv(key, value)
        for name in ("DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR", "DVC_SITE_CACHE_DIR"):
            monkeypatch.setenv(name, str(tmp_path / name))
        repo, bin_ = tmp_path / "repo", Path(sys.executable).parent

        def sh(*command: object) -> None:
            subprocess.run([str(part) for part in command], cwd=repo, check=True, capture_output=True)

        (repo / "pkg").mkdir(parents=True)
        for name in ("model.onnx", "manifest.json"):
            (repo / "pkg" / name).write_text(name)
        sh("git", "init", "-q")
        sh(bin_ / "dvc", "init", "-q")
        sh(bin_ / "dvc", "remote", "add", "-q", "-d", "store", "../store")
        sh(bin_ / "dvc", "add", "-q", "pkg")
        tracked = (repo / "pkg.dvc").read_text()
        digest = re.search(r"md5: (\w+)\.dir", tracked)[1]
        listed = repo / f".dvc/cache/files/md5/{digest[:2]}/{digest[2:]}.dir"
        entries = json.loads(listed.read_text())
        entries[0]["relpath"] = stray.format(tmp_path)
        data = json.dumps(entries).encode()
        other = hashlib.md5(data, usedforsecurity=False).hexdigest()
        place = repo / f".dvc/cache/files/md5/{other[:2]}"
        place.mkdir(exist_ok=True)
        (place / f"{other[2:]}.dir").write_bytes(data)
        (repo / "pkg.dvc").write_text(tracked.replace(digest, other))
        (repo / "dvc.yaml").write_text("artifacts:\n  small:\n    path: pkg\n    type: model\n")
        shutil.copytree(repo / ".dvc/cache", tmp_path / "store")
        sh("git", "add", "-A")
        sh("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "x")
        sh("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "tag", "-a", "small@v1.0.0", "-m", "x")
        (tmp_path / "work/a/b").mkdir(parents=True)
        with pytest.raises(RegistryError, match="which leads out of it"):
            fetch(str(repo), "small", tmp_path / "work/a/b/out")
        assert [path for path in tmp_path.rglob("*") if "evil" in path.name] == []
        assert list((tmp_path / "work").rglob("*")) == [tmp_path / "work/a", tmp_path / "work/a/b"]

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://user:secret@example.org/a.git", "https://example.org/a.git"),
            ("https://user:se@cret@example.org/a.git", "https://example.org/a.git"),
            ("https://secret@example.org/a.git?token=secret", "https://example.org/a.git"),
            ("ssh://git:secret@example.org/a.git", "ssh://git@example.org/a.git"),
            ("ssh://git@example.org:22/a.git", "ssh://git@example.org:22/a.git"),
            ("git@example.org:a.git", "git@example.org:a.git"),
            ("../what?/a", "../what?/a"),
        ],
    )
    def test_urls_are_shown_without_what_opens_them(self, url, shown):
        assert shown_url(url) == shown

    def test_errors_keep_a_password_to_themselves(self, tmp_path):
        with pytest.raises(RegistryError) as caught:
            fetch("https://user:hush@127.0.0.1:9/a.git", "small", tmp_path / "out")
        assert "hush" not in str(caught.value)
        assert "https://127.0.0.1:9/a.git" in str(caught.value)


# ---------------------------------------------------------------- what goes out


def test_no_secret_and_no_path_of_this_machine_is_written(made):
    """Folder, user, host and secrets are called by a name that nothing may hold, compressed or not."""
    said = [CANARY.encode(), os.uname().nodename.encode(), str(made.parent).encode()]
    checked = 0
    for path in [*made.glob("models/**/*"), *made.glob("metrics/**/*")]:
        if not path.is_file():
            continue
        checked += 1
        contents = [path.read_bytes()]
        if path.suffix == ".npz":
            with np.load(path) as held:
                contents += [held[key].tobytes() for key in held.files] + [" ".join(held.files).encode()]
        assert not [(path, word) for word in said for content in contents if len(word) > 3 and word in content]
    assert checked > 20
    assert "broken.png: broken.png is not a readable image" in (made / "models/small/calibration/statistics.json").read_text()


def test_nor_in_what_comes_from_torch(tmp_path, monkeypatch):
    """The TorchScript trace knows the source files of every module; a manifest knows names."""
    from qat_project import change, classifier_project

    folder = tmp_path / f"home_{CANARY}"
    folder.mkdir()
    monkeypatch.chdir(classifier_project(folder))
    change(folder, source={"file": str(folder / "small.pth"), "trace": True})
    done = run_stage("export", "--model", "small")
    assert done.returncode == 0, done.stderr
    assert Path("models/small/fp32/model.pt").is_file()
    import zipfile

    with zipfile.ZipFile("models/small/fp32/model.pt") as held:
        contents = [held.read(name) for name in held.namelist()]
    contents += [path.read_bytes() for path in Path("models").rglob("*") if path.is_file()]
    assert not [content[:40] for content in contents if CANARY.encode() in content or b"site-packages" in content]
    assert read_json("models/small/fp32/manifest.json")["made"]["source"]["file"] == "small.pth"


def test_custom_ops_are_recorded_by_name():
    from octavo.params.grammar import OnnxSource

    source = OnnxSource(kind="onnx", file=f"/home/{CANARY}/a.onnx", custom_ops={"A": f"/home/{CANARY}/b.onnx", "B": None})
    assert source.recorded()["custom_ops"] == {"A": "b.onnx", "B": None}
    assert CANARY not in json.dumps(source.recorded())
    source = UltralyticsSource(kind="ultralytics", entry=f"/home/{CANARY}/x.yaml", file=f"/home/{CANARY}/x.pth")
    assert CANARY not in json.dumps(source.recorded())


# ---------------------------------------------------------------- dependencies


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_every_requirement_is_pinned_with_hashes(lock):
    """So that pip's --require-hashes takes it, and what an index serves is what was locked."""
    logical = re.sub(r"\\\n", " ", lock.read_text()).splitlines()
    entries = [line for line in logical if line.strip() and not line.startswith("#")]
    assert entries
    for entry in entries:
        assert re.match(r"[A-Za-z0-9_.\[\],-]+==[^\s;]+( ;[^\\]*?)? +--hash=sha256:[0-9a-f]{64}", entry), entry[:120]


def test_the_audit_reads_every_lock():
    told = subprocess.run(["make", "-n", "audit"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pip-audit" in told
    assert "--require-hashes" in told
    assert "--strict" in told, "what cannot be looked up is no pass"
    assert "requirements/*.txt" in told
