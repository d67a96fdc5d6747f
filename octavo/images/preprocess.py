"""From an RGB image to the network's input tensor, by the `input:` block; every stage and the loader use this one."""

from __future__ import annotations

import cv2
import numpy as np
from PIL import Image

from octavo.errors import DataError
from octavo.images.frame import Frame
from octavo.images.warp import Points, warped
from octavo.params.block import MAX_PIXELS
from octavo.params.grammar import Input, Resize

__all__ = ["preprocess"]

PILLOW = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
OPENCV = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}


def preprocess(image: np.ndarray, spec: Input, points: Points | None = None) -> np.ndarray:
    """Resize, crop, reorder and normalise one image: value = (pixel / scale - mean) / std.

    Args:
        image: uint8, height x width x 3, RGB.
        spec: the model's `input:` block.
        points: for resize rule `similarity`: x and y in pixels of this image, one for each point of the template; where None,
            `resize.points`. Other rules take none.

    Returns:
        float32 (or uint8 where the spec says so) with a batch dimension of 1: 1 x channels x height x width, or
        1 x height x width x channels for layout `nhwc`; contiguous. Height and width are `size`, or follow the image's aspect
        ratio where `resize.stride` is set (`Frame.input`).

    Raises:
        DataError: the image is smaller than the crop and nothing in the spec resizes it, or points are missing or no such,
            or so narrow that resizing its shorter side gives an absurd number of pixels.
    """
    if spec.resize.rule == "similarity":
        image = warped(image, spec, points, OPENCV[spec.resize.resample])
    else:
        frame = Frame.of(*image.shape[:2], spec)
        _refuse_blown_up(frame)
        image = _placed(_resample(image, *frame.inner, spec.resize), frame, spec.resize.pad)
    if spec.colour == "gray":
        image = np.asarray(Image.fromarray(image).convert("L"))[:, :, None]
    elif spec.colour == "bgr":
        image = image[:, :, ::-1]
    if spec.dtype == "uint8":
        tensor = image
    else:
        tensor = image.astype(np.float32) / np.float32(spec.scale)
        tensor = (tensor - np.asarray(spec.mean, np.float32)) / np.asarray(spec.std, np.float32)
    if spec.layout == "nchw":
        tensor = tensor.transpose(2, 0, 1)
    return np.ascontiguousarray(tensor[None])


def _refuse_blown_up(frame: Frame) -> None:
    """With `rule: shorter` the longer side grows with the shorter: of a line of pixels beyond any memory."""
    if frame.inner[0] * frame.inner[1] > MAX_PIXELS:
        sizes = (f"{rows}x{columns}" for rows, columns in (frame.photo, frame.inner))
        raise DataError(
            f"an image of {next(sizes)} pixels would be resized to {next(sizes)}",
            "remove it, or use another `input.resize` than `rule: shorter`",
        )


def _placed(image: np.ndarray, frame: Frame, pad: int | tuple[int, int, int]) -> np.ndarray:
    """The resized image cropped, or on a canvas of one colour."""
    (top, left), (height, width) = frame.offset, frame.input
    if image.shape[:2] == (height, width):
        return image
    if image.shape[0] >= height and image.shape[1] >= width:
        return image[-top : height - top, -left : width - left]
    canvas = np.full((height, width, 3), pad, np.uint8)
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    return canvas


def _resample(image: np.ndarray, height: int, width: int, rule: Resize) -> np.ndarray:
    if image.shape[:2] == (height, width):
        return image
    if rule.antialias:
        return np.asarray(Image.fromarray(image).resize((width, height), PILLOW[rule.resample]))
    return cv2.resize(image, (width, height), interpolation=OPENCV[rule.resample])
