"""From annotated boxes as a file has them to `Objects`: one policy for all formats.

- A coordinate that is no finite number, a negative side, a box outside its image: an error.
- A box that sticks out is clipped: by up to `TOLERANCE` pixels silently (annotators round), further with a note that counts them.
- A box without area, as it stands or once clipped, is left out with a note that counts them: COCO's train2017 has such.
- A box that an image has twice with one class counts twice, as in COCO's evaluation, with a note that counts them.
- An image of another size than its annotations say is an error: mostly photos annotated before their EXIF orientation was applied.
- Boxes in pixels that all lie within an image's first pixel are shares of its sides, written by mistake: an error.
- Of an image file that cannot be read no objects are known: `data.on_bad_image` decides once it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from octavo.errors import DataError
from octavo.images.decode import is_turned, read_shape
from octavo.images.formats.listed import Listed
from octavo.images.objects import Objects
from octavo.progress import say

__all__ = ["TOLERANCE", "Annotation", "Photo", "Shape", "listed"]

# Pixels by which a box may stick out of its image without a word.
TOLERANCE = 2.0
# No corner of a box in shares is farther, somewhat rounded; PASCAL's begin at pixel 1, and are read as one less.
_ONE = 1.01

Shape = tuple[int, int]
Corners = tuple[float, float, float, float]


@dataclass(frozen=True)
class Annotation:
    """One annotated box, as its file has it.

    Attributes:
        category: the set's own class: a COCO category id, a YOLO number, a PASCAL name.
        xyxy: corners in pixel edges of the image as it is read; shares of its sides where the photo says so.
        entry: the file and the place in it, for errors.
        crowd: what is found in it is neither right nor wrong.
        area: square pixels; None for the box's own.
    """

    category: int | str
    xyxy: Corners
    entry: str
    crowd: bool = False
    area: float | None = None


@dataclass
class Photo:
    """An image file with what its annotations say.

    Attributes:
        entry: the file and the place in it that speak of the image, for errors.
        shape: its (rows, columns) by the annotations; None where they do not say.
        shares: whether the boxes are in shares of the image's sides instead of pixels.
    """

    path: Path
    entry: str
    shape: Shape | None = None
    shares: bool = False
    annotations: list[Annotation] = field(default_factory=list)


def listed(photos: Iterable[Photo], indices: Mapping[int | str, int | None], where: str) -> list[Listed]:
    """Images with their objects, boxes checked and clipped; what was left out or cut is said in a line each.

    Args:
        photos: the set's.
        indices: the set's own classes to the model's class index; None leaves the objects of a class out.
        where: the set's path in params.yaml, for notes.

    Raises:
        DataError: a box that cannot be, boxes in shares where the format has pixels, or an image of another size than its
            annotations say.
    """
    photos = list(photos)
    _refuse_shares(photos, where)
    empty: list[str] = []
    cut: list[str] = []
    again: list[str] = []
    images = [Listed(photo.path, objects=_objects(photo, indices, empty, cut, again)) for photo in photos]
    for entries, what in ((empty, "without area left out"), (cut, f"clipped that stick out by more than {TOLERANCE:g} pixels")):
        if entries:
            say(f"note: {where}: {len(entries)} annotated box{'es' * (len(entries) > 1)} {what}, the first: {entries[0]}")
    if again:
        say(
            f"note: {where}: {len(again)} annotated box{'es' * (len(again) > 1)} listed again, with the class and corners of one"
            f" before it in the image: each counts, and what is found can be but one of them; the first: {again[0]}"
        )
    return images


def _refuse_shares(photos: Iterable[Photo], where: str) -> None:
    """As pixels they would be read as objects of no size, and all that is found would be wrong."""
    boxes = [box for photo in photos if not photo.shares for box in photo.annotations]
    sides = [side for box in boxes for side in box.xyxy]
    # In whole numbers they are what they say: that pixel, or the zeros that some write where there is no box.
    if all(-_ONE <= side <= _ONE for side in sides) and not all(side.is_integer() for side in sides):
        raise DataError(
            f"{where}: all {len(boxes)} annotated boxes lie within the first pixel of their image, the first: {boxes[0].entry}",
            "this format has pixels, and these are shares of the image's sides: multiply x and width by the image's width, y and "
            "height by its height",
        )


def _objects(
    photo: Photo, indices: Mapping[int | str, int | None], empty: list[str], cut: list[str], again: list[str]
) -> Objects | None:
    """None where the file cannot be read: an error or a skipped image as `data.on_bad_image` has it, once it is."""
    try:
        rows, columns = read_shape(photo.path)
    except DataError:
        return None
    if photo.shape is not None and photo.shape != (rows, columns):
        exchanged = photo.shape == (columns, rows)
        why = ": its EXIF orientation is applied" if exchanged and is_turned(photo.path) else ""
        other = ", or remove the orientation from its EXIF data" if why else ", or exchange the two there if its boxes are right"
        raise DataError(
            f"{photo.entry} says {photo.path} is {photo.shape[1]}x{photo.shape[0]} pixels, it is {columns}x{rows}"
            + f" (height and width changed places{why})" * exchanged,
            "its boxes would lie elsewhere: annotate this file, or put back the one that was annotated" + other * exchanged,
        )
    kept: list[tuple[Corners, int, bool, float]] = []
    seen: set[tuple[int, Corners]] = set()
    for box in photo.annotations:
        sides = (columns, rows, columns, rows)
        xyxy = tuple(value * side for value, side in zip(box.xyxy, sides, strict=True)) if photo.shares else box.xyxy
        inside = _inside(xyxy, (rows, columns), box.entry)
        if inside is None:
            empty.append(box.entry)
            continue
        if max(abs(a - b) for a, b in zip(inside, xyxy, strict=True)) > TOLERANCE:
            cut.append(box.entry)
        index = indices[box.category]
        if index is not None:
            # However many times a crowd is listed, what is found in it is neither right nor wrong.
            if (index, inside) in seen and not box.crowd:
                again.append(box.entry)
            seen.add((index, inside))
            own = (inside[2] - inside[0]) * (inside[3] - inside[1])
            kept.append((inside, index, box.crowd, own if box.area is None else box.area))
    corners, classes, crowd, area = zip(*kept, strict=True) if kept else ((), (), (), ())
    return Objects.of(corners, classes, crowd, area)


def _inside(xyxy: Corners, shape: Shape, entry: str) -> Corners | None:
    """The part of a box that lies on the image; None where that has no area."""
    left, top, right, bottom = xyxy
    rows, columns = shape
    if not all(math.isfinite(value) for value in xyxy):
        raise DataError(f"{entry}: the box {_pixels(xyxy)} is not of finite numbers", "correct or remove it")
    if right < left or bottom < top:
        raise DataError(
            f"{entry}: the box {_pixels(xyxy)} (left, top, right, bottom) has a negative width or height",
            "correct or remove it; its corners may be exchanged, or its numbers mean something else in this format",
        )
    if right == left or bottom == top:
        return None
    if left >= columns + TOLERANCE or top >= rows + TOLERANCE or right <= -TOLERANCE or bottom <= -TOLERANCE:
        raise DataError(
            f"{entry}: the box {_pixels(xyxy)} (left, top, right, bottom) lies outside the image of {columns}x{rows} pixels",
            "correct or remove it, or see whether the image was resized after it was annotated",
        )
    clipped = max(left, 0.0), max(top, 0.0), min(right, float(columns)), min(bottom, float(rows))
    return clipped if clipped[0] < clipped[2] and clipped[1] < clipped[3] else None


def _pixels(xyxy: Corners) -> str:
    return "[" + ", ".join(f"{value:g}" for value in xyxy) + "]"
