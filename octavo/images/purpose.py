"""The one door to the images of a model's `data:`: for calibration, validation and training, held-out datasets by one rule.

A dataset marked `holdout: true` is validated and nothing else. Whatever `split`, `limit` and seeds say, calibration and training
leave it out, be it by its name below their own path or because their images lie in its folder, and validation takes all of it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from octavo.errors import DataError, ParamsError
from octavo.images.dataset import Classes, Images, Item, cut, list_set, refuse_overlap
from octavo.images.formats.listed import dataset_folders
from octavo.images.pairs import refuse_pairless
from octavo.images.splits import hold_out, pick
from octavo.params.grammar import Data, ImageSet, ModelSpec

__all__ = ["Purpose", "calibration_images", "chosen_images", "open_images", "refuse_calibrated"]

Purpose = Literal["calibration", "validation", "train"]


def open_images(data: Data, purpose: Purpose, where: str, classes: Classes = Classes()) -> list[Item]:  # noqa: B008 - frozen
    """List the images of one purpose: its format, then its split, then at most `limit`; of what is held out all or nothing.

    Args:
        data: the model's `data:`.
        purpose: which of its sets.
        where: the path of `data` (`models.lite0.data`), for errors.
        classes: what is known of the model's classes; labels and objects are held against it.

    Returns:
        Items in the order of their names; those of a held-out dataset are there for validation only.

    Raises:
        DataError: as `octavo.images.dataset.list_set`; nothing is left beside what is held out, or both share an image by content;
            or identities to validate on give no pair of one kind.
        ParamsError: there is no such set, or `datasets` names one that the validation set has not.
    """
    images: ImageSet | None = getattr(data, purpose)
    here = f"{where}.{purpose}"
    if images is None:
        raise ParamsError(f"{here}: this key is missing", f"say which images: `{purpose}: {{format: folder, path: ...}}`")
    items = [replace(item, max_pixels=data.max_pixels) for item in list_set(images, here, classes, data.on_bad_image)]
    _refuse_unknown(data, purpose, where)
    held = [item for item in items if _held_out(item, data)]
    rest = [item for item in items if not _held_out(item, data)]
    if not rest:
        raise DataError(
            f"{here}: every image of {images.path} is held out ({', '.join(data.holdout)})",
            f"mark fewer of `{where}.datasets`, or give the set another path",
        )
    refuse_overlap(_hashes(rest), _hashes(held), f"{here}: {images.path}", "what is held out of it", "remove one of the copies")
    chosen = cut(rest, images, here)
    if purpose == "validation":
        refuse_pairless(chosen, images, here)
    return sorted([*chosen, *held], key=lambda item: item.name) if purpose == "validation" else chosen


def calibration_images(spec: ModelSpec, where: str) -> tuple[list[Item], list[Item], list[Item]]:
    """All images of the calibration set; of these the ones that `calibrate` picks; and of these the ones that it holds out.

    Args:
        spec: the model's block.
        where: the path of `data`, for errors.

    Raises:
        DataError: as `open_images`.
    """
    items = open_images(spec.data, "calibration", where)
    picked = pick(items, spec.calibrate.samples, spec.calibrate.seed)
    return items, picked, hold_out(picked, spec.calibrate)[1]


def chosen_images(spec: ModelSpec, files: Sequence[Sequence[str]], where: str, items: Sequence[Item] | None = None) -> Images:
    """The calibration images that an earlier stage wrote down, found again by their content.

    Args:
        spec: the model's block.
        files: (name, sha256) of each.
        where: the path of `data`, for errors.
        items: as `open_images` gives them for calibration, where they are open already.

    Raises:
        DataError: one of them is gone from the folder.
    """
    found = {item.sha256: item for item in (open_images(spec.data, "calibration", where) if items is None else items)}
    gone = next((name for name, digest in files if digest not in found), None)
    if gone is not None:
        raise DataError(
            f"{where}.calibration: {spec.data.calibration.path} no longer holds {gone}, which calibration used",
            "run `dvc repro` again; if it is held out since then, with `-f`",
        )
    return Images([found[digest] for _, digest in files], spec.input, spec.data.on_bad_image)


def refuse_calibrated(files: Iterable[Sequence[str]], items: Sequence[Item], data: Data) -> None:
    """Refuse validation images that a model was calibrated on.

    Args:
        files: (name, sha256) of calibration's images.
        items: the validation images.
        data: the model's `data:`.

    Raises:
        DataError: naming the first shared image; of a dataset that was held out since, how to calibrate anew.
    """
    used = [(name, digest) for name, digest in files]
    held = [item for item in items if _held_out(item, data)]
    anew = "if it is held out since then, `dvc repro -f`, as DVC does not watch `data.datasets`; else remove the copy"
    refuse_overlap(used, _hashes(held), "calibration", "what is held out", anew)
    refuse_overlap(used, _hashes(items), "calibration", "validation")


def _held_out(item: Item, data: Data) -> bool:
    """Whether an image is of a held-out dataset: of its name, or in its folder of the validation set."""
    folders = (os.path.join(os.path.abspath(data.validation.path), name, "") for name in data.holdout)  # noqa: PTH100, PTH118
    return item.dataset in data.holdout or os.path.abspath(item.path).startswith(tuple(folders))  # noqa: PTH100


def _hashes(items: Iterable[Item]) -> list[tuple[str, str]]:
    return [(item.name, item.sha256) for item in items]


def _refuse_unknown(data: Data, purpose: Purpose, where: str) -> None:
    """Hold the names of `datasets` against what lies in the validation set's folder.

    A set for calibration may lie elsewhere and have other datasets, or none; and validation's images may not be there yet when it
    is used: then `validate` looks.
    """
    root = Path(data.validation.path)
    if purpose != "validation" and not root.is_dir():
        return
    known = [folder.name for folder in dataset_folders(root)] if data.datasets else []
    for name in data.datasets:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            there = f"it has: {', '.join(known)}" if known else "datasets lie beside each other, as <path>/<dataset>/images"
            raise ParamsError(f"{where}.datasets.{name}: {root} has no dataset of this name", hint + there)
