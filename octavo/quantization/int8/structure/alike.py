"""Layers that multiply by the same weights.

Both branches of a siamese network do, and a detector's head on all levels of its pyramid (RetinaNet, FCOS). Exporters write such
weights once, or once for each layer. They stay the same through all that is done to them, so that the file has their codes once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from hashlib import sha256

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.structure.units import Unit

__all__ = ["alike"]

# What says how weights lie in their array.
_LAYOUT = ("group", "transB")


def alike(layers: Iterable[Unit]) -> list[list[Unit]]:
    """Layers by their weights.

    Args:
        layers: units with constant weights.

    Returns:
        Each layer once, in the order in which the first of each list comes; a list's layers can have the same codes.
    """
    found: dict[Hashable, list[Unit]] = {}
    for layer in layers:
        node = layer.main
        weights = ir.convenience.get_const_tensor(node.inputs[1]).numpy()
        laid = tuple(node.attributes[name].as_int() if name in node.attributes else None for name in _LAYOUT)
        found.setdefault((node.op_type, laid, weights.shape, sha256(np.ascontiguousarray(weights)).digest()), []).append(layer)
    return list(found.values())
