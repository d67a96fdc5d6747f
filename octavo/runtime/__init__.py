"""Running graphs: ONNX Runtime sessions, the machine's fingerprint, timing and memory."""
