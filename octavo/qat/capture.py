"""From a torch module to a graph of aten operators that can be annotated, trained and converted (torch.export, PT2E)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import fx, nn
from torch.export import Dim

from octavo.errors import SourceError

__all__ = ["capture", "channels_last", "moved", "replaced"]

aten = torch.ops.aten
Module = TypeVar("Module", bound=nn.Module)

# To the same, but not in place: what fake quantization puts between two operators must not be overwritten.
_FUNCTIONAL = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.clamp_.default: aten.clamp.default,
    aten.div_.Tensor: aten.div.Tensor,
    aten.elu_.default: aten.elu.default,
    aten.hardsigmoid_.default: aten.hardsigmoid.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.hardtanh_.default: aten.hardtanh.default,
    aten.leaky_relu_.default: aten.leaky_relu.default,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.relu6_.default: aten.relu6.default,
    aten.relu_.default: aten.relu.default,
    aten.sigmoid_.default: aten.sigmoid.default,
    aten.silu_.default: aten.silu.default,
    aten.sub_.Tensor: aten.sub.Tensor,
    # A view wants memory in one order, which channels-last activations do not have.
    aten.view.default: aten.reshape.default,
}
# What does nothing in eval mode.
_IDLE = (aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default, aten.detach.default, aten.alias.default)


def capture(module: nn.Module, example: torch.Tensor, *, dynamic_size: bool = False) -> fx.GraphModule:
    """Capture a module in eval mode: aten operators not in place, no dropout, any batch size.

    Args:
        module: float32; its floating-point parameters become trainable.
        example: [N, ...], N >= 2: a batch of one would be taken for a constant.
        dynamic_size: height and width stay open, too.

    Returns:
        A graph module with the module's own parameter names; it shares its tensors.

    Raises:
        SourceError: torch.export cannot follow the module, or the batch size is fixed inside it.
    """
    module.eval()
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    open_dims = (0, 2, 3) if dynamic_size else (0,)
    try:
        with _silent():
            program = torch.export.export(module, (example,), dynamic_shapes=(dict.fromkeys(open_dims, Dim.DYNAMIC),))
            captured = program.module(check_guards=False)
    except Exception as error:
        raise SourceError(
            f"torch.export cannot capture the network for training: {_first_line(error)}",
            "set `qat.enabled: false`, or mend the module: its forward must not branch on values, nor fix the batch size",
        ) from error
    for node in list(captured.graph.nodes):
        if node.target in _FUNCTIONAL:
            node.target = _FUNCTIONAL[node.target]
        elif node.target in _IDLE:
            node.replace_all_uses_with(node.args[0])
            captured.graph.erase_node(node)
    captured.graph.eliminate_dead_code()
    captured.recompile()
    return captured


def moved(captured: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """Move a graph to a device, in place: its tensors, and what its nodes make, whose device was noted when it was captured."""
    for node in captured.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    captured.recompile()
    return captured.to(device)


def channels_last(module: Module) -> Module:
    """Lay the weights of 2-D convolutions out with channels last, in place; other tensors (of five dimensions, say) stay."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return module


def replaced(node: fx.Node, new: fx.Node) -> None:
    """Let all who read one node read another that does not depend on it, and take it out."""
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


@contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]
