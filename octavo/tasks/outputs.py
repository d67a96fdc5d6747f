"""What a graph puts out for one image."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["Outputs"]

# Output name to array, batch dimension 1.
Outputs = Mapping[str, np.ndarray]
