"""What a reader is given and what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.images.decode import EXTENSIONS
from octavo.images.objects import Objects
from octavo.params.grammar import ImageSet

__all__ = ["Classes", "Listed", "Reader", "image_files"]


@dataclass(frozen=True)
class Classes:
    """What is known of the classes that the model tells apart.

    Attributes:
        count: how many there are; None where the graph does not say.
        names: in the order of the model's class index (`task.classes`); None where params.yaml does not give them.
    """

    count: int | None = None
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Listed:
    """An image file of a set, with its class index (classification) or its objects (detection); None where it is unlabelled."""

    path: Path
    label: int | None = None
    objects: Objects | None = None


# (folder, the set's block, the block's path in params.yaml for errors, the model's classes) to the set's images in any order.
Reader = Callable[[Path, ImageSet, str, Classes], list[Listed]]


def image_files(root: Path) -> list[Path]:
    """Every image file below a folder, by the order of its path."""
    return sorted(
        (path for path in root.rglob("*") if path.suffix.lower() in EXTENSIONS and path.is_file()),
        key=lambda path: path.relative_to(root).as_posix(),
    )
