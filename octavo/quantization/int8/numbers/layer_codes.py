"""Codes of a plan's layers, and biases that take back what rounding shifts on average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.params.grammar import Int8
from octavo.quantization.int8.numbers.correction import mean_output, mean_shift
from octavo.quantization.int8.numbers.sums16 import least_scales, within
from octavo.quantization.int8.numbers.weights import Codes, codes_of
from octavo.quantization.int8.structure.units import Unit

__all__ = ["LayerCodes"]


@dataclass(frozen=True)
class LayerCodes:
    """How layers are rounded.

    Attributes:
        recipe: the `int8:` block.
        statistics: with the means of the layers' inputs.
        chosen: codes of layers that are taken as given, what rounding weights shifts taken back, by node.
        peaks: of layers whose products the target's kernels saturate, the largest code of each input channel, by node.
    """

    recipe: Int8
    statistics: Statistics
    chosen: Mapping[str, Codes] = field(default_factory=dict)
    peaks: Mapping[str, np.ndarray] = field(default_factory=dict)

    def of(self, unit: Unit, input_shift: np.ndarray | None) -> tuple[Codes, np.ndarray | None, bool]:
        """An INT8 layer.

        Args:
            unit: the layer.
            input_shift: how much rounding shifts each channel of its input on average, float64; None where that is not known.

        Returns:
            Its codes; what its bias took back of the input's shift, float64 an output channel, or None; whether a shift of its
            bias was taken back.

        Raises:
            QuantizationError: a shift is not finite.
        """
        name = unit.main.name
        code = self._rounded(unit, self.peaks.get(name))
        if name in self.peaks:
            code.codes = within(unit.main, code.codes, self.peaks[name])
        shift = self._weights_shift(unit, code)
        of_input = None if input_shift is None else mean_output(unit.main, code.restored, input_shift)
        if of_input is not None:
            shift = of_input + (0.0 if shift is None else shift)
        _take_back(unit, code, shift)
        # Given codes took theirs back already; MatMul has no bias of its own.
        before = self.recipe.correction == "bias" and name in self.chosen and unit.main.op_type != "MatMul"
        return code, of_input, shift is not None or before

    def stored(self, unit: Unit) -> Codes:
        """A float layer whose weights are int8 in the file.

        Raises:
            QuantizationError: a shift is not finite.
        """
        code = self._rounded(unit)
        _take_back(unit, code, self._weights_shift(unit, code))
        return code

    def _rounded(self, unit: Unit, peaks: np.ndarray | None = None) -> Codes:
        chosen = self.chosen.get(unit.main.name)
        if chosen is not None:
            return replace(chosen)
        least = least_scales(unit.main, peaks) if peaks is not None else None
        return codes_of(unit.main, per_channel=self.recipe.per_channel, method=self.recipe.weights, least=least)

    def _weights_shift(self, unit: Unit, code: Codes) -> np.ndarray | None:
        """How much a layer puts out too much on average for its rounded weights; None where that is not known or not taken back."""
        if self.recipe.correction != "bias" or unit.main.name in self.chosen:
            return None
        tensor = self.statistics.tensors.get(unit.inputs[0].name or "")
        means = tensor.means() if tensor is not None else None
        return None if means is None else mean_shift(unit.main, code.restored, means)


def _take_back(unit: Unit, code: Codes, shift: np.ndarray | None) -> None:
    if shift is None:
        return
    if not np.isfinite(shift).all():
        raise QuantizationError(
            f"what rounding shifts in {unit.main.name!r} is NaN or infinite: so is a value on a calibration image",
            "calibrate again on the images that are here: `calibrate` names the tensor and the image",
        )
    code.bias = ((0.0 if code.bias is None else code.bias.astype(np.float64)) - shift).astype(np.float32)
