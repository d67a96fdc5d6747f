"""What a reader is given and what it hands back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from octavo.errors import DataError
from octavo.images.decode import EXTENSIONS
from octavo.images.masks import Mask
from octavo.images.objects import Objects
from octavo.images.pairs import Pair
from octavo.params.grammar import ImageSet

__all__ = [
    "GAPS",
    "OTHERS",
    "Classes",
    "Listed",
    "Reader",
    "dataset_folders",
    "files_below",
    "image_files",
    "images_in",
    "is_lost",
    "refuse_lost",
]

# The key of `class_map` that speaks of all classes, or values of masks, that nothing else places.
OTHERS = "*"
# Names that stand for no class, where class indices have gaps (torchvision's detectors keep COCO's 91 category ids).
GAPS = frozenset({"N/A", "__background__"})
# Names of files and folders that are shown nowhere begin so.
_HIDDEN = "."


@dataclass(frozen=True)
class Classes:
    """What is known of the classes that the model tells apart.

    Attributes:
        count: how many there are; None where the graph does not say.
        names: in the order of the model's class index (`task.classes`); None where params.yaml does not give them.
        scored: whether labels are going to be scored, so that which class is which must be told and not guessed.
        family: of detectors that outputs were read as, whose layout says `count`; for errors.
        rivals: families that fit these outputs, too, and tell as many classes apart as there are names, where `family` does not.
        heads: the same of each head, by its name, where a task has several.
    """

    count: int | None = None
    names: tuple[str, ...] | None = None
    scored: bool = False
    family: str | None = None
    rivals: tuple[str, ...] = ()
    heads: Mapping[str, Classes] = field(default_factory=dict)

    @property
    def asked(self) -> bool:
        """Whether class indices matter; calibration asks nothing of them."""
        return self.scored or self.count is not None or self.names is not None


@dataclass(frozen=True)
class Listed:
    """An image file of a set, with its class index or identity, objects (detection), mask (segmentation) or pairs (embedding).

    These are None where it is unlabelled; `masks` are those of several heads, by the head's name. A pair stands at the first of its
    two images alone.
    """

    path: Path
    label: int | None = None
    objects: Objects | None = None
    mask: Mask | None = None
    masks: Mapping[str, Mask] = field(default_factory=dict)
    pairs: tuple[Pair, ...] | None = None


# (folder, the set's block, the block's path in params.yaml for errors, the model's classes) to the set's images in any order.
Reader = Callable[[Path, ImageSet, str, Classes], list[Listed]]


def dataset_folders(root: Path) -> list[Path]:
    """The datasets of a set that has several beside each other, each as <root>/<dataset>/images; none where it is one."""
    if (root / "images").is_dir():
        return []
    return [folder for folder in sorted(root.iterdir()) if (folder / "images").is_dir()]


def image_files(root: Path) -> list[Path]:
    """Every image file below a folder, by the order of its path."""
    return [path for path in files_below(root) if path.suffix.lower() in EXTENSIONS]


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder itself, by their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in EXTENSIONS and not path.name.startswith(_HIDDEN))


def files_below(root: Path) -> list[Path]:
    """Every file below a folder, by the order of its path; linked folders are looked into, each real one once.

    A link to a folder that the set lies in leads nowhere new: it would take in what is beside the set. What a leading dot hides is
    no part of a set: macOS writes `._photo.jpg` beside each file of an archive, Jupyter copies into `.ipynb_checkpoints`. A link to
    an image that is lost is a file that cannot be read.

    Raises:
        DataError: a link that is called as an annotation leads to nothing.
    """
    found: list[Path] = []
    around = Path(os.path.realpath(root)).parents
    seen, waiting = {str(folder) for folder in around}, [root]
    for start in waiting:  # grows by the links that are met: real folders go before what is linked to
        for folder, below, names in os.walk(start):
            real = os.path.realpath(folder)
            if real in seen:
                below.clear()
                continue
            seen.add(real)
            below[:] = [name for name in below if not name.startswith(_HIDDEN)]
            shown = [Path(folder, name) for name in names if not name.startswith(_HIDDEN)]
            refuse_lost(path for path in shown if path.suffix.lower() == ".xml")
            found += [path for path in shown if path.is_file() or (path.suffix.lower() in EXTENSIONS and is_lost(path))]
            waiting += [link for link in (Path(folder, name) for name in sorted(below)) if link.is_symlink()]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def is_lost(path: Path) -> bool:
    """Whether a path is a link to nothing."""
    return path.is_symlink() and not path.exists()


def refuse_lost(paths: Iterable[Path], beside: str = "") -> None:
    """Refuse links to nothing: left out they would be images less, or images without objects, and nobody told.

    Args:
        paths: of files.
        beside: another way out, for the error.

    Raises:
        DataError: naming the first.
    """
    lost = next(filter(is_lost, paths), None)
    if lost is not None:
        raise DataError(
            f"{lost} is a link to {lost.readlink()}, which is not there",
            "put the file there (`dvc checkout` or `dvc pull`, where DVC made the link), or remove the link" + beside,
        )
