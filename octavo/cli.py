"""The front door that all stage scripts share: arguments, params, and errors as one plain message with an exit code.

Exit codes: 0 done, 2 a mistake that the message tells how to mend, 1 a bug (with its traceback), 130 interrupted, 143 terminated
(`docker stop`), 141 what reads the output has gone (`| head`), 139 and 134 native code crashed (`octavo.crash`), as shells report
SIGINT, SIGTERM, SIGPIPE, SIGSEGV and SIGABRT.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from octavo.crash import watched
from octavo.errors import OctavoError

__all__ = ["PARAMS", "parser", "run"]

_INTERRUPTED = "interrupted; outputs are as they were"

PARAMS = Path("params.yaml")
# 128 + SIGPIPE, 128 + SIGTERM.
BROKEN_PIPE, TERMINATED = 141, 143


def parser(doc: str | None, *, model_required: bool = True) -> argparse.ArgumentParser:
    """An argument parser with what every stage takes: `--model NAME` and `--params FILE`.

    Args:
        doc: the script's docstring, shown by `--help`.
        model_required: false for scripts that have something to do without a model.
    """
    arguments = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", required=model_required, metavar="NAME", help="a key of `models:` in params.yaml")
    arguments.add_argument("--params", type=Path, default=PARAMS, metavar="FILE", help="the parameters (default: params.yaml)")
    return arguments


def run(main: Callable[[], None]) -> None:
    """Call `main` and exit: an OctavoError becomes its text on stderr and exit code 2, never a traceback.

    SIGTERM ends it as Ctrl-C does, so that temporary files go: by itself it would end the process at once.
    """
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with watched(Path(sys.argv[0]).stem, sys.argv[1:]):
            _reported(main)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes both once more as it ends, and would complain of what nobody reads.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        sys.exit(BROKEN_PIPE)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> None:
    print("terminated; outputs are as they were", file=sys.stderr)
    sys.exit(TERMINATED)


def _reported(main: Callable[[], None]) -> None:
    try:
        main()
    except OctavoError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        sys.exit(130)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C while a script still imports what it needs, which takes seconds: `run` is not there yet to answer it."""
    if issubclass(kind, KeyboardInterrupt):
        print(_INTERRUPTED, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


# Scripts import this module before those that take their time.
sys.excepthook = _uncaught
