"""Pull what the pipeline made, of one model or of all, and the run-cache from the project's DVC remote."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo import cli
from octavo.deploy.registry.transfer import pull

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    # Empty where `make pull` was called without.
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="models/MODEL and metrics/MODEL alone, no data sets")
    parser.add_argument("--remote", metavar="NAME", help="which of the project's DVC remotes (default: its default)")
    parser.add_argument("--no-run-cache", dest="run_cache", action="store_false", help="only what dvc.lock names")
    parser.add_argument("--with-deps", action="store_true", help="also the data sets and weights that MODEL is made from")
    parser.add_argument("--allow-missing", action="store_true", help="take what is there where the remote lacks something")
    parser.add_argument("--force", action="store_true", help="replace changed files that are not in DVC's cache")
    parser.add_argument("--params", type=Path, default=cli.PARAMS, metavar="FILE", help="the parameters (default: params.yaml)")


def run(chosen: argparse.Namespace) -> None:
    """Pull, and say how much."""
    options = {name: getattr(chosen, name) for name in ("params", "run_cache", "with_deps", "allow_missing", "force")}
    moved = pull(chosen.model or None, chosen.remote, **options)
    print(f"{moved.remote}: {moved.files} file(s) and {moved.runs} run(s) of the run-cache pulled{moved.note}")
