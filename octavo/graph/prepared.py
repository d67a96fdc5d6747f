"""What every way to INT8 begins with: the FP32 graph in a form that integer kernels exist for."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from octavo.graph.io import copied
from octavo.graph.passes.affine.bend_before_concat import BendBeforeConcatPass
from octavo.graph.passes.affine.channels_apart import ChannelsApartPass
from octavo.graph.passes.affine.cut_before_concat import CutBeforeConcatPass
from octavo.graph.passes.affine.fold_batch_norm import FoldBatchNormPass
from octavo.graph.passes.affine.fold_scale import FoldScalePass
from octavo.graph.passes.affine.frozen_norm import FrozenNormPass
from octavo.graph.passes.affine.layer_scale import LayerScalePass
from octavo.graph.passes.affine.neg_to_conv import NegToConvPass
from octavo.graph.passes.affine.parallel_convs import ParallelConvsPass
from octavo.graph.passes.affine.plain_gemm import PlainGemmPass
from octavo.graph.passes.affine.prelu_to_max import PReluToMaxPass
from octavo.graph.passes.affine.rows_first import RowsFirstPass
from octavo.graph.passes.affine.shift_ahead import ShiftAheadPass
from octavo.graph.passes.cleaning.computed_once import ComputedOncePass
from octavo.graph.passes.cleaning.opset_up import OpsetUpPass, ir_version_for
from octavo.graph.passes.cleaning.pad_all_axes import PadAllAxesPass
from octavo.graph.passes.cleaning.resize_all_axes import ResizeAllAxesPass
from octavo.graph.passes.cleaning.zero_tiny_weights import ZeroTinyWeightsPass
from octavo.graph.passes.forms.count_values import CountValuesPass
from octavo.graph.passes.forms.focus_to_conv import FocusToConvPass
from octavo.graph.passes.forms.mean_to_pool import MeanToPoolPass
from octavo.graph.passes.forms.one_pixel import OnePixelPass
from octavo.graph.passes.forms.plain_transposed import PlainTransposedPass
from octavo.graph.passes.forms.shuffle_by_order import ShuffleByOrderPass
from octavo.graph.passes.forms.zeros_to_pad import ZerosToPadPass
from octavo.graph.passes.spelled.gelu import with_gelu
from octavo.graph.passes.spelled.hard_sigmoid_to_clip import HardSigmoidToClipPass
from octavo.graph.passes.spelled.hard_swish import HardSwishPass
from octavo.graph.passes.spelled.layer_norm import LayerNormPass
from octavo.graph.passes.spelled.max_min_to_clip import MaxMinToClipPass
from octavo.graph.passes.spelled.prelu import PReluPass
from octavo.graph.passes.spelled.variance import VariancePass

__all__ = ["prepared"]


def prepared(
    model: ir.Model,
    opset: int = 0,
    *,
    depthwise_norms: bool = True,
    fuses: bool = False,
    merges: bool = False,
    kept: Collection[str] = (),
) -> ir.Model:
    """A copy of an FP32 graph, rewritten exactly into what has integer kernels.

    Args:
        model: FP32; it is not changed.
        opset: at least this one, the graph's own, and that of a Gelu that it spells out.
        depthwise_norms: a BatchNormalization that folds into no layer becomes a depthwise Conv (`FoldBatchNormPass`), and so does
            Neg before layers; a norm over channels stands between Transposes (`LayerNormPass`).
        fuses: layers take in all norms and activations behind them (`BendBeforeConcatPass`, `PReluToMaxPass`).
        merges: Convs of one tensor whose sum is taken are one (`ParallelConvsPass`); a network in torch has each of them, and what
            is found for it has to be theirs.
        kept: names of nodes that stay apart from others that do the same.
    """
    ready = copied(model)
    OpsetUpPass(opset)(ready)
    ready.ir_version = max(ready.ir_version, ir_version_for(ready, opset))
    VariancePass()(ready)
    # Before all that looks for several nodes, and behind what made deviations that are there already.
    ComputedOncePass(kept)(ready)
    PReluPass()(ready)
    MaxMinToClipPass()(ready)
    ready = with_gelu(ready)
    LayerNormPass(depthwise_norms)(ready)
    MeanToPoolPass()(ready)
    CountValuesPass()(ready)
    ZerosToPadPass()(ready)
    PadAllAxesPass()(ready)
    ResizeAllAxesPass()(ready)
    PlainTransposedPass()(ready)
    OnePixelPass()(ready)
    # Before the sum in it goes into a Conv.
    HardSwishPass()(ready)
    # Before what folds into it.
    PlainGemmPass()(ready)
    # Each may stand behind the other.
    FoldScalePass()(ready)
    # What is left of norms behind ReLUs, before it becomes one again.
    ShiftAheadPass()(ready)
    FrozenNormPass()(ready)
    RowsFirstPass()(ready)
    LayerScalePass()(ready)
    FoldBatchNormPass(depthwise_norms)(ready)
    if merges:
        # Behind norms, which are branches or stand in them, and before the factors behind what it sums.
        ParallelConvsPass(kept)(ready)
    FoldScalePass()(ready)
    ChannelsApartPass()(ready)
    if depthwise_norms:
        NegToConvPass()(ready)
    if fuses:
        BendBeforeConcatPass()(ready)
        # Of a norm's parts those behind layers.
        FoldBatchNormPass(depthwise_norms)(ready)
        PReluToMaxPass()(ready)
    # Behind what made layers of norms.
    CutBeforeConcatPass()(ready)
    # What was folded is a product.
    ZeroTinyWeightsPass()(ready)
    HardSigmoidToClipPass()(ready)
    FocusToConvPass()(ready)
    ShuffleByOrderPass()(ready)
    return ready
