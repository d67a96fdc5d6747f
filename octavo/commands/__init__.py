"""`octavo COMMAND`: one module a command (parse, call, print) and one line here."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from octavo import __version__, cli

__all__ = ["COMMANDS", "main"]


class Command(Protocol):
    """What a command's module has; the first line of its docstring is its line of `octavo --help`."""

    __doc__: str | None

    @staticmethod
    def arguments(parser: argparse.ArgumentParser) -> None: ...
    @staticmethod
    def run(chosen: argparse.Namespace) -> None: ...


# `octavo NAME` -> its module, which is imported when it is asked for: what a gate needs is read in tenths of a second, ONNX is not.
COMMANDS = {
    "fetch": "octavo.commands.fetch",
    "gate": "octavo.commands.gate",
    "init": "octavo.commands.init",
    "inspect": "octavo.commands.inspect",
    "pull": "octavo.commands.pull",
    "push": "octavo.commands.push",
    "release": "octavo.commands.release",
    "review": "octavo.commands.review",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and run one command; a mistake is its text on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Folds an FP32 vision model into FP16 and INT8 and proves what was kept. The pipeline itself is `dvc repro`.",
        epilog="Exit codes: 0 done, 1 a bug (of gate: a gate failed), 2 a mistake that the message tells how to mend, 130 "
        "interrupted, 143 terminated, 141 nobody reads the output any longer.",
    )
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    asked = arguments[0] if arguments else None
    for name in [asked] if asked in COMMANDS else COMMANDS:
        module = cast(Command, importlib.import_module(COMMANDS[name]))
        doc = (module.__doc__ or "").strip()
        one = commands.add_parser(
            name, help=doc.splitlines()[0], description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(one)
        one.set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    cli.run(lambda: chosen.run(chosen))
