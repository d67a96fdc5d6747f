"""Crashes of native code in words: a segmentation fault or an abort in ONNX Runtime ends a process before Python can say anything.

Python's faulthandler writes of such an end into a pipe. At its other end waits a shell (a megabyte, started in milliseconds) that
passes this on to stderr and says below it what went on. `opened` keeps that in a file that both have open, and wakes nobody.
The process stays what it is to whoever started it: its number, signals and exit code (139, 134) are its own.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

__all__ = ["opened", "watched"]

# The way out, by stage.
_MADE = "make the file that the message names again with operators other than Conv, Gemm and MatMul in its `keep_float`"
_WAYS_OUT = {
    "quantize_fp16": "name the nodes around attention or norms in `fp16.keep_float`, by operator (`[Softmax]`) if need be",
    "quantize_int8": "name operators other than Conv, Gemm and MatMul in `int8.keep_float`, or set `int8.placement: all`",
    "validate": _MADE,
    "benchmark": _MADE,
}
_WAY_OUT = "report it with the lines above; another version of onnxruntime, or another export of the network, may not crash"

_WAS_WRITTEN_OVER = "a file that it read, of a model or of temporary data, was written over or cut off meanwhile: run it again"

_SHELL = "/bin/sh"
# Seconds that a shell may take to end.
_ENDS = 2.0
# Signals to the whole group (Ctrl-C) are the process's to answer. Its stdout is the file; the one offset is at its beginning.
_WATCHER = r"""
trap '' HUP INT QUIT TERM
while IFS= read -r line; do
  case $line in
    'Fatal Python error: '*) fatal=${line#*: } ;;
    'Extension modules: '*) line= ;;
  esac
  [ -z "$fatal" ] || printf '%s\n' "$line" >&2
done
[ -n "$fatal" ] || exit 0
IFS= read -r last <&1
# Of a file that is mapped (weights, a cache of images) what is read is no longer there.
[ "$fatal" != 'Bus error' ] || set -- "$1" "$3"
printf 'error: %s: native code ended the process (%s)%s; outputs are as they were\n  to mend: %s\n' "$1" "$fatal" "$last" "$2" >&2
"""


@dataclass
class _Notes:
    """What a crash will say of this process.

    Attributes:
        file: descriptor of the file that the watcher reads; None where nobody watches.
        last: what stands in it.
    """

    file: int | None = None
    last: str = ""


_notes = _Notes()


@contextmanager
def watched(script: str, arguments: Sequence[str] = ()) -> Iterator[None]:
    """Have crashes within the block told on stderr.

    Not where faulthandler is on already (`PYTHONFAULTHANDLER`, pytest), nor without a shell. The first process of a container takes
    all others along when it ends: there faulthandler's own words are what is left.

    Args:
        script: the stage or command whose crash it would be.
        arguments: what it was called with, for the message.
    """
    if faulthandler.is_enabled() or not os.access(_SHELL, os.X_OK):
        yield
        return
    if os.getpid() == 1:
        faulthandler.enable(sys.__stderr__)
        yield
        return
    try:
        notes = tempfile.TemporaryFile()  # noqa: SIM115 (both have it open until this process ends)
        words = [" ".join([script, *arguments]), _WAYS_OUT.get(script, _WAY_OUT), _WAS_WRITTEN_OVER]
        watcher = subprocess.Popen([_SHELL, "-c", _WATCHER, "octavo", *words], stdin=subprocess.PIPE, stdout=notes)
    except OSError:
        # No room for a file or a process: what this one does matters more.
        yield
        return
    with notes:
        faulthandler.enable(watcher.stdin)
        _notes.file = notes.fileno()
        try:
            yield
        finally:
            _notes.file = None
            faulthandler.disable()
            watcher.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                # A child that this process forked and left behind may have the pipe open still.
                watcher.wait(_ENDS)


def opened(name: str) -> None:
    """Say which graph native code has in hand; a microsecond, and nothing where it is the one of before.

    Args:
        name: as errors call it.
    """
    if _notes.file is None or name == _notes.last:
        return
    _notes.last = name
    os.pwrite(_notes.file, f", ONNX Runtime's last graph was {' '.join(name.split())}\n".encode(), 0)
