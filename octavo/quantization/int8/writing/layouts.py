"""The two ways to lay Q and DQ, each as its placement, its quantized tensors and its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from octavo.quantization.int8.numbers.scales import quantized_tensors
from octavo.quantization.int8.structure.placement import place
from octavo.quantization.int8.structure.targets import Target
from octavo.quantization.int8.structure.units import Unit
from octavo.quantization.int8.writing.input_layout import input_tensors, place_inputs
from octavo.quantization.int8.writing.input_writer import write_inputs
from octavo.quantization.int8.writing.writer import write_qdq

__all__ = ["LAYOUTS", "Layout"]


@dataclass(frozen=True)
class Layout:
    """A way to lay Q and DQ.

    Attributes:
        place: (units, `keep_float` names to patterns, names given back to reasons, target) to each unit's reason to stay float.
        tensors: (INT8 units, target) to the quantized tensors.
        write: see `writer.write_qdq`.
    """

    place: Callable[[list[Unit], Mapping[str, str], Mapping[str, str] | None, Target], dict[Unit, str]]
    tensors: Callable[[Iterable[Unit], Target], list[ir.Value]]
    write: Callable[..., ir.Model]


def _around_kernels(units: list[Unit], kept: Mapping[str, str], given: Mapping[str, str] | None, _: Target) -> dict[Unit, str]:
    return place(units, kept, given)


def _before_inputs(units: list[Unit], kept: Mapping[str, str], given: Mapping[str, str] | None, target: Target) -> dict[Unit, str]:
    named = {name: f"keep_float: {pattern}" for name, pattern in kept.items()}
    named |= {name: reason or "given back" for name, reason in (given or {}).items()}
    return place_inputs(units, named, target)


def _between_kernels(int8: Iterable[Unit], _: Target) -> list[ir.Value]:
    return quantized_tensors(int8)


LAYOUTS = {
    "kernels": Layout(_around_kernels, _between_kernels, write_qdq),
    "inputs": Layout(_before_inputs, input_tensors, write_inputs),
}
