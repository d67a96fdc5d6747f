"""What ONNX libraries say through `logging` while they work: kept as text, off the screen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["captured_logs"]

LIBRARIES = ("onnxscript", "onnx_ir")


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except TypeError:
            text = str(record.msg)  # onnx_ir passes a format string without its argument
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]}"
        self.lines.append(" ".join(text.split()))


@contextmanager
def captured_logs() -> Iterator[list[str]]:
    """Collect the warnings of onnx_ir and onnxscript inside the block, one line each, instead of printing them.

    Both libraries report some failures (an opset conversion, a shape inference) as a warning and no exception.
    """
    lines: list[str] = []
    handler = _Collector(lines)
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield lines
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
