"""The image pass: FP32 over the calibration images, statistics of every tensor that quantization may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from octavo.calibration.observed import Observed, observed
from octavo.calibration.statistics import Statistics
from octavo.calibration.tensor import TensorStatistics
from octavo.errors import CalibrationError
from octavo.runtime.tensors import read_tensors

__all__ = ["collect"]


def collect(
    model: ir.Model,
    samples: Callable[[], Iterable[tuple[str, dict[str, np.ndarray]]]],
    *,
    tensors: list[str] | None = None,
    group_bytes: int = 96 << 20,
) -> Statistics:
    """Run FP32 on every sample and keep statistics, never tensors.

    Images run one at a time: the result of an integer count or a rounded sum must not depend on who shares a batch.

    Args:
        model: the FP32 graph, with shapes and dtypes inferred.
        samples: called once for each group of tensors, gives (what the sample is, feeds with batch dimension 1).
        tensors: which tensors; those that can be quantized where None (`octavo.calibration.observed`).
        group_bytes: bound on the tensors fetched at once (`read_tensors`).

    Returns:
        Statistics without origin.

    Raises:
        CalibrationError: the graph has no float tensor, there is no sample, or a value is NaN or infinite.
    """
    chosen = observed(model) if tensors is None else Observed(tensors)
    statistics = Statistics({name: TensorStatistics(axis=chosen.axes.get(name)) for name in chosen.tensors})
    images = 0
    for where, values in read_tensors(model, chosen.tensors, samples, group_bytes=group_bytes):
        statistics.update(values, where)
        images += 1
    if not images:
        raise CalibrationError("there was no image to calibrate on", "check `data.calibration` in params.yaml")
    statistics.link(chosen.aliases)
    return statistics
