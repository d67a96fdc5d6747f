"""A torch module that runs an ONNX graph node by node, and whether it runs several images at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from octavo.errors import SourceError
from octavo.sources.onnx_operators.node import Unsupported
from octavo.sources.onnx_operators.sizes import as_tensor

__all__ = ["OnnxModule", "Operand", "Operator", "Step", "refuse_fixed_batch"]

# Rounding differs with the batch; more than this share of the largest output is another image's.
TOLERANCE = 1e-3
FROM_TORCH = "train from the torch module that the graph was exported from (`source: {kind: torch}`)"
ONE_AT_A_TIME = (
    "train on one image a step, or export the graph with an open batch: by its exporter, or by `source.dynamic_batch: true` here"
)


@dataclass(frozen=True)
class Operand:
    """What a step takes: an earlier value, a constant of the module, or sizes that the graph states.

    Args:
        value: name of an earlier value.
        constant: name of a buffer or parameter in `constants`.
        stated: sizes.
        dtype: what a value that is sizes becomes for a function of tensors; None leaves sizes what they are.
    """

    value: str | None = None
    constant: str | None = None
    stated: np.ndarray | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Step:
    """One node: `run` on sizes, or the submodule `module` on tensors.

    Args:
        node: name in the ONNX graph.
        results: names of the values that it gives; empty for one that nobody reads.
        on_device: it takes `device` too.
        spent: values that no later step reads.
    """

    node: str
    op_type: str
    module: str | None
    run: Callable[..., Any] | None
    operands: tuple[Operand | None, ...]
    results: tuple[str, ...]
    on_device: bool = False
    spent: tuple[str, ...] = ()


class Operator(nn.Module):
    """A function as a module, so that what `torch.export` traces bears the node's name."""

    def __init__(self, op_type: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.op_type = op_type
        self.function = function

    def forward(self, *operands: Any, **device: torch.device) -> Any:
        """What the function gives."""
        return self.function(*operands, **device)

    def extra_repr(self) -> str:
        """The operator's name."""
        return self.op_type


class OnnxModule(nn.Module):
    """An ONNX graph as a module: each node a submodule with the node's name, run in the graph's order.

    Attributes:
        node_names: submodule -> the name that its node has in the graph. A submodule's name has `_` for all but letters and digits.
        constants: buffers, and weights of operators that are no module of torch.
        image: name of the graph's input.
        steps: the nodes in their order.
        outputs: output name -> the value that it is.
        selecting: the graph chooses among values (`octavo.graph.selection`).
    """

    def __init__(self, image: str) -> None:
        super().__init__()
        self.constants = nn.Module()
        self.node_names: dict[str, str] = {}
        self.image = image
        self.steps: list[Step] = []
        self.outputs: dict[str, Operand] = {}
        self.selecting = False

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        """From the image tensor [N, ...] to the graph's outputs by name, in the graph's order."""
        values: dict[str, Any] = {self.image: image}
        for _ in self.walk(values):
            pass
        return self.given(values)

    def given(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The outputs among the values that remain after `walk`."""
        return {name: self._operand(operand, values, values[self.image].device) for name, operand in self.outputs.items()}

    def walk(self, values: dict[str, Any]) -> Iterator[tuple[Step, list[Any], Sequence[Any]]]:
        """Run step by step.

        Args:
            values: the image under its name; what the steps give is added, and what no later step reads taken out.

        Yields:
            Each step, what it read and what it gave.

        Raises:
            SourceError: a node has no counterpart for images of this size.
        """
        device = values[self.image].device
        for step in self.steps:
            operands = [self._operand(operand, values, device) for operand in step.operands]
            run = step.run if step.module is None else getattr(self, step.module)
            try:
                found = run(*operands, **({"device": device} if step.on_device else {}))
            except Unsupported as error:
                raise SourceError(
                    f"node {step.node!r} ({step.op_type}) has no counterpart in torch: {error}", FROM_TORCH
                ) from error
            except Exception as error:
                error.add_note(f"at node {step.node!r} ({step.op_type}) of the ONNX graph")
                raise
            results = found if isinstance(found, tuple | list) else (found,)
            values.update({name: value for name, value in zip(step.results, results, strict=False) if name})
            for name in step.spent:
                values.pop(name, None)
            yield step, operands, results

    def _operand(self, operand: Operand | None, values: Mapping[str, Any], device: torch.device) -> Any:
        if operand is None or operand.stated is not None:
            return None if operand is None else operand.stated
        if operand.constant is not None:
            return getattr(self.constants, operand.constant)
        value = values[operand.value]
        if operand.dtype is not None and isinstance(value, np.ndarray):
            return as_tensor(value, operand.dtype, device)
        return value


def refuse_fixed_batch(module: OnnxModule, images: torch.Tensor) -> None:
    """Two images in one batch must come out as they do alone.

    Args:
        module: as `octavo.sources.onnx_to_torch.module_of_graph` gives it.
        images: [2, ...] two images.

    Raises:
        SourceError: the graph has a fixed batch inside; the node is named.
    """
    first, alone = _watched(module, images[:1])
    try:
        both, together = _watched(module, images)
    except Exception as error:
        where = getattr(error, "__notes__", ["in the graph"])[-1]
        raise SourceError(f"the graph takes one image at a time: a batch of two fails {where}", ONE_AT_A_TIME) from error
    second, _ = _watched(module, images[1:])
    for name, value in both.items():
        expected = torch.cat([first[name], second[name]]) if first[name].dim() else first[name]
        if value.shape == expected.shape and first[name].dim() and (module.selecting or _close(value, expected)):
            continue
        culprit = _mixing(alone, together)
        where = f", mixed at node {culprit.node!r} ({culprit.op_type})" if culprit is not None else ""
        raise SourceError(
            f"the graph takes one image at a time: output {name!r} of two images in one batch is not what each gives alone{where}",
            ONE_AT_A_TIME,
        )


Shapes = list[tuple[Step, list[int], list[int]]]


def _watched(module: OnnxModule, images: torch.Tensor) -> tuple[dict[str, torch.Tensor], Shapes]:
    """The outputs, and dimension 0 of all tensors that each step read and gave."""
    values: dict[str, Any] = {module.image: images}
    with torch.no_grad():
        shapes = [(step, _lengths(operands), _lengths(results)) for step, operands, results in module.walk(values)]
        return module.given(values), shapes


def _lengths(values: Sequence[Any]) -> list[int]:
    return [value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else 0 for value in values]


def _mixing(alone: Shapes, together: Shapes) -> Step | None:
    """The first step that reads images along dimension 0 and gives them along another.

    A Transpose may do that: sequences come as [length, batch, features].
    """
    for (step, read, gave), (_, read_two, gave_two) in zip(alone, together, strict=True):
        batched = any(length and two == 2 * length for length, two in zip(read, read_two, strict=True))
        if batched and step.op_type != "Transpose" and any(two != 2 * length for length, two in zip(gave, gave_two, strict=True)):
            return step
    return None


def _close(value: torch.Tensor, expected: torch.Tensor) -> bool:
    if not value.is_floating_point():
        return bool((value != expected).float().mean() <= TOLERANCE)
    scale = max(float(expected.abs().max()), 1e-6) if expected.numel() else 1.0
    return bool(((value - expected).abs() <= TOLERANCE * scale).all())
