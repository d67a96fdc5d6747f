"""Push what the pipeline made, and the run-cache, to the project's DVC remote."""

from __future__ import annotations

import argparse

from octavo.deploy.registry.transfer import push

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("--remote", metavar="NAME", help="which of the project's DVC remotes (default: its default)")
    parser.add_argument("--no-run-cache", dest="run_cache", action="store_false", help="only what dvc.lock names")


def run(chosen: argparse.Namespace) -> None:
    """Push, and say how much."""
    moved = push(chosen.remote, run_cache=chosen.run_cache)
    print(f"{moved.remote}: {moved.files} file(s) and {moved.runs} run(s) of the run-cache pushed{moved.note}")
