"""Reading a graph's inner tensors in bounded memory: they are made outputs in groups, one group at a time.

Which operators ONNX Runtime fuses depends on the outputs, and a fused Conv + Add or Conv + BatchNormalization rounds differently.
The groups follow from the graph and `group_bytes` alone, so the same call always gives the same bits; another `group_bytes` may
change the last ones.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelRunError
from octavo.runtime.mapped import MappedConstants
from octavo.runtime.memory import return_freed
from octavo.runtime.session import Session
from octavo.runtime.shapes import bytes_of

__all__ = [
    "Group",
    "drop_unneeded",
    "float_activations",
    "group_names",
    "open_groups",
    "read_tensors",
    "return_unheld",
]

# Constants below this size stay in the graph: shape inference reads axes and sizes there.
_SMALL = 256
# ONNX Runtime 1.31 fuses a Conv whose channels its blocks do not hold (21, of a D-FINE-N) with the Add and the activation behind
# it, also where the graph puts out what the Conv does, and fails to load it then.
_FUSES_OUTPUTS = ("ConvAddActivationFusion",)
# Weights for whose memory it is worth looking through all objects of the process, which takes a tenth of a second.
_LARGE = 32 << 20

Sample = tuple[str, dict[str, np.ndarray]]


class Group:
    """Some of a graph's tensors, and the session, once opened, that gives them.

    Attributes:
        names: the tensors, in the order asked for.
        bytes: what is held of them for one image.
    """

    def __init__(self, values: Sequence[ir.Value], inputs: set[str], held: int) -> None:
        self.names = [value.name or "" for value in values]
        self.bytes = held
        self._fed = [name for name in self.names if name in inputs]
        self._session: Session | None = None

    def open(self, session: Session) -> None:
        """Read with this session what is no input."""
        self._session = session

    def read(self, feeds: Mapping[str, np.ndarray], where: str = "") -> dict[str, np.ndarray]:
        """Run once; several threads may.

        Args:
            feeds: graph input name to array.
            where: what they are (a file's name), for the error.

        Returns:
            Tensor name to array, or what is put out in place of tensors (`open_groups`, `tap`).

        Raises:
            ModelRunError: the graph does not run.
        """
        tensors = {name: feeds[name] for name in self._fed}
        if self._session is not None:
            tensors |= self._session.run(feeds, where=where)
        return tensors

    def close(self) -> None:
        """Let go of the session; what was read stays."""
        self._session = None


def float_activations(model: ir.Model) -> list[str]:
    """Names of the graph's float32 tensors that depend on its inputs, in topological order; graph inputs first.

    Initializers, constants and everything inside subgraphs are left out.
    """
    names = [value.name for value in model.graph.inputs if _is_float(value)]
    for node in model.graph:
        if node.op_type != "Constant":
            names += [value.name for value in node.outputs if _is_float(value) and value.name]
    return [name for name in names if name is not None]


def group_names(
    model: ir.Model,
    names: Sequence[str],
    group_bytes: int,
    *,
    size: Callable[[ir.Value], int] | None = None,
    what: str = "the graph",
) -> list[list[str]]:
    """Split tensors, in the order given, into groups whose sizes for one image stay below a bound where one tensor does.

    Args:
        model: the graph.
        names: of tensors.
        group_bytes: the bound.
        size: bytes that come out for a tensor of one image; all of it where None (`bytes_of`).
        what: the graph's name for errors.

    Raises:
        ModelRunError: a name is not in the graph.
    """
    values = _values(model)
    missing = [name for name in names if name not in values]
    if missing:
        raise ModelRunError(f"{what} has no tensor {missing[0]!r} ({len(missing)} missing)", "run the export stage again")
    groups: list[list[str]] = []
    total = 0
    for name in names:
        out = (size or bytes_of)(values[name])
        if not groups or total + out > group_bytes:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += out
    return groups


def open_groups(
    model: ir.Model,
    groups: Iterable[Sequence[str]],
    *,
    optimization: str = "all",
    threads: int | Callable[[int], int] = 0,
    tap: Callable[[ir.Model, Sequence[ir.Value]], Sequence[ir.Value]] | None = None,
    held: Callable[[ir.Value], int] | None = None,
    arena: Callable[[int], bool] | None = None,
    what: str = "the graph",
) -> Iterator[Group]:
    """Open one group after the other; the one before is closed once the next is asked for.

    Args:
        model: the graph; it is not changed.
        groups: names of tensors (`group_names`); graph inputs are allowed.
        optimization: ONNX Runtime's level; a tensor that is an output survives fusion.
        threads: intra-op threads, or how many by the group's `bytes`; 0 takes one a core.
        tap: (a group's graph, its tensors that are no inputs) to what is put out in their place; it may add nodes.
        held: bytes that a tensor of one image takes while it runs; all of it where None.
        arena: whether ONNX Runtime keeps freed memory for the next run, by the group's `bytes`; never where None.
        what: the graph's name for errors.

    Raises:
        ModelRunError: ONNX Runtime cannot load the graph.
        OutputError: the system's temporary folder has no room for the model.
    """
    constants = MappedConstants(_SMALL)
    large = _is_large(model)
    light = constants.in_place(model)
    del model
    if large:
        # A caller that keeps no reference either gets the memory of the weights back (nodes and values form cycles).
        gc.collect()
    for group, following in pairwise((*groups, None)):
        # The last one needs no copy.
        part = light.clone() if following is not None else light
        values = _values(part)
        inputs = {value.name or "" for value in part.graph.inputs}
        computed = [values[name] for name in group if name not in inputs]
        tensors = [values[name] for name in group]
        opened = Group(tensors, inputs, sum(map(held or bytes_of, tensors)))
        if computed:
            # Only the group, and only what leads to it: ONNX Runtime would run the rest of the graph too.
            part.graph.outputs.clear()
            part.graph.outputs.extend(tap(part, computed) if tap is not None else computed)
            drop_unneeded(part.graph)
            count = threads(opened.bytes) if callable(threads) else threads
            settings = {"memory_pattern": False, "arena": arena is not None and arena(opened.bytes)}
            without = _FUSES_OUTPUTS if any(map(_is_summed, part.graph.outputs)) else ()
            graph = ir.to_proto(part).SerializeToString()
            opened.open(constants.session(graph, name=what, optimization=optimization, threads=count, without=without, **settings))
        yield opened
        # Nor shall what reading took lie beside what the next group takes, or the caller behind the last one.
        opened.close()
        return_freed()


def read_tensors(
    model: ir.Model,
    names: Sequence[str],
    samples: Callable[[], Iterable[Sample]],
    *,
    group_bytes: int = 96 << 20,
    optimization: str = "all",
    threads: int = 0,
    what: str = "the graph",
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Run a graph on samples and yield inner tensors, group by group.

    Args:
        model: the graph; it is not changed.
        names: tensors to read; graph inputs are allowed.
        samples: called once a group, gives (what the sample is, feeds).
        group_bytes: tensors are fetched together until their sizes, as shape inference knows them, reach this.
        optimization, threads, what: as in `open_groups`.

    Yields:
        (sample, tensor name to array) for each sample of each group; the same sample comes back with every group.

    Raises:
        ModelRunError: a name is not in the graph, or the graph does not run.
    """
    groups = group_names(model, names, group_bytes, what=what)
    for group in open_groups(model, groups, optimization=optimization, threads=threads, what=what):
        for where, feeds in samples():
            yield where, group.read(feeds)


def drop_unneeded(graph: ir.Graph) -> None:
    """Remove nodes that no output needs, and weights that nothing reads then.

    onnx-ir's RemoveUnusedNodesPass looks up every node's schema as well, for optional outputs: 18 ms the first time in a process,
    of the 1.4 s that EfficientNet-Lite0's calibration takes, against .5.
    """
    for node in reversed(graph):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            _let_go(node)
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[name]


def _let_go(node: ir.Node) -> None:
    """Have the branches of a node read nothing: what leads to them would be held to be needed."""
    branches = [attribute.value for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH]
    for branch in branches:
        for inner in ir.traversal.RecursiveGraphIterator(branch):
            for place in range(len(inner.inputs)):
                inner.replace_input_with(place, None)


def return_unheld(model: ir.Model) -> None:
    """Give the system back what graphs hold that nobody holds any more, where a model has weights for which that is worth its time.

    Their nodes and values are cycles, which lie in memory until they are looked for, with whatever weights each has of its own: of
    a face network of 174 MB every placement that was measured left some 200 MB, 2.2 GB in the end.

    Args:
        model: what such graphs were made of.
    """
    if _is_large(model):
        return_freed(cycles=True)


def _is_large(model: ir.Model) -> bool:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value) > _LARGE


def _values(model: ir.Model) -> dict[str, ir.Value]:
    values = {value.name: value for value in model.graph.inputs}
    values |= {value.name: value for node in model.graph for value in node.outputs}
    return {name: value for name, value in values.items() if name}


def _is_summed(value: ir.Value) -> bool:
    """Whether a Conv makes a tensor and a sum reads it."""
    made = value.producer()
    return made is not None and made.op_type == "Conv" and any(use.node.op_type == "Add" for use in value.uses())


def _is_float(value: ir.Value) -> bool:
    # A sequence of tensors has their dtype, too.
    return isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT
