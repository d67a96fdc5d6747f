"""Which format a folder of images is in, by how it looks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import DataError
from octavo.images.decode import EXTENSIONS
from octavo.images.formats.listed import dataset_folders, files_below, image_files, images_in
from octavo.images.formats.masks import FOLDERS
from octavo.images.formats.yolo import label_of

__all__ = ["Found", "instances_of", "recognised"]

_PAIRS = "pairs.txt"
# Of a JSON file: what is read to see whether it is COCO's.
_COCO = ("images", "annotations", "categories")


@dataclass(frozen=True)
class Found:
    """A set as params.yaml has it, and what it was recognised by.

    Attributes:
        format, annotations, class_map: keys of the set's block.
        path: the folder.
        why: for a comment.
        photos: the folder that holds images alone, for `format: folder` where labels are of no use.
    """

    format: str
    path: Path
    why: str
    annotations: str | None = None
    photos: Path | None = None
    class_map: Mapping[str, int] | None = None

    @property
    def plain(self) -> Found:
        """The same images without labels."""
        return Found("folder", self.photos or self.path, "images without labels: fidelity to FP32 alone is measured")


def recognised(folder: Path, task: str) -> Found:
    """The format of a folder, as far as a task has use for it.

    Raises:
        DataError: there is no such folder, or no image in it.
    """
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder}: {what}", "name a folder of images: `--data FOLDER`")
    if not image_files(folder):
        raise DataError(f"{folder} holds no image ({', '.join(sorted(EXTENSIONS))})", "name a folder of images: `--data FOLDER`")
    look = {"classification": _classes, "detection": _boxes, "segmentation": _masks, "embedding": _people}[task]
    return look(folder) or Found("folder", folder, "no labels were recognised: fidelity to FP32 alone is measured")


def _classes(folder: Path) -> Found | None:
    below = _folders_of_images(folder)
    if not below or images_in(folder):
        return None
    return Found("imagefolder", folder, f"{len(below)} folders of images: one a class")


def _people(folder: Path) -> Found | None:
    below = _folders_of_images(folder)
    if (folder / _PAIRS).is_file():
        return Found("pairs", folder, f"{_PAIRS} lies in it", _PAIRS)
    if len(below) < 2 or images_in(folder):
        return None
    return Found("identities", folder, f"{len(below)} folders of images: one a person or thing")


def _masks(folder: Path) -> Found | None:
    datasets = dataset_folders(folder) or ([folder] if (folder / "images").is_dir() else [])
    if not datasets or not all(any((one / name).is_dir() for name in FOLDERS) for one in datasets):
        return None
    beside = f" in {len(datasets)} datasets" if datasets != [folder] else ""
    return Found("masks", folder, f"`images` and a folder of masks{beside}", photos=_photos(folder, "images"))


def _boxes(folder: Path) -> Found | None:
    coco = _coco(folder)
    if coco is not None:
        return Found("coco", folder, f"{coco} is a COCO file of instances", coco, _photos(folder, "images"))
    voc = next((folder / name for name in ("Annotations", "annotations") if any((folder / name).glob("*.[xX][mM][lL]"))), None)
    if voc is not None:
        return Found("voc", folder, f"XML files in {voc.name}", photos=_photos(folder, "JPEGImages", "images"))
    photos = image_files(folder / "images" if (folder / "images").is_dir() else folder)
    labels = (path for path in files_below(folder / "labels") if path.suffix.lower() == ".txt")
    if any(labels) or any(label_of(path).is_file() for path in photos):
        return Found("yolo", folder, "text files of labels", photos=_photos(folder, "images"))
    if any(path.with_suffix(suffix).is_file() for path in photos for suffix in (".xml", ".XML")):
        return Found("voc", folder, "XML files beside the images", photos=_photos(folder, "images"))
    return None


def _coco(folder: Path) -> str | None:
    """The JSON file of instances, from the folder; of several the one that is named for validation."""
    files = sorted(_json_files(folder), key=lambda path: (path.name != "instances.json", "val" not in path.name))
    return _first_coco(folder, files)


def instances_of(folder: Path, part: str) -> str | None:
    """The JSON file of instances called after a part, from the folder: instances_val2017.json; None where there is none."""
    files = [path for path in _json_files(folder) if path.stem == part or path.stem.endswith((f"_{part}", f"-{part}"))]
    # Beside it lie that of key points, which has people alone, and that of captions.
    return _first_coco(folder, sorted(files, key=lambda path: not path.name.startswith("instances")))


def _json_files(folder: Path) -> list[Path]:
    return [path for place in (folder, folder / "annotations") if place.is_dir() for path in sorted(place.glob("*.json"))]


def _first_coco(folder: Path, files: list[Path]) -> str | None:
    # One after the other: that of COCO's training images has 450 MB.
    found = next((path for path in files if _is_coco(path)), None)
    return found.relative_to(folder).as_posix() if found else None


def _is_coco(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and all(isinstance(content.get(key), list) for key in _COCO)


def _folders_of_images(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".") and image_files(path)]


def _photos(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)
