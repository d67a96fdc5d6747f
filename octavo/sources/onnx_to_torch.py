"""From an ONNX graph to a torch module that can be trained, and that `torch.export` can trace.

Layers become torch's own modules (`nn.Conv2d`, `nn.Linear`, `nn.BatchNorm2d`, ...), so that a quantizer finds the patterns that it
knows. Sizes are computed with Python's numbers and torch's symbols (`octavo.sources.onnx_operators.sizes`): the batch stays open.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import onnx_ir as ir
import torch
from torch import nn

from octavo.errors import SourceError
from octavo.graph.inspect import check_float
from octavo.graph.passes.cleaning.batch import DynamicBatchPass
from octavo.graph.selection import selects
from octavo.sources.onnx_module import FROM_TORCH, OnnxModule, Operand, Operator, Step
from octavo.sources.onnx_operators import OPERATORS, SIZE_INPUTS
from octavo.sources.onnx_operators.node import TORCH_TYPES, Call, Node, Unsupported, Weights, constant_of, tensor_of
from octavo.sources.onnx_operators.sizes import ON_SIZES, READS_SHAPE, sizes

__all__ = ["module_of_graph"]

# From this opset on the operators are what `octavo.sources.onnx_operators` takes them for (Softmax, Squeeze, ReduceSum).
LOWEST_OPSET = 13


def module_of_graph(model: ir.Model, image_input: str) -> OnnxModule:
    """The graph as a module: float32, on the CPU, in eval mode.

    Weights of layers (Conv, ConvTranspose, Gemm, MatMul, normalizations, PRelu) are parameters with gradients, all other constants
    are buffers. A MatMul by a matrix of weights and the Add behind it are one Linear. A fixed batch is made open where the graph
    allows it; `refuse_fixed_batch` tells whether it did.

    Args:
        model: cleaned (`octavo.graph.clean`); it is left as it is.
        image_input: the input that `forward` takes.

    Returns:
        A module from an image tensor [N, ...] to a dict from output name to tensor, in the graph's order.

    Raises:
        SourceError: the graph has other inputs, is quantized, or holds operators without a counterpart; all of them are listed.
    """
    check_float(model)
    opset = model.opset_imports.get("", 0)
    if opset < LOWEST_OPSET:
        raise SourceError(
            f"the graph is of opset {opset}, and can be trained from {LOWEST_OPSET} on", "clean it first, which converts it"
        )
    model = model.clone()  # shares the tensors
    inputs = {value.name: value for value in model.graph.inputs if not value.is_initializer()}
    if list(inputs) != [image_input]:
        listed = ", ".join(map(repr, inputs)) or "none"
        raise SourceError(f"a graph is trained on images alone, which {image_input!r} takes; its inputs: {listed}", FROM_TORCH)
    with suppress(SourceError):  # an output without a batch: the graph runs as it is, with the batch that it has
        DynamicBatchPass(inputs[image_input])(model)
    return _Conversion(model, image_input).module.eval()


class _Conversion:
    """The graph's nodes one after the other; what cannot be converted is gathered before anything is raised."""

    def __init__(self, model: ir.Model, image: str) -> None:
        self.module = OnnxModule(image)
        self.module.selecting = selects(model)
        self.weights = Weights()
        self.sized: set[ir.Value] = set()  # values that are sizes, not tensors
        self.absorbed: set[ir.Node] = set()
        self.constants: dict[tuple[str | None, bool], str] = {}
        refused = []
        steps = []
        for node in model.graph:
            if node in self.absorbed or constant_of(node.outputs[0]) is not None:
                continue
            try:
                steps.append(self._step(node))
            except Unsupported as error:
                refused.append((_operator(node), node.name or "", str(error)))
        if refused:
            raise SourceError(_listed(refused), FROM_TORCH)
        self.module.outputs = {value.name or "": self._tensor(value) for value in model.graph.outputs}
        self.module.steps = _with_ends(steps, {image} | {operand.value for operand in self.module.outputs.values()})

    def _step(self, node: ir.Node) -> Step:
        if node.domain not in ("", "ai.onnx"):
            raise Unsupported(f"it is of the domain {node.domain!r}, not ONNX's")
        view = Node(node, self.weights)
        if node.op_type in READS_SHAPE or (node.op_type in ON_SIZES and self._of_sizes(node)):
            run = ON_SIZES[node.op_type](view)
            self.sized.update(node.outputs)
            read = self._sizes if node.op_type not in READS_SHAPE else self._tensor
            operands = tuple(None if value is None else read(value) for value in node.inputs)
            return Step(node.name or "", node.op_type, None, run, operands, _names(node))
        if node.op_type not in OPERATORS:
            raise Unsupported("")
        call = OPERATORS[node.op_type](view)
        operands = []
        for place in range(len(node.inputs)) if call.reads is None else call.reads:
            value = node.inputs[place] if place < len(node.inputs) and view.has(place) else None
            if value is None:
                operands.append(None)
            elif place in SIZE_INPUTS.get(node.op_type, ()):
                operands.append(self._sizes(value))
            else:
                operands.append(self._tensor(value, trained=place in call.trained))
        results = _names(node)
        if call.absorbs is not None:
            self.absorbed.add(call.absorbs)
            results = _names(call.absorbs)
        return Step(node.name or "", node.op_type, self._added(node, call), None, tuple(operands), results, call.on_device)

    def _of_sizes(self, node: ir.Node) -> bool:
        """Whether all that it reads is sizes, or constants beside sizes."""
        read = [value for value in node.inputs if value is not None]
        return any(value in self.sized for value in read) and all(
            value in self.sized or constant_of(value) is not None for value in read
        )

    def _sizes(self, value: ir.Value) -> Operand:
        constant = constant_of(value)
        if constant is not None:
            return Operand(stated=sizes(constant))
        if value not in self.sized:
            raise Unsupported(f"its {value.name!r}, a shape or the like, is computed from the image's values")
        return Operand(value=value.name)

    def _tensor(self, value: ir.Value, *, trained: bool = False) -> Operand:
        constant = constant_of(value)
        if constant is None:
            return Operand(value=value.name, dtype=_dtype(value) if value in self.sized else None)
        key = (value.name, trained)
        if key not in self.constants:
            name = _attribute(value.name or "constant", self.module.constants)
            tensor = tensor_of(constant)
            if trained and tensor.is_floating_point():
                self.module.constants.register_parameter(name, self.weights.parameter(value))
            else:
                self.module.constants.register_buffer(name, tensor)
            self.constants[key] = name
        return Operand(constant=self.constants[key])

    def _added(self, node: ir.Node, call: Call) -> str:
        name = _attribute(node.name or node.op_type, self.module)
        self.module.add_module(name, call.run if isinstance(call.run, nn.Module) else Operator(node.op_type, call.run))
        self.module.node_names[name] = node.name or ""
        return name


