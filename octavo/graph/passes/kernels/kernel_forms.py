"""Exact rewrites of Q/DQ graphs into what ONNX Runtime's kernels run faster."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.kernels.bias_apart import BiasApartPass
from octavo.graph.passes.kernels.conv_on_columns import ConvOnColumnsPass
from octavo.graph.passes.kernels.cubic_by_conv import CubicByConvPass
from octavo.graph.passes.kernels.few_outputs import FewOutputsPass
from octavo.graph.passes.kernels.mish_by_exp import MishByExpPass
from octavo.graph.passes.kernels.pad_depthwise import PadDepthwisePass
from octavo.graph.passes.kernels.pixels_to_space import PixelsToSpacePass
from octavo.graph.passes.kernels.pool_by_depthwise import PoolByDepthwisePass
from octavo.graph.passes.kernels.prelu_by_conv import PReluByConvPass
from octavo.graph.passes.kernels.rounded_last import RoundedLastPass
from octavo.graph.passes.kernels.rows_again import RowsAgainPass
from octavo.graph.passes.kernels.softmax_by_exp import SoftmaxByExpPass
from octavo.graph.passes.kernels.softmax_of_two import SoftmaxOfTwoPass
from octavo.graph.passes.kernels.space_by_pixels import SpaceByPixelsPass
from octavo.graph.passes.kernels.spread_channels import SpreadChannelsPass
from octavo.graph.passes.kernels.tail_channels_last import TailChannelsLastPass
from octavo.graph.passes.kernels.tail_of_pixels import TailOfPixelsPass
from octavo.graph.passes.kernels.upsample_by_tile import UpsampleByTilePass

__all__ = ["FORMS", "write_kernel_forms"]

FORMS = (
    ConvOnColumnsPass,
    SpreadChannelsPass,
    PadDepthwisePass,
    PoolByDepthwisePass,
    UpsampleByTilePass,
    SpaceByPixelsPass,
    PixelsToSpacePass,
    PReluByConvPass,
    MishByExpPass,
    CubicByConvPass,
    FewOutputsPass,
    TailOfPixelsPass,
    TailChannelsLastPass,
    RoundedLastPass,
    RowsAgainPass,
    BiasApartPass,
    SoftmaxByExpPass,
    SoftmaxOfTwoPass,
)


def write_kernel_forms(model: ir.Model) -> None:
    """Apply them all, in place: the same codes, and the same float values up to rounding.

    Args:
        model: tuned to the kernels for uint8 activations on x86; what has codes of another type stays as it is.
    """
    for form in FORMS:
        form()(model)
