"""A folder a class: <root>/<class>/<image>."""

from __future__ import annotations

import json
import re
from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.listed import Classes, Listed, image_files, images_in
from octavo.params.grammar import ImageSet

__all__ = ["UNLABELLED", "labelled_folders", "read"]

# A folder of this name holds images that count for fidelity only.
UNLABELLED = "unlabelled"


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:
    """Images with the class index of their folder.

    Raises:
        DataError: an image lies outside the class folders, or which folder is which class cannot be told.
    """
    folders = labelled_folders(root, where, "class")
    names = [folder.name for folder in folders if folder.name != UNLABELLED]
    index = _class_index(root, names, images.annotations, where, classes)
    found: list[Listed] = []
    for folder in folders:
        found += [Listed(path, None if folder.name == UNLABELLED else index[folder.name]) for path in image_files(folder)]
    return found


def labelled_folders(root: Path, where: str, what: str) -> list[Path]:
    """The folders of a set that has one for each label, by their names; `UNLABELLED` may be among them.

    Args:
        root: the set's folder.
        where: the set's path in params.yaml, for errors.
        what: what a folder stands for, for errors.

    Raises:
        DataError: an image lies beside them.
    """
    stray = images_in(root)
    if stray:
        raise DataError(
            f"{where}.path: {stray[0]} lies beside the {what} folders",
            f"move it into the folder of its {what} or into {root / UNLABELLED}",
        )
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_index(root: Path, names: list[str], annotations: str | None, where: str, classes: Classes) -> dict[str, int]:
    chosen = Path(annotations) if annotations else root / "classes.json"
    if annotations or chosen.is_file():
        try:
            table = json.loads(chosen.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(
                f"{where}.annotations: {chosen} is not a readable JSON map: {error}", "correct the path or the file"
            ) from error
        if not isinstance(table, dict) or not all(type(value) is int and value >= 0 for value in table.values()):
            raise DataError(f"{where}.annotations: {chosen} must map folder names to class indices 0, 1, 2 ...", "correct the file")
        missing = [name for name in names if name not in table]
        if missing:
            raise DataError(f"{chosen} has no class index for the folder {missing[0]!r} of {root}", "add it, or remove the folder")
        return {name: table[name] for name in names}
    # Names that stand twice (two of ImageNet's do) tell nothing.
    known = {name: place for place, name in enumerate(classes.names or ()) if classes.names.count(name) == 1}
    if all(name in known for name in names):
        return {name: known[name] for name in names}
    if all(re.fullmatch(r"\d+", name) for name in names):
        return {name: int(name) for name in names}
    if classes.count is not None and len(names) != classes.count:
        # The alphabetical place is the class index only where every class has its folder; anything else would score noise.
        raise DataError(
            f"{where}.path: {root} has {len(names)} class folders, the model has {classes.count} classes",
            f"say which folder is which class in {root / 'classes.json'} (folder name to index) or `{where}.annotations`, "
            "or name the model's classes in `task.classes` as the folders are called",
        )
    return {name: place for place, name in enumerate(names)}
