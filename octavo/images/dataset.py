"""Which images a set holds: the folder formats, labels, selection, and the check that no two sets share an image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from octavo.errors import DataError, ParamsError
from octavo.files import sha256_bytes, sha256_file
from octavo.images.decode import EXTENSIONS, read_image, unread
from octavo.images.formats import READERS, Classes, Listed
from octavo.images.formats.landmarks import read_landmarks
from octavo.images.formats.listed import dataset_folders, is_lost, refuse_lost
from octavo.images.masks import Mask
from octavo.images.objects import Objects
from octavo.images.pairs import Pair
from octavo.images.preprocess import preprocess
from octavo.images.splits import part, part_of_identities, pick, pick_identities
from octavo.images.warp import Points
from octavo.params.block import MAX_PIXELS
from octavo.params.grammar import ImageSet, Input

__all__ = ["Classes", "Images", "Item", "cut", "image_list", "list_set", "open_set", "refuse_other_names", "refuse_overlap"]


@dataclass(frozen=True)
class Item:
    """One image file.

    Attributes:
        name: its path below the set's root, with '/'.
        label: its class index, or the number of its identity; None where it has none.
        objects: what is to be found in it; None where that is not annotated.
        shape: (rows, columns) of the image; there once it has been read.
        mask: the class of each of its pixels; None where it has none.
        masks: the same of each head that it has a mask of, where a task has several heads.
        dataset: the name of the dataset that it is of, where a set has several beside each other.
        pairs: what a list of pairs says of it and of other images of the set, each pair with the first of its two; None where there
            is no such list.
        points: x and y in pixels of its landmarks; None where the set has none.
        max_pixels: the most that are decoded (`data.max_pixels`).
    """

    path: Path
    name: str
    sha256: str
    label: int | None = None
    objects: Objects | None = None
    shape: tuple[int, int] | None = None
    mask: Mask | None = None
    masks: Mapping[str, Mask] = field(default_factory=dict)
    dataset: str | None = None
    pairs: tuple[Pair, ...] | None = None
    points: Points | None = None
    max_pixels: int = MAX_PIXELS

    def read(self) -> np.ndarray:
        """The image, uint8 RGB, rows x columns x 3.

        Raises:
            DataError: as `octavo.images.decode.read_image`.
        """
        return read_image(self.path, self.max_pixels)

    @property
    def labelled(self) -> bool:
        """Whether it counts for the task's own metric."""
        return self.label is not None or self.objects is not None or self.mask is not None or bool(self.masks)

    def told(self, error: DataError) -> str:
        """What is wrong with it, for lists of skipped images: these go into statistics and metrics, this machine's paths do not."""
        return f"{self.name}: {error.problem.replace(str(self.path), self.name)}"

    def unlabelled(self) -> Item:
        """The same image for fidelity alone."""
        return replace(self, label=None, objects=None, mask=None, masks={}, pairs=None)


def open_set(images: ImageSet, where: str, classes: Classes = Classes()) -> list[Item]:  # noqa: B008 - frozen
    """List a set's images, take its split, then at most `limit`; of a model's `data:` see `octavo.images.purpose.open_images`.

    Args, Raises: as `list_set` and `cut`.
    """
    return cut(list_set(images, where, classes), images, where)


def list_set(
    images: ImageSet,
    where: str,
    classes: Classes = Classes(),  # noqa: B008 - frozen
    on_bad_image: str = "error",
) -> list[Item]:
    """All images of a set, as its format has them.

    Args:
        images: the set's block of params.yaml.
        where: the block's path (`models.lite0.data.validation`), for errors.
        classes: what is known of the model's classes; labels and objects are held against it.
        on_bad_image: with `skip` files that cannot be opened are listed, and skipped once they are read (`Images`).

    Returns:
        Items in the order of their names.

    Raises:
        DataError: the folder is missing or holds no image, a file cannot be opened, a label or object lies outside the classes, or
            the reader refuses it.
        ParamsError: `task.classes` names more or fewer classes than the model has.
    """
    root = Path(images.path)
    if not root.is_dir():
        raise DataError(
            f"{where}.path: no folder {root}", "correct the path, or run `dvc repro` (or `dvc pull`) to make or fetch it"
        )
    refuse_other_names(classes)
    listed = READERS[images.format](root, images, where, classes)
    _refuse_outside(listed, where, classes)
    if not listed:
        raise DataError(
            f"{where}.path: {root} holds no image ({', '.join(sorted(EXTENSIONS))})", "put images there or correct the path"
        )
    datasets = {folder.name for folder in dataset_folders(root)}
    named = datasets & set(classes.heads)
    if named:
        raise DataError(
            f"{where}.path: {root / min(named)} is named as a head of the task, and metrics have both by name", "rename one of them"
        )
    items = sorted((_item(image, root, datasets, on_bad_image) for image in listed), key=lambda item: item.name)
    points = read_landmarks(root, images, [item.name for item in items], where)
    return [replace(item, points=points[item.name]) for item in items] if points else items


