"""Reading a graph's inner tensors in bounded memory: they are made outputs in groups, one group at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelRunError
from octavo.runtime.session import Session

__all__ = ["float_activations", "read_tensors"]

# ONNX messages above 2 GB cannot be serialised; such graphs go through a file with external data.
_IN_MEMORY = 1_500_000_000
# A tensor whose size the graph does not tell counts as this many bytes.
_UNKNOWN = 8 << 20

Sample = tuple[str, dict[str, np.ndarray]]


def float_activations(model: ir.Model) -> list[str]:
    """Names of the graph's float32 tensors that depend on its inputs, in topological order; graph inputs first.

    Initializers, constants and everything inside subgraphs are left out.
    """
    names = [value.name for value in model.graph.inputs if _is_float(value)]
    for node in model.graph:
        if node.op_type != "Constant":
            names += [value.name for value in node.outputs if _is_float(value) and value.name]
    return [name for name in names if name is not None]


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
        optimization: ONNX Runtime's level; a tensor that is an output survives fusion.
        threads: intra-op threads; 0 takes one a core.
        what: the graph's name for errors.

    Yields:
        (sample, tensor name to array) for each sample of each group; the same sample comes back with every group.

    Raises:
        ModelRunError: a name is not in the graph, or the graph does not run.
    """
    values = {value.name: value for value in model.graph.inputs}
    values |= {value.name: value for node in model.graph for value in node.outputs}
    missing = [name for name in names if name not in values]
    if missing:
        raise ModelRunError(f"{what} has no tensor {missing[0]!r} ({len(missing)} missing)", "run the export stage again")
    inputs = {value.name for value in model.graph.inputs}
    for group in _groups([values[name] for name in names], group_bytes):
        computed = [value for value in group if value.name not in inputs]
        session = _session(model, computed, optimization, threads) if computed else None
        for where, feeds in samples():
            tensors = {value.name: feeds[value.name] for value in group if value.name in inputs}
            if session is not None:
                tensors |= session.run(feeds, [value.name for value in computed])
            yield where, tensors


def _groups(values: Sequence[ir.Value], limit: int) -> Iterator[list[ir.Value]]:
    group: list[ir.Value] = []
    total = 0
    for value in values:
        size = _bytes(value)
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(value)
        total += size
    if group:
        yield group


def _bytes(value: ir.Value) -> int:
    if value.shape is None:
        return _UNKNOWN
    # A symbolic batch dimension is 1 here: images are read one at a time.
    known = [dim for dim in value.shape[1:] if isinstance(dim, int)]
    return 4 * int(np.prod(known, dtype=np.int64)) if len(known) == max(0, len(value.shape) - 1) else _UNKNOWN


def _session(model: ir.Model, outputs: Sequence[ir.Value], optimization: str, threads: int) -> Session:
    kept = list(model.graph.outputs)
    try:
        # Only the group: ONNX Runtime then leaves out what lies behind it.
        model.graph.outputs.clear()
        model.graph.outputs.extend(outputs)
        weights = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
        options = {"optimization": optimization, "threads": threads, "memory_pattern": False}
        if weights < _IN_MEMORY:
            return Session(ir.to_proto(_internal(model)).SerializeToString(), **options)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            ir.save(model, path, external_data="model.onnx.data")
            return Session(path, **options)
    finally:
        model.graph.outputs.clear()
        model.graph.outputs.extend(kept)


def _internal(model: ir.Model) -> ir.Model:
    """The model with external weights read in, so that its bytes are complete."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    return model


def _is_float(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT
