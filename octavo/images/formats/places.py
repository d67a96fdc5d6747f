"""Where the annotations of a set lie, and which image file a name in them means; no name leads out of the set's folder."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from pathlib import Path, PurePosixPath, PureWindowsPath

from octavo.errors import DataError
from octavo.images.formats.listed import image_files
from octavo.params.grammar import ImageSet

__all__ = ["ImageFinder", "annotations_path", "composed", "refuse_outside", "shown", "text_lines"]

# How many names an error lists, and how much of each.
_SHOWN = 8
_LONG = 200


def annotations_path(root: Path, images: ImageSet, where: str, key: str = "annotations") -> Path | None:
    """The file or folder that `annotations` (or another key of the set) names; None without the setting.

    It lies below the set's folder, else below the project's.

    Raises:
        DataError: it is at neither place.
    """
    named: str | None = getattr(images, key)
    if named is None:
        return None
    # Whether they may lie where they do is seen when params.yaml is loaded (`octavo.params.places`), by the set's folder.
    for path in (root / named, *([] if ".." in Path(named).parts else [Path(named)])):
        if path.exists():
            return path
    raise DataError(
        f"{where}.{key}: no file or folder {root / named}" + ("" if ".." in Path(named).parts else f" or {named}"),
        f"correct it; it is looked for below {root}, then below the project's folder",
    )


class ImageFinder:
    """Image files below a folder by the names that annotations have for them.

    Args:
        root: the set's folder.
        part: the folder within it, or within its `images`, that the annotations are of.
    """

    def __init__(self, root: Path, part: str = "") -> None:
        self._root = root
        self._places = list(dict.fromkeys(root / inner for inner in ("", "images", part, f"images/{part}")))
        self._by_base: dict[str, list[Path]] | None = None

    def find(self, name: str, entry: str) -> Path | None:
        """Look for a file as it is named below the folder, its `images` and the part, then by its base name anywhere below.

        Where the folder that its name begins with is there, only below that: several parts number their images from 1 on.

        Args:
            name: as the annotations have it.
            entry: the annotations' file, and the place in it, for errors.

        Returns:
            None where there is no such file.

        Raises:
            DataError: the name leads out of the folder, or several files bear it.
        """
        refuse_outside(name, entry, self._root)
        name = name.replace("\\", "/")
        try:
            return next(path for place in self._places if (path := place / name).is_file())
        except (StopIteration, OSError):
            pass  # not there, or no name that a file can have
        found = self._of_base(PurePosixPath(name).name)
        inner = PurePosixPath(name).parent
        named = [folder for place in self._places if inner.name and (folder := place / inner).is_dir()]
        if named:
            found = [path for path in found if any(path.is_relative_to(folder) for folder in named)]
        if len(found) > 1:
            raise DataError(
                f"{entry}: the image {name!r} may be any of {shown([str(path) for path in found])}",
                f"name it by its path below {self._root}",
            )
        return found[0] if found else None

    def _of_base(self, base: str) -> list[Path]:
        if self._by_base is None:
            self._by_base = defaultdict(list)
            for path in image_files(self._root):
                self._by_base[composed(path.name)].append(path)
        return self._by_base.get(composed(base), [])


def composed(name: str) -> str:
    """A name by which others that look the same are equal: macOS parts letters and accents in names of files (Unicode's NFD)."""
    return unicodedata.normalize("NFC", name)


def refuse_outside(name: str, entry: str, root: Path) -> None:
    """Refuse an image's name that leads out of the set's folder, as Windows or as others read it.

    Raises:
        DataError: it is absolute, or climbs with `..`.
    """
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or ".." in PureWindowsPath(name).parts:
        raise DataError(f"{entry}: the image name {name!r} leads out of the set's folder", f"name it by its path below {root}")


def text_lines(file: Path) -> list[str]:
    """Lines of a UTF-8 file, with or without a byte order mark.

    Raises:
        DataError: it cannot be read as text.
    """
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a readable text file: {error}", "correct it, or name another") from error


def shown(names: list[str]) -> str:
    """The first few of many names, for an error."""
    names = [name if len(name) <= _LONG else f"{name[:_LONG]}..." for name in names]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
