"""INT8: which nodes, with which ranges, corrected how."""

from octavo.quantization.int8.dynamic import quantize_dynamic
from octavo.quantization.int8.static import Int8Result, quantize_static

__all__ = ["Int8Result", "quantize_dynamic", "quantize_static"]
