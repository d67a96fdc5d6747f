"""Which images a set holds: the folder formats, labels, selection, and the check that no two sets share an image."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from octavo.errors import DataError, ParamsError
from octavo.files import sha256_bytes, sha256_file
from octavo.images.decode import EXTENSIONS, read_image
from octavo.images.preprocess import preprocess
from octavo.images.splits import part, pick
from octavo.params.grammar import ImageSet, Input, ModelSpec

__all__ = ["UNLABELLED", "Images", "Item", "chosen_images", "image_list", "open_set", "refuse_overlap"]

# A folder of this name inside an `imagefolder` holds images that count for fidelity only.
UNLABELLED = "unlabelled"

Listed = list[tuple[Path, int | None]]


@dataclass(frozen=True)
class Item:
    """One image file. `name` is its path below the set's root, with '/'; `label` is None where there is none."""

    path: Path
    name: str
    sha256: str
    label: int | None = None


def open_set(images: ImageSet, where: str, classes: int | None = None) -> list[Item]:
    """List a set's images: read its format, take its split, then at most `limit`.

    Args:
        images: the set's block of params.yaml.
        where: the block's path (`models.lite0.data.validation`), for errors.
        classes: how many classes the model tells apart; labels are held against it where it is given.

    Returns:
        Items in the order of their names.

    Raises:
        DataError: the folder is missing or holds no image, or a label lies outside the classes.
        ParamsError: no reader for the format.
    """
    root = Path(images.path)
    if images.format not in READERS:
        raise ParamsError(
            f"{where}.format: {images.format!r} has no reader in this version", f"use one of: {', '.join(sorted(READERS))}"
        )
    if not root.is_dir():
        raise DataError(
            f"{where}.path: no folder {root}", "correct the path, or run `dvc repro` (or `dvc pull`) to make or fetch it"
        )
    listed = READERS[images.format](root, images, where, classes)
    outside = [(path, label) for path, label in listed if classes is not None and label is not None and label >= classes]
    if outside:
        raise DataError(
            f"{where}: {outside[0][0]} is labelled class {outside[0][1]}, the model has classes 0..{classes - 1 if classes else 0}"
            f" ({len(outside)} such images)",
            "correct the class map (`annotations`, classes.json or the folder names)",
        )
    if not listed:
        raise DataError(
            f"{where}.path: {root} holds no image ({', '.join(sorted(EXTENSIONS))})", "put images there or correct the path"
        )
    items = [Item(path, path.relative_to(root).as_posix(), sha256_file(path), label) for path, label in listed]
    if images.split is not None:
        items = part(items, images.split)
        if not items:
            raise DataError(f"{where}.split: the part {images.split.start}..{images.split.stop} of {root} is empty", "widen it")
    if images.limit is not None and images.limit < len(items):
        items = pick(items, images.limit, images.seed)
    return items


def _folder(root: Path, images: ImageSet, where: str, classes: int | None) -> Listed:  # noqa: ARG001 - one signature for all readers
    return [(path, None) for path in _files(root)]


def _imagefolder(root: Path, images: ImageSet, where: str, classes: int | None) -> Listed:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    names = [folder.name for folder in folders if folder.name != UNLABELLED]
    stray = [path for path in root.iterdir() if path.suffix.lower() in EXTENSIONS]
    if stray:
        raise DataError(
            f"{where}.path: {stray[0]} lies beside the class folders", f"move it into a class folder or into {root / UNLABELLED}"
        )
    index = _class_index(root, names, images.annotations, where, classes)
    found: Listed = []
    for folder in folders:
        found += [(path, None if folder.name == UNLABELLED else index[folder.name]) for path in _files(folder)]
    return found


