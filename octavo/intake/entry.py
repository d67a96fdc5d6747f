"""The entry of params.yaml for somebody's own model: every block, each guess marked as one with what it was concluded from."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from octavo.errors import ModelRunError, SourceError
from octavo.images.feeds import Feeds
from octavo.intake.choosing import chosen
from octavo.intake.inputs import ImageInput, Sides, sides_of
from octavo.intake.normalisation import inside
from octavo.intake.preprocessing import Guessed, guessed
from octavo.intake.runs import CUT, Runnable
from octavo.intake.sets import DataGuess, guessed_data
from octavo.intake.task import TaskGuess, guessed_task
from octavo.params.grammar import Input, OnnxSource
from octavo.params.places import inside as inside_of
from octavo.runtime.session import Session
from octavo.sources.onnx_file import Cleaned, cleaned

__all__ = ["Entry", "Request", "entry_of"]

_WIDTH = 118
_ONE = "export it for one image, or with an open batch dimension"
_PLAIN = "antialias: false is OpenCV's resize and TensorFlow's; true, the default, Pillow's and torchvision's."


@dataclass(frozen=True)
class Request:
    """What the user says.

    Attributes:
        model: the ONNX file.
        task: `classification`, `detection`, `segmentation` or `embedding`.
        data: the folder to validate on, and to calibrate on where `calibration` is None.
        project: the folder that params.yaml lies in, which stages run from.
        size: (height, width), where the graph leaves them open.
        input_name: the graph input that takes the image, where there are several.
    """

    model: Path
    task: str
    data: Path
    project: Path
    calibration: Path | None = None
    size: tuple[int, int] | None = None
    input_name: str | None = None


@dataclass
class Entry:
    """An entry as text.

    Attributes:
        lines: below the model's name, indented from there.
        guesses: how many are marked.
        notes: what the user should see at once.
        outside: what lies outside of the project, as params.yaml shall allow it.
    """

    lines: list[str] = field(default_factory=list)
    guesses: int = 0
    notes: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def add(self, depth: int, key: str, value: Any = None, guess: str = "", fact: str = "") -> None:
        """A key, under a comment where there is something to say of it."""
        indent = "  " * depth
        if guess:
            self.guesses += 1
        for text in (f"guess: {guess}" if guess else "", fact):
            self.lines += [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent), break_long_words=False)]
        self.lines.append(f"{indent}{key}:" if value is None else f"{indent}{key}: {_flow(value)}")


def entry_of(request: Request) -> Entry:
    """Look at the model and the images, and write the entry.

    Raises:
        SourceError: the file cannot be read, is quantized already, or takes no image that the pipeline can feed.
        DataError: a folder is missing or holds no image, or the outputs are not those of the task.
        ModelRunError: the graph does not run.
        ParamsError: the size that was asked is not what the graph is fixed to.
    """
    found, together = _cleaned(request)
    image = _feedable(found, request.model)
    sides = sides_of(image, request.size, found.model.graph.outputs, found.model.metadata_props)
    runnable = Runnable(request.model, found.model, changed=True)
    session = Session(runnable.source, name=str(request.model))
    feeds = _feeds(session, image, sides, request)
    try:
        outputs = session.run(feeds(image.grey(sides.size)))
    except ModelRunError as error:
        if together:
            raise ModelRunError(f"{error.problem}; the file is for {together} images at a time", _ONE) from error
        if sides.by == "default":
            raise ModelRunError(error.problem, "give the size that it takes: `--size HxW`") from error
        raise
    own = runnable.own(outputs)
    task = TaskGuess({"name": request.task})
    if own is not None:
        task = guessed_task(request.task, own, sides.size, found.model)
    data = guessed_data(task, request.data, request.calibration)
    first = guessed(request.task, task.family, image, sides.size, found=inside(found.image), outputs=found.model.graph.outputs)
    guess = first, f"nothing: {CUT}"
    if own is not None:
        guess = chosen(first, task, data, lambda tensor: session.run(feeds(tensor)))
    entry = Entry()
    entry.notes += [f"export: {note}" for note in found.notes if "custom operator" in note]
    if request.task == "segmentation" and own is not None and task.classes is None and data.labelled:
        entry.notes.append(
            "the output's whole numbers do not say how many classes there are: check whether masks have a value that "
            "counts for nothing (`task.void`)"
        )
    _write_task(entry, task)
    _write_source(entry, request, together)
    _write_input(entry, request, image, sides, guess)
    if feeds.others:
        others = {other.name: list(other.values) for other in feeds.others}
        entry.add(1, "others", others, guess="by their names; boxes come out in pixels of the image's tensor then")
    _write_data(entry, request, data)
    few = f"{data.samples} images can be had; statistics want about 200." if data.samples < 100 else ""
    entry.add(0, "calibrate", {"samples": data.samples}, fact=few)
    for stage in ("fp16", "int8", "validate"):
        entry.add(0, stage, {})
    entry.add(0, "benchmark", {"threads": [1, 2], "batch": [1]})
    read = [_path(path, request.project) for path in (request.model, request.data, request.calibration) if path is not None]
    entry.outside = [path for path in dict.fromkeys(read) if not inside_of(path, [request.project.resolve()])]
    return entry


def _cleaned(request: Request) -> tuple[Cleaned, int]:
    """The file as the stages get it, with its batch made open where that is fixed at several images; and how many (0: it is not).

    Raises:
        SourceError: as `entry_of`.
    """
    source = OnnxSource(kind="onnx", file=str(request.model))
    found = cleaned(source, request.input_name)
    together = found.image.shape[0] if found.image.shape else None
    if not isinstance(together, int) or together <= 1:
        return found, 0
    try:
        return cleaned(source.model_copy(update={"dynamic_batch": True}), request.input_name), together
    except SourceError as error:
        raise SourceError(f"{error.problem}; the file is for {together} images at a time", _ONE) from error


def _feedable(found: Cleaned, path: Path) -> ImageInput:
    image = ImageInput.of(found.image)
    if image.dtype == "float16":
        raise SourceError(f"{path}: input {image.name!r} is float16", "export the model in FP32; FP16 is made from that")
    if image.channels not in (None, 1, 3):
        raise SourceError(
            f"{path}: input {image.name!r} takes {image.channels} channels",
            "preprocessing gives one channel or three: export it so",
        )
    return image


def _feeds(session: Session, image: ImageInput, sides: Sides, request: Request) -> Feeds:
    """What inputs beside the image are fed, as far as exporters are known."""
    try:
        return Feeds.of(session.signature, image.name, Input(size=sides.size, layout=image.layout))
    except SourceError as error:
        raise SourceError(f"{request.model}: {error.problem}", error.mend) from error


def _write_task(entry: Entry, task: TaskGuess) -> None:
    if task.keys["name"] != "detection" and len(task.keys) == 1:
        entry.add(0, "task", task.keys["name"])
        return
    entry.add(0, "task")
    entry.add(1, "name", task.keys["name"])
    for key, value in task.keys.items():
        if key != "name":
            entry.add(1, key, value, guess=task.why.get(key, ""))
    if task.keys["name"] == "detection" and "classes" not in task.keys:
        entry.lines.append(
            "  # check: `classes: [...]` names the model's classes in its order; without it the set's own order is taken."
        )


def _write_source(entry: Entry, request: Request, together: int) -> None:
    entry.add(0, "source")
    entry.add(1, "kind", "onnx")
    entry.add(1, "file", _path(request.model, request.project))
    if together:
        entry.add(1, "dynamic_batch", True, fact=f"the file is for {together} images at a time, the stages run one.")


def _write_input(entry: Entry, request: Request, image: ImageInput, sides: Sides, guess: tuple[Guessed, str]) -> None:
    chosen, measured = guess
    keys, why = chosen.keys, chosen.why
    entry.add(0, "input")
    if request.input_name is not None:
        entry.add(1, "name", request.input_name)
    open_ = f"the graph leaves height and width open ({'x'.join(map(str, image.sides))})"
    by = {
        "graph": "",
        "asked": "",
        "exporter": f"{open_}, and its exporter wrote this size beside it; `--size HxW` sets another",
        "default": f"{open_}; `--size HxW` sets them",
    }[sides.by]
    entry.add(1, "size", keys["size"], guess=by, fact="height, width: as the graph has them." if sides.by == "graph" else "")
    plain = keys["resize"].get("antialias") is False
    entry.add(1, "resize", keys["resize"], guess=why["resize"], fact=_PLAIN if plain else "")
    if "crop" in keys:
        entry.add(1, "crop", keys["crop"])
    if "colour" in keys:
        entry.add(1, "colour", keys["colour"], guess=_of_colour(keys["colour"], why))
    habit = "what such networks take, as above" if why["scale"] == why["resize"] else why["scale"]
    told = f"{habit}." + (f" Measured {measured}." if measured else "")
    check = "check: value = (pixel / scale - mean) / std; the training code's transforms have the numbers."
    numbers = [(key, keys[key]) for key in ("scale", "mean", "std") if key in keys] or [("scale", 255)]
    for place, (key, value) in enumerate(numbers):
        entry.add(1, key, value, guess=told if place == 0 else "", fact=check if place == 0 else "")
    for key in ("layout", "dtype"):
        if key in keys:
            entry.add(1, key, keys[key], fact="as the graph has it." if key == "dtype" else f"{why['layout']}.")


def _of_colour(colour: str, why: Mapping[str, str]) -> str:
    if "colour" not in why or (colour == "rgb"):
        return "it measured better than the other order, see below"
    return "such networks take BGR" if why["colour"] == why["resize"] else why["colour"]


def _write_data(entry: Entry, request: Request, data: DataGuess) -> None:
    entry.add(0, "data")
    for key, block in (("calibration", data.calibration), ("validation", data.validation)):
        written = block | {"path": _path(block["path"], request.project)}
        entry.add(1, key, written, guess=data.why[key])
    if not data.labelled:
        entry.notes.append("no labels count: validation will tell fidelity to FP32, not accuracy")


def _path(path: Path, project: Path) -> str:
    """Relative to the project where it lies below, else as it was given, absolute where the stages would not find it so."""
    whole = path.resolve()
    if whole.is_relative_to(project.resolve()):
        return whole.relative_to(project.resolve()).as_posix()
    given_from_here = path.is_absolute() or Path.cwd().resolve() == project.resolve()
    return path.as_posix() if given_from_here else whole.as_posix()


def _flow(value: Any) -> str:
    """A value on one line."""
    plain = dict(value) if isinstance(value, Mapping) else value
    text = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
