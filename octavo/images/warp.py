"""A similarity warp: points of an image shifted, turned and scaled onto those of a template (faces onto their eyes, say)."""

from __future__ import annotations

import cv2
import numpy as np

from octavo.errors import DataError
from octavo.params.grammar import Input

__all__ = ["Points", "similarity", "warped"]

# x and y in pixels; whole numbers are the centres of pixels, as OpenCV and landmark detectors have it.
Points = tuple[tuple[float, float], ...]


def similarity(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The shift, turn and scale that bring points nearest to others, by the squares of what is left between them.

    Args:
        source, target: n x 2, n >= 2, not all of `source` alike.

    Returns:
        float64, 2 x 3: target = map[:, :2] @ source + map[:, 2]; never a mirroring.

    Raises:
        ValueError: all source points are alike.

    Source: Umeyama, Least-squares estimation of transformation parameters between two point patterns (PAMI 1991).
    """
    source, target = np.asarray(source, np.float64), np.asarray(target, np.float64)
    centre, onto = source.mean(axis=0), target.mean(axis=0)
    spread = ((source - centre) ** 2).sum(axis=1).mean()
    if not spread > 0:
        raise ValueError("all source points are alike")
    u, sizes, vt = np.linalg.svd((target - onto).T @ (source - centre) / len(source))
    signs = np.array([1.0, -1.0 if np.linalg.det(u) * np.linalg.det(vt) < 0 else 1.0])
    turn = u @ np.diag(signs) @ vt * ((sizes * signs).sum() / spread)
    return np.column_stack([turn, onto - turn @ centre])


def warped(image: np.ndarray, spec: Input, points: Points | None, interpolation: int = cv2.INTER_LINEAR) -> np.ndarray:
    """An image with its points on the template's, black where it has no pixels.

    Args:
        image: uint8, rows x columns x 3.
        spec: with resize rule `similarity`.
        points: in pixels of the image; None for `resize.points`, which are shares of its width and height.
        interpolation: OpenCV's flag.

    Returns:
        uint8, `size` x 3.

    Raises:
        DataError: there are no points, more or fewer than the template has, or all alike.
    """
    template = spec.template or ()
    if points is None:
        if spec.resize.points is None:
            raise DataError(
                "the image has no points to warp by",
                "give the set `landmarks` (`points` to `predict`), or the same points for all in `input.resize.points`",
            )
        points = tuple((x * image.shape[1], y * image.shape[0]) for x, y in spec.resize.points)
    if len(points) != len(template):
        raise DataError(
            f"the image has {len(points)} points, `input.resize.template` {len(template)}",
            "give each point its place in the template",
        )
    try:
        matrix = similarity(np.array(points), np.array(template))
    except ValueError as error:
        raise DataError(f"{error}: {list(points[0])}", "correct the landmarks") from error
    height, width = spec.size
    return cv2.warpAffine(image, matrix, (width, height), flags=interpolation)
