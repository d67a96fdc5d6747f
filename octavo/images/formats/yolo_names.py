"""Class names of a YOLO set: `names` of its YAML file, or a list with a name a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.places import shown, text_lines
from octavo.images.formats.yolo_yaml import USUAL, above, content_of

__all__ = ["NAME_LISTS", "class_names"]

# Written by annotation tools into the folder of the labels.
NAME_LISTS = ("classes.txt", "obj.names")


def class_names(told: Path | None, folders: Sequence[Path], where: str) -> dict[int, str]:
    """Number to name; empty where no file gives names. Those of the set's own folder go before a YAML file above it.

    Args:
        told: the YAML file that params.yaml names.
        folders: the set's folder, then those of its labels.
        where: the set's path in params.yaml.

    Raises:
        DataError: the file cannot be read, has no `names`, or more than one could be meant.
    """
    if told is not None:
        return _from_yaml(told)
    root = folders[0]
    for name in USUAL:
        if (root / name).is_file():
            return _from_yaml(root / name)
    others = [path for suffix in ("yaml", "yml") for path in sorted(root.glob(f"*.{suffix}")) if "names" in content_of(path)]
    if len(others) > 1:
        raise DataError(
            f"{where}: {root} has class names in {shown([path.name for path in others])}",
            f"say which file holds: `{where}.annotations: file.yaml`",
        )
    if others:
        return _from_yaml(others[0])
    for path in (folder / name for folder in folders for name in NAME_LISTS):
        if path.is_file():
            return {number: line.strip() for number, line in enumerate(text_lines(path)) if line.strip()}
    told = above(root, where)
    return {} if told is None else _from_yaml(told)


def _from_yaml(file: Path) -> dict[int, str]:
    content = content_of(file)
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise DataError(f"{file} has no `names`: a list, or a map from class number to name", "add it")
    names = {_number(key): name for key, name in names.items()}
    strange = [number for number in names if type(number) is not int or number < 0]
    if strange:
        raise DataError(
            f"{file}: `names` has the key {strange[0]!r}", "it is a list, or a map from class number (0, 1, 2 ...) to name"
        )
    unreadable = [name for name in names.values() if isinstance(name, bool | list | dict) or name is None]
    if unreadable:
        raise DataError(
            f"{file}: `names` has {unreadable[0]!r}, which is no text", "put it in quotes: YAML reads no and yes otherwise"
        )
    if _number(content.get("nc")) not in (None, len(names)):
        raise DataError(f"{file}: `nc` is {content['nc']}, `names` has {len(names)}", "correct one of them")
    return {number: str(names[number]) for number in sorted(names)}


def _number(value: object) -> object:
    """A number that somebody put in quotes, as one."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value
