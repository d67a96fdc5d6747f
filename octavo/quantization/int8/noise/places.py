"""Which place of a detector's heads makes which row of boxes.

No family says so, and a graph's own tail says it by what it does: a row changes when the values at its place do. Places are told
apart by the digits of their numbers, one digit at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Places"]

# Images: batch 1, channels, height, width.
_IMAGES = 4
# How far values are moved: of all channels by different amounts, since a softmax over some of them does not see one amount.
_BUMP = 3.0

# From the heads' values to rows: (corners n x 4, scores n x c); None where they cannot be read.
Rows = Callable[[Mapping[str, np.ndarray]], tuple[np.ndarray, np.ndarray] | None]


@dataclass(frozen=True)
class Places:
    """The rows that places of heads make.

    Attributes:
        shapes: (height, width) of each head that is told about.
        rows: of each, the place of each row, counted along lines; -1 where this head has no part in it.
    """

    shapes: Mapping[str, tuple[int, int]]
    rows: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, shapes: Mapping[str, Sequence[int]], read: Rows) -> Places:
        """By trial.

        Args:
            shapes: of all heads; those of batch 1 and rank 4 are told about.
            read: decodes values of all heads.

        Returns:
            Without heads where rows do not each come from one place.
        """
        still = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        maps = {name: (shape[2], shape[3]) for name, shape in shapes.items() if len(shape) == _IMAGES and shape[0] == 1}
        before = read(still)
        if before is None or not maps:
            return cls({}, {})

        def changed(moved: Mapping[str, np.ndarray]) -> np.ndarray:
            """The rows that change where places, 0 or 1 each, of some heads move."""
            values = dict(still)
            for name, places in moved.items():
                channels = shapes[name][1]
                bump = np.linspace(-_BUMP, _BUMP, channels) if channels > 1 else np.full(1, _BUMP)
                values[name] = (bump[:, None, None] * places.reshape(maps[name])).astype(np.float32)[None]
            after = read(values)
            return (after[0] != before[0]).any(axis=1) | (after[1] != before[1]).any(axis=1)

        numbers = {name: np.arange(height * width) for name, (height, width) in maps.items()}
        touched = {name: changed({name: np.ones_like(places)}) for name, places in numbers.items()}
        place = np.zeros(len(before[0]), np.int64)
        for digit in range(max(len(places) for places in numbers.values()).bit_length()):
            place |= changed({name: places >> digit & 1 for name, places in numbers.items()}).astype(np.int64) << digit
        # Once more by chance: were a row made of several places, their digits would have been mixed.
        random = np.random.default_rng(0)
        trial = {name: random.integers(0, 2, len(places)) for name, places in numbers.items()}
        for name, rows in touched.items():
            inside = place < len(numbers[name])
            expected = rows & inside & (trial[name][np.where(inside, place, 0)] == 1)
            if (rows & ~inside).any() or (changed({name: trial[name]}) != expected).any():
                return cls({}, {})
        return cls(maps, {name: np.where(rows, place, -1) for name, rows in touched.items()})

    def weights(self, scores: Sequence[np.ndarray]) -> dict[str, list[np.ndarray]]:
        """How much places count.

        Args:
            scores: of each image, of each row.

        Returns:
            Head to float32 [1, 1, height, width] of each image: sums over the rows that a place makes.
        """
        found: dict[str, list[np.ndarray]] = {}
        for name, (height, width) in self.shapes.items():
            own = self.rows[name] >= 0
            sums = [np.bincount(self.rows[name][own], weights=image[own], minlength=height * width) for image in scores]
            found[name] = [each.astype(np.float32).reshape(1, 1, height, width) for each in sums]
        return found
