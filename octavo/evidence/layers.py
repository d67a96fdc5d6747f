"""Where a quantized graph loses: every tensor of the INT8 graph against the same tensor of FP32, on the same images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octavo.files import read_json, write_csv
from octavo.layout import GROWTH, SENSITIVITY, variant_dir
from octavo.runtime.noise import sqnr_db
from octavo.runtime.rows import matched_rows
from octavo.runtime.shapes import bytes_of
from octavo.runtime.tensors import group_names, open_groups

__all__ = ["LayerNoise", "layer_noise", "read_growth", "write_noise"]

# Bytes of tensors read from each graph at a time, for one image, and as how many tensors at most these count: each group opens two
# sessions and reads the images again, which takes longer than to run a small network.
_BYTES, _TOGETHER = 32 << 20, 16


@dataclass(frozen=True)
class LayerNoise:
    """SQNR in dB of one FP32 node's output as the quantized graph has it, everything before it quantized too."""

    index: int
    layer: str
    op_type: str
    sqnr_db: float


def layer_noise(
    reference: ir.Model,
    quantized: ir.Model,
    samples: Callable[[], Iterable[tuple[str, dict[str, np.ndarray]]]],
    growth: Mapping[str, np.ndarray] | None = None,
) -> list[LayerNoise]:
    """Compare two QDQ-related graphs tensor by tensor.

    Args:
        reference: FP32.
        quantized: its QDQ form, where tensor T goes T -> QuantizeLinear -> DequantizeLinear.
        samples: called once for each group of tensors, gives (what the sample is, feeds).
        growth: of tensors whose channels are larger in the quantized graph, which its weights take back, the factor of each
            channel (`read_growth`): they are compared at FP32's size.

    Returns:
        One entry for each tensor that is quantized, in topological order; empty for a graph without Q/DQ pairs.
    """
    stands_for = _dequantized(quantized)
    producers = {value.name: node for node in reference.graph for value in node.outputs}
    names = [name for name in producers if name in stands_for]
    found: list[LayerNoise] = []
    groups = group_names(reference, names, _BYTES, size=lambda value: min(bytes_of(value), _BYTES // _TOGETHER), what="FP32")
    theirs = [[*dict.fromkeys(stands_for[name] for name in group)] for group in groups]
    opened = zip(open_groups(reference, groups, what="FP32"), open_groups(quantized, theirs, what="INT8"), strict=True)
    for exact, rounded in opened:
        signal, noise = dict.fromkeys(exact.names, 0.0), dict.fromkeys(exact.names, 0.0)
        for _, feeds in samples():
            expected, got = exact.read(feeds), rounded.read(feeds)
            for name in exact.names:
                truth, mine = _side_by_side(expected[name], got[stands_for[name]])
                if growth and name in growth:
                    # Of channels beyond FP32's there are factors, too.
                    mine /= growth[name][: mine.shape[1]].reshape(-1, *[1] * (mine.ndim - 2))
                signal[name] += float((truth**2).sum())
                noise[name] += float(((truth - mine) ** 2).sum())
        for name in exact.names:
            node = producers[name]
            found.append(LayerNoise(len(found), node.name or name, node.op_type, sqnr_db(signal[name], noise[name])))
    return found


def _side_by_side(truth: np.ndarray, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One tensor of FP32 and of the quantized graph, float64, in one shape."""
    fewer = len(truth.shape) == len(mine.shape) and any(b < a for a, b in zip(truth.shape, mine.shape, strict=True))
    if fewer or truth.shape[:1] != mine.shape[:1]:
        # Rows that the graphs chose, as many as each found.
        (truth,), (mine,) = (each.values() for each in matched_rows({"": truth}, {"": mine}, lost=True))
    # Kernels may have been given more channels than FP32 has; those behind its own meet zero weights.
    return truth.astype(np.float64), mine[tuple(slice(0, length) for length in truth.shape)].astype(np.float64)


def _dequantized(model: ir.Model) -> dict[str, str]:
    """Float tensor name to the name of its dequantized form."""
    pairs = {}
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0] is not None:
            # Ours: T or T.raw -> Q -> any number of DQ; where codes pass Max or Min between them, the last ones are T.code.
            codes = node.inputs[0].name or ""
            if codes.endswith(".code"):
                pairs.setdefault(codes.removesuffix(".code"), node.outputs[0].name)
                continue
            source = node.inputs[0].producer()
            if source is not None and source.op_type == "QuantizeLinear":
                pairs.setdefault(source.inputs[0].name.removesuffix(".raw"), node.outputs[0].name)
                # A graph output keeps its name behind its DQ.
                pairs.setdefault(node.outputs[0].name, node.outputs[0].name)
    if pairs:
        # A last Gemm or MatMul writes float: its noise is that of the output itself.
        for value in model.graph.outputs:
            pairs.setdefault(value.name, value.name)
    return pairs


def read_growth(model: str) -> dict[str, np.ndarray]:
    """Each channel's factor, float64, of the tensors of models/<model>/int8 that were equalized, by name; empty where none were."""
    found = variant_dir(model, "int8") / GROWTH
    return {tensor: np.array(factors) for tensor, factors in (read_json(found) if found.is_file() else {}).items()}


def write_noise(folder: Path, model: str, layers: Sequence[LayerNoise]) -> None:
    """Write layers.csv, and sensitivity.csv: INT8's noise rounding by rounding, as `quantize_int8` measured it.

    Args:
        folder: where they belong.
        model: its name.
        layers: as `layer_noise` gives them.
    """
    sensitivity = variant_dir(model, "int8") / SENSITIVITY
    write_csv(folder / "layers.csv", [vars(layer) for layer in layers], ["index", "layer", "op_type", "sqnr_db"])
    alone = read_json(sensitivity) if sensitivity.is_file() else []
    write_csv(folder / "sensitivity.csv", alone, ["index", "layer", "rounds", "sqnr_db"])
