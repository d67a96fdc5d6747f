"""ONNX files in and out: clear errors when reading, equal bytes for equal models when writing.

What an exporter leaves in a file besides the graph (stack traces with paths of its machine, producer strings, doc strings) is
not written: it differs between two runs that made the same network.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from octavo.errors import SourceError
from octavo.graph.in_file import parsed, taken_out, write

__all__ = ["copied", "load", "save", "weight_bytes"]

PRODUCER = "octavo"
# A protobuf message ends at 2 GiB (2,147,483,647 bytes); the rest of the graph needs room beside the weights.
INLINE_LIMIT = 1_900_000_000
PROTOBUF_LIMIT = 2**31 - 1
# Tensors up to this size stay in the .onnx file: shapes and axes are read while a graph is loaded.
SMALL_TENSOR = 1024
# External tensors up to this size are read at once: the onnx package's checker and converter get small weights by value.
READ_AT_ONCE = 65536
LFS_POINTER = b"version https://git-lfs"


def load(path: str | Path) -> ir.Model:
    """Read an ONNX file; large weights, in it or outside, are mapped into memory, not copied, so their size does not matter.

    Sizes that the file gives as -1 are open ones. The file may be replaced or deleted while the model is in use, but not written
    over in place (`octavo.file_tensor`).

    Raises:
        SourceError: the file or its external data is missing, truncated or outside the file's folder, is not ONNX, or a
            tensor has other dimensions than its data.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise SourceError(f"{path}: {what}", "check the path (`source.file`); `dvc pull` fetches a file that DVC tracks")
    with path.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise SourceError(f"{path}: is a Git LFS pointer, not the model itself", "run `git lfs pull`")
    if path.stat().st_size > PROTOBUF_LIMIT:
        raise SourceError(
            f"{path}: is over 2 GiB in one file, which no ONNX reader can parse",
            "export it again with external data for the weights",
        )
    try:
        found = parsed(path)
    except DecodeError as error:
        raise SourceError(
            f"{path}: is truncated or not an ONNX file ({path.stat().st_size} bytes)", "copy or export it again"
        ) from error
    proto = found.proto
    # Protobuf takes an empty file, and many short ones, for a message without any field.
    for field, present in {
        "an IR version": proto.ir_version > 0,
        "an opset": len(proto.opset_import) > 0,
        "a graph": len(proto.graph.output) > 0,
    }.items():
        if not present:
            raise SourceError(
                f"{path}: is truncated or not an ONNX file (it has no {field.split(' ', 1)[1]})", "copy or export it again"
            )
    try:
        model = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        raise SourceError(f"{path}: is not a valid ONNX graph: {_innermost(error)}", "export it again") from error
    _check_sizes(path, proto)
    for name, weight in found.weights.items():
        model.graph.initializers[name].const_value = weight
    _in_order(path, model.graph)
    _open_sizes(model)
    for graph in model.graphs():
        ir.external_data.set_base_dir(graph, path.parent)
    _check_external(path, model)
    _read_small(model)
    return model


def _in_order(path: Path, graph: ir.Graph) -> None:
    """Lay nodes behind those whose results they read, as ONNX asks; ONNX Runtime runs files that do not.

    Converters to float16 append their Casts at the end (exports of ultralytics with `half=True`). One in order is left as it is.
    """
    places = {node: place for place, node in enumerate(graph)}
    read = ((place, value.producer()) for node, place in places.items() for value in node.inputs if value is not None)
    if not any(places.get(producer, -1) > place for place, producer in read):
        return
    try:
        graph.sort()
    except ValueError as error:
        raise SourceError(f"{path}: is not a valid ONNX graph: {error}", "export it again") from error


def save(model: ir.Model, path: str | Path, *, inline_limit: int = INLINE_LIMIT) -> None:
    """Write an ONNX file, with the weights inside or, above `inline_limit` bytes of them, in `<name>.data` beside it.

    The model is left as it is. Metadata, doc strings, producer fields and shapes stated for constants are not written, attributes
    and opset imports are sorted, so two equal models give equal bytes. It writes in place: give it a path in a folder that is
    swapped in whole (`octavo.files.replace_dir`), which must not be the folder that the model's external weights are read from.
    """
    path, weights = Path(path), {}
    written = model.clone()  # shares the tensors
    if weight_bytes(model) > inline_limit:
        ir.external_data.unload_from_model(written, path.parent, f"{path.stem}.data", size_threshold_bytes=SMALL_TENSOR)
    else:
        weights = taken_out(written)
        ir.external_data.load_to_model(written)
    proto = ir.to_proto(written)
    _tidy_model(proto)
    # A file of its own: weights of a model that was read from the one before lie there still.
    path.unlink(missing_ok=True)
    write(proto, weights, path)


