"""Which tensors decide whether FP16 is close enough: a graph's outputs, and what it chooses by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from types import MappingProxyType

import onnx_ir as ir

from octavo.graph.custom_ops.cut import reads
from octavo.graph.operators import JOINS, MOVES
from octavo.quantization.fp16.measure import Loss
from octavo.quantization.fp16.schema import is_float

__all__ = ["joined", "pooled", "watched"]


def joined(reference: ir.Model, choosers: Collection[str]) -> dict[str, str]:
    """Of tensors that nodes choose among, the Concat that brings together what was chosen of them, where there is one.

    Args:
        reference: FP32; each of its tensors has a name.
        choosers: names of nodes that choose among values (`octavo.graph.selection.choosing`).

    Returns:
        What such a node reads to the name of what the Concat puts out.
    """
    found = {}
    for node in reference.graph:
        if node.name in choosers:
            concats = {concat.name for value in node.outputs if is_float(value) for concat in _joins(value)}
            if len(concats) == 1:
                found |= dict.fromkeys((value.name for value in reads(node) if is_float(value)), next(iter(concats)))
    return found


def _joins(value: ir.Value) -> list[ir.Value]:
    """What the first Concats behind a tensor put out, over nodes that only move values."""
    found, waiting = [], [value]
    while waiting:
        for use in waiting.pop().uses():
            if use.node.op_type in JOINS:
                found.append(use.node.outputs[0])
            elif use.node.op_type in MOVES and use.idx == 0:
                waiting += use.node.outputs
    return found


def watched(reference: ir.Model, own: Collection[str], together: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Float outputs; before an output of integers (classes, selected boxes), the nearest float tensors.

    Parts of one tensor count together. torchvision's SSD chooses class by class: 91 columns of one Softmax, of which most are of
    classes that the image does not have. Their scores near 0 are exact to the same share of the logits' noise as those near 1, and
    each held to the bound by itself asks for what no score of an object needs. Parts of what a Concat joined are several layers'
    outputs, and stand alone, as outputs of the graph do. Parts of such a part do not count again.

    So do tensors of which what is chosen is brought together. RetinaNet and FCOS take the best of each level of a pyramid, and of
    all the best: a level on which there is no object has scores that no choice keeps, and is not held to a bound of its own.

    Args:
        reference: FP32; types are inferred, and each of its tensors has a name.
        own: names of the outputs that its users get; others are what nodes that choose would read (`octavo.graph.selection.held`).
        together: of what these would read, what joins their choices (`joined`).

    Returns:
        Each tensor's name to the name that it is judged under: its own, that of the tensor that it and others are parts of, or that
        of the first of those that are chosen of together.
    """
    found: dict[ir.Value, ir.Value] = {}
    waiting = list(reference.graph.outputs)
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop(0)
        producer = value.producer()
        if value in seen or producer is None:
            continue
        seen.add(value)
        if is_float(value) and value.name:
            found[value] = value if value.name in own else _whole(value)
        else:
            waiting += [before for before in producer.inputs if before is not None]
    joins = {whole: together[value.name] for value, whole in found.items() if value.name in together and value.name not in own}
    # Of a class's scores those above a threshold (places that the data decide) are read as well: they are among these.
    found = {value: whole for value, whole in found.items() if whole is value or not _within(value, whole, found)}
    parts = Counter(found.values())
    judged = {value: whole if parts[whole] > 1 else value for value, whole in found.items()}
    first: dict[str, ir.Value] = {}
    for value, whole in found.items():
        if whole in joins:
            judged[value] = first.setdefault(joins[whole], judged[value])
    return {value.name: one.name for value, one in judged.items() if value.name and one.name}


def pooled(losses: Mapping[str, Loss], judged: Mapping[str, str]) -> dict[str, Loss]:
    """Losses of `watched` tensors under the names that they are judged under: sums over parts of one tensor."""
    parts: dict[str, list[Loss]] = defaultdict(list)
    for name, loss in losses.items():
        parts[judged[name]].append(loss)
    return {name: _together(each) for name, each in parts.items()}


def _together(losses: Collection[Loss]) -> Loss:
    """One where a part is not comparable has the others' sums."""
    compared = [loss for loss in losses if loss.comparable]
    return Loss(
        signal=sum(loss.signal for loss in compared),
        noise=sum(loss.noise for loss in compared),
        broken=any(loss.broken for loss in losses),
        comparable=bool(compared),
        noises=[sum(of_sample) for of_sample in zip(*(loss.noises for loss in compared), strict=True)],
    )


def _within(value: ir.Value, whole: ir.Value, found: Collection[ir.Value]) -> bool:
    """Whether a part of a tensor is one of another part that is found."""
    around = value
    while (around := around.producer().inputs[0]) is not whole:
        if around in found:
            return True
    return False


def _whole(value: ir.Value) -> ir.Value:
    """What values were computed as, before nodes that only move them."""
    whole = value
    while (producer := whole.producer()) is not None and producer.op_type in MOVES and is_float(producer.inputs[0]):
        whole = producer.inputs[0]
    source = whole.producer()
    return value if source is None or source.op_type in JOINS or not whole.name else whole
