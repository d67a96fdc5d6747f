"""A detector that really detects, small enough to be written down: bright red or green squares of 8 pixels that lie on a grid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
from PIL import Image

__all__ = ["BINS", "CELL", "NAMES", "grid_detector", "pair_detector", "write_squares"]

CELL = 8
NAMES = ("red", "green")
BINS = 8


def grid_detector(*, blind: bool = False, size: int | None = None, raw: bool = False) -> onnx.ModelProto:
    """NanoDet's layout: for the strides 8, 16, 32 the scores of two classes and distributions of distances, each 1 x cells x n.

    Args:
        blind: every score is next to nothing, as of a broken model.
        size: height and width of the input; dynamic where None.
        raw: the input takes pixels as cameras give them: uint8, batch x height x width x 3.
    """
    tensors: dict[str, np.ndarray] = {"rows": np.array([0, 0, -1], np.int64)}
    nodes: list[onnx.NodeProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    # Half a cell to each side: two bins share the weight.
    distances = np.tile(np.array([4, 4, -20, -20, -20, -20, -20, -20], np.float32), 4)
    for stride in (8, 16, 32):
        sees = np.zeros((2, 3, stride, stride), np.float32)
        if stride == CELL and not blind:
            # A class is its own colour less the others.
            sees[0], sees[1] = (np.array(mix, np.float32)[:, None, None] for mix in ((1, -0.5, -0.5), (-0.5, 1, -0.5)))
            sees *= 12 / stride**2
        for kind, weight, bias in (
            ("score", sees, np.full(2, -12 if blind else -6, np.float32)),
            ("distance", np.zeros((4 * BINS, 3, stride, stride), np.float32), distances),
        ):
            name = f"{kind}{stride}"
            tensors |= {f"{name}.weight": weight, f"{name}.bias": bias}
            last = f"{name}.conv"
            nodes.append(oh.make_node("Conv", ["image", f"{name}.weight", f"{name}.bias"], [last], last, strides=[stride, stride]))
            if kind == "score":
                nodes.append(oh.make_node("Sigmoid", [last], [f"{name}.sigmoid"], f"{name}.sigmoid"))
                last = f"{name}.sigmoid"
            nodes += [
                oh.make_node("Reshape", [last, "rows"], [f"{name}.rows"], f"{name}.reshape"),
                oh.make_node("Transpose", [f"{name}.rows"], [name], f"{name}.transpose", perm=[0, 2, 1]),
            ]
            outputs.append(oh.make_tensor_value_info(name, 1, ["batch", None, len(bias)]))
    sides = [size or "height", size or "width"]
    image = oh.make_tensor_value_info("image", 1, ["batch", 3, *sides])
    if raw:
        image = oh.make_tensor_value_info("pixels", 2, ["batch", *sides, 3])
        tensors["white"] = np.float32(255)
        nodes = [
            oh.make_node("Transpose", ["pixels"], ["planes"], "planes", perm=[0, 3, 1, 2]),
            oh.make_node("Cast", ["planes"], ["float"], "float", to=1),
            oh.make_node("Div", ["float", "white"], ["image"], "scaled"),
            *nodes,
        ]
    graph = oh.make_graph(
        nodes,
        "grid",
        [image],
        outputs,
        [onh.from_array(value, name) for name, value in tensors.items()],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def pair_detector(size: int) -> onnx.ModelProto:
    """The same detector with `boxes`, 1 x cells x 4 corners in pixels, and `scores`, 1 x cells x 2, which its graph decodes."""
    model = grid_detector(size=size)
    graph = model.graph
    # The distances' softmax is a half of the first two bins: half a cell to each side.
    levels = [[np.mgrid[: size // stride, : size // stride][::-1].reshape(2, -1).T, stride] for stride in (8, 16, 32)]
    centres = np.concatenate([(grid + 0.5) * stride for grid, stride in levels])
    signs = np.float32([-1, -1, 1, 1])
    tensors = {
        "by_side": np.int64([0, -1, 4, BINS]),
        "bins": np.arange(BINS, dtype=np.float32)[:, None],
        "sides": np.int64([0, -1, 4]),
        "ways": signs * np.concatenate([np.full((len(grid), 1), stride) for grid, stride in levels]).astype(np.float32),
        "centres": np.tile(centres, 2).astype(np.float32),
    }
    node = oh.make_node
    graph.node.extend(
        [
            node("Concat", [f"score{stride}" for _, stride in levels], ["scores"], "scores", axis=1),
            node("Concat", [f"distance{stride}" for _, stride in levels], ["distances"], "distances", axis=1),
            node("Reshape", ["distances", "by_side"], ["distances4"], "distances4"),
            node("Softmax", ["distances4"], ["shares"], "shares", axis=3),
            node("MatMul", ["shares", "bins"], ["expected"], "expected"),
            node("Reshape", ["expected", "sides"], ["cells"], "cells"),
            node("Mul", ["cells", "ways"], ["reach"], "reach"),
            node("Add", ["reach", "centres"], ["boxes"], "boxes"),
        ]
    )
    graph.initializer.extend(onh.from_array(value, name) for name, value in tensors.items())
    del graph.output[:]
    graph.output.extend(
        oh.make_tensor_value_info(name, 1, ["batch", len(centres), columns]) for name, columns in (("boxes", 4), ("scores", 2))
    )
    onnx.checker.check_model(model)
    return model


def write_squares(folder: Path, count: int, *, seed: int, size: int = 64, annotated: bool = True) -> None:
    """Grey noisy images with a few coloured squares, and their boxes in COCO's format (instances.json)."""
    generator = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for place in range(count):
        pixels = generator.normal(110, 12, (size, size, 3))
        for cell in generator.choice((size // CELL) ** 2, int(generator.integers(1, 6)), replace=False):
            row, column, kind = int(cell) // (size // CELL), int(cell) % (size // CELL), int(generator.integers(2))
            colour = np.full(3, generator.uniform(10, 60))
            colour[kind] = generator.uniform(190, 250)
            pixels[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = colour + generator.normal(
                0, 8, (CELL, CELL, 3)
            )
            box = [column * CELL, row * CELL, CELL, CELL]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": place, "category_id": kind + 1, "bbox": box, "area": CELL**2, "iscrowd": 0}
            )
        name = f"{seed}_{place:03d}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / name)
        images.append({"id": place, "file_name": name, "height": size, "width": size})
    if annotated:
        categories = [{"id": place, "name": name} for place, name in enumerate(NAMES, start=1)]
        table = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "instances.json").write_text(json.dumps(table), encoding="utf-8")
