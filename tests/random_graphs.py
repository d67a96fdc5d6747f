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
from graphs import he

__all__ = ["RandomGraph", "random_graph"]

TYPE = onnx.TensorProto
# Opset to the IR version that its exporters wrote.
OPSETS = {9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10}
# From which opset on axes are an input.
AXES_BY_INPUT = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}
SIDES = [(16, 16), (12, 20), (17, 9), (24, 12)]


class Impossible(Exception):  # noqa: N818
    """This step does not fit here."""


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
    return _Growing(seed).grown(steps)


def _photo(generator: np.random.Generator, shape: tuple[int, ...], channels: int, dtype: type) -> np.ndarray:
    last = shape[1] != channels
    height, width = shape[1:3] if last else shape[2:]
    blobs = generator.standard_normal((shape[0], channels, height // 4 + 1, width // 4 + 1))
    image = blobs.repeat(4, 2).repeat(4, 3)[:, :, :height, :width]
    image = image * generator.uniform(0.7, 1.3) + 0.2 * generator.standard_normal(image.shape)
    image = image.transpose(0, 2, 3, 1) if last else image
    return np.clip(image * 50 + 128, 0, 255).astype(np.uint8) if dtype == np.uint8 else image.astype(np.float32)


class _Growing:
    """Nodes, constants and the value of every tensor on one image."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = generator = np.random.default_rng(seed)
        self.opset = int(generator.choice(list(OPSETS)))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}
        self.inputs: dict[str, list] = {}
        self.trace: list[str] = []
        self.count = 0
        # Names as torch writes them, none for nodes, and one for all.
        self.naming = self.pick(["plain", "slash", "none", "same"])
        self.by_node = self.chance(0.2)
        self.open_batch, self.open_sides, self.listed = self.chance(0.3), self.chance(0.2), self.chance(0.1)

    def chance(self, share: float) -> bool:
        return bool(self.generator.random() < share)

    def pick(self, options: list) -> object:
        return options[int(self.generator.integers(len(options)))]

    # Parts of graphs.

    def constant(self, array: np.ndarray | float, dtype: type = np.float32) -> str:
        array = np.asarray(array, dtype)
        self.count += 1
        name = f"c{self.count}"
        self.values[name] = array
        if self.by_node:
            self.nodes.append(oh.make_node("Constant", [], [name], value=onh.from_array(array)))
        else:
            self.constants[name] = array
        return name

    def whole(self, *numbers: int) -> str:
        return self.constant(numbers, np.int64)

    def weights(self, array: np.ndarray) -> str:
        """As they are, or as the file computes them."""
        array = array.astype(np.float32)
        if self.chance(0.1):
            return self.op("Mul", self.constant(array / 2), self.constant(2))
        if self.chance(0.1) and array.ndim > 1:
            turned = self.constant(np.ascontiguousarray(array.T))
            return self.op("Transpose", turned, perm=list(range(array.ndim))[::-1])
        return self.constant(array)

    def random(self, *shape: int) -> str:
        return self.constant(self.generator.normal(0, 0.3, shape))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: object) -> str | list[str]:
        self.count += 1
        names = [self._named(op_type, place) for place in range(outputs)]
        label = {"plain": f"n{self.count}", "slash": f"/n.{self.count}/{op_type}", "none": "", "same": op_type}[self.naming]
        node = oh.make_node(op_type, inputs, names, label, **attributes)
        for name, value in zip(names, self._computed(node), strict=True):
            if not value.size or (value.dtype.kind == "f" and not np.abs(value).max() < 1e4):
                raise Impossible(op_type)
            self.values[name] = value
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def _named(self, op_type: str, place: int) -> str:
        return f"/n.{self.count}/{op_type}_output_{place}" if self.naming == "slash" else f"t{self.count}_{place}"

    def _computed(self, node: onnx.NodeProto) -> list[np.ndarray]:
        reads = {name for one in [node, *_inner(node)] for name in one.input if name in self.values}
        inputs = [oh.make_tensor_value_info(name, _type(self.values[name]), self.values[name].shape) for name in reads]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
        model = self._model(oh.make_graph([node], "g", inputs, outputs))
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return session.run(None, {name: self.values[name] for name in reads})
        except Exception as error:  # ONNX Runtime's own exceptions have no common base but this
            raise Impossible(f"{node.op_type}: {error}") from error

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        return oh.make_model(graph, opset_imports=[oh.make_opsetid("", self.opset)], ir_version=OPSETS[self.opset])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    # Operators whose arguments moved between opsets.

    def over(self, op_type: str, x: str, axes: list[int], **attributes: object) -> str:
        if self.opset < AXES_BY_INPUT.get(op_type, 18):
            return self.op(op_type, x, axes=axes, **attributes)
        return self.op(op_type, x, self.whole(*axes), **attributes)

    def clip(self, x: str, low: float | None, high: float | None) -> str:
        if self.opset < 11:
            return self.op("Clip", x, **{name: float(end) for name, end in (("min", low), ("max", high)) if end is not None})
        ends = ["" if end is None else self.constant(end) for end in (low, high)]
        return self.op("Clip", x, *(ends if ends[1] else ends[:1]))

    def split(self, x: str, *parts: int) -> list[str]:
        if self.opset < 13:
            return self.op("Split", x, outputs=len(parts), axis=1, split=list(parts))
        if self.opset >= 18 and len(set(parts)) == 1 and self.chance(0.5):
            return self.op("Split", x, outputs=len(parts), axis=1, num_outputs=len(parts))
        return self.op("Split", x, self.whole(*parts), outputs=len(parts), axis=1)

    def slice(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        if self.opset >= 10:
            return self.op("Slice", x, *(self.whole(number) for number in (start, end, axis, step)))
        if step != 1:
            raise Impossible("no steps below opset 10")
        return self.op("Slice", x, starts=[start], ends=[end], axes=[axis])

    def reshape(self, x: str, *sizes: int) -> str:
        batch = -1 if self.open_batch and -1 not in sizes else 1
        return self.op("Reshape", x, self.whole(batch if sizes[0] == 1 and -1 not in sizes else 0, *sizes[1:]))

    def sized(self, x: str) -> tuple[int, int, int]:
        """Channels, height and width, where the graph may state them."""
        if self.open_sides:
            raise Impossible("sizes are open")
        return self.shape(x)[1:]

    # Steps: each takes a map of four axes and gives one.

    def conv(self, x: str) -> str:
        inputs, height, width = self.shape(x)[1:]
        kernel = self.pick([[1, 1], [3, 3], [3, 3], [5, 5], [1, 3], [2, 2]])
        settings: dict[str, object] = {"kernel_shape": kernel}
        groups = self.pick([1, 1, 1, inputs, 2 if inputs % 2 == 0 else 1])
        outputs = groups * self.pick([1, 2]) if groups == inputs else self.pick([4, 6, 8, 16])
        if groups > 1 or self.chance(0.5):
            settings["group"] = groups
        if min(height, width) > 6 and self.chance(0.3):
            settings["strides"] = self.pick([[2, 2], [2, 1]])
        if self.chance(0.1):
            settings["dilations"] = [2, 2]
        padding = self.pick(["half", "half", "any", "SAME_UPPER", "SAME_LOWER", "VALID", "none"])
        if padding == "half":
            settings["pads"] = [length // 2 for length in kernel] * 2
        elif padding == "any":
            settings["pads"] = self.generator.integers(0, 3, 4).tolist()
        elif padding != "none":
            settings["auto_pad"] = padding
        weights = he(self.generator, outputs, inputs // groups, *kernel)
        if self.chance(0.2):
            weights = weights * np.exp(self.generator.normal(0, 0.7, (outputs, 1, 1, 1)))
        y = self.op("Conv", x, self.weights(weights), *([self.random(outputs)] if self.chance(0.6) else []), **settings)
        y = self.norm(y) if self.chance(0.4) else y
        return self.activation(y) if self.chance(0.6) else y

    def same(self, x: str, outputs: int = 0) -> str:
        """A Conv that keeps height and width."""
        inputs = self.shape(x)[1]
        side = self.pick([1, 3])
        weights = self.weights(he(self.generator, outputs or inputs, inputs, side, side))
        return self.op("Conv", x, weights, self.random(outputs or inputs), pads=[side // 2] * 4)

    def norm(self, x: str) -> str:
        value = self.values[x]
        axes = tuple(axis for axis in range(value.ndim) if axis != 1)
        size = value.shape[1]
        tensors = (
            self.generator.uniform(0.5, 1.5, size),
            self.generator.normal(0, 0.3, size),
            value.mean(axes),
            value.var(axes) + 1e-2,
        )
        return self.op("BatchNormalization", x, *(self.constant(tensor) for tensor in tensors))

    def conv_transposed(self, x: str) -> str:
        inputs, height, width = self.shape(x)[1:]
        if height * width > 300:
            raise Impossible("too large")
        groups = self.pick([1, 1, inputs])
        side = self.pick([2, 3, 4])
        settings = self.pick([{}, {"pads": [1, 1, 1, 1]}, {"output_padding": [1, 1]}, {"auto_pad": "SAME_UPPER"}])
        weights = he(self.generator, inputs, 4 if groups == 1 else 1, side, side)
        return self.op("ConvTranspose", x, self.weights(weights), strides=[2, 2], group=groups, **settings)

    def conv_1d(self, x: str) -> str:
        channels, height, width = self.sized(x)
        rows = self.op("Reshape", x, self.whole(0, channels, -1))
        rows = self.op("Relu", self.op("Conv", rows, self.weights(he(self.generator, channels, channels, 3)), pads=[1, 1]))
        return self.reshape(rows, 1, channels, height, width)

    def conv_3d(self, x: str) -> str:
        volume = self.over("Unsqueeze", x, [1])
        volume = self.op("Conv", volume, self.weights(he(self.generator, 2, 1, 3, 3, 3)), self.random(2), pads=[1] * 6)
        return self.op("Add", *(self.over("Squeeze", part, [1]) for part in self.split(self.op("Relu", volume), 1, 1)))

    def shared_conv(self, x: str) -> str:
        channels = self.shape(x)[1]
        weights, bias = self.constant(he(self.generator, channels, channels, 3, 3)), self.random(channels)
        y = self.op("Relu", self.op("Conv", x, weights, bias, pads=[1] * 4))
        return self.op("Conv", y, weights, *([bias] if self.chance(0.5) else []), pads=[1] * 4)

    def pool(self, x: str) -> str:
        op_type, side = self.pick(["AveragePool", "MaxPool", "MaxPool", "LpPool"]), self.pick([2, 3])
        settings: dict[str, object] = {"kernel_shape": [side] * 2, "strides": [self.pick([1, 2])] * 2}
        settings |= self.pick([{}, {"pads": [1, 1, 1, 1]}, {"pads": [0, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}])
        if self.opset >= (18 if op_type == "LpPool" else 10) and "auto_pad" not in settings and self.chance(0.4):
            settings["ceil_mode"] = 1
        if op_type == "AveragePool":
            settings["count_include_pad"] = self.pick([0, 1])
        return self.op(op_type, x, **settings)

    def activation(self, x: str) -> str:
        kind = self.pick(["Relu", "Relu", "relu6", *_ACTIVATIONS])
        self.trace.append(kind)
        if kind == "relu6":
            return self.clip(x, 0, 6)
        return _ACTIVATIONS[kind](self, x) if kind in _ACTIVATIONS else self.op(kind, x)

    def residual(self, x: str) -> str:
        y = self.same(self.activation(self.same(x)), self.shape(x)[1])
        return self.op(self.pick(["Add", "Add", "Mul", "Sub", "Max", "Sum"]), *((x, y) if self.chance(0.5) else (y, x)))

    def concat(self, x: str) -> str:
        one = self.activation(self.same(x))
        return self.op("Concat", one, x if self.chance(0.5) else self.same(x), axis=self.pick([1, -3]))

    def halves(self, x: str) -> str:
        channels = self.shape(x)[1]
        if channels % 2:
            raise Impossible("odd")
        one, other = self.split(x, channels // 2, channels // 2)
        if self.chance(0.4):
            return self.op("Mul", one, self.op("Sigmoid", other))
        return self.op("Concat", self.activation(one), self.same(other), axis=1)

    def crop(self, x: str) -> str:
        if min(self.shape(x)[2:]) < 6:
            raise Impossible("small")
        return self.slice(self.slice(x, 1, 2**31 - 1, self.pick([2, -2])), 0, -1, 3, self.pick([1, 2]))

    def pad(self, x: str) -> str:
        mode, pads = self.pick(["constant", "reflect", "edge"]), [0, 0, 1, 2, 0, 0, 0, 1]
        if self.opset < 11:
            return self.op("Pad", x, mode=mode, pads=pads)
        value = self.pick([[], [self.constant(0.0)], [""]]) if mode == "constant" and self.opset < 18 else []
        return self.op("Pad", x, self.whole(*pads), *value, mode=mode)

    def resize(self, x: str) -> str:
        if self.values[x][0, 0].size > 300:
            raise Impossible("large")
        mode = self.pick(["nearest", "linear"])
        if self.opset < 11:
            return self.op("Upsample" if self.opset == 9 else "Resize", x, self.constant([1, 1, 2, 2]), mode=mode)
        places = self.pick(["asymmetric", "half_pixel", "align_corners"])
        settings = {"mode": mode, "coordinate_transformation_mode": places} | (
            {"nearest_mode": "floor"} if mode == "nearest" else {}
        )
        empty = self.constant(np.zeros(0)) if self.opset < 13 else ""
        if self.chance(0.5):
            return self.op("Resize", x, empty, self.constant([1, 1, 2, 2]), **settings)
        sizes = self.op("Mul", self.op("Shape", x), self.whole(1, 1, 2, 2))
        return self.op("Resize", x, empty, empty, sizes, **settings)

    def gate(self, x: str) -> str:
        channels = self.shape(x)[1]
        pooled = self.op("GlobalAveragePool", x) if self.chance(0.5) else self.over("ReduceMean", x, [2, 3])
        if self.chance(0.4):
            rows = self.op("Relu", self.linear(self.op("Flatten", pooled), channels))
            gate = self.over("Unsqueeze", self.op("Sigmoid", self.linear(rows, channels)), [2, 3])
        else:
            gate = self.op("Sigmoid", self.same(self.op("Relu", self.same(pooled))))
        return self.op("Mul", *((x, gate) if self.chance(0.5) else (gate, x)))

    def linear(self, x: str, outputs: int) -> str:
        inputs = self.shape(x)[-1]
        weights = he(self.generator, outputs, inputs)
        if self.values[x].ndim == 2 and self.chance(0.7):
            turned = self.chance(0.5)
            settings = {"transB": int(turned)} | self.pick([{}, {}, {"alpha": 0.5, "beta": 2.0}])
            return self.op("Gemm", x, self.weights(weights if turned else weights.T), self.random(outputs), **settings)
        y = self.op("MatMul", x, self.weights(weights.T))
        return self.op("Add", *self.generator.permutation([y, self.random(outputs)]).tolist()) if self.chance(0.7) else y

    def attention(self, x: str) -> str:
        channels, height, width = self.sized(x)
        if height * width > 300 or channels % 2:
            raise Impossible("too large")
        tokens = self.op("Transpose", self.op("Reshape", x, self.whole(0, channels, -1)), perm=[0, 2, 1])
        rows = self.layer_norm(tokens)

        def heads(rows: str, perm: list[int]) -> str:
            return self.op("Transpose", self.reshape(rows, 1, height * width, 2, channels // 2), perm=perm)

        query, key, value = (heads(self.linear(rows, channels), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = self.op("Div", self.op("MatMul", query, key), self.constant((channels / 2) ** 0.5))
        mixed = self.op("Transpose", self.op("MatMul", self.op("Softmax", scores, axis=3), value), perm=[0, 2, 1, 3])
        tokens = self.op("Add", tokens, self.linear(self.reshape(mixed, 1, height * width, channels), channels))
        return self.reshape(self.op("Transpose", tokens, perm=[0, 2, 1]), 1, channels, height, width)

    def layer_norm(self, x: str) -> str:
        size = self.shape(x)[-1]
        scale, shift = self.constant(self.generator.uniform(0.5, 1.5, size)), self.random(size)
        if self.opset >= 17 and self.chance(0.5):
            return self.op("LayerNormalization", x, scale, shift, axis=-1)
        centred = self.op("Sub", x, self.over("ReduceMean", x, [-1]))
        spread = self.op(
            "Sqrt", self.op("Add", self.over("ReduceMean", self.op("Mul", centred, centred), [-1]), self.constant(1e-5))
        )
        return self.op("Add", self.op("Mul", self.op("Div", centred, spread), scale), shift)

    def channels_last(self, x: str) -> str:
        y, channels = self.op("Transpose", x, perm=[0, 2, 3, 1]), self.shape(x)[1]
        y = self.op("Relu", self.op("Add", y, self.random(channels))) if self.chance(0.5) else self.linear(y, channels)
        return self.op("Transpose", y, perm=[0, 3, 1, 2])

    def factor(self, x: str) -> str:
        channels = self.shape(x)[1]
        tensor = self.constant(self.generator.uniform(0.5, 1.5, self.pick([(), (1,), (channels, 1, 1), (1, channels, 1, 1)])))
        op_type = self.pick(["Add", "Div", "Max", "Min", "Mul", "Sub"])
        return self.op(op_type, *((x, tensor) if op_type == "Div" or self.chance(0.6) else (tensor, x)))

    def reduced(self, x: str) -> str:
        y = self.over(self.pick(["ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"]), x, [self.pick([1, 2, 3])])
        return self.op(self.pick(["Add", "Sub"]), x, self.op("Sigmoid", y))

    def choice(self, x: str) -> str:
        large = self.op("Greater", x, self.constant(0.1))
        return self.op("Where", large, x, self.op("Mul", x, self.constant(0.2)))

    def picked(self, x: str) -> str:
        order = self.generator.permutation(self.shape(x)[1])
        return self.op("Gather", x, self.constant(order, self.pick([np.int32, np.int64])), axis=1)

    def shuffle(self, x: str) -> str:
        channels, height, width = self.sized(x)
        if channels % 2:
            raise Impossible("odd")
        y = self.reshape(x, 1, 2, channels // 2, height, width)
        return self.reshape(self.op("Transpose", y, perm=[0, 2, 1, 3, 4]), 1, channels, height, width)

    def space(self, x: str) -> str:
        return self.op("SpaceToDepth", x, blocksize=2) if self.chance(0.5) else self.op("DepthToSpace", x, blocksize=2)

    def side_type(self, x: str) -> str:
        of, dtype = self.pick([(TYPE.DOUBLE, np.float64), (TYPE.FLOAT16, np.float16)])
        return self.op("Cast", self.op("Mul", self.op("Cast", x, to=of), self.constant(1.25, dtype)), to=TYPE.FLOAT)

    def branch(self, x: str) -> str:
        mean = self.over("ReduceMean", x, [0, 1, 2, 3], keepdims=0)
        name = f"if{self.count}"
        parts = [
            oh.make_graph([oh.make_node(op, [x], [f"{name}.{op}"])], op, [], [oh.make_tensor_value_info(f"{name}.{op}", 1, None)])
            for op in ("Relu", "Neg")
        ]
        condition = self.op("Greater", mean, self.constant(0.05)) if self.chance(0.7) else self.constant(True, bool)
        return self.op("If", condition, then_branch=parts[0], else_branch=parts[1])

    def loop(self, x: str) -> str:
        name = f"loop{self.count}"
        body = oh.make_graph(
            [
                oh.make_node("Tanh", [f"{name}.in"], [f"{name}.out"]),
                oh.make_node("Identity", [f"{name}.go"], [f"{name}.on"]),
            ],
            "body",
            [
                oh.make_tensor_value_info(f"{name}.i", TYPE.INT64, []),
                oh.make_tensor_value_info(f"{name}.go", TYPE.BOOL, []),
                oh.make_tensor_value_info(f"{name}.in", TYPE.FLOAT, None),
            ],
            [oh.make_tensor_value_info(f"{name}.on", TYPE.BOOL, []), oh.make_tensor_value_info(f"{name}.out", TYPE.FLOAT, None)],
        )
        return self.op("Loop", self.constant(2, np.int64), self.constant(True, bool), x, body=body)

    def twice(self, x: str) -> str:
        """A branch written twice, and one that nobody reads."""
        self.op("Relu", x)
        return self.op("Add", self.op("Sigmoid", x), self.op("Sigmoid", x))

    # Heads, the whole graph.

    def head(self, x: str) -> list[str]:
        kind = self.pick(["classes", "classes", "map", "boxes", "vector", "largest", "top", "last"])
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
            step = self.pick(_STEPS)
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
        inputs = [oh.make_tensor_value_info("image", _type(self.values["image"]), open_shape)]
        inputs += [oh.make_tensor_value_info(name, TYPE.FLOAT, value.shape) for name, value in sides.items()]
        if self.listed:
            inputs += [oh.make_tensor_value_info(name, _type(value), value.shape) for name, value in self.constants.items()]
        unknown = self.open_batch or self.open_sides
        ends = [
            oh.make_tensor_value_info(name, _type(value), [None] * value.ndim if unknown else value.shape)
            for name, value in ((name, self.values[name]) for name in dict.fromkeys(outputs))
        ]
        constants = [onh.from_array(value, name) for name, value in self.constants.items()]
        proto = self._model(oh.make_graph(self.nodes, "random", inputs, ends, constants))
        return RandomGraph(proto, self.trace, "image", shape, tuple(larger), sides, self.seed, dtype, channels)


def _type(array: np.ndarray) -> int:
    return oh.np_dtype_to_tensor_dtype(array.dtype)


def _inner(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [one for attribute in node.attribute if attribute.HasField("g") for one in attribute.g.node]


def _gelu(graph: _Growing, x: str) -> str:
    bent = graph.op("Add", graph.op("Erf", graph.op("Div", x, graph.constant(2**0.5))), graph.constant(1))
    return graph.op("Mul", graph.op("Mul", x, bent), graph.constant(0.5))


def _hard_swish(graph: _Growing, x: str) -> str:
    return graph.op("Mul", x, graph.op("Div", graph.clip(graph.op("Add", x, graph.constant(3)), 0, 6), graph.constant(6)))


_ACTIVATIONS: dict[str, Callable[[_Growing, str], str]] = {
    "elu": lambda graph, x: graph.op("Elu", x, alpha=0.5),
    "gelu": _gelu,
    "hard sigmoid": lambda graph, x: graph.op("HardSigmoid", x),
    "hard swish": _hard_swish,
    "leaky": lambda graph, x: graph.op("LeakyRelu", x, alpha=0.1),
    "leaky by max": lambda graph, x: graph.op("Max", x, graph.op("Mul", x, graph.constant(0.1))),
    "mish": lambda graph, x: graph.op("Mul", x, graph.op("Tanh", graph.op("Softplus", x))),
    "odd clip": lambda graph, x: graph.clip(x, -0.5, 1.5),
    "one end": lambda graph, x: graph.clip(x, None, 1.0),
    "prelu": lambda graph, x: graph.op("PRelu", x, graph.constant(graph.generator.uniform(0, 0.5, (graph.shape(x)[1], 1, 1)))),
    "sigmoid": lambda graph, x: graph.op("Sigmoid", x),
    "silu": lambda graph, x: graph.op("Mul", graph.op("Sigmoid", x), x),
    "softsign": lambda graph, x: graph.op("Softsign", x),
    "tanh": lambda graph, x: graph.op("Tanh", x),
}
_STEPS = [
    *("conv",) * 8,
    *("activation", "attention", "branch", "channels_last", "choice", "concat", "conv_1d", "conv_3d", "conv_transposed", "crop"),
    *("factor", "gate", "halves", "loop", "norm", "pad", "picked", "pool", "pool", "reduced", "residual", "residual", "resize"),
    *("shared_conv", "shuffle", "side_type", "space", "twice"),
]
