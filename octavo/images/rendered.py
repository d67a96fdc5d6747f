"""Sets of scenes that the project draws itself, on disk: `images/*.png`, and what is in them as a task's own sets have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from octavo.files import replace_dir, write_json
from octavo.images.scenes import road, shapes
from octavo.params.grammar import Rendered

__all__ = ["render_set"]


def render_set(folder: str | Path, spec: Rendered) -> int:
    """Write a set, whole or not at all.

    Shapes come with `instances.json` (COCO's format, https://cocodataset.org/#format-data), road scenes with `masks/*.png` of the
    images' names, the index of a pixel's class its grey level.

    Returns:
        How many images were written.

    Raises:
        OutputError: the folder cannot be written.
    """
    digits = max(4, len(str(spec.scenes - 1)))
    names = [f"scene_{number:0{digits}d}.png" for number in range(spec.scenes)]
    with replace_dir(folder) as temporary:
        (temporary / "images").mkdir()
        _WRITERS[spec.kind](temporary, spec.seed, names)
    return spec.scenes


def _with_boxes(folder: Path, seed: int, names: list[str]) -> None:
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number, name in enumerate(names):
        scene = shapes.render(seed, number)
        _save(scene.image, folder / "images" / name)
        rows, columns = scene.image.shape[:2]
        images.append({"id": number + 1, "file_name": f"images/{name}", "height": rows, "width": columns})
        annotations += _annotations(scene, number + 1, len(annotations) + 1)
    categories = [{"id": place + 1, "name": name} for place, name in enumerate(shapes.SHAPES)]
    write_json(folder / "instances.json", {"images": images, "annotations": annotations, "categories": categories})


def _with_masks(folder: Path, seed: int, names: list[str]) -> None:
    (folder / "masks").mkdir()
    for number, name in enumerate(names):
        scene = road.render(seed, number)
        _save(scene.image, folder / "images" / name)
        _save(scene.classes, folder / "masks" / name)


# Kind of scene to what writes images and annotations of a seed into a folder.
_WRITERS = {"shapes": _with_boxes, "road": _with_masks}


def _save(pixels: np.ndarray, path: Path) -> None:
    Image.fromarray(pixels).save(path, compress_level=6)


def _annotations(scene: shapes.Scene, image: int, first: int) -> Iterator[dict[str, object]]:
    for place, (corners, area) in enumerate(zip(*scene.boxes(), strict=True)):
        left, top, right, bottom = corners.tolist()
        yield {
            "id": first + place,
            "image_id": image,
            "category_id": int(scene.classes[place]) + 1,
            "bbox": [left, top, right - left, bottom - top],
            "area": int(area),
            "iscrowd": 0,
        }
