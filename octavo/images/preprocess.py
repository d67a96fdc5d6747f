"""From an RGB image to the network's input tensor, by the `input:` block; every stage and the loader use this one."""

from __future__ import annotations

import cv2
import numpy as np
from PIL import Image

from octavo.errors import DataError
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


def preprocess(image: np.ndarray, spec: Input) -> np.ndarray:
    """Resize, crop, reorder and normalise one image: value = (pixel / scale - mean) / std.

    Args:
        image: uint8, height x width x 3, RGB.
        spec: the model's `input:` block.

    Returns:
        float32 (or uint8 where the spec says so) with a batch dimension of 1: 1 x channels x height x width, or
        1 x height x width x channels for layout `nhwc`; contiguous.

    Raises:
        DataError: the image is smaller than the crop and nothing in the spec resizes it.
    """
    height, width = spec.size
    image = _resize(image, spec.resize, height, width)
    if spec.crop == "center":
        image = _center_crop(image, height, width)
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


def _resize(image: np.ndarray, rule: Resize, height: int, width: int) -> np.ndarray:
    if rule.rule == "none":
        return image
    if rule.rule == "stretch":
        return _resample(image, height, width, rule)
    rows, columns = image.shape[:2]
    if rule.rule == "shorter":
        # torchvision.transforms.Resize(int): the longer side is truncated, not rounded.
        short = rule.to or min(height, width)
        if rows <= columns:
            return _resample(image, short, int(short * columns / rows), rule)
        return _resample(image, int(short * rows / columns), short, rule)
    factor = min(height / rows, width / columns)
    inner_rows, inner_columns = max(1, round(rows * factor)), max(1, round(columns * factor))
    inner = _resample(image, inner_rows, inner_columns, rule)
    top, left = (0, 0) if rule.align == "top-left" else ((height - inner_rows) // 2, (width - inner_columns) // 2)
    canvas = np.full((height, width, 3), rule.pad, np.uint8)
    canvas[top : top + inner_rows, left : left + inner_columns] = inner
    return canvas


def _resample(image: np.ndarray, height: int, width: int, rule: Resize) -> np.ndarray:
    if image.shape[:2] == (height, width):
        return image
    if rule.antialias:
        return np.asarray(Image.fromarray(image).resize((width, height), PILLOW[rule.resample]))
    return cv2.resize(image, (width, height), interpolation=OPENCV[rule.resample])


def _center_crop(image: np.ndarray, height: int, width: int) -> np.ndarray:
    rows, columns = image.shape[:2]
    if rows < height or columns < width:
        raise DataError(
            f"an image of {rows}x{columns} pixels is smaller than the crop of {height}x{width}",
            "use `input.resize: {rule: shorter, to: ...}`, `stretch` or `letterbox`",
        )
    # torchvision.transforms.CenterCrop rounds half to even.
    top, left = round((rows - height) / 2.0), round((columns - width) / 2.0)
    return image[top : top + height, left : left + width]
