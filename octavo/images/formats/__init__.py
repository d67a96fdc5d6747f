"""How the images and labels of a set are read: a format is one module, and one line here."""

from __future__ import annotations

from octavo.images.formats import coco, folder, identities, imagefolder, masks, pairs, voc, yolo
from octavo.images.formats.listed import Classes, Listed, Reader

__all__ = ["READERS", "Classes", "Listed"]

# `format` of a set in params.yaml -> what reads it.
READERS: dict[str, Reader] = {
    "coco": coco.read,
    "folder": folder.read,
    "identities": identities.read,
    "imagefolder": imagefolder.read,
    "masks": masks.read,
    "pairs": pairs.read,
    "voc": voc.read,
    "yolo": yolo.read,
}
