"""Landmarks of every image of a set, in a file of their own: a .csv with a line an image, or a .json map."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.errors import DataError
from octavo.images.formats.places import annotations_path, text_lines
from octavo.images.warp import Points
from octavo.params.grammar import ImageSet

__all__ = ["read_landmarks"]


def read_landmarks(root: Path, images: ImageSet, names: Sequence[str], where: str) -> dict[str, Points]:
    """Points of each image, by its path below the set's folder.

    A .csv has `name, x1, y1, x2, y2, ...` a line, below a header or not; a .json maps names to [[x, y], ...] or [x1, y1, ...]. x
    and y are pixels of the image as it is read (EXIF orientation applied), whole numbers the centres of pixels.

    Args:
        root: the set's folder.
        images: the set's block.
        names: of the images that need points.
        where: the set's path in params.yaml, for errors.

    Returns:
        Empty where the set names no file.

    Raises:
        DataError: no such file, an entry that is no list of points, or an image without one.
    """
    file = annotations_path(root, images, where, "landmarks")
    if file is None:
        return {}
    found = _of_json(file) if file.suffix.lower() == ".json" else _of_csv(file)
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(
            f"{where}.landmarks: {file} has no points for {missing[0]} ({len(missing)} of {len(names)} images)",
            f"add it by its path below {root}, or take the image out of the set",
        )
    return {name: found[name] for name in names}


def _of_csv(file: Path) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for number, row in enumerate(csv.reader(text_lines(file)), start=1):
        words = [word.strip() for word in row]
        if not any(words) or (number == 1 and not _is_number(words[1] if len(words) > 1 else "")):
            continue
        _add(found, words[0], words[1:], f"{file}:{number}")
    return found


def _of_json(file: Path) -> dict[str, Points]:
    try:
        table = json.loads("\n".join(text_lines(file)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not a readable JSON map: {error}", "correct it, or name another") from error
    if not isinstance(table, dict):
        raise DataError(f"{file} must map image names to points", "correct it: {name: [[x, y], ...]}")
    found: dict[str, Points] = {}
    for name, points in table.items():
        flat = points if isinstance(points, list) else [points]
        if flat and all(isinstance(point, list) and len(point) == 2 for point in flat):
            flat = [value for point in flat for value in point]
        _add(found, name, flat, f"{file}: {name}")
    return found


def _add(found: dict[str, Points], name: str, values: Sequence[Any], entry: str) -> None:
    name = name.replace("\\", "/")
    if name in found:
        raise DataError(f"{entry}: {name} has points already", "remove one of the two")
    if len(values) < 4 or len(values) % 2 or not all(_is_number(value) for value in values):
        raise DataError(f"{entry}: {list(values)} is no list of points x1, y1, x2, y2, ...", "correct or remove it")
    numbers = [float(value) for value in values]
    found[name] = tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool | list | dict) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