def _item(image: Listed, root: Path, datasets: Set[str], on_bad_image: str) -> Item:
    name = image.path.relative_to(root)
    return Item(
        image.path,
        name.as_posix(),
        _content(image.path, on_bad_image),
        image.label,
        image.objects,
        mask=image.mask,
        masks=image.masks,
        dataset=name.parts[0] if name.parts[0] in datasets else None,
        pairs=image.pairs,
    )


def _content(path: Path, on_bad_image: str) -> str:
    """The hash of a file; of one that cannot be opened and may be skipped, that of where it should be."""
    try:
        return sha256_file(path)
    except OSError as error:
        if on_bad_image == "skip":
            return sha256_bytes(str(path.readlink() if is_lost(path) else path).encode())
        refuse_lost([path], ", or set `data.on_bad_image: skip` in params.yaml")
        raise unread(path, error) from error


def cut(items: list[Item], images: ImageSet, where: str) -> list[Item]:
    """What a set's `split` and `limit` leave of its images; identities stay whole.

    Raises:
        DataError: nothing is left.
    """
    if images.split is not None:
        items = (part_of_identities if images.of_identities else part)(items, images.split)
        if not items:
            raise DataError(
                f"{where}.split: the part {images.split.start}..{images.split.stop} of {images.path} is empty", "widen it"
            )
    if images.limit is not None and images.limit < len(items):
        items = (pick_identities if images.of_identities else pick)(items, images.limit, images.seed)
    return items


def refuse_other_names(classes: Classes) -> None:
    """Hold the number of class names, of the task or of each head, against what the outputs tell apart.

    Raises:
        ParamsError: `classes` names more or fewer.
    """
    read = f" (outputs read as {classes.family})" if classes.family else ""
    for task, one in (("task", classes), *((f"task.heads.{head}", one) for head, one in classes.heads.items())):
        if one.names is not None and one.count not in (None, len(one.names)):
            other = f", or say in `task.decoder` how the outputs are to be read: {' or '.join(one.rivals)} would fit these names"
            raise ParamsError(
                f"`{task}.classes` names {len(one.names)} classes, the model tells {one.count} apart{read}",
                "name all of them, in the model's order" + (other if one.rivals else ""),
            )


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


def refuse_overlap(
    first: Iterable[tuple[str, str]],
    second: Iterable[tuple[str, str]],
    first_is: str,
    second_is: str,
    mend: str = "give them different folders, or different parts of one folder with `split`",
) -> None:
    """Refuse two sets that share an image by content.

    Args:
        first, second: (name, sha256) of every image.
        first_is, second_is: what the sets are, for the error.
        mend: the way out.

    Raises:
        DataError: naming the first shared image and how many there are.
    """
    known = {digest: name for name, digest in first}
    shared = [(known[digest], name) for name, digest in second if digest in known]
    if shared:
        raise DataError(
            f"{first_is} and {second_is} share {len(shared)} image(s) by content, the first: {shared[0][0]} = {shared[0][1]}", mend
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
                image = item.read()
                tensor = preprocess(image, self.spec, item.points)
            except DataError as error:
                if self.on_bad_image == "error":
                    raise
                self.skipped.append(item.told(error))
                continue
            yield replace(item, shape=image.shape[:2]), tensor
        if self.items and len(self.skipped) == len(self.items):
            raise DataError(
                f"none of {len(self.items)} images is readable, the first: {self.skipped[0]}", "check the folder's files"
            )
