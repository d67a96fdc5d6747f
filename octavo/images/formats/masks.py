"""Pairs of an image and a mask of one stem: <root>/images and <root>/masks, or several such datasets beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.listed import OTHERS, Classes, Listed, dataset_folders, image_files, refuse_lost
from octavo.images.formats.places import composed, shown
from octavo.images.masks import VOID, Mask
from octavo.params.grammar import HeadMasks, ImageSet

__all__ = ["read"]

# Where masks lie beside `images`, where `annotations` does not name their folder.
FOLDERS = ("masks", "gt_masks", "labels", "annotations")


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:
    """Images with their masks, or with those of each head that `heads` names.

    A dataset may lack the folder of a head's masks as a whole: its images count for that head's fidelity alone. Where the folder is
    there, every image has its mask in it, as a forgotten one could not be told from a misspelled one.

    Raises:
        DataError: there is no pair of folders, an image lacks its mask or the reverse, no dataset has the folder of a head's masks,
            or `class_map` or `palette` names no class.
    """
    datasets = dataset_folders(root) or ([root] if (root / "images").is_dir() else [])
    if not datasets:
        raise DataError(
            f"{where}.path: {root} has no folder `images`, nor has a folder in it",
            "lay the set out as <path>/images and <path>/masks, or <path>/<dataset>/images and <path>/<dataset>/masks",
        )
    if images.heads:
        return _headed(datasets, images, where, classes)
    meaning = _Meaning.of(images, where, classes)
    names = (images.annotations,) if images.annotations else FOLDERS
    found: list[Listed] = []
    for folder in datasets:
        masks_at = next((folder / name for name in names if (folder / name).is_dir()), None)
        if masks_at is None:
            raise DataError(
                f"{where}: {folder} has no folder of masks ({', '.join(names)})",
                f"name it: `{where}.annotations: folder`; for images without masks use `format: folder`",
            )
        found += [Listed(image, mask=meaning.mask(path)) for image, path in _pairs(folder, masks_at, where)]
    return found


def _headed(datasets: list[Path], images: ImageSet, where: str, classes: Classes) -> list[Listed]:
    masks: dict[Path, dict[str, Mask]] = {image: {} for folder in datasets for image in image_files(folder / "images")}
    for head, block in images.heads.items():
        here = f"{where}.heads.{head}"
        meaning = _Meaning.of(block, here, classes.heads.get(head, classes))
        labelled = [folder for folder in datasets if (folder / block.annotations).is_dir()]
        if not labelled:
            raise DataError(
                f"{here}.annotations: no folder {datasets[0] / block.annotations}"
                + (f", nor in the {len(datasets) - 1} dataset(s) beside it" if len(datasets) > 1 else ""),
                "correct the name; a head without masks is left out of `heads`",
            )
        for folder in labelled:
            for image, path in _pairs(folder, folder / block.annotations, here):
                masks[image][head] = meaning.mask(path)
    return [Listed(image, masks=found) for image, found in masks.items()]


@dataclass(frozen=True)
class _Meaning:
    """What the values or colours of a set's masks mean: see `Mask`."""

    classes: Mapping[int, int]
    others: int | None
    colours: Mapping[tuple[int, int, int], int]

    @classmethod
    def of(cls, block: ImageSet | HeadMasks, where: str, classes: Classes) -> _Meaning:
        mapped = _mapped(block, where, classes)
        others = mapped.pop(OTHERS, None)
        named = {name if name in (classes.names or ()) else _number(name): colour for name, colour in block.palette.items()}
        colours = {tuple(colour): _class_of(name, where, classes) for name, colour in named.items()}
        return cls({int(key): value for key, value in mapped.items()}, others, colours)

    def mask(self, path: Path) -> Mask:
        return Mask(path, self.classes, self.others, self.colours)


def _pairs(folder: Path, masks_at: Path, where: str) -> list[tuple[Path, Path]]:
    of = {"image": _by_stem(folder / "images", where), "mask": _by_stem(masks_at, where)}
    refuse_lost(of["mask"].values())
    for one, other in (("image", "mask"), ("mask", "image")):
        alone = [str(of[one][stem]) for stem in of[one] if stem not in of[other]]
        if alone:
            raise DataError(
                f"{where}: {len(alone)} {one}(s) have no {other} of their name: {shown(alone)}", f"add the {other}s, or remove them"
            )
    return [(path, of["mask"][stem]) for stem, path in of["image"].items()]


def _by_stem(folder: Path, where: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in image_files(folder):
        other = found.setdefault(composed(path.relative_to(folder).with_suffix("").as_posix()), path)
        if other != path:
            raise DataError(
                f"{where}: {other} and {path} have the same name, by which images and masks are paired", "keep one, or rename it"
            )
    return found


def _mapped(block: ImageSet | HeadMasks, where: str, classes: Classes) -> dict[int | str, int]:
    """`class_map` with classes of the model; its keys are values of the masks, or "*" for all others."""
    mapped: dict[int | str, int] = {}
    for written, target in block.class_map.items():
        key = _number(written)
        if key != OTHERS and not isinstance(key, int):
            raise DataError(
                f"{where}.class_map: {key!r} is no value of a mask",
                'keys are whole numbers, or "*" for all others; colours: `palette`',
            )
        mapped[key] = VOID if target is None else _class_of(target, where, classes)
    return mapped


def _number(key: int | str) -> int | str:
    """A number that is quoted because it stands beside words (`octavo.params.load`)."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


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
            f"{where}: {name!r} is no class of the model",
            "name the model's classes in `task.classes` (of a head: in its own), or give the class's index",
        )
    return names[name]
