"""Minimum cuts of a graph whose edges have two costs: time, and noise, which is worth more or less of it."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

__all__ = ["SINK", "SOURCE", "Cut"]

SOURCE, SINK = 0, 1
# Capacities are whole numbers, in which cuts are exact, of 32 bits: what leaves the source comes to this, and no cut costs more.
_WHOLE = 1 << 28


class Cut:
    """A graph that is cut in two, with `SOURCE` on one side and `SINK` on the other, as often as noise changes its worth; a minimum
    cut is a maximum flow (Ford and Fulkerson, "Maximal Flow through a Network", 1956).
    """

    def __init__(self) -> None:
        # Whole numbers as nodes: sets of them have one order in every process.
        self._number: dict[object, int] = {}
        self._costs: dict[tuple[int, int], tuple[float, float]] = {}

    def node(self, key: object) -> int:
        """The number of the node for something; a new one where there is none yet."""
        return self._number.setdefault(key, len(self._number) + 2)

    def edge(self, start: int, end: int, cost: float | None, noise: float = 0.0) -> None:
        """What it costs, and what noise it makes, if `start` is on the source's side and `end` on the other; None: never."""
        held, made = self._costs.get((start, end), (0.0, 0.0))
        self._costs[start, end] = (held + (np.inf if cost is None else cost), made + noise)

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(start and end, cost, noise) of each edge; there are no more of them from here on."""
        costs = np.array(list(self._costs.values()))
        return np.array(list(self._costs)), costs[:, 0], costs[:, 1]

    def side(self, weight: float) -> set[int]:
        """The nodes on the source's side, where cost plus `weight` times noise is least; of several cuts, that with the most."""
        ends, costs, noises = self._edges
        total = float(costs[ends[:, 0] == SOURCE].sum())
        # What costs more than all that can be saved is as good as never.
        capacities = np.minimum((costs + weight * noises) * (_WHOLE / (total or 1.0)), 2.0 * _WHOLE)
        count = len(self._number) + 2
        graph = sparse.csr_array((np.rint(capacities).astype(np.int32), ends.T), (count, count))
        left = graph - csgraph.maximum_flow(graph, SOURCE, SINK).flow
        left.data = np.maximum(left.data, 0)
        left.eliminate_zeros()
        # Those from which more could flow into the sink are on its side, whatever the cut.
        behind = csgraph.breadth_first_order(left.T.tocsr(), SINK, return_predecessors=False)
        return set(range(count)) - set(behind.tolist())
