"""Seeded views of a photo: how the same thing looks in another picture of it, as far as that can be made of one."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image

__all__ = ["view"]

# Shares of the photo's area that a view shows, and width by height.
AREA, ASPECT = (0.06, 0.5), (0.7, 1.4)
# Factors of brightness and contrast, standard deviation of the blur in pixels of the view, JPEG's quality.
LIGHT, CONTRAST, BLUR, QUALITY = (0.5, 1.5), (0.5, 1.4), (0.0, 2.0), (20, 90)


def view(photo: np.ndarray, generator: np.random.Generator, side: int) -> bytes:
    """A part of a photo, mirrored or not, in other light, blurred and compressed.

    Args:
        photo: uint8, rows x columns x 3, RGB.
        generator: what is drawn from it decides all.
        side: rows and columns of the view.

    Returns:
        A JPEG file.
    """
    rows, columns = photo.shape[:2]
    area, aspect = generator.uniform(*AREA) * rows * columns, np.exp(generator.uniform(*np.log(ASPECT)))
    height, width = min(rows, max(1, round(np.sqrt(area / aspect)))), min(columns, max(1, round(np.sqrt(area * aspect))))
    top, left = (int(generator.integers(0, room, endpoint=True)) for room in (rows - height, columns - width))
    part = photo[top : top + height, left : left + width]
    part = part[:, ::-1] if generator.random() < 0.5 else part
    seen = np.asarray(Image.fromarray(np.ascontiguousarray(part)).resize((side, side), Image.Resampling.BILINEAR), np.float32)
    mean = seen.mean()
    seen = ((seen - mean) * generator.uniform(*CONTRAST) + mean) * generator.uniform(*LIGHT)
    seen = cv2.GaussianBlur(seen, (0, 0), max(generator.uniform(*BLUR), 0.01))
    written = io.BytesIO()
    pixels = np.clip(np.rint(seen), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(written, "JPEG", quality=int(generator.integers(*QUALITY, endpoint=True)))
    return written.getvalue()
