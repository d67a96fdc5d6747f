"""Colours of the materials of a road scene (RGB, float64).

Those of one class overlap those of others on purpose: walls are grey as roads are, and pavements may be as dark as asphalt.
"""

from __future__ import annotations

import numpy as np

__all__ = ["greenery", "grey", "wall_colour"]


def grey(generator: np.random.Generator, low: float, high: float, tint: float) -> np.ndarray:
    """A colour near to grey."""
    return generator.uniform(low, high) + generator.normal(0, tint, 3)


def wall_colour(generator: np.random.Generator) -> np.ndarray:
    """Plaster, brick or concrete."""
    if generator.random() < 0.5:
        return grey(generator, 55, 215, 10)
    bright = generator.uniform(60, 200)
    return bright * np.array([1.0, generator.uniform(0.6, 1.0), generator.uniform(0.45, 1.0)])


def greenery(generator: np.random.Generator) -> np.ndarray:
    """Leaves or grass, sometimes dry."""
    bright = generator.uniform(40, 150)
    red, blue = (generator.uniform(0.9, 1.5), generator.uniform(0.3, 0.6)) if generator.random() < 0.25 else (0.72, 0.5)
    return bright * np.array([red + generator.uniform(-0.15, 0.2), 1.0, blue + generator.uniform(-0.15, 0.2)])
