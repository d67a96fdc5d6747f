"""Networks that answer with a picture of what they see: upscalers, denoisers and their like, judged by that picture.

What their last layers put out is no answer. It is the small difference between the picture and an image made larger by itself
(Real-ESRGAN's video network: 16 dB below the picture), or what another layer without an integer kernel reads, and noise that nobody
sees in the picture is large beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op
from octavo.quantization.int8.noise.head_judge import HeadJudge

__all__ = ["picture_judge"]

_IMAGES = 4
# Channels that an image may have.
_CHANNELS = (1, 3)
# The least correlation of each channel of a picture with that of the image.
_ALIKE = 0.8


def picture_judge(model: ir.Model, samples: Sequence[Mapping[str, np.ndarray]]) -> HeadJudge | None:
    """The judge of a network whose only output is a picture of its only input; None for others.

    A picture has as many channels as the image, covers at least half of its height and width at whatever scale, and on the mean of
    the samples each of its channels goes up and down with the image's own (correlation .8): scores of as many classes do not.

    Args:
        model: FP32, as prepared for INT8.
        samples: feeds, batch dimension 1.
    """
    if len(model.graph.outputs) != 1 or len(model.graph.inputs) != 1 or not samples:
        return None
    (image,), (made,) = model.graph.inputs, model.graph.outputs
    node = made.producer()
    if is_op(node, "Transpose") and node.attributes.get_ints("perm", ()) == (0, 2, 3, 1):
        # Channels are told apart on axis 1.
        made = node.inputs[0]
    if made.producer() is None or made.shape is None or len(made.shape) != _IMAGES or made.shape[1] not in _CHANNELS:
        return None
    seen = [_channels_first(np.asarray(feeds[image.name], np.float32)) for feeds in samples]
    if any(one is None or one.shape[1] != made.shape[1] for one in seen):
        return None
    judge = HeadJudge(model, [made.name], samples)
    if len(judge.samples) < len(samples):
        return None
    alike = [_correlation(one, found[made.name]) for one, found in zip(seen, judge.answers, strict=True)]
    return judge if min(np.mean(alike, axis=0)) >= _ALIKE else None


def _channels_first(image: np.ndarray) -> np.ndarray | None:
    if image.ndim != _IMAGES:
        return None
    last = image.shape[1] not in _CHANNELS and image.shape[3] in _CHANNELS
    return image.transpose(0, 3, 1, 2) if last else image


def _correlation(image: np.ndarray, picture: np.ndarray) -> np.ndarray:
    """Of each channel, at the best whole scale, both centred; 0 where a picture covers less than half of the image, or is flat."""
    best = np.zeros(image.shape[1])
    for scale in {max(1, round(picture.shape[2] / image.shape[2])), max(1, -(-picture.shape[2] // image.shape[2]))}:
        small = picture[0, :, ::scale, ::scale]
        sizes = [min(one, other) for one, other in zip(small.shape[1:], image.shape[2:], strict=True)]
        if any(2 * size < full for size, full in zip(sizes, image.shape[2:], strict=True)):
            continue
        one, other = (_middle(array, sizes) for array in (small, image[0]))
        with np.errstate(invalid="ignore", divide="ignore"):
            found = (one * other).sum(axis=1) / np.sqrt(np.square(one).sum(axis=1) * np.square(other).sum(axis=1))
        best = np.maximum(best, np.nan_to_num(found))
    return best


def _middle(array: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The middle of [channels, height, width] of these sizes, float64 [channels, values], each channel less its mean."""
    top, left = ((full - size) // 2 for full, size in zip(array.shape[1:], sizes, strict=True))
    cut = array[:, top : top + sizes[0], left : left + sizes[1]].reshape(len(array), -1).astype(np.float64)
    return cut - cut.mean(axis=1, keepdims=True)
