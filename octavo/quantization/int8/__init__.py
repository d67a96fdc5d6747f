"""INT8: which nodes, with which ranges, corrected how."""

from octavo.quantization.int8.dynamic import quantize_dynamic
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.static import Images, quantize_static
from octavo.quantization.int8.structure.targets import dynamic_target, made_here

__all__ = ["Images", "Int8Result", "dynamic_target", "made_here", "quantize_dynamic", "quantize_static"]