def _class_index(root: Path, names: list[str], annotations: str | None, where: str, classes: int | None) -> dict[str, int]:
    chosen = Path(annotations) if annotations else root / "classes.json"
    if annotations or chosen.is_file():
        try:
            table = json.loads(chosen.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{where}.annotations: {chosen} is not a readable JSON map: {error}", "correct the path or the file"
            ) from error
        if not isinstance(table, dict) or not all(type(value) is int and value >= 0 for value in table.values()):
            raise DataError(f"{where}.annotations: {chosen} must map folder names to class indices 0, 1, 2 ...", "correct the file")
        missing = [name for name in names if name not in table]
        if missing:
            raise DataError(f"{chosen} has no class index for the folder {missing[0]!r} of {root}", "add it, or remove the folder")
        return {name: table[name] for name in names}
    if all(re.fullmatch(r"\d+", name) for name in names):
        return {name: int(name) for name in names}
    if classes is not None and len(names) != classes:
        # The alphabetical place is the class index only where every class has its folder; anything else would score noise.
        raise DataError(
            f"{where}.path: {root} has {len(names)} class folders, the model has {classes} classes",
            f"say which folder is which class in {root / 'classes.json'} (folder name to index) or `{where}.annotations`",
        )
    return {name: place for place, name in enumerate(names)}


def _files(root: Path) -> list[Path]:
    return sorted(
        (path for path in root.rglob("*") if path.suffix.lower() in EXTENSIONS and path.is_file()),
        key=lambda path: path.relative_to(root).as_posix(),
    )


READERS: dict[str, Callable[[Path, ImageSet, str, int | None], Listed]] = {
    "folder": _folder,
    "imagefolder": _imagefolder,
}


def refuse_overlap(first: Iterable[tuple[str, str]], second: Iterable[tuple[str, str]], first_is: str, second_is: str) -> None:
    """Refuse two sets that share an image by content.

    Args:
        first, second: (name, sha256) of every image.
        first_is, second_is: what the sets are, for the error.

    Raises:
        DataError: naming the first shared image and how many there are.
    """
    known = {digest: name for name, digest in first}
    shared = [(known[digest], name) for name, digest in second if digest in known]
    if shared:
        raise DataError(
            f"{first_is} and {second_is} share {len(shared)} image(s) by content, the first: {shared[0][0]} = {shared[0][1]}",
            "give them different folders, or different parts of one folder with `split`",
        )


def image_list(items: Iterable[Item]) -> str:
    """SHA-256 over the sorted content hashes and labels of a set: equal for equal sets in any order, wherever they lie."""
    return sha256_bytes("\n".join(sorted(f"{item.sha256} {item.label}" for item in items)).encode())


@dataclass
class Images:
    """Preprocessed images, one at a time, with the policy for unreadable ones.

    Args:
        items: what to read.
        spec: the model's `input:` block.
        on_bad_image: `error` raises at the first unreadable file; `skip` counts and lists it in `skipped`.
    """

    items: list[Item]
    spec: Input
    on_bad_image: str = "error"
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[tuple[Item, np.ndarray]]:
        """Yield (item, tensor with batch dimension 1).

        Raises:
            DataError: an unreadable image under `error`, or no readable image at all.
        """
        self.skipped = []
        for item in self.items:
            try:
                tensor = preprocess(read_image(item.path), self.spec)
            except DataError as error:
                if self.on_bad_image == "error":
                    raise
                self.skipped.append(f"{item.name}: {error.problem}")
                continue
            yield item, tensor
        if self.items and len(self.skipped) == len(self.items):
            raise DataError(
                f"none of {len(self.items)} images is readable, the first: {self.skipped[0]}", "check the folder's files"
            )


def chosen_images(spec: ModelSpec, files: Sequence[Sequence[str]], where: str) -> Images:
    """The calibration images that an earlier stage wrote down, found again by their content.

    Args:
        spec: the model's block.
        files: (name, sha256) of each.
        where: the setting's path, for errors.

    Raises:
        DataError: one of them is gone from the folder.
    """
    found = {item.sha256: item for item in open_set(spec.data.calibration, where)}
    gone = next((name for name, digest in files if digest not in found), None)
    if gone is not None:
        raise DataError(
            f"{where}.path: {spec.data.calibration.path} no longer holds {gone}, which calibration used", "run `dvc repro` again"
        )
    return Images([found[digest] for _, digest in files], spec.input, spec.data.on_bad_image)