def _with_ends(steps: list[Step], kept: set[str | None]) -> list[Step]:
    """Each step with the values that are read for the last time there."""
    last: dict[str, int] = {}
    for place, step in enumerate(steps):
        last.update({operand.value: place for operand in step.operands if operand is not None and operand.value is not None})
        last.update({name: place for name in step.results if name})
    spent = defaultdict(list)
    for name, place in last.items():
        if name not in kept:
            spent[place].append(name)
    return [replace(step, spent=tuple(spent[place])) for place, step in enumerate(steps)]


def _dtype(value: ir.Value) -> torch.dtype:
    return TORCH_TYPES.get(value.dtype, torch.int64)


def _names(node: ir.Node) -> tuple[str, ...]:
    return tuple(value.name or "" for value in node.outputs)


def _attribute(name: str, module: nn.Module) -> str:
    """A name that a submodule or tensor of the module may have."""
    name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "node"
    name = f"node_{name}" if name[0].isdigit() else name
    free, number = name, 0
    while hasattr(module, free):
        number += 1
        free = f"{name}_{number}"
    return free


def _operator(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def _listed(refused: Sequence[tuple[str, str, str]]) -> str:
    """All operators, with their count, names and reasons."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for op_type, name, reason in refused:
        groups[op_type, reason].append(name)
    lines = "; ".join(
        f"{len(names)} {op_type} ({', '.join(names)})" + (f": {reason}" if reason else "")
        for (op_type, reason), names in groups.items()
    )
    return f"the graph holds operators without a counterpart in torch that could be trained: {lines}"
