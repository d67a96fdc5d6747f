"""YAML files of YOLO sets: what is in one, which folders it has for parts, and which one above a folder has that for a part."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import yaml

from octavo.errors import DataError
from octavo.images.formats.places import shown

__all__ = ["USUAL", "above", "content_of", "last_images", "parts_in", "with_names"]

USUAL = ("data.yaml", "dataset.yaml")


def content_of(file: Path) -> dict[object, object]:
    """What a file says; nothing where it is no map.

    Raises:
        DataError: it cannot be read.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise DataError(f"{file} is not readable YAML: {error}", "correct the file") from error
    return content if isinstance(content, dict) else {}


def parts_in(file: Path, *keys: str) -> list[tuple[str, ...]]:
    """The folders that `train`, `val` and `test` name, or of these the `keys`, each as the names on its path."""
    content = content_of(file)
    named = [content.get(key) for key in keys or ("train", "val", "test")]
    paths = [path for each in named for path in (each if isinstance(each, list) else [each]) if isinstance(path, str)]
    return [PurePosixPath(path).parts for path in paths]


def last_images(folders: Sequence[str]) -> int | None:
    """The place of the last `images` among the folders of a path: beside it lie `labels` and ultralytics' YAML file."""
    return len(folders) - 1 - folders[::-1].index("images") if "images" in folders else None


def above(root: Path, where: str) -> Path | None:
    """The YAML file above a set's folder that has it for a part.

    1. Beside the `images` that the folder is or lies in: `val: images/val`, as ultralytics has it.
    2. Beside the folder that holds `images`, if it is a data.yaml: `val: ../valid/images`, as Roboflow writes it.

    A data.yaml with names and without parts speaks of all that lies beside it.

    Raises:
        DataError: several files beside `images` have it for a part, and none is called as usual; or one that is cannot be read.
    """
    home, last = root, last_images(root.parts)
    if not (root / "images").is_dir():
        if last is None:
            return None
        home, inner = Path(*root.parts[:last]), root.parts[last:]
        told = [path for path in with_names(home) if _speaks_of_all(path) or _has_part(path, inner)]
        if told and (told[0].name in USUAL or len(told) == 1):
            return told[0]
        if told:
            raise DataError(
                f"{where}: {shown([str(path) for path in told])} have class names of {root}",
                f"say which file holds: `{where}.annotations: {told[0]}`",
            )
    for file in (home.parent / name for name in USUAL if (home.parent / name).is_file()):
        ends = [part[-2:] for part in parts_in(file)]
        if _speaks_of_all(file) or any(end == (home.name, "images") or end[-1:] == (home.name,) for end in ends):
            return file
    return None


def with_names(folder: Path) -> list[Path]:
    """Files called as usual, then others with class names; of these one that cannot be read has nothing to do with the set."""
    found = [folder / name for name in USUAL if (folder / name).is_file()]
    for path in sorted(folder.glob("*.y*ml")):
        with contextlib.suppress(DataError):
            if path not in found and "names" in content_of(path):
                found.append(path)
    return found


def _speaks_of_all(file: Path) -> bool:
    return file.name in USUAL and "names" in content_of(file) and not parts_in(file)


def _has_part(file: Path, inner: tuple[str, ...]) -> bool:
    """Whether a part is this folder, holds it or lies in it; both from `images` on."""
    parts = [part[last_images(part) :] for part in parts_in(file) if "images" in part]
    return any(part[: len(inner)] == inner[: len(part)] for part in parts)
