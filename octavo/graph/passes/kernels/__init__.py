"""Exact rewrites of Q/DQ graphs for the kernels that ONNX Runtime has; `kernel_forms` is their order."""
