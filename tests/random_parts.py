"""What random graphs are made of: nodes, constants and the value of every tensor on one image."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime as ort

__all__ = ["OPSETS", "TYPE", "Impossible", "Parts", "type_of"]

TYPE = onnx.TensorProto
# Opset to the IR version that its exporters wrote.
OPSETS = {9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10}
# From which opset on axes are an input.
AXES_BY_INPUT = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}


class Impossible(Exception):  # noqa: N818
    """This step does not fit here."""


class Parts:
    """Nodes, constants and the value of every tensor on one image."""

    def __init__(self, seed: int, attempt: int = 0) -> None:
        self.seed = seed
        self.generator = generator = np.random.default_rng((seed, attempt) if attempt else seed)
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
        inputs = [oh.make_tensor_value_info(name, type_of(self.values[name]), self.values[name].shape) for name in reads]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
        model = self.model(oh.make_graph([node], "g", inputs, outputs))
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return session.run(None, {name: self.values[name] for name in reads})
        except Exception as error:  # ONNX Runtime's own exceptions have no common base but this
            raise Impossible(f"{node.op_type}: {error}") from error

    def model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
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


def type_of(array: np.ndarray) -> int:
    return oh.np_dtype_to_tensor_dtype(array.dtype)


def _inner(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [one for attribute in node.attribute if attribute.HasField("g") for one in attribute.g.node]
