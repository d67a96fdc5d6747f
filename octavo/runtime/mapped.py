"""Constants of graphs in memory, in a file that ONNX Runtime maps.

While a session is opened for a graph in memory each constant is held five times and more: in the nodes, in two protobufs, in their
bytes and in what ONNX Runtime makes of these. From a file it is read as it is needed, and leaves memory again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.file_tensor import FileTensor, MappedFile
from octavo.files import scratch_written_to
from octavo.runtime.session import Session

__all__ = ["MappedConstants", "session_of"]

# Constants from so many bytes on: what is smaller is not worth a file.
_LARGE = 256 << 10
_PAGE = 4096
# Bytes of constants that a graph is loaded with beside those of its own file.
_OTHERS = 8 << 20
_NAME = "<graph in memory>"


def session_of(model: ir.Model, **options: Any) -> Session:
    """A session for a graph, which is not changed.

    Args:
        model: the graph.
        options: of `Session`.

    Raises:
        ModelRunError: ONNX Runtime cannot load it.
        OutputError: the system's temporary folder has no room for its large constants.
    """
    constants = MappedConstants()
    return constants.session(ir.to_proto(constants.in_place(model)).SerializeToString(), **options)


class MappedConstants:
    """A temporary folder for them, made with the first one, which goes when nobody holds this any more; sessions may live on.

    Args:
        least: bytes from which on a constant is mapped; what is smaller is mostly not worth it.
    """

    def __init__(self, least: int | None = None) -> None:
        self._least = _LARGE if least is None else least
        self._folder: Path | None = None
        # The graph's own file, where constants stay in it.
        self._own: MappedFile | None = None

    def constant(self, name: str, array: np.ndarray) -> onnx.TensorProto:
        """An array as a graph's constant of this name.

        Raises:
            OutputError: the system's temporary folder has no room for it.
        """
        if array.nbytes < self._least:
            return numpy_helper.from_array(array, name)
        file, offset = self._written(array)
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": file.name, "offset": offset, "length": array.nbytes}.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def proto(self, model: ir.Model) -> onnx.ModelProto:
        """A graph without the values of its mapped constants.

        Raises:
            OutputError: the system's temporary folder has no room for them.
        """
        return ir.to_proto(self.without(model))

    def without(self, model: ir.Model) -> ir.Model:
        """A copy of a graph whose mapped constants lie in the file; slopes of a PRelu, which `branchless` looks at, it keeps.

        Raises:
            OutputError: the system's temporary folder has no room for them.
        """
        model = model.clone()
        slopes = {node.inputs[1] for node in model.graph if node.op_type == "PRelu"}
        for value in model.graph.initializers.values():
            if value not in slopes and self._is_mapped(value.const_value):
                value.const_value = self._moved(value.const_value, value.name or "")
        return model

    def in_place(self, model: ir.Model) -> ir.Model:
        """As `without`; but where next to all constants lie in a graph's own file they stay there, and the others in the graph.

        Raises:
            OutputError: the system's temporary folder has no room for them.
        """
        mapped = [value.const_value for value in model.graph.initializers.values() if self._is_mapped(value.const_value)]
        own = [tensor for tensor in mapped if isinstance(tensor, FileTensor)]
        others = sum(tensor.nbytes for tensor in mapped) - sum(tensor.nbytes for tensor in own)
        beside = any(isinstance(tensor, ir.ExternalTensor) for tensor in mapped)
        if len({tensor.file for tensor in own}) != 1 or others > _OTHERS or beside or not own[0].file.lies_there():
            return self.without(model)
        self._own = own[0].file
        model = model.clone()
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, FileTensor):
                value.const_value = _located(tensor, value.name or "", tensor.file.path, tensor.offset)
        return model

    def session(self, graph: bytes, **options: Any) -> Session:
        """A session for a serialized graph with such constants.

        Args:
            graph: as ONNX Runtime loads it.
            options: of `Session`.

        Raises:
            ModelRunError: ONNX Runtime cannot load it.
            OutputError: the system's temporary folder has no room for it.
        """
        if self._folder is None:
            return Session(graph, beside=None if self._own is None else self._own.path.parent, **options)
        path = self._folder / "graph.onnx"
        with scratch_written_to(self._folder):
            path.write_bytes(graph)
        return Session(path, **{"name": _NAME, **options})

    def _moved(self, tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
        if not isinstance(tensor, FileTensor):
            return _located(tensor, name, *self._written(tensor.numpy()))
        written = self._written(tensor.mapped)
        tensor.let_go()
        return _located(tensor, name, *written)

    def _is_mapped(self, tensor: ir.TensorProtocol | None) -> bool:
        """Whether a constant is mapped: strings and packed halves of bytes are not. What lies beside a model's file is not found
        from here, however small it is.
        """
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
            return False
        return tensor.nbytes >= self._least or isinstance(tensor, ir.ExternalTensor)

    def _written(self, array: np.ndarray) -> tuple[Path, int]:
        """The file, and where in it the array begins."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="octavo-"))
            finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / "constants"
        with scratch_written_to(self._folder), path.open("ab") as file:
            # Files are mapped by pages.
            offset = -(-file.tell() // _PAGE) * _PAGE
            file.truncate(offset)
            np.ascontiguousarray(array).tofile(file)
        return path, offset


def _located(tensor: ir.TensorProtocol, name: str, file: Path, offset: int) -> ir.ExternalTensor:
    return ir.ExternalTensor(file.name, offset, tensor.nbytes, tensor.dtype, name=name, shape=tensor.shape, base_dir=file.parent)
