"""Demo data out of installed packages: copies, seeded crops and views, with source and licence of each on file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from octavo.errors import DataError
from octavo.files import replace_dir
from octavo.images.decode import read_image
from octavo.images.views import view
from octavo.params.grammar import Packaged

__all__ = ["locate", "make_set"]

# Longest side of a crop: larger ones only cost disk, the networks see a few hundred pixels.
MOST = 448


def make_set(folder: str | Path, files: Sequence[Packaged]) -> int:
    """Fill a set's folder, whole or not at all, and write its SOURCES.md.

    Returns:
        How many files were written, SOURCES.md not counted.

    Raises:
        DataError: a package or file is missing, or a photo is too small for its crops.
    """
    folder = Path(folder)
    written = 0
    lines = [f"# Where the files of {folder.name} come from", "", "| file | package | licence |", "|---|---|---|"]
    with replace_dir(folder) as temporary:
        for item in files:
            source, version = locate(item.package, item.file)
            target = temporary / item.to
            if item.crops or item.views:
                made = _crops if item.crops else _views
                written += made(source, target, item.crops or item.views, item.least)
                what, kind = ("crops", "png") if item.crops else ("views", "jpg")
                where = f"{item.to}/{source.stem}_*.{kind}: {item.crops or item.views} {what} of {item.file}"
                lines.append(f"| {where} | {item.package} {version} | {item.licence} |")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            written += 1
            lines.append(f"| {item.to} | {item.package} {version} | {item.licence} |")
        (temporary / "SOURCES.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return written


def locate(package: str, file: str) -> tuple[Path, str]:
    """The installed file and its package's version.

    Raises:
        DataError: the package is not installed, or has no such file.
    """
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise DataError(
            f"the package {package!r} is not installed", "run `make repro`, or `pip install --no-deps -r requirements/demo.txt`"
        ) from error
    found = [entry for entry in distribution.files or [] if entry.as_posix() == file]
    path = Path(str(found[0].locate())) if found else None
    if path is None or not path.is_file():
        raise DataError(f"{package} {distribution.version} has no file {file!r}", "correct data/sources.yaml")
    return path, distribution.version


def _crops(source: Path, folder: Path, count: int, least: int) -> int:
    """Square crops at seeded places and sizes, every other one mirrored; the seed is the photo's name."""
    photo, generator = _opened(source, folder, least, "crops")
    height, width = photo.shape[:2]
    for place in range(count):
        side = int(generator.integers(least, max(least, min(height, width, MOST)), endpoint=True))
        top = int(generator.integers(0, height - side, endpoint=True))
        left = int(generator.integers(0, width - side, endpoint=True))
        crop = photo[top : top + side, left : left + side]
        crop = crop[:, ::-1] if place % 2 else crop
        Image.fromarray(np.ascontiguousarray(crop)).save(folder / f"{source.stem}_{place:02d}.png", compress_level=6)
    return count


def _views(source: Path, folder: Path, count: int, least: int) -> int:
    """What `octavo.images.views` makes of a photo; the seed is the photo's name."""
    photo, generator = _opened(source, folder, least, "views")
    for place in range(count):
        (folder / f"{source.stem}_{place:02d}.jpg").write_bytes(view(photo, generator, least))
    return count


def _opened(source: Path, folder: Path, least: int, what: str) -> tuple[np.ndarray, np.random.Generator]:
    photo = read_image(source)
    if min(photo.shape[:2]) < least:
        raise DataError(
            f"{source.name} is {photo.shape[0]}x{photo.shape[1]} pixels, too small for {what} of {least}",
            "lower `least` in data/sources.yaml",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return photo, np.random.default_rng(int(hashlib.sha256(source.name.encode()).hexdigest()[:16], 16))
