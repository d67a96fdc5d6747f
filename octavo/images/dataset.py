"""Which images a set holds: the folder formats, labels, selection, and the check that no two sets share an image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from octavo.errors import DataError, ParamsError
from octavo.files import sha256_bytes, sha256_file
from octavo.images.decode import EXTENSIONS, read_image
from octavo.images.formats import READERS, Classes, Listed
from octavo.images.masks import Mask
from octavo.images.objects import Objects
from octavo.images.preprocess import preprocess
from octavo.images.splits import part, pick
from octavo.params.grammar import ImageSet, Input, ModelSpec

__all__ = ["Classes", "Images", "Item", "chosen_images", "image_list", "open_set", "refuse_overlap"]


@dataclass(frozen=True)
class Item:
    """One image file.

    Attributes:
        name: its path below the set's root, with '/'.
        label: its class index; None where it has none.
        objects: what is to be found in it; None where that is not annotated.
        shape: (rows, columns) of the image; there once it has been read.
        mask: the class of each of its pixels; None where it has none.
        dataset: the part of the set that it is of, where there are several.
    """

    path: Path
    name: str
    sha256: str
    label: int | None = None
    objects: Objects | None = None
    shape: tuple[int, int] | None = None
    mask: Mask | None = None
    dataset: str | None = None

    @property
    def labelled(self) -> bool:
        """Whether it counts for the task's own metric."""
        return self.label is not None or self.objects is not None or self.mask is not None


def open_set(images: ImageSet, where: str, classes: Classes = Classes()) -> list[Item]:  # noqa: B008 - frozen
    """List a set's images: read its format, take its split, then at most `limit`.

    Args:
        images: the set's block of params.yaml.
        where: the block's path (`models.lite0.data.validation`), for errors.
        classes: what is known of the model's classes; labels and objects are held against it.

    Returns:
        Items in the order of their names.

    Raises:
        DataError: the folder is missing or holds no image, or a label or object lies outside the classes, or the reader refuses it.
        ParamsError: no reader for the format, or `task.classes` names more or fewer classes than the model has.
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
    if classes.names is not None and classes.count not in (None, len(classes.names)):
        raise ParamsError(
            f"`task.classes` names {len(classes.names)} classes, the model tells {classes.count} apart",
            "name all of them, in the model's order",
        )
    listed = READERS[images.format](root, images, where, classes)
    _refuse_outside(listed, where, classes)
    if not listed:
        raise DataError(
            f"{where}.path: {root} holds no image ({', '.join(sorted(EXTENSIONS))})", "put images there or correct the path"
        )
    items = sorted(
        (
            Item(
                image.path,
                image.path.relative_to(root).as_posix(),
                sha256_file(image.path),
                image.label,
                image.objects,
                mask=image.mask,
                dataset=image.dataset,
            )
            for image in listed
        ),
        key=lambda item: item.name,
    )
    if images.split is not None:
        items = part(items, images.split)
        if not items:
            raise DataError(f"{where}.split: the part {images.split.start}..{images.split.stop} of {root} is empty", "widen it")
    if images.limit is not None and images.limit < len(items):
        items = pick(items, images.limit, images.seed)
    return items


def _refuse_outside(images: Sequence[Listed], where: str, classes: Classes) -> None:
    """Hold the class of every label and object against the classes that the model has."""
    count = classes.count if classes.names is None else len(classes.names)
    found = [(image, max(_classes_of(image), default=-1)) for image in images]
    outside = [(image, index) for image, index in found if count is not None and index >= count]
    if outside:
        image, index = outside[0]
        what = "is labelled" if image.objects is None else "has an object of"
        raise DataError(
            f"{where}: {image.path} {what} class {index}, the model has classes 0..{(count or 1) - 1} ({len(outside)} such images)",
            "correct the class map (`class_map`, `annotations`, classes.json or the folder names)",
        )


def _classes_of(image: Listed) -> list[int]:
    labels = [] if image.label is None else [image.label]
    return labels if image.objects is None else labels + image.objects.classes.tolist()


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
        """Yield (item with its shape, tensor with batch dimension 1).

        Raises:
            DataError: an unreadable image under `error`, or no readable image at all.
        """
        self.skipped = []
        for item in self.items:
            try:
                image = read_image(item.path)
                tensor = preprocess(image, self.spec)
            except DataError as error:
                if self.on_bad_image == "error":
                    raise
                self.skipped.append(f"{item.name}: {error.problem}")
                continue
            yield replace(item, shape=image.shape[:2]), tensor
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
