"""Random graphs of the operators that vision networks are written with, in the spellings of several exporters.

Each node is run as it is added, so that shapes are known, and what no number comes of is taken back. The same seed gives the same
graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime as ort
from random_parts import TYPE, Impossible, type_of
from random_steps import STEPS, Steps

__all__ = ["RandomGraph", "random_graph"]

SIDES = [(16, 16), (12, 20), (17, 9), (24, 12)]


@dataclass
class RandomGraph:
    """A model and images for it.

    Attributes:
        proto: float32 but for side tensors, an image of bytes, and indices.
        trace: the steps that it was made of.
        image: the input that takes the image.
        shape: of one image, as the input takes it.
        larger: of what an input of open sizes takes as well: another batch, height and width; `shape` where none is open.
    """

    proto: onnx.ModelProto
    trace: list[str]
    image: str
    shape: tuple[int, ...]
    larger: tuple[int, ...]
    sides: dict[str, np.ndarray]
    seed: int
    dtype: type = np.float32
    channels: int = 1

    def nameless(self) -> bytes:
        """As ONNX Runtime loads it, which takes no two nodes of one name."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        for node in copy.graph.node:
            node.name = ""
        return copy.SerializeToString()

    def feeds(self, count: int, seed: int, *, larger: bool = False) -> list[dict[str, np.ndarray]]:
        """Images of blobs and some noise, and what other inputs take."""
        generator = np.random.default_rng((self.seed, seed))
        shape = self.larger if larger else self.shape
        return [{self.image: _photo(generator, shape, self.channels, self.dtype), **self.sides} for _ in range(count)]


def random_graph(seed: int, steps: int = 5) -> RandomGraph:
    """Make a graph of at most `steps` steps, and one to three heads."""
    # What ONNX Runtime runs node by node it may refuse as a whole: its shape inference and its MaxPool do not agree on every
    # `ceil_mode`, which a branch behind it does not survive.
    return next(made for attempt in range(9) if _runs(made := _Growing(seed, attempt).grown(steps)))


def _runs(made: RandomGraph) -> bool:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        ort.InferenceSession(made.nameless(), options, providers=["CPUExecutionProvider"]).run(None, made.feeds(1, 0)[0])
    except Exception:  # ONNX Runtime's own exceptions have no common base but this
        return False
    return True


