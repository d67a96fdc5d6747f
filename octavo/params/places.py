"""Where paths of params.yaml may lead: below the project's folder, and below what `allow_outside` names. One door for all of them.

A path is held against these folders as it is written. One with `..` is resolved first, links and all, as only that tells where it
leads. Links are otherwise not looked through: DVC puts them there itself (`cache.type symlink`), and so do people whose images lie
on another disk. What is kept out is text that names a file elsewhere; who can put a link into the tree can also put a file there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from octavo.params.data import ImageSet
from octavo.params.grammar import ModelSpec
from octavo.params.source import OnnxSource, UltralyticsSource

__all__ = ["inside", "outside"]


def inside(path: str | Path, folders: Sequence[str | Path]) -> bool:
    """Whether a path lies in one of some folders, or is one.

    Args:
        path: relative ones are below the first folder.
        folders: relative ones are below the first, which is absolute.
    """
    first = Path(folders[0])
    whole, places = first / path, [first / folder for folder in folders]
    if ".." in PurePosixPath(path).parts:
        return _below(os.path.realpath(whole), [os.path.realpath(place) for place in places])
    written = [os.path.normpath(place) for place in places]
    return _below(os.path.normpath(whole), [*written, *map(os.path.realpath, places)])


def outside(model: ModelSpec, folders: Sequence[str | Path]) -> Iterator[tuple[str, str]]:
    """(key, path) of what a model's block names outside of some folders, the first of which is the project's."""
    for key, path in _named(model):
        if "\0" in path or not inside(path, folders):
            yield key, path


def _named(model: ModelSpec) -> Iterator[tuple[str, str]]:
    """Every path of a model's block, by its key."""
    source = model.source
    yield "source.file", source.file
    if isinstance(source, OnnxSource):
        yield from ((f"source.custom_ops.{name}", path) for name, path in source.custom_ops.items() if path is not None)
    if isinstance(source, UltralyticsSource):
        yield "source.entry", source.entry
    for purpose in ("calibration", "validation", "train"):
        images: ImageSet | None = getattr(model.data, purpose)
        if images is not None:
            yield f"data.{purpose}.path", images.path
            yield from ((f"data.{purpose}.{key}", path) for key, path in _beside(images))
    if model.int8.table is not None:
        yield "int8.placement", model.int8.table


def _beside(images: ImageSet) -> Iterator[tuple[str, str]]:
    """What a set names besides its folder, as the readers look for it (`octavo.images.formats`): below that folder first."""
    names = {"annotations": images.annotations, "landmarks": images.landmarks}
    names |= {f"heads.{head}.annotations": block.annotations for head, block in images.heads.items()}
    for key, name in names.items():
        if name is None:
            continue
        if images.format == "imagefolder" and key == "annotations":
            yield key, name  # a class map is looked for below the project alone
        else:
            yield key, str(Path(images.path, name))
        if images.format == "masks":
            yield key, str(Path(images.path, "dataset", name))  # one folder deeper, where there are several


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(os.path.commonpath([path, folder]) == folder for folder in folders)
