"""Small Q/DQ graphs for tests of passes over them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
from graphs import network, run

__all__ = ["Parts", "held_to_the_bit"]


class Parts:
    """Nodes and tensors of a Q/DQ graph that grows from its input `x`.

    Each step takes the name of a uint8 tensor and gives that of another; the first is `x.code`.
    """

    def __init__(self, shape: list) -> None:
        self.shape = shape
        self.generator = np.random.default_rng(19)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {"scale": np.float32(0.03), "zero": np.uint8(117)}
        self.quantize("x")

    def quantize(self, name: str, pair: tuple[str, str] = ("scale", "zero")) -> str:
        """Codes of a float tensor."""
        self.nodes.append(oh.make_node("QuantizeLinear", [name, *pair], [f"{name}.code"], f"{name}.Q"))
        return f"{name}.code"

    def read(self, code: str, name: str = "", pair: tuple[str, str] = ("scale", "zero")) -> str:
        """The float tensor that codes stand for."""
        name = name or f"{code}.read"
        self.nodes.append(oh.make_node("DequantizeLinear", [code, *pair], [name], f"{name}.DQ"))
        return name

    def weights(self, name: str, *shape: int) -> str:
        """int8 weights with a scale a channel, read back."""
        self.tensors |= {
            name: self.generator.integers(-127, 128, shape, np.int8),
            f"{name}.scale": self.generator.uniform(0.001, 0.01, shape[0]).astype(np.float32),
            f"{name}.zero": np.zeros(shape[0], np.int8),
        }
        self.nodes.append(
            oh.make_node("DequantizeLinear", [name, f"{name}.scale", f"{name}.zero"], [f"{name}.read"], f"{name}.DQ", axis=0)
        )
        return f"{name}.read"

    def op(self, op_type: str, inputs: list[str], name: str, **attributes: object) -> str:
        """A float op and the codes of its output."""
        self.nodes.append(oh.make_node(op_type, inputs, [name], name, **attributes))
        return self.quantize(name)

    def model(self, *codes: str) -> ir.Model:
        """The graph, its outputs the float values of codes."""
        outputs = [self.read(code, f"y{place}") for place, code in enumerate(codes)]
        return network(self.nodes, self.tensors, outputs, inputs={"x": self.shape})

    def image(self) -> np.ndarray:
        """Values that reach beyond the codes on both sides."""
        return (self.generator.standard_normal([2 if isinstance(side, str) else side for side in self.shape]) * 3).astype(
            np.float32
        )


def held_to_the_bit(pass_: ir.passes.InPlacePass, model: ir.Model, image: np.ndarray) -> ir.Model:
    """Rewrite, and hold every output to what it was, with ONNX Runtime's optimizations and without."""
    ways = ("off", "all")
    before = [run(model, {"x": image}, optimization=way) for way in ways]
    assert pass_(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for way, values in zip(ways, before, strict=True):
        after = run(model, {"x": image}, optimization=way)
        for name, value in values.items():
            np.testing.assert_array_equal(after[name], value, err_msg=f"{name}, optimization {way}")
    used = {value.name for node in model.graph for value in node.inputs if value is not None and value.is_initializer()}
    assert set(model.graph.initializers) == used
    once = ir.to_proto(model).SerializeToString()
    assert not pass_(model).modified
    assert ir.to_proto(model).SerializeToString() == once
    return model
