"""INT8: which nodes, with which ranges, corrected how."""

from octavo.quantization.int8.dynamic import quantize_dynamic
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.static import Images, quantize_static

__all__ = ["Images", "Int8Result", "quantize_dynamic", "quantize_static"]
