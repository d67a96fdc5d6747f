"""The self-check of a package: an image that any language can paint from a formula, and what each variant makes of it.

A program that feeds it and finds the numbers of runtime.json knows that its runtime, session options and CPU give the outputs that
were validated (docs/runtime.md). The numbers come from ONNX Runtime on the machine that packages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from octavo.errors import ModelRunError, SourceError
from octavo.images.feeds import Feeds
from octavo.layout import INT8_VARIANTS, MODEL
from octavo.manifest import session_entries
from octavo.params.preprocessing import Input
from octavo.runtime.session import Session

__all__ = [
    "PATTERN",
    "check_feeds",
    "check_input",
    "check_shape",
    "check_tensor",
    "deviation",
    "image_input",
    "reference",
    "selfcheck",
]

# The image of the self-check, before normalisation: stripes from wide to narrow, so that layers see many frequencies. Rows, columns
# and channels each differ, so that a tensor that is laid out wrong gives other outputs.
PATTERN = "pixel(row, column, channel) = (floor(row * (column + 16) / 8) + 85 * channel) mod 256"

# Values of each output that a program compares.
_SAMPLES = 64
# How far right kernels may lie apart, in units of an output's spread. ONNX Runtime's graph as it stands in the file and its
# optimized one round in different places; other CPUs, WASM and other versions lie as far off as these two (docs/runtime.md has
# the figures), so four times what is measured between them is allowed. Below the floors nothing is worth an alarm: FP32 on a GPU
# multiplies in TF32, FP16 on one accumulates in half precision.
_MARGIN = 4.0
_FLOOR = {"fp32": 0.01, "fp16": 0.02, **dict.fromkeys(INT8_VARIANTS, 0.05)}
# Elements of the tensor: a manifest is somebody's text, and says how many are made. A batch of ten of the largest inputs.
_MOST = 10 * 3 * 8192 * 8192
# An output that the same file's two graphs disagree on this much (a choice of boxes that flips) checks nothing.
_LARGEST = 0.5


class _Runs(Protocol):
    def run(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Output name to array (`octavo.runtime.session.Session`)."""