def copied(model: ir.Model) -> ir.Model:
    """A copy whose nodes, values and types are its own, and whose weights are the model's: a graph takes no memory twice."""
    copy = model.clone()
    for graph in copy.graphs():
        values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
        for value in values:
            # `clone` shares types, which assigning a value's dtype changes.
            if isinstance(value.type, ir.TensorType):
                value.type = ir.TensorType(value.type.dtype, denotation=value.type.denotation)
    return copy


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, those of subgraphs included."""
    return sum(tensor.nbytes for _, tensor in _weights(model))


def _weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for _, tensor in _weights(model):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor
    for _, attribute in _external_attributes(model):
        yield attribute.value


def _external_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                yield node, attribute


def _read_small(model: ir.Model) -> None:
    """Read into memory what the onnx package does not keep out of its protobufs: small, in a subgraph, in an attribute."""
    for value, tensor in list(_weights(model)):
        inside = value.name not in model.graph.initializers or model.graph.initializers[value.name] is not value
        if isinstance(tensor, ir.ExternalTensor) and (inside or tensor.nbytes <= READ_AT_ONCE):
            value.const_value = _in_memory(tensor)
    for node, attribute in list(_external_attributes(model)):
        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _in_memory(attribute.value))


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.external_data.convert_tensors_from_external([tensor])[0]


def _check_external(path: Path, model: ir.Model) -> None:
    needed: dict[str, int] = {}
    for tensor in _external(model):
        if tensor.length is not None and tensor.length < tensor.nbytes:
            raise _unfit(path, tensor.name, tensor.shape.numpy(), tensor.length)
        end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
        location = os.fspath(tensor.location)
        needed[location] = max(needed.get(location, 0), end)
    for location, size in sorted(needed.items()):
        # A model is data from elsewhere: it may not name files outside its own folder.
        if PurePosixPath(location).is_absolute() or ".." in PurePosixPath(location).parts:
            raise SourceError(
                f"{path}: its weights lie outside its folder, in {location!r}", "export it again, weights beside the model"
            )
        file = path.parent / location
        if not file.is_file():
            raise SourceError(f"{path}: its external data file {file} is missing", f"put {location} beside the .onnx file")
        # The onnx packages refuse both, as either may be any file of this machine.
        real = file.resolve()
        if not real.is_relative_to(path.parent.resolve()) or file.stat().st_nlink > 1:
            raise SourceError(
                f"{path}: its external data file {file} is a link" + (f" to {real}" if real != file.absolute() else " (hard)"),
                "put the file itself there; if DVC makes links: `dvc config cache.type reflink,copy`, then `dvc checkout --relink`",
            )
        if file.stat().st_size < size:
            raise SourceError(
                f"{path}: its external data file {file} is truncated ({file.stat().st_size} bytes of at least {size})",
                "copy or export both files again",
            )


def _open_sizes(model: ir.Model) -> None:
    """Leave open what a file writes as -1: Paddle2ONNX did so before 1.0, and ONNX Runtime reads it so."""
    for graph in model.graphs():
        for value in [*graph.inputs, *(value for node in graph for value in node.outputs)]:
            if value.shape is not None and any(isinstance(size, int) and size < 0 for size in value.shape):
                value.shape = ir.Shape([None if isinstance(size, int) and size < 0 else size for size in value.shape])


def _check_sizes(path: Path, proto: onnx.ModelProto) -> None:
    """Hold the dimensions of every tensor in the file against the bytes that are there, before anything is made of that size."""
    for tensor in _tensors([proto.graph, *proto.functions]):
        count = math.prod(tensor.dims)
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        fits = min(tensor.dims, default=0) >= 0
        if not external and tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:
            fits &= math.ceil(count * ir.DataType(tensor.data_type).itemsize) == len(tensor.raw_data)
        else:
            # No type takes less than a bit. What lies outside is held against its file, if its size can be computed with.
            fits &= count <= (2**62 if external else 8 * tensor.ByteSize())
        if not fits:
            raise _unfit(path, tensor.name, tensor.dims, tensor.ByteSize())


def _tensors(graphs: Iterable[onnx.GraphProto | onnx.FunctionProto]) -> Iterator[onnx.TensorProto]:
    for graph in graphs:
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                yield from _tensors([attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs)


def _unfit(path: Path, name: str | None, dims: Iterable[int], stored: int) -> SourceError:
    return SourceError(
        f"{path}: tensor {name!r} says {'x'.join(map(str, dims))} and has {stored} bytes of data", "copy or export the file again"
    )


def _tidy_model(proto: onnx.ModelProto) -> None:
    proto.producer_name, proto.producer_version, proto.domain = PRODUCER, "", ""
    proto.opset_import.sort(key=lambda entry: entry.domain)
    _forget(proto)
    _tidy_graph(proto.graph)
    for function in proto.functions:
        _forget(function)
        for value in function.value_info:
            _forget(value)
        _tidy_nodes(function.node)


def _tidy_graph(graph: onnx.GraphProto) -> None:
    _forget(graph)
    # What a constant is its tensor tells; said twice it is 1 % of a small network's INT8 file.
    constants = {tensor.name for tensor in graph.initializer}
    for index in reversed(range(len(graph.value_info))):
        if graph.value_info[index].name in constants:
            del graph.value_info[index]
    for part in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        _forget(part)
    _tidy_nodes(graph.node)


def _tidy_nodes(nodes: list[onnx.NodeProto]) -> None:
    for node in nodes:
        _forget(node)
        node.attribute.sort(key=lambda attribute: attribute.name)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
                _tidy_graph(graph)
            for tensor in (attribute.t, *attribute.tensors) if attribute.HasField("t") or attribute.tensors else ():
                _forget(tensor)


def _forget(
    part: onnx.ModelProto | onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto | onnx.FunctionProto,
) -> None:
    part.ClearField("doc_string")
    part.ClearField("metadata_props")


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
