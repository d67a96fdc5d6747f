"""Ranges of activations, each tried against others by the error at the network's heads.

Least squared error of a tensor's own values is a guess at what the network minds: on MobileNetV2 some tensors' large values decide
and others' do not (MSE cuts both). Here one tensor at a time is rounded in an otherwise exact network, with its range narrower and
wider, and the range that measures best is kept. Behind each tensor stands an `If` that rounds it or does not, and scales and zero
points are inputs with defaults: few sessions serve all tensors, each from where the first of its own stand on.

A few calibration images alone say little about rare large values: on MobileNetV2, calibrated on packaged photos, they cut a tensor
to 2.1 that needs 5.3 on others (20 dB by that rounding alone). So each range is measured on these and on held-out images together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.graph.protos import names_read, part_of
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.switches import TENSOR, FloatGraph
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.structure.units import ONE_SCALE
from octavo.runtime.lanes import in_lanes

__all__ = ["SMALL", "searched_scales", "sharing"]

# Each range is multiplied by these, away from 1 as long as it gets better. Percentiles leave a depthwise layer's ReLU6 half of what
# it needs, and a residual sum with one large pixel in few images seven times too much (MobileNetV2).
_WIDER, _NARROWER = (1.25, 1.5, 2.0, 2.7), (0.85, 0.7, 0.55, 0.4, 0.28, 0.2, 0.14)
# Noise has to fall to this share of what it was: less is a chance of few images.
_WORTH = 0.95
# Tensors that make up less than this share of all noise are left alone.
SMALL = 0.002
# Sessions.
_STRETCHES = 6


def searched_scales(
    model: ir.Model,
    plan: Plan,
    judge: Judge,
    others: Judge,
    fixed: Set[str] = frozenset(),
    *,
    weights: Sequence[float] | None = None,
    share: float = SMALL,
    most: int | None = None,
) -> dict[str, QParams]:
    """Scales that measure better.

    Args:
        model: FP32, as prepared for INT8.
        plan: where to start; tensors that share a scale go on sharing it.
        judge: of the network's heads on calibration images.
        others: the same on images that the statistics were not made from.
        fixed: tensors whose range is given; so are those that share it.
        weights: how much each of `judge`'s samples counts; all alike without.
        share: of all noise, from which on a tensor's range is searched.
        most: tensors whose range is searched, those with the most noise; all without.

    Returns:
        The scales that changed.
    """
    scales, weighed = plan.scales, {judge: weights}
    graph = FloatGraph(model, plan, {}, judge.heads)
    groups = [names for names in sharing(plan) if fixed.isdisjoint(names)]
    groups.sort(key=lambda names: _begin(graph, names))
    start: list[float] = []
    for stretch in _stretches(graph, groups, [judge], weighed):
        start += [stretch.noise(judge, names, scales[names[0]]) for names in stretch.groups]
    before = dict(zip(map(tuple, groups), start, strict=True))
    loudest = sorted(before, key=before.__getitem__, reverse=True)[:most]
    searched = {names for names in loudest if before[names] >= share * sum(start)}
    loud = [names for names in groups if tuple(names) in searched]
    found: dict[str, QParams] = {}
    for stretch in _stretches(graph, loud, [judge, others], weighed):
        for names in stretch.groups:
            chosen = _searched(stretch, names, scales[names[0]], judge=judge, others=others, before=before[tuple(names)])
            if chosen is not None:
                found |= dict.fromkeys(names, chosen)
    return found


def _searched(stretch: _Stretch, names: list[str], own: QParams, *, judge: Judge, others: Judge, before: float) -> QParams | None:
    """The range of some tensors that makes the least noise of those tried; None where that is the one they have.

    Args:
        before: what they make on the calibration images as they are.
    """

    def noise(chosen: QParams, below: float = math.inf) -> float:
        mine = stretch.noise(judge, names, chosen, below=below)
        return mine + stretch.noise(others, names, chosen, below=below - mine) if mine < below else math.inf

    best, least = None, _WORTH * (before + stretch.noise(others, names, own))
    for factors in (_WIDER, _NARROWER):
        if best is not None:
            break
        for factor in factors:
            chosen = _stretched(own, factor)
            measured = noise(chosen, least)
            if measured >= least:
                break
            best, least = chosen, measured
    return best


def _begin(graph: FloatGraph, names: Sequence[str]) -> int:
    return min(graph.place((TENSOR, name)) for name in names)


def _stretches(
    graph: FloatGraph, groups: Sequence[list[str]], judges: Sequence[Judge], weighed: Mapping[Judge, Sequence[float] | None]
) -> Iterator[_Stretch]:
    """The network from the first of some tensors on, for a part of them after the other, with what FP32 has there."""
    if not groups:
        return
    length = max(1, -(-len(groups) // _STRETCHES))
    parts = [groups[start : start + length] for start in range(0, len(groups), length)]
    held = [[dict(feeds) for feeds in judge.samples] for judge in judges]
    nodes = graph.nodes
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        begin = _begin(graph, following[0]) if following is not None else 0
        wanted = graph.border(begin) if following is not None else []
        made = [name for name in wanted if name not in held[0][0]]
        stretch = _Stretch(graph, part, nodes, dict(zip(judges, held, strict=True)), also=made, weighed=weighed)
        yield stretch
        if following is not None:
            held = [[stretch.handed_on(values, wanted, made) for values in images] for images in held]
            nodes = graph.rest(begin)
        # Its weights need not lie beside those of the next one.
        del stretch.session


class _Stretch:
    """A part of the network with a switchable Q and DQ behind some tensors.

    Attributes:
        groups: these tensors; those of a group are rounded together.
    """

    def __init__(
        self,
        graph: FloatGraph,
        groups: Sequence[list[str]],
        nodes: Sequence[onnx.NodeProto],
        held: Mapping[Judge, Sequence[Mapping[str, np.ndarray]]],
        *,
        also: Sequence[str],
        weighed: Mapping[Judge, Sequence[float] | None],
    ) -> None:
        self.groups, self.held, self.weighed = groups, held, weighed
        first = next(iter(held.values()))[0]
        scales = {name: graph.plan.scales[name] for names in groups for name in names}
        # Heads are read behind their own rounding.
        self.heads = {name: f"{name}//read" if name in scales else name for name in graph.heads if name not in first}
        self.session = graph.mapped.session(_rounding(graph, scales, nodes, first, [*self.heads.values(), *also]), threads=1)

    def noise(self, judge: Judge, names: Sequence[str], chosen: QParams, *, below: float = math.inf) -> float:
        """Noise at the heads with these tensors rounded so, and all others exact; infinity where it is not below a bound, which few
        images may tell.
        """
        given = {f"{name}//scale": np.asarray(chosen.scale) for name in names}
        given |= {f"{name}//zero": np.asarray(chosen.zero_point) for name in names}
        given |= {f"{name}//on": np.asarray(True) for name in names}

        def heads(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            made = self._run(values, list(self.heads.values()), given)
            return {**values, **{name: made[behind] for name, behind in self.heads.items()}}

        weights = self.weighed.get(judge)
        by_image = judge.noise_below(in_lanes(heads, self.held[judge]), below, weights)
        return math.inf if by_image is None else float(np.average(by_image, weights=weights))

    def handed_on(self, values: Mapping[str, np.ndarray], wanted: Sequence[str], made: Sequence[str]) -> dict[str, np.ndarray]:
        """What the next stretch reads of FP32 on one image: copies, as an array of ONNX Runtime's keeps all memory of a session."""
        new = self._run(values, made) if made else {}
        return {name: new[name].copy() if name in new else values[name] for name in wanted}

    def _run(
        self, values: Mapping[str, np.ndarray], names: Sequence[str], given: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        return self.session.run({name: values[name] for name in self.session.inputs} | dict(given or {}), names)


def sharing(plan: Plan) -> list[list[str]]:
    """Tensors in groups that must keep one scale: the ends of a carrier, a PRelu or a lone Relu, and what a Concat only copies."""
    scales = {name: chosen for name, chosen in plan.scales.items() if not chosen.by_channel}
    group = {name: [name] for name in scales}
    for unit in plan.int8:
        if unit.kind not in ONE_SCALE | {"Concat"}:
            continue
        (first, *_), values = unit.outputs, [*unit.inputs, *unit.outputs]
        for name in (value.name for value in values if value.name in scales and first.name in scales):
            one, other = group[first.name], group[name]
            if one is not other and scales[name] == scales[first.name]:
                one += other
                group |= dict.fromkeys(other, one)
    return list({id(names): names for names in group.values()}.values())


def _stretched(chosen: QParams, factor: float) -> QParams:
    kind = np.iinfo(chosen.zero_point.dtype)
    middle = (kind.min + kind.max + 1) // 2
    stretched = QParams.spanning(chosen.low * factor, chosen.high * factor, bits=kind.bits, signed=kind.min < 0)
    # A zero point in the middle code is symmetric's, or as good as that.
    return QParams(np.float32(chosen.scale * factor), chosen.zero_point) if chosen.zero_point == middle else stretched


def _rounding(
    whole: FloatGraph,
    scales: Mapping[str, QParams],
    nodes: Sequence[onnx.NodeProto],
    held: Mapping[str, np.ndarray],
    outputs: Sequence[str],
) -> bytes:
    """Some nodes of a float graph with a switchable Q and DQ behind each of these tensors.

    Args:
        whole: the graph.
        scales: of the tensors, where no run gives others.
        nodes: in topological order.
        held: what nodes before them made.
        outputs: what to put out.
    """
    read = dict.fromkeys(name for node in nodes for name in names_read(node) if name in held)
    inputs = [whole.described(name, held[name]) for name in read]
    constants = []
    for name, chosen in scales.items():
        for what, array in (
            ("scale", np.asarray(chosen.scale)),
            ("zero", np.asarray(chosen.zero_point)),
            ("on", np.asarray(False)),
        ):
            constants.append(numpy_helper.from_array(array, f"{name}//{what}"))
            inputs.append(helper.make_tensor_value_info(constants[-1].name, constants[-1].data_type, list(array.shape)))
    rounded = [name for name in read if name in scales]
    written = [_switch(name) for name in rounded]
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for place, name in enumerate(copy.input):
            if name in rounded:
                copy.input[place] = f"{name}//read"
        made = [name for name in node.output if name in scales]
        written += [copy, *map(_switch, made)]
        rounded += made
    kept = {name for node in nodes for name in names_read(node)}
    constants += [tensor for name, tensor in whole.constants.items() if name in kept]
    return part_of(whole.proto, written, inputs, list(dict.fromkeys(outputs)), constants)


def _switch(name: str) -> onnx.NodeProto:
    def branch(nodes: list[onnx.NodeProto], what: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, what, [], [helper.make_tensor_value_info(f"{name}//{what}", TensorProto.FLOAT, None)])

    pair = [f"{name}//scale", f"{name}//zero"]
    on = [
        helper.make_node("QuantizeLinear", [name, *pair], [f"{name}//code"]),
        helper.make_node("DequantizeLinear", [f"{name}//code", *pair], [f"{name}//rounded"]),
    ]
    off = [helper.make_node("Identity", [name], [f"{name}//exact"])]
    return helper.make_node(
        "If",
        [f"{name}//on"],
        [f"{name}//read"],
        name=f"{name}//switch",
        then_branch=branch(on, "rounded"),
        else_branch=branch(off, "exact"),
    )