def check_shape(manifest: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of the self-check's tensor: what the graph fixes, else a batch of 1 and `preprocessing.size`.

    Raises:
        SourceError: it is absurdly large.
    """
    spec = Input.model_validate(manifest["preprocessing"])
    asked = (1, spec.channels, *spec.size) if spec.layout == "nchw" else (1, *spec.size, spec.channels)
    fixed = image_input(manifest)["shape"] or asked
    shape = tuple(dim if isinstance(dim, int) and dim > 0 else wanted for dim, wanted in zip(fixed, asked, strict=True))
    if math.prod(shape) > _MOST:
        raise SourceError(f"the manifest's input is {'x'.join(map(str, shape))}: nobody feeds that", "fetch the model again")
    return shape


def check_input(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """`selfcheck.input` of runtime.json: the tensor's shape and samples: tells a wrong tensor from a wrong run."""
    tensor = check_tensor(manifest["preprocessing"], check_shape(manifest))
    return {"shape": list(tensor.shape), **_sampled(tensor)}


def check_tensor(preprocessing: Mapping[str, Any], shape: Sequence[int]) -> np.ndarray:
    """The self-check's input: `PATTERN` in every image of the batch, normalised as photos are; channels are those of the tensor.

    Args:
        preprocessing: the manifest's block.
        shape: of the tensor (`check_shape`).

    Returns:
        float32, or uint8 where the block says so; contiguous.
    """
    spec = Input.model_validate(preprocessing)
    rows, columns, channels = shape[1:] if spec.layout == "nhwc" else (shape[2], shape[3], shape[1])
    row, column, channel = np.ogrid[:rows, :columns, :channels]
    image = ((row * (column + 16) // 8 + 85 * channel) % 256).astype(np.uint8)
    if spec.dtype == "float32":
        image = image.astype(np.float32) / np.float32(spec.scale)
        image = (image - np.asarray(spec.mean, np.float32)) / np.asarray(spec.std, np.float32)
    if spec.layout == "nchw":
        image = image.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(image, shape))


def reference(model: str | Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a variant makes of the self-check's image, by ONNX Runtime on this machine's CPU.

    The file runs twice, with graph optimizations and without; how far the two lie apart sets the tolerance.

    Args:
        model: the variant's model.onnx, or its folder.
        manifest: the variant's.

    Returns:
        `outputs`: of each that can be compared its `name`, `elements`, `stride`, `values`, `scales` and `tolerance`;
        `left_out`: output name to why it cannot (`*` for all of them).

    Raises:
        ModelRunError: ONNX Runtime cannot load or run the file, or an output is not finite.
    """
    model = Path(model) / MODEL if Path(model).is_dir() else Path(model)
    if manifest.get("custom_ops"):
        return {"outputs": [], "left_out": {"*": "custom operators: a stand-in's numbers would be compared"}}
    feeds = check_feeds(manifest)
    entries = session_entries(manifest)
    wanted = Session(model, entries=entries).run_finite(feeds, "the self-check's image")
    other = Session(model, optimization="off", entries=entries).run(feeds)
    found: dict[str, Any] = {"outputs": [], "left_out": {}}
    for name, value in wanted.items():
        reason = None
        if not np.issubdtype(value.dtype, np.floating):
            reason = f"{value.dtype}: a choice, which may flip by rounding"
        elif value.size == 0 or other[name].shape != value.shape:
            reason = "its size follows what is found"
        if reason is None:
            wide, scales = value.astype(np.float64), _scales(value.astype(np.float64))
            tolerance = max(_FLOOR[manifest["variant"]], _MARGIN * deviation(other[name], wide, scales))
            if tolerance <= _LARGEST:
                samples = {**_sampled(wide), "scales": _sampled(scales)["values"], "tolerance": _short(tolerance)}
                found["outputs"].append({"name": name, **samples})
                continue
            reason = "the file's own graph and the optimized one lie too far apart on this image"
        found["left_out"][name] = reason
    return found


def selfcheck(session: _Runs, manifest: Mapping[str, Any]) -> dict[str, float]:
    """Run the self-check's image through an open session and hold its outputs to what the manifest has of them.

    Args:
        session: of the variant, with whatever provider.
        manifest: the variant's; its `selfcheck` is what `reference` gave.

    Returns:
        Output name to how far it lies off, in units of its spread; empty where the variant cannot be checked.

    Raises:
        ModelRunError: an output lies further off than its tolerance or has another size, or the session does not run.
    """
    checked = (manifest.get("selfcheck") or {}).get("outputs", [])
    if not checked:
        return {}
    variant, outputs = manifest["variant"], session.run(check_feeds(manifest))
    found = {}
    for output in checked:
        name, values = output["name"], np.asarray(outputs[output["name"]]).reshape(-1)
        if values.size != output["elements"]:
            raise ModelRunError(
                f"self-check of {variant}: output {name!r} has {values.size} elements, the reference {output['elements']}",
                "the file is not the one that its manifest describes: package it again",
            )
        sampled = values[:: output["stride"]][: len(output["values"])]
        found[name] = deviation(sampled, np.asarray(output["values"]), np.asarray(output["scales"]))
        # So that NaN is no pass.
        if not found[name] <= output["tolerance"]:
            raise ModelRunError(
                f"self-check of {variant}: output {name!r} lies {found[name]:.3g} of its spread off the reference, "
                f"{output['tolerance']:.3g} is allowed",
                "this machine's kernels do not give the numbers that were validated: set the session entries of runtime.json "
                "(`session.config_entries`, `needs.cpu.otherwise`), or take the next variant of `fallback`",
            )
    return found


def deviation(values: np.ndarray, wanted: np.ndarray, scales: np.ndarray) -> float:
    """Root mean square of (values - wanted) / scales; 1 is as far off as an output that has nothing to do with it, about."""
    return float(np.sqrt(np.mean(((np.asarray(values, np.float64) - wanted) / scales) ** 2)))


def image_input(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry of the manifest's `inputs` that takes the image: `name`, `shape`, `type`."""
    return next(value for value in manifest["inputs"] if value["name"] == manifest["image_input"])


def check_feeds(manifest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The self-check's tensor as the graph's image input wants it, and what its other inputs take."""
    tensor, image = check_tensor(manifest["preprocessing"], check_shape(manifest)), image_input(manifest)
    return Feeds.read(manifest)(tensor.astype(np.float16) if "float16" in image["type"] else tensor)


def _scales(value: np.ndarray) -> np.ndarray:
    """The spread that each element's error is measured by; the shape of `value`.

    A box's corner and a class's score in one tensor differ by orders of magnitude: where there are maps or lists, the standard
    deviation is that of each channel, which is taken to be the shortest dimension behind the batch.
    """
    axes = tuple(range(value.ndim))
    if value.ndim >= 3:
        channel = 1 + int(np.argmin(value.shape[1:]))
        axes = tuple(axis for axis in axes if axis != channel)
    spread = np.maximum(value.std(axis=axes, keepdims=True), 1e-6 * value.std())
    # A single value, or equal ones, are measured by their size.
    spread = np.where(spread > 0, spread, np.abs(value).max() or 1.0)
    return np.broadcast_to(spread, value.shape)


def _sampled(value: np.ndarray) -> dict[str, Any]:
    """`_SAMPLES` elements at a constant stride, which shares no factor with the size: samples fall on every row and column."""
    flat = value.reshape(-1)
    stride = max(1, flat.size // _SAMPLES)
    while math.gcd(stride, flat.size) > 1:
        stride -= 1
    return {"elements": flat.size, "stride": stride, "values": [_short(number) for number in flat[::stride][:_SAMPLES]]}


def _short(number: float) -> float:
    """Six significant digits: enough for every tolerance, and a page that can be read."""
    return float(f"{float(number):.6g}")
