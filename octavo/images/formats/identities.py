"""A folder an identity: <root>/<identity>/<image>. Which number an identity has means nothing to a model."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.imagefolder import UNLABELLED, labelled_folders
from octavo.images.formats.listed import Classes, Listed, image_files
from octavo.params.grammar import ImageSet

__all__ = ["read"]


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:  # noqa: ARG001 - one signature for all readers
    """Images with the alphabetical place of their folder among those that hold images; of `unlabelled` without.

    Raises:
        DataError: an image lies outside the folders, or there is something to read in `annotations`.
    """
    if images.annotations is not None:
        raise DataError(
            f"{where}.annotations: format 'identities' reads none: the folders are the identities",
            "remove the key; for a list of pairs use `format: pairs`",
        )
    found: list[Listed] = []
    place = 0
    for folder in labelled_folders(root, where, "identity"):
        files = image_files(folder)
        known = folder.name != UNLABELLED
        found += [Listed(path, place if known else None) for path in files]
        place += bool(known and files)
    return found
