"""Side by side: what is there, what FP32 says and what a quantized variant says, for the images on which they differ most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from PIL import Image

from octavo.evidence.validation import Validation
from octavo.files import replace_dir
from octavo.images.dataset import Item
from octavo.images.preprocess import preprocess
from octavo.layout import REFERENCE
from octavo.tasks.score import Panel, Shown

__all__ = ["write_pictures"]

# Of each panel, in pixels: height and most width; and of the line of words above it.
HEIGHT, WIDTH, BAND = 320, 480, 22
# And the least width, for its words: of a tall photo there is little.
LEAST = 160
GAP = 6
# Characters of an image's path in the name of its picture.
_LONGEST = 120
SHOWN = ("int8", "qat")


def write_pictures(folder: str | Path, validation: Validation, most: int) -> list[str]:
    """Fill a folder with one JPEG an image, `<rank>_<path below the set>.jpg`, the worst first; whole or not at all.

    The few that are shown are run again: what all images need for their pictures would fill the memory.

    Args:
        folder: of nothing else.
        validation: after its run.
        most: how many pictures at most; the folder is empty where the task has no score or no variant is shown.

    Returns:
        The names of the files.
    """
    written: list[str] = []
    with replace_dir(folder) as temporary:
        for rank, item in enumerate(_worst(validation)[:most], start=1):
            # Of its path, since two folders may have files of one name; the end of it, since names of files have a length.
            told = re.sub(r"[^A-Za-z0-9_.-]+", "_", PurePosixPath(item.name).with_suffix("").as_posix())
            name = f"{rank:02d}_{told[-_LONGEST:]}.jpg"
            Image.fromarray(_side_by_side(validation, item)).save(temporary / name, quality=90)
            written.append(name)
    return written


def _worst(validation: Validation) -> list[Item]:
    """Images by how little the first shown variant agrees with FP32 on them; equal ones by name."""
    shown = _shown(validation)
    if not shown:
        return []
    answers = [
        (part.scores[shown[0]].likeness(part.scores[REFERENCE], place), item.name, item)
        for part in validation.parts
        for place, item in enumerate(part.images)
    ]
    return [item for _, _, item in sorted(answers, key=lambda answer: answer[:2])]


def _shown(validation: Validation) -> list[str]:
    return [variant for variant in SHOWN if variant in validation.scores]


def _side_by_side(validation: Validation, item: Item) -> np.ndarray:
    image = item.read()
    scale = min(HEIGHT / image.shape[0], WIDTH / image.shape[1])
    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    photo = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    shown, score = Shown(item, photo, scale), validation.scores[REFERENCE]
    variants = (REFERENCE, *_shown(validation))
    outputs = validation.outputs(item, preprocess(image, validation.spec, item.points), variants)
    rows = []
    for view in score.views:
        panels = view.first_panels(shown, outputs[variants[1]])
        for variant in variants:
            panels += [(f"{variant}: {words}", drawn) for words, drawn in view.panels(shown, outputs[variant], outputs[REFERENCE])]
        rows.append(_row(panels))
    return _stacked(rows)


def _stacked(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of panels below each other, the shorter ones filled up with white."""
    width = max(row.shape[1] for row in rows)
    return np.vstack([np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255) for row in rows])


def _row(panels: Sequence[Panel]) -> np.ndarray:
    """Panels of one height beside each other, each under its words."""
    columns = []
    for words, drawn in panels:
        panel = np.pad(drawn, ((0, 0), (0, max(0, LEAST - drawn.shape[1])), (0, 0)), constant_values=255)
        band = np.full((BAND, panel.shape[1], 3), 255, np.uint8)
        # Words that are wider than the panel are made smaller.
        (width, _), _ = cv2.getTextSize(words, cv2.FONT_HERSHEY_SIMPLEX, 0.45, 1)
        cv2.putText(
            band, words, (3, 15), cv2.FONT_HERSHEY_SIMPLEX, 0.45 * min(1, (panel.shape[1] - 6) / width), (0, 0, 0), 1, cv2.LINE_AA
        )
        columns += [np.vstack([band, panel]), np.full((BAND + panel.shape[0], GAP, 3), 255, np.uint8)]
    return np.hstack(columns[:-1])
