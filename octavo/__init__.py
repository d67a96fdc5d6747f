"""Octavo folds an FP32 vision model into FP16 and INT8 and proves, with numbers a reviewer can diff, what was kept."""

import os

__version__ = "0.1.0"

# ONNX Runtime's packages for Linux (seen in 1.31.1) connect to a collector of its maker ten seconds after a process has
# opened a model, and leave `.ses` in the temporary folder; `onnxruntime.disable_telemetry_events()` keeps them from neither. They
# read this as they are imported, so it stands before all imports; who wants it sets 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
