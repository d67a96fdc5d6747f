"""FP16: which nodes, what the weights lose, where casts go, and the proof by running both."""

from octavo.quantization.fp16.convert import Fp16Result, convert
from octavo.quantization.fp16.plan import NOTHING_TO_CONVERT
from octavo.quantization.fp16.verify import quantize_fp16

__all__ = ["NOTHING_TO_CONVERT", "Fp16Result", "convert", "quantize_fp16"]
