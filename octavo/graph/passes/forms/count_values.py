"""AveragePool without padding counts the values that it reads, whatever it says of padding."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass

__all__ = ["CountValuesPass", "pads_explicitly"]


def pads_explicitly(node: ir.Node) -> bool:
    """Whether a pool has padding of its own; not so what its last window reaches beyond where the output's size is rounded up."""
    pads = node.attributes.get_ints("pads", ())
    return any(pads) or node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")


class CountValuesPass(NodePass):
    """Rewrite `AveragePool` of `ceil_mode` and `count_include_pad` as one without `count_include_pad`, where nothing is padded.

    In float both divide by the values that a window holds: what it reaches beyond is no padding. ONNX Runtime 1.31's integer kernel
    divides by the whole window (torch's `AvgPool2d(2, ceil_mode=True)` is exported so: 15 to 26 dB, 36 as written).

    1. There is no explicit padding (`pads_explicitly`), and `ceil_mode` is 1.

    Exact up to float rounding.
    """

    op_type = "AveragePool"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:  # noqa: ARG002
        rounds_up, counts = (node.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad"))
        if not rounds_up or not counts or pads_explicitly(node):
            return False
        node.attributes.pop("count_include_pad")
        return True
