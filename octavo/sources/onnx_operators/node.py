"""What an operator's builder sees of a node, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

__all__ = ["TORCH_TYPES", "Builder", "Call", "Node", "Unsupported", "Weights", "constant_of", "tensor_of"]

# Half precision is computed in float32: what is trained needs it.
TORCH_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float32,
    ir.DataType.BFLOAT16: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.BOOL: torch.bool,
}


class Unsupported(Exception):  # noqa: N818
    """Why a node has no counterpart. The converter gathers them from all nodes before it raises a SourceError.

    What only the image's size tells is raised when the node runs, and becomes a SourceError there (`OnnxModule.walk`).
    """


@dataclass(frozen=True)
class Call:
    """What runs in a node's place.

    Args:
        run: a module, or a function; it gives a tensor, or several in the order of the node's outputs.
        reads: positions of the inputs that `run` takes, in this order; an absent one is None. None takes all.
        trained: positions among them whose constants are weights.
        on_device: `run` makes tensors from sizes alone and takes `device` too.
        absorbs: the only reader of the node's output, which `run` computes too.
    """

    run: Callable[..., Any]
    reads: tuple[int, ...] | None = None
    trained: tuple[int, ...] = ()
    on_device: bool = False
    absorbs: ir.Node | None = None


class Weights:
    """Parameters made of constants; a constant that several nodes read in the same form is one parameter."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], nn.Parameter] = {}

    def parameter(
        self, value: ir.Value, *, scale: float = 1.0, shape: Sequence[int] | None = None, transposed: bool = False
    ) -> nn.Parameter:
        """`scale` times the constant, its two axes swapped, reshaped to `shape` or broadcast where it has fewer elements."""
        key = (value.name, scale, None if shape is None else tuple(shape), transposed)
        if key not in self._made:
            array = np.asarray(constant_of(value), np.float32) * np.float32(scale)
            if transposed:
                array = array.T
            if shape is not None:
                array = array.reshape(shape) if array.size == np.prod(shape) else np.broadcast_to(array, shape)
            self._made[key] = nn.Parameter(torch.from_numpy(np.array(array, order="C")))
        return self._made[key]


class Node:
    """An ONNX node with its constants and what is known of its shapes.

    Args:
        node: of a graph whose constants are initializers or Constant nodes.
        weights: the parameters of the whole module.
    """

    def __init__(self, node: ir.Node, weights: Weights) -> None:
        self.node = node
        self.op_type = node.op_type
        self._weights = weights

    def beside(self, node: ir.Node) -> Node:
        """Another node of the same graph."""
        return Node(node, self._weights)

    def int(self, name: str, default: int) -> int:
        """An attribute."""
        return self.node.attributes[name].as_int() if name in self.node.attributes else default

    def float(self, name: str, default: float) -> float:
        """An attribute."""
        return self.node.attributes[name].as_float() if name in self.node.attributes else default

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int] | None:
        """An attribute."""
        if name in self.node.attributes:
            return [int(value) for value in self.node.attributes[name].as_ints()]
        return None if default is None else list(default)

    def string(self, name: str, default: str) -> str:
        """An attribute."""
        return self.node.attributes[name].as_string() if name in self.node.attributes else default

    def has(self, place: int) -> bool:
        """Whether an input is given. An empty constant, as exporters write for Resize's `roi`, is none."""
        if place >= len(self.node.inputs) or self.node.inputs[place] is None:
            return False
        constant = self.constant(place)
        return constant is None or constant.size > 0 or self.op_type != "Resize"

    def wants(self, place: int) -> bool:
        """Whether an output is read by a node or given by the graph."""
        if place >= len(self.node.outputs):
            return False
        value = self.node.outputs[place]
        return bool(value.uses()) or value.is_graph_output()

    def constant(self, place: int) -> np.ndarray | None:
        """An input's constant; None where it is absent or computed."""
        if place >= len(self.node.inputs) or self.node.inputs[place] is None:
            return None
        return constant_of(self.node.inputs[place])

    def scalar(self, place: int) -> float | int | bool | None:
        """An input's constant of one element."""
        array = self.constant(place)
        return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None

    def shape(self, place: int) -> list[int | None] | None:
        """An input's shape, None for each dimension that is not known; None where not even the rank is."""
        shape = self.node.inputs[place].shape
        return None if shape is None else [length if isinstance(length, int) else None for length in shape]

    def rank(self, place: int = 0) -> int:
        """An input's number of dimensions."""
        shape = self.node.inputs[place].shape
        if shape is None:
            raise Unsupported("the number of its input's dimensions is unknown")
        return len(shape)

    def dtype(self, attribute: str, default: ir.DataType) -> torch.dtype:
        """The torch type that an attribute names."""
        return _torch_type(ir.DataType(self.int(attribute, default.value)))

    def output_dtype(self) -> torch.dtype:
        """The torch type of the first output."""
        if self.node.outputs[0].dtype is None:
            raise Unsupported("the type of its output is unknown")
        return _torch_type(self.node.outputs[0].dtype)

    def parameter(self, place: int, **form: Any) -> nn.Parameter:
        """An input's constant as a weight; see `Weights.parameter`."""
        return self._weights.parameter(self.node.inputs[place], **form)

    def weight(self, place: int, what: str = "weight") -> np.ndarray:
        """An input that must be a constant."""
        array = self.constant(place)
        if array is None:
            raise Unsupported(f"its {what} is not a constant")
        return array


Builder = Callable[[Node], Call]


def constant_of(value: ir.Value) -> np.ndarray | None:
    """The value of an initializer or a Constant node; None for any other."""
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A constant as torch computes with it."""
    dtype = _torch_type(ir.DataType.from_numpy(array.dtype))
    if dtype == torch.float32:
        array = array.astype(np.float32)
    return torch.from_numpy(np.array(array, order="C"))


def _torch_type(dtype: ir.DataType) -> torch.dtype:
    if dtype not in TORCH_TYPES:
        raise Unsupported(f"torch cannot compute with {dtype.name.lower()} here")
    return TORCH_TYPES[dtype]
