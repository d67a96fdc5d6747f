"""What INT8 quantization hands back, static or dynamic."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from octavo.files import write_json
from octavo.layout import GROWTH, SENSITIVITY
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.noise.found import Found
from octavo.quantization.int8.noise.judge import db_of
from octavo.quantization.int8.pricing.costs import CostTable

__all__ = ["Int8Result"]

# Below this share of the multiplications in INT8 a user is told: the file is a float one for the most part.
_HALF = 0.5


@dataclass(frozen=True)
class Int8Result:
    """A quantized graph.

    Attributes:
        model: the graph, in topological order.
        decisions: for every node of the FP32 graph, its precision and the reason.
        corrected: how many layers' biases were corrected.
        measured: what the choices were made by: SQNR in dB of each way tried, and before and after repair.
        costs: the table that placement was decided by; None where shapes decided.
        alone: noise of each rounding alone, as `trade.Noise.rows` gives it; empty where nothing was measured.
        growth: of each channel, float32, of the tensors that equalizing made larger than FP32's, by name.
        unmeasured: whether static quantization had no held-out image to measure on.
        macs: multiplications that FP32 makes of an image, as far as sizes are known.
    """

    model: ir.Model
    decisions: list[Decision]
    corrected: int = 0
    measured: dict[str, object] = field(default_factory=dict)
    costs: CostTable | None = None
    alone: list[dict[str, object]] = field(default_factory=list)
    growth: dict[str, np.ndarray] = field(default_factory=dict)
    unmeasured: bool = False
    macs: int = 0

    @property
    def kept_db(self) -> float | None:
        """The SQNR in dB that the last layers were to keep and do keep; None where they do not, or nothing was measured."""
        reached, wanted = self.measured.get("db"), self.measured.get("fidelity_db")
        return wanted if reached is not None and wanted is not None and reached >= wanted else None

    def write_beside(self, folder: Path) -> None:
        """Write what there is besides the model: the cost table, each rounding's noise, how equalizing changed channels' size."""
        if self.costs is not None:
            self.costs.save(folder / "costs.json")
        # To six digits: more than float32 weights keep of it.
        growth = {tensor: [float(f"{factor:.6g}") for factor in factors] for tensor, factors in self.growth.items()}
        for name, found in ((SENSITIVITY, self.alone), (GROWTH, growth)):
            if found:
                write_json(folder / name, found)

    def warnings(self, *, repair: bool, share: float | None = None) -> list[str]:
        """What a user should know of the choices.

        Args:
            repair: whether layers might go back to float.
            share: of the multiplications that are in INT8 (`octavo.quantization.share`); None where it is not known.
        """
        if "in_float" in self.measured:
            why = self.measured["in_float"]
            stored = "with int8 weights in the file where these are close enough"
            return [f"all layers compute in float, {stored}: {why}; `repair: false` keeps INT8 as it is"]
        found = [*self._of_fidelity(repair=repair), *self._of_times()]
        # Weights that are int8 for the file's size alone were never to compute.
        if share is not None and share < _HALF and not any(decision.arithmetic for decision in self.decisions):
            found.append(f"{share:.0%} of the multiplications are in INT8, and the others in float: report.md says why")
        return found

    def _of_times(self) -> list[str]:
        """Whether the table that was read is one of other kernels than these."""
        if self.costs is None or self.costs.source is None:
            return []
        theirs, ours = self.costs.host.get("onnxruntime"), onnxruntime.__version__
        table = f"`placement: table:{self.costs.source}`"
        placed = f"placed by times of ONNX Runtime {theirs} ({table}), and this is {ours}"
        remade = "other layers may be faster in float now; `placement: measured` makes a new table"
        return [f"{placed}: {remade}"] if theirs != ours else []

    def _of_fidelity(self, *, repair: bool) -> list[str]:
        if self.unmeasured:
            return [
                "nothing was measured, as no image is held out: the method is the first of those that `auto` would try, no layer "
                "goes back to float, and whether `fidelity` holds is not known; `calibrate.held_out` keeps images for that, at "
                "most a quarter of `calibrate.samples`"
            ]
        reached, wanted, f1 = (self.measured.get(key) for key in ("db", "fidelity_db", "found_f1"))
        if reached is None or wanted is None:
            return []
        why = "none of the measured placements is closer" if repair else "`repair: false` gives no layer back to float"
        if reached >= wanted:
            lost = db_of(Found.noise(f1)) if f1 is not None else wanted
            missing = f"F1 of the boxes to FP32's is {f1} on calibration images, which counts as {lost} dB"
            return [f"{missing}, where `fidelity` asks for {wanted} dB: {why}"] if lost < wanted else []
        lost = self.measured.get("expected_loss")
        found = f"{reached} dB at the heads" if lost is None else f"{lost:.1%} of AP expected to be lost ({reached} dB)"
        return [f"{found} on held-out images, where `fidelity` asks for {wanted} dB: {why}"]
