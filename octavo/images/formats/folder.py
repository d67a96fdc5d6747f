"""Every image below a folder, without labels."""

from __future__ import annotations

from pathlib import Path

from octavo.images.formats.listed import Classes, Listed, image_files
from octavo.params.grammar import ImageSet

__all__ = ["read"]


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:  # noqa: ARG001 - one signature for all readers
    """All of them; see `octavo.images.formats.listed.Reader`."""
    return [Listed(path) for path in image_files(root)]
