"""Octavo folds an FP32 vision model into FP16 and INT8 and proves, with numbers a reviewer can diff, what was kept."""

__version__ = "0.1.0"
