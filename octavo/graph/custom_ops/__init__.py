"""Operators that ONNX Runtime lacks (EfficientNMS_TRT and other plugins): what stands in for them while a model is worked on.

Files keep the operator as its exporter wrote it. To run, a copy of the graph gets the operator's body as a local function, or,
where there is none, is cut before it.
"""

from octavo.graph.custom_ops.bodies import Body, serialized
from octavo.graph.custom_ops.names import as_in_file
from octavo.graph.custom_ops.resolve import resolve
from octavo.graph.custom_ops.running import CustomOps

__all__ = ["Body", "CustomOps", "as_in_file", "resolve", "serialized"]
