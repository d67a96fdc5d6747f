"""Small real things: images on disk, a small convolutional network as ONNX, and a project folder around them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
import yaml
from PIL import Image

ROOT = Path(__file__).parents[1]
CLASSES = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with slow tests first: begun last, one would run alone at the end while the other process has nothing left."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def write_images(folder: Path, count: int, *, seed: int, size: tuple[int, int] = (40, 48)) -> list[Path]:
    """Smooth random photos: noise blown up, so that neighbouring pixels are alike."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    paths = []
    for place in range(count):
        noise = generator.integers(0, 256, (6, 7, 3), dtype=np.uint8)
        path = folder / f"image_{seed}_{place:03d}.png"
        Image.fromarray(noise).resize((size[1], size[0]), Image.Resampling.BICUBIC).save(path)
        paths.append(path)
    return paths


def small_network(
    *, opset: int = 18, batch: str | int = "batch", seed: int = 0, size: int = 32, weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """Conv-ReLU, a residual block with ReLU6, a mean over the image and a classifier; He-initialised, input 3 x size x size."""
    generator = np.random.default_rng(seed)

    def he(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    tensors = {
        "stem.weight": he(8, 3, 3, 3),
        "stem.bias": he(8, 1)[:, 0] * np.float32(0.1),
        "depth.weight": he(8, 1, 3, 3),
        "point.weight": he(8, 8, 1, 1),
        "point.bias": he(8, 1)[:, 0] * np.float32(0.1),
        "head.weight": he(CLASSES, 8) * np.float32(3),
        "head.bias": np.zeros(CLASSES, np.float32),
        "zero": np.float32(0),
        "six": np.float32(6),
        "spatial": np.array([2, 3], np.int64),
    } | (weights or {})
    nodes = [
        oh.make_node("Conv", ["image", "stem.weight", "stem.bias"], ["stem"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["stem"], ["stem.relu"], "stem.relu"),
        oh.make_node("Conv", ["stem.relu", "depth.weight"], ["depth"], "depth", pads=[1, 1, 1, 1], group=8),
        oh.make_node("Clip", ["depth", "zero", "six"], ["depth.relu6"], "depth.relu6"),
        oh.make_node("Conv", ["depth.relu6", "point.weight", "point.bias"], ["point"], "point"),
        oh.make_node("Add", ["point", "stem.relu"], ["sum"], "residual"),
        oh.make_node("ReduceMean", ["sum", "spatial"], ["pooled"], "pool", keepdims=0),
        oh.make_node("Gemm", ["pooled", "head.weight", "head.bias"], ["logits"], "head", transB=1),
    ]
    graph = oh.make_graph(
        nodes,
        "small",
        [oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [batch, 3, size, size])],
        [oh.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [batch, CLASSES])],
        [onh.from_array(value, name) for name, value in tensors.items()],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def project_params(**changes: object) -> dict:
    """params.yaml for one small ONNX model named `small`; `changes` replace whole blocks."""
    return {
        "models": {
            "small": {
                "task": "classification",
                "source": {"kind": "onnx", "file": "small.onnx"},
                "input": {"size": [32, 32], "resize": {"rule": "stretch"}, "mean": [0.5], "std": [0.25]},
                "data": {
                    "calibration": {"format": "folder", "path": "images/calibration"},
                    "validation": {"format": "imagefolder", "path": "images/validation"},
                },
                "calibrate": {"samples": 8},
                "fp16": {},
                # A network of random weights is far from 24 dB: repair measures, and gives nothing back.
                "int8": {"method": "minmax", "fidelity": 5, "placement": "all"},
                "validate": {"bootstrap": 200, "layer_samples": 2},
                "benchmark": {"threads": [1], "rounds": 5, "warmup": 1},
                **changes,
            }
        }
    }


@pytest.fixture(scope="module")
def own_settings(tmp_path_factory) -> Iterator[None]:
    """Nobody's git, DVC, AWS or SSH settings, for modules that use it (`pytestmark`)."""
    # moto takes a second to import.
    from repositories import nobodys_settings

    with nobodys_settings(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    """An S3 server: its URL, and the environment of somebody who may use `bucket`."""
    from repositories import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml, small.onnx and images, made the working directory."""
    onnx.save(small_network(), tmp_path / "small.onnx")
    write_images(tmp_path / "images/calibration", 8, seed=1)
    for label in range(CLASSES):
        write_images(tmp_path / f"images/validation/{label}", 3, seed=10 + label)
    write_images(tmp_path / "images/validation/unlabelled", 2, seed=20)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(project_params()), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
