"""`octavo COMMAND`: one module a command (parse, call, print) and one line here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Protocol

from octavo import cli
from octavo.commands import fetch, init, inspect, pull, push, release

__all__ = ["COMMANDS", "main"]


class Command(Protocol):
    """What a command's module has; the first line of its docstring is its line of `octavo --help`."""

    __doc__: str | None

    @staticmethod
    def arguments(parser: argparse.ArgumentParser) -> None: ...
    @staticmethod
    def run(chosen: argparse.Namespace) -> None: ...


# `octavo NAME` -> its module.
COMMANDS: dict[str, Command] = {
    "fetch": fetch,
    "init": init,
    "inspect": inspect,
    "pull": pull,
    "push": push,
    "release": release,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and run one command; a mistake is its text on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Folds an FP32 vision model into FP16 and INT8 and proves what was kept. The pipeline itself is `dvc repro`.",
        epilog="Exit codes: 0 done, 2 a mistake that the message tells how to mend, 1 a bug, 130 interrupted.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        doc = (module.__doc__ or "").strip()
        one = commands.add_parser(
            name, help=doc.splitlines()[0], description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(one)
        one.set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    cli.run(lambda: chosen.run(chosen))
