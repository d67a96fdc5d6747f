"""What a reader is given and what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.images.decode import EXTENSIONS
from octavo.images.masks import Mask
from octavo.images.objects import Objects
from octavo.params.grammar import ImageSet

__all__ = ["GAPS", "Classes", "Listed", "Reader", "image_files"]

# Names that stand for no class, where class indices have gaps (torchvision's detectors keep COCO's 91 category ids).
GAPS = frozenset({"N/A", "__background__"})


@dataclass(frozen=True)
class Classes:
    """What is known of the classes that the model tells apart.

    Attributes:
        count: how many there are; None where the graph does not say.
        names: in the order of the model's class index (`task.classes`); None where params.yaml does not give them.
        scored: whether labels are going to be scored, so that which class is which must be told and not guessed.
    """

    count: int | None = None
    names: tuple[str, ...] | None = None
    scored: bool = False

    @property
    def asked(self) -> bool:
        """Whether class indices matter; calibration asks nothing of them."""
        return self.scored or self.count is not None or self.names is not None


@dataclass(frozen=True)
class Listed:
    """An image file of a set, with its class index (classification), objects (detection) or mask (segmentation).

    These are None where it is unlabelled; `dataset` is the name of the part that it is of, where a set has several.
    """

    path: Path
    label: int | None = None
    objects: Objects | None = None
    mask: Mask | None = None
    dataset: str | None = None


# (folder, the set's block, the block's path in params.yaml for errors, the model's classes) to the set's images in any order.
Reader = Callable[[Path, ImageSet, str, Classes], list[Listed]]


def image_files(root: Path) -> list[Path]:
    """Every image file below a folder, by the order of its path."""
    return sorted(
        (path for path in root.rglob("*") if path.suffix.lower() in EXTENSIONS and path.is_file()),
        key=lambda path: path.relative_to(root).as_posix(),
    )