def _photo(generator: np.random.Generator, shape: tuple[int, ...], channels: int, dtype: type) -> np.ndarray:
    last = shape[1] != channels
    height, width = shape[1:3] if last else shape[2:]
    blobs = generator.standard_normal((shape[0], channels, height // 4 + 1, width // 4 + 1))
    image = blobs.repeat(4, 2).repeat(4, 3)[:, :, :height, :width]
    image = image * generator.uniform(0.7, 1.3) + 0.2 * generator.standard_normal(image.shape)
    image = image.transpose(0, 2, 3, 1) if last else image
    return np.clip(image * 50 + 128, 0, 255).astype(np.uint8) if dtype == np.uint8 else image.astype(np.float32)


class _Growing(Steps):
    """Heads, and the graph as a whole."""

    def head(self, x: str) -> list[str]:
        kind = self.pick(["classes", "classes", "map", "boxes", "bins", "vector", "largest", "top", "last", "spot"])
        self.trace.append(f"head {kind}")
        if kind == "map":
            return [self.same(x, self.pick([1, 5]))]
        if kind == "last":
            return [self.op("Transpose", self.same(x, 3), perm=[0, 2, 3, 1])]
        if kind == "largest":
            return [self.op("ArgMax", self.same(x, 4), axis=1)]
        if kind == "boxes":
            _, height, width = self.sized(x)
            rows = self.reshape(self.op("Transpose", self.same(x, 6), perm=[0, 2, 3, 1]), 1, height * width, 6)
            return [self.slice(rows, 0, 4, 2), self.op("Sigmoid", self.slice(rows, 4, 6, 2))]
        if kind == "bins":
            # Sides of boxes as distributions over bins.
            _, height, width = self.sized(x)
            rows = self.reshape(self.same(x, 16), 1, 4, 4, height * width)
            bins = self.op("Softmax", self.op("Transpose", rows, perm=[0, 2, 1, 3]), axis=1)
            sides = self.op("Conv", bins, self.constant(np.arange(4).reshape(1, 4, 1, 1)))
            return [self.op("Mul", self.reshape(sides, 1, 4, height * width), self.constant(8))]
        if kind == "spot":
            # Where a heat map is, as its mean place.
            _, height, width = self.sized(x)
            heat = self.op("Softmax", self.reshape(self.same(x, 3), 1, 3, height * width), axis=2)
            places = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).reshape(-1, 2)
            return [self.op("MatMul", heat, self.constant(places))]
        pooled = self.op("GlobalAveragePool", x)
        rows = self.op("Flatten", pooled) if self.chance(0.5) else self.over("Squeeze", pooled, [2, 3])
        y = self.linear(rows, 10)
        if kind == "vector":
            return [self.op("Div", y, self.clip(self.over("ReduceL2", y, [1]), 1e-3, None))]
        if kind == "top" and self.opset >= 10:
            return self.op("TopK", y, self.whole(3), outputs=2)
        return [self.op("Softmax", y, axis=1) if self.chance(0.3) else y]

    def attempt(self, make: Callable[[], object]) -> object:
        """What `make` makes, or None with everything as it was."""
        nodes, trace = len(self.nodes), len(self.trace)
        constants, values = dict(self.constants), dict(self.values)
        try:
            return make()
        except Impossible:
            del self.nodes[nodes:], self.trace[trace:]
            self.constants, self.values = constants, values
            return None

    def stepped(self, x: str) -> str:
        def make() -> str:
            step = self.pick(STEPS)
            self.trace.append(step)
            y = getattr(self, step)(x)
            value = self.values[y]
            if value.ndim != 4 or value.size > 12000 or min(value.shape[2:]) < 2 or value.shape[1] > 40 or value.std() < 1e-2:
                raise Impossible(step)
            return y

        return next((found for _ in range(10) if (found := self.attempt(make)) is not None), x)

    def grown(self, steps: int) -> RandomGraph:
        channels, (height, width) = self.pick([1, 3, 3, 4]), self.pick(SIDES)
        last, dtype = self.chance(0.12), np.uint8 if self.chance(0.1) else np.float32
        shape = (1, height, width, channels) if last else (1, channels, height, width)
        self.values["image"] = _photo(self.generator, shape, channels, dtype)
        x = "image"
        if dtype == np.uint8:
            x = self.op("Div", self.op("Sub", self.op("Cast", x, to=TYPE.FLOAT), self.constant(128.0)), self.constant(50.0))
        x = self.op("Transpose", x, perm=[0, 3, 1, 2]) if last else x
        sides: dict[str, np.ndarray] = {}
        if self.chance(0.1):
            sides["strength"] = self.values["strength"] = np.full((1, 1, 1, 1), 1.25, np.float32)
            x = self.op("Mul", x, "strength")
        made = [x]
        for _ in range(int(self.generator.integers(1, steps + 1))):
            made.append(self.stepped(made[-1]))
        outputs: list[str] = []
        for _ in range(self.pick([1, 1, 2, 3])):
            source = made[-1] if self.chance(0.7) else self.pick(made)
            found = next((found for _ in range(8) if (found := self.attempt(lambda: self.head(source))) is not None), None)  # noqa: B023
            outputs += found or [self.same(source, 2)]
        if self.chance(0.1) and made[-1] != "image":
            outputs.append(made[-1])
        open_shape: list[int | str] = list(shape)
        larger = list(shape)
        if self.open_batch:
            open_shape[0], larger[0] = "batch", 2
        if self.open_sides:
            open_shape[1:] = ["h", "w", channels] if last else [channels, "h", "w"]
            larger[1:] = [2 * height, width + 8, channels] if last else [channels, 2 * height, width + 8]
        inputs = [oh.make_tensor_value_info("image", type_of(self.values["image"]), open_shape)]
        inputs += [oh.make_tensor_value_info(name, TYPE.FLOAT, value.shape) for name, value in sides.items()]
        if self.listed:
            inputs += [oh.make_tensor_value_info(name, type_of(value), value.shape) for name, value in self.constants.items()]
        unknown = self.open_batch or self.open_sides
        ends = [
            oh.make_tensor_value_info(name, type_of(value), [None] * value.ndim if unknown else value.shape)
            for name, value in ((name, self.values[name]) for name in dict.fromkeys(outputs))
        ]
        constants = [onh.from_array(value, name) for name, value in self.constants.items()]
        proto = self.model(oh.make_graph(self.nodes, "random", inputs, ends, constants))
        return RandomGraph(proto, self.trace, "image", shape, tuple(larger), sides, self.seed, dtype, channels)
