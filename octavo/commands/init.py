"""Write the params.yaml entry of a model of your own: what the file tells, and guesses that are marked as guesses.

The entry is appended; comments and layout of the file stay. Look at each "guess" before you trust a figure.
"""

from __future__ import annotations

import argparse
import typing
from pathlib import Path

from octavo import cli
from octavo.intake.entry import Request, entry_of
from octavo.intake.inputs import parsed_size
from octavo.intake.written import append_entry, model_name, refuse_taken
from octavo.params.grammar import Classification, Detection, Embedding, Segmentation
from octavo.progress import say, working

__all__ = ["arguments", "run"]

TASKS = [typing.get_args(kind.model_fields["name"].annotation)[0] for kind in (Classification, Detection, Segmentation, Embedding)]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="FP32")
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER", help="images to validate on, and to calibrate on")
    parser.add_argument("--calibration", type=Path, metavar="FOLDER", help="images to calibrate on, instead of a part of --data")
    parser.add_argument("--name", metavar="NAME", help="the entry's name (default: the file's)")
    parser.add_argument("--size", metavar="HxW", help="height x width of the input, where the graph leaves them open")
    parser.add_argument("--input", metavar="NAME", help="the graph input that takes the image, where there are several")
    parser.add_argument("--params", type=Path, default=cli.PARAMS, metavar="FILE", help="the parameters (default: params.yaml)")


def run(chosen: argparse.Namespace) -> None:
    """Look, write, and say what comes next."""
    name = model_name(chosen.model, chosen.name)
    refuse_taken(chosen.params, name)
    request = Request(
        chosen.model,
        chosen.task,
        chosen.data,
        chosen.params.resolve().parent,
        chosen.calibration,
        parsed_size(chosen.size) if chosen.size else None,
        chosen.input,
    )
    with working(f"looking at {chosen.model} and {chosen.data}"):
        entry = entry_of(request)
    for path in append_entry(chosen.params, name, entry.lines, entry.outside):
        say(f"note: {path} lies outside of the project: `allow_outside` names it now")
    for note in entry.notes:
        say(f"note: {note}")
    say(f"{chosen.params}: model {name!r} added, {entry.guesses} guesses in it: each is marked `# guess:`, look at them first")
    say("next:")
    where = "" if chosen.params == cli.PARAMS else f"   (in {chosen.params.resolve().parent})"
    say(f"  dvc repro export@{name}{where}")
    say(f"  dvc repro report@{name} package@{name}")
    if not (chosen.params.resolve().parent / "dvc.yaml").is_file():
        say(f"note: no dvc.yaml lies beside {chosen.params}: stages run in a project that has Octavo's")
