"""Quantization-aware training: fake quantization in a captured torch graph, training, and the INT8 ONNX file that comes of it."""
