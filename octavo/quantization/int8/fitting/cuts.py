"""Ranges of activations, each tried against others by the error at the network's heads.

Least squared error of a tensor's own values is a guess at what the network minds: on MobileNetV2 some tensors' large values decide
and others' do not (MSE cuts both). Here one tensor at a time is rounded in an otherwise exact network, with its range narrower and
wider, and the range that measures best is kept. One session serves all: behind each tensor stands an `If` that rounds it or
does not, and scales and zero points are inputs with defaults.

A few calibration images tell which ranges to try, and say little about rare large values: on MobileNetV2, calibrated on packaged
photos, they cut a tensor to 2.1 that needs 5.3 on others (20 dB by that rounding alone). So the last word is with both: of the
ranges on the way there, the one with the least noise on these and on held-out images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.quantization.int8.draft import Plan
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.structure.units import CARRIERS
from octavo.runtime.host import cores
from octavo.runtime.session import Session

__all__ = ["searched_scales"]

Feeds = Mapping[str, np.ndarray]
# Each range is multiplied by these, away from 1 as long as it gets better.
_WIDER, _NARROWER = (1.25, 1.5), (0.85, 0.7, 0.55, 0.4)
# Noise has to fall to this share of what it was: less is a chance of few images.
_WORTH = 0.95
# Tensors that make up less than this share of all noise are left alone.
_SMALL = 0.002


def searched_scales(model: ir.Model, plan: Plan, judge: Judge, others: Judge, fixed: Set[str] = frozenset()) -> dict[str, QParams]:
    """Scales that measure better.

    Args:
        model: FP32, as prepared for INT8.
        plan: where to start; tensors that share a scale go on sharing it.
        judge: of the network's heads on calibration images.
        others: the same on images that the statistics were not made from.
        fixed: tensors whose range is given; so are those that share it.

    Returns:
        The scales that changed.
    """
    scales = plan.scales
    groups = [names for names in _sharing(plan) if fixed.isdisjoint(names)]
    graph = _rounding(model, {name: scales[name] for names in groups for name in names}, judge.heads)
    session = Session(graph.SerializeToString(), threads=1)

    def noise(judge: Judge, names: Sequence[str], chosen: QParams) -> float:
        given = {f"{name}//scale": np.asarray(chosen.scale) for name in names}
        given |= {f"{name}//zero": np.asarray(chosen.zero_point) for name in names}
        given |= {f"{name}//on": np.asarray(True) for name in names}

        def heads(feeds: Feeds) -> dict[str, np.ndarray]:
            return dict(zip(judge.heads, session.run({**feeds, **given}).values(), strict=True))

        return judge.noise(list(pool.map(heads, judge.samples)))

    with ThreadPoolExecutor(min(2, cores())) as pool:
        start = [noise(judge, names, scales[names[0]]) for names in groups]
        found: dict[str, QParams] = {}
        for names, before in zip(groups, start, strict=True):
            if before < _SMALL * sum(start):
                continue
            way, least = [(before, scales[names[0]])], before * _WORTH
            for factors in (_WIDER, _NARROWER):
                if len(way) > 1:
                    break
                for factor in factors:
                    chosen = _stretched(scales[names[0]], factor)
                    measured = noise(judge, names, chosen)
                    if measured >= least:
                        break
                    least = measured
                    way.append((measured, chosen))
            if len(way) > 1:
                both = [mine + noise(others, names, chosen) for mine, chosen in way]
                best = int(np.argmin(both))
                if best:
                    found |= dict.fromkeys(names, way[best][1])
    return found


def _sharing(plan: Plan) -> list[list[str]]:
    """Tensors in groups that must keep one scale: a carrier's or a PRelu's ends, and what a Concat only copies."""
    scales = {name: chosen for name, chosen in plan.scales.items() if not chosen.by_channel}
    group = {name: [name] for name in scales}
    for unit in plan.int8:
        if unit.kind not in CARRIERS | {"prelu", "Concat"}:
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


def _rounding(model: ir.Model, scales: Mapping[str, QParams], heads: Sequence[str]) -> onnx.ModelProto:
    """The float graph with a switchable Q and DQ behind each of these tensors."""
    proto = ir.to_proto(model)
    graph = proto.graph
    for name, chosen in scales.items():
        for what, array in (
            ("scale", np.asarray(chosen.scale)),
            ("zero", np.asarray(chosen.zero_point)),
            ("on", np.asarray(False)),
        ):
            tensor = numpy_helper.from_array(array, f"{name}//{what}")
            graph.initializer.append(tensor)
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    nodes = [_switch(value.name) for value in graph.input if value.name in scales]
    rounded = {value.name for value in graph.input if value.name in scales}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in rounded:
                node.input[place] = f"{name}//read"
        nodes.append(node)
        for name in node.output:
            if name in scales:
                nodes.append(_switch(name))
                rounded.add(name)
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(helper.make_empty_tensor_value_info(f"{name}//read" if name in scales else name) for name in heads)
    return proto


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
