"""What each `int8.target` asks of the file: which integers, and where Q and DQ stand.

| target | runs on | activations | weights | Q/DQ |
|---|---|---|---|---|
| `cpu` | ONNX Runtime on x86 with VNNI | uint8 affine | int8 | around every integer kernel |
| `cpu-no-vnni` | the same without VNNI | uint8 affine | int8, of which 16 bits hold two products | the same |
| `arm` | ONNX Runtime on ARM64, XNNPACK | int8 affine | int8 | the same |
| `openvino` | OpenVINO on x86 with VNNI | uint8 affine | int8 | before the inputs of quantizable operators |
| `openvino-no-vnni` | the same without VNNI | uint8 affine | int8, of which 16 bits hold two products | the same |
| `tensorrt` | TensorRT on NVIDIA GPUs | int8, zero point 0 | int8 | the same, one input of a residual Add |

Sources:

- x86: uint8 x int8 is the pair of `vpdpbusd`; `vpmaddubsw`, which stands in for it, saturates in int16 (onnxruntime #5849, #6004,
  #14642).
- ARM64: MLAS has kernels of its own for int8 x int8 (SDOT, and SMULL where there is no dot product) and flips the sign of uint8
  activations on cores without the dot product at run time (onnxruntime pull requests #9902, #9961); its depthwise and indirect
  convolutions take int8 as it is (#9655, #9772). Zero points of activations go into column sums that are packed with the weights:
  affine costs nothing. The XNNPACK provider takes int8 activations with int8 weights per channel too.
- OpenVINO: its low-precision transformations quantize an operator by the FakeQuantize (or Q/DQ) at its *inputs*, and its CPU plugin
  fuses what stands between a convolution and the next Q into the convolution, SiLU, PRelu and HardSwish included
  (docs.openvino.ai, "Low precision transformations"). Without VNNI its kernels (oneDNN's) saturate, too, and no option makes them
  exact: a file made on such a machine for `openvino` is one for `openvino-no-vnni` (`made_here`).
- TensorRT: int8 with zero point 0 only, no quantized bias; Q/DQ before the inputs of quantizable layers and not behind them, and in
  a residual Add on the input that no convolution can fuse with (docs.nvidia.com, TensorRT, "Explicit quantization").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from octavo.params.grammar import Int8
from octavo.quantization.int8.structure.units import CARRIERS
from octavo.runtime.host import has_vnni

__all__ = ["TARGETS", "Target", "dynamic_target", "made_here", "target_of"]


@dataclass(frozen=True)
class Target:
    """What a file for one runtime looks like.

    Attributes:
        layout: `kernels`: Q/DQ around all that ONNX Runtime has integer kernels for; `inputs`: before quantizable operators.
        signed: activations' codes are int8, not uint8.
        symmetric: activations' zero point is the middle code, whatever the recipe says.
        saturates: kernels add two products in 16 bits, which weights leave room for (`numbers.sums16`).
        reads: with layout `inputs`: the kinds of unit, beside the weighted ones, whose inputs are quantized.
        depthwise: with layout `inputs`: what only depthwise Convs read may have a scale for each channel.
        map_methods: what `method: auto` tries where the network's heads are maps.
        percentile: what it tries as `percentile`.
        channels_last: convolutions put out channels last, whatever the graph says.
        fuses: layers take in every activation and norm behind them, and write the codes that come of it.
        runs_here: ONNX Runtime's kernels on the machine at hand are those of the target, so that their times say where INT8 pays.
    """

    layout: Literal["kernels", "inputs"] = "kernels"
    signed: bool = False
    symmetric: bool = False
    saturates: bool = False
    reads: frozenset[str] = frozenset()
    both: bool = True
    depthwise: bool = False
    map_methods: tuple[str, ...] = ("peaks",)
    percentile: float = 99.97
    channels_last: bool = False
    fuses: bool = False
    runs_here: bool = False


_POOLS = frozenset({"AveragePool", "GlobalAveragePool"})
# Measured on YOLOv5n, YOLOX and NanoDet: behind an activation kept in float a clipped range does better than `peaks`.
_BEFORE_INPUTS = {"layout": "inputs", "map_methods": ("mse", "percentile"), "percentile": 99.99}
TARGETS = {
    "cpu": Target(runs_here=True),
    "cpu-no-vnni": Target(saturates=True, runs_here=True),
    "arm": Target(signed=True),
    # What carries values on is quantized before it: the values behind it are codes already, and need no Q.
    "openvino": Target(
        **_BEFORE_INPUTS, reads=CARRIERS | _POOLS | {"Add", "Concat"}, depthwise=True, channels_last=True, fuses=True
    ),
    # TensorRT moves Q and DQ across carriers and Concat by itself.
    "tensorrt": Target(**_BEFORE_INPUTS, signed=True, symmetric=True, reads=_POOLS | {"Add"}, both=False),
}
TARGETS["openvino-no-vnni"] = replace(TARGETS["openvino"], saturates=True)


def target_of(name: str) -> Target:
    """The target that `int8.target` names."""
    return TARGETS[name]


def made_here(recipe: Int8) -> Int8:
    """The recipe with the target that a file made on this machine is for.

    `openvino` without VNNI is `openvino-no-vnni`: ONNX Runtime has a switch for exact kernels, OpenVINO has none, and its sums cut
    off at 16 bits left EfficientNet-Lite0 6.7 dB of 26.
    """
    no_room = recipe.target == "openvino" and not has_vnni()
    return recipe.model_copy(update={"target": "openvino-no-vnni"}) if no_room else recipe


def dynamic_target(name: str) -> str:
    """The target of `int8_dynamic` beside a file for `name`: what finds its codes at run time runs in ONNX Runtime on x86 only."""
    return "cpu-no-vnni" if target_of(name).saturates else "cpu"
