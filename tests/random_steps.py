"""Steps of random graphs: what vision networks are written with, in the spellings of several exporters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.helper as oh
from graphs import he
from random_parts import TYPE, Impossible, Parts

__all__ = ["STEPS", "Steps"]


class Steps(Parts):
    """Each step takes a map of four axes and gives one."""

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
        """Which branch is taken is never a close call: one that a rounding turns is lost whatever is quantized."""
        far = float(self.values[x].mean()) + self.pick([-1, 1]) * (2 * float(self.values[x].std()) + 0.1)
        mean = self.over("ReduceMean", x, [0, 1, 2, 3], keepdims=0)
        name = f"if{self.count}"
        parts = [
            oh.make_graph([oh.make_node(op, [x], [f"{name}.{op}"])], op, [], [oh.make_tensor_value_info(f"{name}.{op}", 1, None)])
            for op in ("Relu", "Neg")
        ]
        condition = self.op("Greater", mean, self.constant(far)) if self.chance(0.7) else self.constant(True, bool)
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

    def normed(self, x: str) -> str:
        """Norms whose statistics are the image's own."""
        channels, height, width = self.sized(x)
        kind = self.pick(["group", "instance", "lrn", "length", "root"])
        self.trace.append(kind)
        scale, shift = self.constant(self.generator.uniform(0.5, 1.5, channels)), self.random(channels)
        if kind == "instance":
            return self.op("InstanceNormalization", x, scale, shift)
        if kind == "lrn":
            return self.op("LRN", x, size=3)
        if kind == "length":
            return self.op("Mul", self.op("LpNormalization", x, axis=1), self.constant(3))
        if kind == "root":
            spread = self.over("ReduceMean", self.op("Pow", x, self.constant(2)), [1])
            return self.op("Mul", x, self.op("Reciprocal", self.op("Sqrt", self.op("Add", spread, self.constant(1e-4)))))
        if channels % 2:
            raise Impossible("odd")
        rows = self.op("Reshape", x, self.whole(0, 2, -1))
        rows = self.op("InstanceNormalization", rows, self.constant([1, 1]), self.constant([0, 0]))
        y = self.reshape(rows, 1, channels, height, width)
        column = [self.constant(self.values[name].reshape(-1, 1, 1)) for name in (scale, shift)]
        return self.op("Add", self.op("Mul", y, column[0]), column[1])

    def recurrent(self, x: str) -> str:
        """Each row of the map one step, as text readers have it."""
        channels, height, width = self.sized(x)
        if channels * height > 128:
            raise Impossible("large")
        steps = self.reshape(self.op("Transpose", x, perm=[3, 0, 1, 2]), width, 1, channels * height)
        kind, hidden = self.pick([("GRU", 3), ("LSTM", 4), ("RNN", 1)]), 4
        ways = self.pick([1, 2])
        weights = [self.random(ways, kind[1] * hidden, size) for size in (channels * height, hidden)]
        bias = [self.random(ways, 2 * kind[1] * hidden)] if self.chance(0.7) else []
        direction = "bidirectional" if ways == 2 else "forward"
        y = self.op(kind[0], steps, *weights, *bias, hidden_size=hidden, direction=direction)
        y = self.op("Transpose", y, perm=[2, 1, 3, 0])
        return self.op("Concat", y, self.op("Tanh", y), axis=2)

    def mixed(self, x: str) -> str:
        """A perceptron over the channels of every place."""
        channels, height, width = self.sized(x)
        rows = self.op("Transpose", self.reshape(x, 1, channels, height * width), perm=[0, 2, 1])
        y = self.linear(self.layer_norm(rows), 2 * channels)
        y = self.op("Add", rows, self.linear(self.activation(y) if self.chance(0.3) else _gelu(self, y), channels))
        return self.reshape(self.op("Transpose", y, perm=[0, 2, 1]), 1, channels, height, width)

    def windows(self, x: str) -> str:
        """Windows of two by two places, a softmax within each."""
        channels, height, width = self.sized(x)
        if height % 2 or width % 2:
            raise Impossible("odd")
        y = self.reshape(self.op("Transpose", x, perm=[0, 2, 3, 1]), 1, height // 2, 2, width // 2, 2, channels)
        y = self.op("Transpose", y, perm=[0, 1, 3, 2, 4, 5])
        y = self.reshape(y, 1, height // 2, width // 2, 4, channels)
        scores = self.op("MatMul", y, self.op("Transpose", self.linear(y, channels), perm=[0, 1, 2, 4, 3]))
        y = self.op("MatMul", self.op("Softmax", scores, axis=4), y)
        y = self.op("Transpose", self.reshape(y, 1, height // 2, width // 2, 2, 2, channels), perm=[0, 1, 3, 2, 4, 5])
        return self.op("Transpose", self.reshape(y, 1, height, width, channels), perm=[0, 3, 1, 2])

    def einsum(self, x: str) -> str:
        channels = self.shape(x)[1]
        if self.chance(0.5):
            return self.op("Einsum", x, self.weights(he(self.generator, channels, 6)), equation="bchw,cd->bdhw")
        places = self.op("Einsum", x, x, equation="bchw,bdhw->bcd")
        return self.op("Einsum", self.op("Softmax", places, axis=2), x, equation="bcd,bdhw->bchw")

    def context(self, x: str) -> str:
        """Branches that see farther and farther, and the mean of all."""
        channels = self.shape(x)[1]
        branches = []
        for dilation in (1, 2):
            weights = self.weights(he(self.generator, 4, channels, 3, 3))
            settings = {"dilations": [dilation] * 2, "pads": [dilation] * 4}
            branches.append(self.op("Relu", self.norm(self.op("Conv", x, weights, **settings))))
        mean = self.op("Relu", self.same(self.op("GlobalAveragePool", x), 4))
        if self.opset < 13:
            raise Impossible("Expand comes of a computed shape")
        shape = self.op("Concat", self.whole(1), self.whole(4), self.slice(self.op("Shape", x), 2, 4, 0), axis=0)
        return self.op("Concat", *branches, self.op("Expand", mean, shape), axis=1)

    def parallel(self, x: str) -> str:
        """Convs and a norm side by side, as networks are trained that deploy one Conv."""
        channels = self.shape(x)[1]
        wide = self.norm(self.op("Conv", x, self.weights(he(self.generator, channels, channels, 3, 3)), pads=[1] * 4))
        small = self.norm(self.op("Conv", x, self.weights(he(self.generator, channels, channels, 1, 1))))
        return self.activation(self.op("Add", self.op("Add", wide, small), self.norm(x)))

    def focus(self, x: str) -> str:
        _, height, width = self.sized(x)
        if height % 2 or width % 2 or self.opset < 10:
            raise Impossible("odd")
        return self.op(
            "Concat", *(self.slice(self.slice(x, i, 2**31 - 1, 2, 2), j, 2**31 - 1, 3, 2) for j in (0, 1) for i in (0, 1)), axis=1
        )

    def sampled(self, x: str) -> str:
        """Taken from places that the image chooses."""
        _, height, width = self.sized(x)
        if self.opset < 16:
            raise Impossible("GridSample comes with opset 16")
        grid = np.stack(np.meshgrid(np.linspace(-0.9, 0.9, width), np.linspace(-0.9, 0.9, height)), -1)[None]
        moved = self.op("Mul", self.op("Tanh", self.op("Transpose", self.same(x, 2), perm=[0, 2, 3, 1])), self.constant(0.1))
        name = "linear" if self.opset >= 20 else "bilinear"
        return self.op("GridSample", x, self.op("Add", moved, self.constant(grid)), mode=name, align_corners=self.pick([0, 1]))

    def scattered(self, x: str) -> str:
        channels = self.shape(x)[1]
        if self.opset < 13:
            raise Impossible("older opsets have no negative indices")
        if self.chance(0.5):
            return self.op("CumSum", self.op("Mul", x, self.constant(0.2)), self.constant(self.pick([1, 3]), np.int64))
        ends = self.slice(x, 0, 1, 1)
        rows = self.op("Transpose", self.op("Sigmoid", ends), perm=[1, 0, 2, 3])
        turned = self.op("Transpose", x, perm=[1, 0, 2, 3])
        y = self.op("ScatterND", turned, self.constant([[channels - 1]], np.int64), rows)
        return self.op("Transpose", y, perm=[1, 0, 2, 3])


def _gelu(graph: Steps, x: str) -> str:
    bent = graph.op("Add", graph.op("Erf", graph.op("Div", x, graph.constant(2**0.5))), graph.constant(1))
    return graph.op("Mul", graph.op("Mul", x, bent), graph.constant(0.5))


def _gelu_by_tanh(graph: Steps, x: str) -> str:
    cubic = graph.op("Add", x, graph.op("Mul", graph.op("Pow", x, graph.constant(3)), graph.constant(0.044715)))
    bent = graph.op("Add", graph.op("Tanh", graph.op("Mul", cubic, graph.constant((2 / np.pi) ** 0.5))), graph.constant(1))
    return graph.op("Mul", graph.op("Mul", x, bent), graph.constant(0.5))


def _hard_swish(graph: Steps, x: str) -> str:
    return graph.op("Mul", x, graph.op("Div", graph.clip(graph.op("Add", x, graph.constant(3)), 0, 6), graph.constant(6)))


_ACTIVATIONS: dict[str, Callable[[Steps, str], str]] = {
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
    "gelu by tanh": _gelu_by_tanh,
    "selu": lambda graph, x: graph.op("Selu", x),
    "soft steps": lambda graph, x: graph.op("Mul", x, graph.op("Sigmoid", graph.op("Mul", x, graph.constant(1.702)))),
    "softsign": lambda graph, x: graph.op("Softsign", x),
    "tanh": lambda graph, x: graph.op("Tanh", x),
}
STEPS = [
    *("conv",) * 8,
    *("activation", "attention", "branch", "channels_last", "choice", "concat", "conv_1d", "conv_3d", "conv_transposed", "crop"),
    *("factor", "gate", "halves", "loop", "norm", "pad", "picked", "pool", "pool", "reduced", "residual", "residual", "resize"),
    *("shared_conv", "shuffle", "side_type", "space", "twice"),
    *("context", "einsum", "focus", "mixed", "normed", "normed", "parallel", "recurrent", "sampled", "scattered", "windows"),
]
