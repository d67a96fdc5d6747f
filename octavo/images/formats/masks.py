"""Pairs of an image and a mask of one stem: <root>/images and <root>/masks, or several such datasets beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.listed import Classes, Listed, image_files
from octavo.images.formats.places import shown
from octavo.images.masks import VOID, Mask
from octavo.params.grammar import ImageSet

__all__ = ["read"]

# Where masks lie beside `images`, where `annotations` does not name their folder.
FOLDERS = ("masks", "gt_masks", "labels", "annotations")
OTHERS = "*"


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:
    """Images with their masks; a set of several datasets tells which one each is of.

    Raises:
        DataError: there is no pair of folders, an image lacks its mask or the reverse, or `class_map` or `palette` names no class.
    """
    datasets = [folder for folder in sorted(root.iterdir()) if (folder / "images").is_dir()]
    if (root / "images").is_dir():
        datasets = [root]
    if not datasets:
        raise DataError(
            f"{where}.path: {root} has no folder `images`, nor has a folder in it",
            "lay the set out as <path>/images and <path>/masks, or <path>/<dataset>/images and <path>/<dataset>/masks",
        )
    mapped = _mapped(images, where, classes)
    others = mapped.pop(OTHERS, None)
    colours = {tuple(colour): _class_of(name, where, classes) for name, colour in images.palette.items()}
    found: list[Listed] = []
    for folder in datasets:
        dataset = None if folder == root else folder.name
        pairs = _pairs(folder, images, where)
        found += [
            Listed(image, mask=Mask(mask, {int(key): value for key, value in mapped.items()}, others, colours), dataset=dataset)
            for image, mask in pairs
        ]
    return found


def _pairs(folder: Path, images: ImageSet, where: str) -> list[tuple[Path, Path]]:
    names = (images.annotations,) if images.annotations else FOLDERS
    masks_at = next((folder / name for name in names if (folder / name).is_dir()), None)
    if masks_at is None:
        raise DataError(
            f"{where}: {folder} has no folder of masks ({', '.join(names)})",
            f"name it: `{where}.annotations: folder`; for images without masks use `format: folder`",
        )
    of = {"image": {_stem(path, folder / "images"): path for path in image_files(folder / "images")}}
    of["mask"] = {_stem(path, masks_at): path for path in image_files(masks_at)}
    for one, other in (("image", "mask"), ("mask", "image")):
        alone = [str(of[one][stem]) for stem in of[one] if stem not in of[other]]
        if alone:
            raise DataError(
                f"{where}: {len(alone)} {one}(s) have no {other} of their name: {shown(alone)}", f"add the {other}s, or remove them"
            )
    return [(path, of["mask"][stem]) for stem, path in of["image"].items()]


def _stem(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _mapped(images: ImageSet, where: str, classes: Classes) -> dict[int | str, int]:
    """`class_map` with classes of the model; its keys are values of the masks, or "*" for all others."""
    mapped: dict[int | str, int] = {}
    for key, target in images.class_map.items():
        if key != OTHERS and not isinstance(key, int):
            raise DataError(
                f"{where}.class_map: {key!r} is no value of a mask",
                'keys are whole numbers, or "*" for all others; colours: `palette`',
            )
        mapped[key] = VOID if target is None else _class_of(target, where, classes)
    return mapped


def _class_of(name: int | str, where: str, classes: Classes) -> int:
    if isinstance(name, int):
        return name
    names: Mapping[str, int] = {known: place for place, known in reversed(list(enumerate(classes.names or ())))}
    if name == "void":
        return VOID
    if name not in names:
        if not classes.asked:
            return 0  # for calibration classes mean nothing
        raise DataError(
            f"{where}: {name!r} is no class of the model", "name the model's classes in `task.classes`, or give the class's index"
        )
    return names[name]
