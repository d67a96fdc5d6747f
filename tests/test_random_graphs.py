"""What holds of any graph, asked of random ones: cleaning, statistics, INT8 and FP16 files.

RANDOM_GRAPHS=1000:1200 runs other seeds.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType
from onnxruntime.quantization import quantize_static as of_onnx_runtime
from random_graphs import RandomGraph, random_graph

from octavo.calibration.collector import collect
from octavo.errors import ModelRunError, QuantizationError
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load, save
from octavo.params.grammar import Int8, OnnxSource
from octavo.quantization.fp16 import quantize_fp16
from octavo.quantization.int8 import Images, quantize_dynamic, quantize_static
from octavo.quantization.verification import verified
from octavo.runtime.entries import session_config
from octavo.runtime.noise import sqnr_db
from octavo.runtime.session import Session
from octavo.sources.onnx_file import cleaned

FIRST, LAST = (int(place) for place in os.environ.get("RANDOM_GRAPHS", "0:120").split(":"))
_LAYERS = ("Conv", "Gemm", "MatMul")
RECIPES = [
    {"placement": "all"},
    {"placement": "all", "target": "cpu-no-vnni", "method": "minmax"},
    {"placement": "all", "target": "openvino"},
    {"placement": "all", "format": "qoperator", "symmetric": True},
    {"placement": "all", "effort": "high", "per_channel": False},
    {"placement": "measured"},
]


def some(few: int, *, step: int = 1) -> list[object]:
    """Some seeds, the rest of them for CI."""
    seeds = range(FIRST, LAST, step)
    return [pytest.param(seed, marks=() if place < few else pytest.mark.slow) for place, seed in enumerate(seeds)]


@dataclass
class Made:
    """A random graph, cleaned."""

    graph: RandomGraph
    path: Path
    model: ir.Model

    def images(self, count: int, seed: int) -> list[dict[str, np.ndarray]]:
        return self.graph.feeds(count, seed)

    def statistics(self, images: list[dict[str, np.ndarray]], **options: object):
        return collect(self.model, lambda: ((f"image {place}", image) for place, image in enumerate(images)), **options)


def made(seed: int, folder: Path, opset: int = 18) -> Made:
    graph = random_graph(seed)
    onnx.save(graph.proto, folder / "source.onnx")
    source = OnnxSource(kind="onnx", file=str(folder / "source.onnx"), opset=opset, dynamic_batch=False)
    model = cleaned(source, "image" if graph.sides else None).model
    save(model, folder / "fp32.onnx")
    return Made(graph, folder / "fp32.onnx", load(folder / "fp32.onnx"))


def noise(wanted: list[dict[str, np.ndarray]], got: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """SQNR in dB of each float output over all images; places and classes, which others hold, are not compared."""
    found = {}
    for name, first in wanted[0].items():
        if first.dtype.kind == "f":
            pairs = [(one[name].astype(np.float64), other[name].astype(np.float64)) for one, other in zip(wanted, got, strict=True)]
            found[name] = sqnr_db(sum(float((a**2).sum()) for a, _ in pairs), sum(float(((a - b) ** 2).sum()) for a, b in pairs))
    return found


def runs(path: Path | bytes, images: list[dict[str, np.ndarray]], **options: object) -> list[dict[str, np.ndarray]]:
    session = Session(path, threads=1, **options)
    return [session.run(image) for image in images]


@pytest.mark.parametrize("seed", some(30))
def test_cleaning_keeps_names_types_and_values(seed, tmp_path):
    graph = made(seed, tmp_path, opset=[17, 18, 20, 22][seed % 4])
    images = graph.images(2, 0)
    wanted = runs(graph.graph.nameless(), images, optimization="off")
    others = graph.graph.feeds(1, 4, larger=True)
    try:
        wanted += runs(graph.graph.nameless(), others, optimization="off")
        images += others
    except ModelRunError:
        pass  # its sizes are open by their names alone
    for level in ("off", "all"):
        for one, other in zip(wanted, runs(graph.path, images, optimization=level), strict=True):
            assert list(one) == list(other)
            for name, value in one.items():
                assert (value.dtype, value.shape) == (other[name].dtype, other[name].shape), name
                if value.dtype.kind == "f":
                    np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-4 * max(1, np.abs(value).max()), err_msg=name)
                else:
                    # Two scores may be equal but for rounding.
                    assert (value != other[name]).mean() <= 0.02, name


def saved(statistics, folder: Path) -> dict[str, bytes]:
    statistics.save(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("seed", some(8, step=3))
def test_statistics_do_not_depend_on_order_or_partition(seed, tmp_path):
    graph = made(seed, tmp_path)
    images = graph.images(6, 1)
    whole = saved(graph.statistics(images), tmp_path / "whole")
    assert saved(graph.statistics(images[::-1], lanes=1), tmp_path / "turned") == whole
    parts = [graph.statistics(part) for part in (images[:1], images[1:])]
    assert saved(parts[1].merge(parts[0]), tmp_path / "merged") == whole


class _Images(CalibrationDataReader):
    def __init__(self, images: list[dict[str, np.ndarray]]) -> None:
        self.rest = iter(images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rest, None)


def theirs(path: Path, images: list[dict[str, np.ndarray]], target: Path) -> list[str]:
    """ONNX Runtime's own quantizer as its documentation recommends it, where it is able to."""
    try:
        of_onnx_runtime(
            path,
            target,
            _Images(images),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
        Session(target, threads=1)
    except Exception as error:  # whatever ends it, there is nothing to compare with
        return [str(error)]
    return []


@pytest.mark.parametrize("seed", some(6, step=1))
def test_an_int8_file_is_what_its_manifest_says(seed, tmp_path):
    graph = made(seed, tmp_path)
    calibration, held, unseen = graph.images(16, 1), graph.images(6, 2), graph.images(6, 3)
    recipe = Int8(**RECIPES[seed % len(RECIPES)])
    before = ir.to_proto(graph.model).SerializeToString()
    statistics = graph.statistics(calibration)
    if not any(node.op_type in _LAYERS for node in graph.model.graph):
        with pytest.raises(QuantizationError, match="no node of this graph has weights to quantize"):
            quantize_static(graph.model, statistics, recipe, Images(calibration, held))
        return
    result = quantize_static(graph.model, statistics, recipe, Images(calibration, held))
    assert ir.to_proto(graph.model).SerializeToString() == before, "the float model is left as it was"
    path = tmp_path / "int8.onnx"
    save(result.model, path)
    assert sorted(d.node for d in result.decisions) == sorted(n.name for n in graph.model.graph if n.op_type != "Constant")
    record = verified(
        path,
        graph.path,
        result.decisions,
        [(str(place), image) for place, image in enumerate(held[:3])],
        name="int8",
        custom=CustomOps(),
        sizes=(graph.path.stat().st_size, path.stat().st_size),
        kept_db=result.kept_db,
        target=recipe.target,
    )
    if recipe.target in ("cpu", "cpu-no-vnni"):
        executed = record["executed"]
        assert not executed["unexpected"]
        assert not executed["unresolved"]
        assert executed["int8_layers"] == executed["int8_layers_integer"]
        Session(path, save_optimized=tmp_path / "optimized.onnx")
        run = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
        assert sum((Counter(kernels) for kernels in executed["kernels"].values()), Counter()) == run
        assert executed["int8_layers"] == sum(
            d.precision == "int8" and d.op_type in (*_LAYERS, "ConvTranspose") for d in result.decisions
        )
    entries = session_config(fits16=recipe.target == "cpu-no-vnni")
    wanted, got = runs(graph.path, unseen), runs(path, unseen, entries=entries)
    ours = noise(wanted, got)
    others = graph.graph.feeds(1, 4, larger=True)
    try:
        large = runs(graph.path, others)
    except ModelRunError:
        pass  # nor does FP32 take it: its sizes are open by their names alone
    else:
        for name, value in runs(path, others, entries=entries)[0].items():
            assert value.shape == large[0][name].shape, name
    if recipe.format == "qdq":
        plain = noise(wanted, runs(path, unseen, optimization="off"))
        for name, db in ours.items():
            assert db > min(plain[name] - 3, 30), f"{name}: optimizations cost {plain[name]:.1f} to {db:.1f} dB"
    other = tmp_path / "theirs.onnx"
    peer = {} if theirs(graph.path, calibration, other) else noise(wanted, runs(other, unseen, entries=session_config()))
    for name, db in ours.items():
        assert db > min(peer.get(name, 0) - 3, 20), f"{name}: {db:.1f} dB, ONNX Runtime's quantizer has {peer.get(name)}"


@pytest.mark.parametrize("seed", some(6, step=2))
def test_fp16_and_dynamic_files_are_close(seed, tmp_path):
    graph = made(seed, tmp_path)
    images, unseen = graph.images(4, 2), graph.images(4, 3)
    wanted = runs(graph.path, unseen)
    half = quantize_fp16(graph.model, keep_io=bool(seed % 4), keep_float_patterns=(), samples=images)
    save(half.model, tmp_path / "fp16.onnx")
    for name, db in noise(wanted, runs(tmp_path / "fp16.onnx", unseen)).items():
        assert db > 35 or half.warnings, f"{name}: {db:.1f} dB"
    if not any(node.op_type in _LAYERS for node in graph.model.graph):
        return
    dynamic = quantize_dynamic(graph.model, Int8(), graph.statistics(images))
    save(dynamic.model, tmp_path / "dynamic.onnx")
    for name, db in noise(wanted, runs(tmp_path / "dynamic.onnx", unseen, entries=session_config())).items():
        assert db > 15, f"{name}: {db:.1f} dB"
