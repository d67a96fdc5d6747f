"""Choices among values inside a graph: TopK over queries, non-maximum suppression, thresholds.

What lies behind one depends on which values are the largest. Two graphs that compute the same to within rounding choose rows in
another order, or other rows where two are close: all that lies behind differs, and neither is wrong. To see how exact the layers
behind are, both get the same choices: `held` makes what the choosing nodes put out inputs of the graph, and what they read outputs,
so that it is seen too how exact the choice is made; `released` undoes it.

Behind other choices no layer follows: they are post-processing (`suppression`), which may be long. Those that exporters write class
by class are most of a graph.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from octavo.graph.custom_ops.cut import reads, tail, with_inner
from octavo.graph.operators import LAYERS

__all__ = ["SELECTS", "choosing", "finds_peaks", "held", "pasted", "released", "selects", "suppression", "tells_places", "unpools"]

# Behind these one value more or less moves all others.
SELECTS = frozenset({"ArgMax", "ArgMin", "Compress", "NonMaxSuppression", "NonZero", "TopK", "Unique"})
# What picks the values that one choice is made among, and compares them with a threshold or their neighbours.
_BEFORE = frozenset({"Gather", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "MaxPool"})
_ROUNDS = frozenset({"Ceil", "Floor", "Round"})
# Where what these put out stands is told by an input; in the branches of a loop, too.
_PLACES = frozenset({"Pad", "Resize", "ScatterElements", "ScatterND", "Slice"})
# What comes out of these depends on sizes, not on values.
_SIZES = frozenset({"Shape", "Size"})


def tells_places(node: ir.Node) -> bool:
    """Whether a node says which values are the largest, or where some are. The largest values themselves, which is all that is read
    of D-FINE's and GFLv2's TopK over distributions of edges, differ by no more than what they are taken from.
    """
    if finds_peaks(node):
        return True
    if node.op_type != "TopK" or len(node.outputs) < 2:
        return node.op_type in SELECTS
    return bool(list(node.outputs[1].uses())) or node.outputs[1].is_graph_output()


def finds_peaks(node: ir.Node) -> bool:
    """Whether a node says where values are the largest of their neighbours: they equal their own MaxPool. CenterNet suppresses so
    what is near a surer place (arXiv:1904.07850); where two neighbours are nearly level, a rounding moves the peak from one to the
    other, and all of its score with it.
    """
    if node.op_type not in ("Equal", "GreaterOrEqual", "LessOrEqual"):
        return False
    return any(
        pool is not None and (made := pool.producer()) is not None and made.op_type == "MaxPool" and made.inputs[0] is values
        for pool, values in (node.inputs, node.inputs[::-1])
    )


def selects(model: ir.Model) -> bool:
    """Whether outputs depend on a choice among values (TopK, suppression, ArgMax, peaks), where small differences become large."""
    return any(map(tells_places, ir.traversal.RecursiveGraphIterator(model.graph)))


def unpools(model: ir.Model) -> bool:
    """Whether the graph reads where a MaxPool found its maxima (MaxUnpool of SegNet and ENet, torch's as a ScatterND): of two
    values that are level to within a rounding either is the largest, and the other's place is empty.
    """
    every = ir.traversal.RecursiveGraphIterator(model.graph)
    places = [node.outputs[1] for node in every if node.op_type == "MaxPool" and len(node.outputs) > 1]
    return any(list(place.uses()) or place.is_graph_output() for place in places)


def choosing(model: ir.Model, *, before_layers: bool, whole_numbers: bool = False) -> list[str]:
    """Names of the main graph's nodes that choose among values which depend on the image.

    Args:
        model: each node has a name of its own; types are inferred.
        before_layers: only those with a layer of weights behind, as in detectors of two stages and those with queries. Behind the
            others stands post-processing, of which quantization changes nothing.
        whole_numbers: those as well that make whole numbers of floats. Where a mask begins (Mask R-CNN pastes at whole pixels)
            is such a number, and a pixel more or less is no measure of how exact the mask is.
    """
    varying = {value for value in model.graph.inputs if not value.is_initializer()}
    for node in model.graph:
        if node.op_type not in _SIZES and any(value in varying for value in reads(node)):
            varying.update(node.outputs)
    leading: set[ir.Value] = set()
    found = []
    for node in reversed(list(model.graph)):
        leads = not leading.isdisjoint(node.outputs)
        # With its branches: suppression stands in the branch for images with boxes.
        tells = any(map(tells_places, with_inner(node))) or (whole_numbers and _makes_whole(node))
        chooses = tells and any(value in varying for value in reads(node))
        typed = all(value.dtype is not None for value in node.outputs if value.name)
        if chooses and typed and (leads or not before_layers):
            found.append(node.name or "")
        if leads or any(map(_is_layer, with_inner(node))):
            leading.update(reads(node))
    return found[::-1]


def suppression(model: ir.Model) -> list[ir.Node]:
    """The post-processing that all outputs come from: the nodes that choose among values with no layer of weights behind them, all
    that depends on these, and what picks and compares values for nothing else. In the graph's order.

    Empty where an output of the graph comes from elsewhere: what is read there has not been through it.

    Args:
        model: as for `choosing`.
    """
    chooses = {*choosing(model, before_layers=False)} - {*choosing(model, before_layers=True)}
    found = set(tail(model.graph, lambda node: node.name in chooses and node.graph is model.graph))
    if not all(value.producer() in found for value in model.graph.outputs):
        return []
    for node in reversed(list(model.graph)):
        readers = [use.node for value in node.outputs for use in value.uses()]
        if node.op_type in _BEFORE and readers and all(reader in found for reader in readers):
            found.add(node)
    return [node for node in model.graph if node in found]


def pasted(model: ir.Model) -> list[str]:
    """The graph's float outputs whose values stand where whole numbers made of floats say, with no layer in between: Mask R-CNN's
    masks, pasted at whole pixels. A rounding moves a corner to the next pixel, and all of a mask's values with it.

    Args:
        model: as for `choosing`.
    """
    every = choosing(model, before_layers=False, whole_numbers=True)
    others = {*choosing(model, before_layers=False), *choosing(model, before_layers=True, whole_numbers=True)}
    whole = {*every} - others
    told: set[ir.Value] = set()
    found: set[ir.Value] = set()
    for node in model.graph:
        read = {*reads(node)}
        places = any(inner.op_type in _PLACES and not told.isdisjoint(read - {inner.inputs[0]}) for inner in with_inner(node))
        if places or not found.isdisjoint(read):
            found.update(node.outputs)
        if node.name in whole or not told.isdisjoint(read):
            told.update(node.outputs)
    return [value.name or "" for value in model.graph.outputs if value in found and _is_float(value)]


def held(model: ir.Model, names: Collection[str], like: ir.Model | None = None) -> ir.Model:
    """A copy in which what these nodes put out is fed, and what they read is put out besides the graph's outputs.

    Args:
        model: not changed.
        names: of nodes of its main graph.
        like: the model that what is fed has its names from: where a choice is an output of the graph, its cast has the name in
            FP16. None: this one.

    Returns:
        The copy; outputs that are fed, or that cast what is fed to the type of `like`, are none any more.
    """
    copy = model.clone()
    graph = copy.graph
    called = {node.name: [value.name for value in node.outputs] for node in (like or model).graph if node.name in names}
    nodes = [node for node in graph if node.name in names]
    edges = [value for node in nodes for value in reads(node) if value.producer() is not None]
    given: set[ir.Value] = set()
    for node in nodes:
        for value, name in zip(node.outputs, called[node.name], strict=True):
            if not value.name:
                continue
            fed = ir.Value(name=name, type=value.type, shape=value.shape)
            ir.convenience.replace_all_uses_with(value, fed, replace_graph_outputs=True)
            graph.inputs.append(fed)
            given.add(fed)
    taken = {value.name for value in given}
    casts = [cast.outputs[0] for value in given for cast in value.consumers() if cast.outputs[0].name in taken]
    for value in [value for value in graph.outputs if value in given or value in casts]:
        graph.outputs.remove(value)
    for value in casts:
        value.name = f"{value.name}.cast"
    for node in nodes:
        for inner in with_inner(node):
            for place in range(len(inner.inputs)):
                inner.replace_input_with(place, None)
    graph.remove(nodes, safe=False)
    present = {*graph.outputs, *graph.inputs}
    graph.outputs.extend(value for value in dict.fromkeys(edges) if value not in present and value.producer().graph is graph)
    return copy


def released(made: ir.Model, original: ir.Model, names: Collection[str]) -> ir.Model:
    """What was made from `held(original, names)`, in place, with those nodes where they were; tensors are found by name."""
    graph = made.graph
    known = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    known |= {value.name: value for node in graph for value in node.outputs}
    whole = original.clone()
    nodes = [node for node in whole.graph if node.name in names]
    outer = {value for node in nodes for value in reads(node)}
    whole.graph.outputs.clear()
    whole.graph.remove(nodes, safe=False)
    for node in nodes:
        for inner in with_inner(node):
            for place, value in enumerate(inner.inputs):
                if value not in outer:
                    continue
                if value.is_initializer() and value.name not in known:
                    known[value.name] = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
                    graph.register_initializer(known[value.name])
                inner.replace_input_with(place, known[value.name])
        graph.append(node)
        for value in node.outputs:
            if value.name:
                ir.convenience.replace_all_uses_with(known[value.name], value, replace_graph_outputs=True)
                graph.inputs.remove(known[value.name])
                known[value.name] = value
    wanted = [known[value.name] for value in original.graph.outputs]
    graph.outputs.clear()
    graph.outputs.extend(wanted)
    graph.sort()
    return made


def _makes_whole(node: ir.Node) -> bool:
    """Whether a Cast makes whole numbers of floats, and these alone are what is read of them: between two whole places (bilinear
    sampling, written out) the rest of the division is read too, and to the next place nothing jumps.
    """
    if (
        node.op_type != "Cast"
        or not _is_float(node.inputs[0])
        or not node.outputs[0].dtype
        or not node.outputs[0].dtype.is_integer()
    ):
        return False
    waiting, seen = [node.inputs[0]], set()
    while waiting:
        value = waiting.pop()
        before = value.producer()
        if before is None or before in seen or _is_layer(before):
            continue
        if before.op_type in _ROUNDS and len(value.uses()) > 1:
            return False
        seen.add(before)
        waiting += [one for one in before.inputs if _is_float(one)]
    return True


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def _is_layer(node: ir.Node) -> bool:
    return node.op_type in LAYERS and any(
        value is not None and ir.convenience.get_const_tensor(value) is not None for value in node.inputs
    )
