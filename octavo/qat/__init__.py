"""Quantization-aware training: fake quantization in a captured torch graph, training, and the INT8 ONNX file that comes of it."""

import logging

# torchao calls a registry of torch's that warns at each import of what does not concern a user.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
