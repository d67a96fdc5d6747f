"""Say which gates failed or are inconclusive, with figure, interval and bound; exit code 1 where one failed.

Models that were not measured are named beside the verdicts on the others; without a failed gate they make the exit code 2. Reads
metrics/<model>/accuracy.json as `validate` wrote it and runs nothing: for the end of a CI job.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo import cli
from octavo.errors import DataError, ParamsError
from octavo.files import read_json
from octavo.layout import metrics_dir
from octavo.params import load
from octavo.params.grammar import ModelSpec
from octavo.verdicts import FAIL, PASS, Verdict, verdicts

__all__ = ["arguments", "run"]

FAILED = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="keys of `models:` in params.yaml (default: all)")
    parser.add_argument("--strict", action="store_true", help="inconclusive gates, and those without labels, fail too")
    parser.add_argument("--params", type=Path, default=cli.PARAMS, metavar="FILE", help="the parameters (default: params.yaml)")


def run(chosen: argparse.Namespace) -> None:
    """Print what did not pass, then how many of how many; exit."""
    specs = load(chosen.params).models
    models = list(dict.fromkeys(chosen.models)) or list(specs)
    for name in models:
        if name not in specs:
            near = difflib.get_close_matches(name, specs, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ParamsError(f"{chosen.params} has no model {name!r}", f"{hint}it has: {', '.join(sorted(specs))}")
    unmeasured = [name for name in models if not _accuracy(name).is_file()]
    # All records are read before a word is printed: half of an answer looks like one.
    found = {name: _verdicts(name, specs[name]) for name in models if name not in unmeasured}
    gates = [(name, one) for name, several in found.items() for one in several]
    shown = sorted((one for one in gates if one[1].answer != PASS), key=lambda one: one[1].order)
    for name, one in shown:
        print(f"{name} {one}")
    for name in (name for name, several in found.items() if not several):
        print(f"note: {name} has no gate: no variant of `validate.gates.variants` was made")
    failed = sum(one.answer == FAIL or chosen.strict for _, one in shown)
    told = f"{failed} of {len(gates)} gates failed" + (" (--strict: what is not `pass` fails)" if chosen.strict and failed else "")
    print(told + (f"; not measured: {', '.join(unmeasured)}" if unmeasured else ""))
    if failed:
        sys.stdout.flush()
        sys.exit(FAILED)
    if unmeasured:
        raise DataError(
            f"{_accuracy(unmeasured[0])}: no such file: nothing was measured of {', '.join(unmeasured)} here",
            f"`dvc repro validate@{unmeasured[0]}` makes it (after `octavo pull`, from what others have run); "
            "or `git pull`, if others committed it",
        )


def _accuracy(name: str) -> Path:
    return metrics_dir(name) / "accuracy.json"


def _verdicts(name: str, spec: ModelSpec) -> list[Verdict]:
    accuracy = _record(_accuracy(name), f"`dvc repro validate@{name}`")
    path = metrics_dir(name) / "latency.json"
    latency = _record(path, f"`dvc repro benchmark@{name}`") if path.is_file() else None
    found = verdicts(accuracy, spec.validation.gates.of_task(spec.task.name), latency)
    judged = {one.variant for one in found}
    unjudged = [variant for variant in _held(spec, accuracy) if variant not in judged]
    if unjudged:
        raise DataError(
            f"{_accuracy(name)} has no gate of {', '.join(unjudged)}, "
            "which `validate.gates.variants` of params.yaml holds to gates",
            f"`dvc repro validate@{name}`",
        )
    outdated = [one for one in found if one.outdated]
    if outdated:
        raise DataError(
            f"{_accuracy(name)} was judged by other bounds than params.yaml has now:"
            + "".join(f"\n  {name} {one}" for one in outdated),
            f"`dvc repro validate@{name}`",
        )
    return found


def _held(spec: ModelSpec, accuracy: Mapping[str, Any]) -> list[str]:
    """Variants of `validate.gates.variants` that are made: all, but for training that is not asked for or was not possible."""
    return [
        variant
        for variant in spec.validation.gates.variants
        if (variant != "qat" or spec.qat.enabled) and f"{variant}.skipped" not in accuracy
    ]


def _record(path: Path, remake: str) -> dict[str, Any]:
    try:
        record = read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not readable JSON: {error}", f"`git checkout -- {path}`, or make it again: {remake}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} holds no record of figures", f"make it again: {remake}")
    return record
