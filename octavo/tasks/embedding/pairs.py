"""Which pairs of images are compared: all of a set of identities, at most so many of each kind, or those that a list names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.images.dataset import Item

__all__ = ["MOST", "PairTable", "pairs_of"]

# Pairs of each kind; of more a seeded sample is drawn.
MOST = 1_000_000


@dataclass(frozen=True, eq=False)
class PairTable:
    """Pairs of images, by their places in the sequence that they were made from.

    Attributes:
        first, second: int64, n.
        same: bool, n; genuine or impostor.
        fold: int64, n; the list's own parts; None where it has none.
        possible: how many genuine and impostor pairs there are, of which these may be a sample.
        left_out: pairs of the list of which an image is not there.
    """

    first: np.ndarray
    second: np.ndarray
    same: np.ndarray
    fold: np.ndarray | None
    possible: tuple[int, int]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.same)

    @property
    def counts(self) -> tuple[int, int]:
        """(genuine, impostor)."""
        genuine = int(self.same.sum())
        return genuine, len(self) - genuine


def pairs_of(items: Sequence[Item], most: int = MOST, seed: int = 0) -> PairTable:
    """The pairs that images give by their list where they have one, else by their labels; images without either give none.

    The order of the images changes nothing but the places.

    Args:
        items: with `label` and `pairs`.
        most: of each kind; of a list all are taken.
        seed: of the sample.
    """
    # In the order of names, so that a sample does not hang on the order of images.
    order = np.array(sorted(range(len(items)), key=lambda place: items[place].name), np.int64)
    if any(item.pairs is not None for item in items):
        return _listed([items[place] for place in order], order)
    known = [place for place in order if items[place].label is not None]
    labels, places = np.array([items[place].label for place in known], np.int64), np.array(known, np.int64)
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    sizes = np.array([len(group) for group in groups], np.int64)
    possible = int((sizes * (sizes - 1) // 2).sum()), int((sizes.sum() ** 2 - (sizes**2).sum()) // 2)
    generator = np.random.default_rng(seed)
    genuine = _all_genuine(groups) if possible[0] <= most else _some_genuine(groups, most, generator)
    impostor = _all_impostor(groups, len(labels)) if possible[1] <= most else _some_impostor(labels, most, generator)
    both = np.concatenate([genuine, impostor])
    same = np.arange(len(both)) < len(genuine)
    return PairTable(places[both[:, 0]], places[both[:, 1]], same, None, possible)


def _listed(items: Sequence[Item], order: np.ndarray) -> PairTable:
    place = {item.name: int(where) for item, where in zip(items, order, strict=True)}
    rows = [(place[item.name], place.get(pair.other, -1), pair) for item in items for pair in item.pairs or ()]
    there = [row for row in rows if row[1] >= 0]
    folds = [pair.fold for _, _, pair in there]
    kinds = Counter(pair.same for _, _, pair in there)
    return PairTable(
        np.array([first for first, _, _ in there], np.int64),
        np.array([second for _, second, _ in there], np.int64),
        np.array([pair.same for _, _, pair in there], bool),
        np.array(folds, np.int64) if folds and None not in folds else None,
        (kinds[True], kinds[False]),
        len(rows) - len(there),
    )


def _all_genuine(groups: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(
        [np.zeros((0, 2), np.int64), *(group[np.stack(np.triu_indices(len(group), 1), axis=1)] for group in groups)]
    )


def _all_impostor(groups: Sequence[np.ndarray], images: int) -> np.ndarray:
    found, later = [np.zeros((0, 2), np.int64)], np.ones(images, bool)
    for group in groups:
        later[group] = False
        others = np.flatnonzero(later)
        found.append(np.stack([np.repeat(group, len(others)), np.tile(others, len(group))], axis=1))
    return np.concatenate(found)


def _some_genuine(groups: Sequence[np.ndarray], most: int, generator: np.random.Generator) -> np.ndarray:
    weights = np.array([len(group) * (len(group) - 1) / 2 for group in groups])
    firsts, sizes = np.cumsum([0, *(len(group) for group in groups[:-1])]), np.array([len(group) for group in groups])
    flat = np.concatenate(groups)

    def draw(count: int) -> np.ndarray:
        chosen = generator.choice(len(groups), count, p=weights / weights.sum())
        ends = np.floor(generator.random((count, 2)) * sizes[chosen][:, None]).astype(np.int64) + firsts[chosen][:, None]
        return flat[ends[ends[:, 0] != ends[:, 1]]]

    return _distinct(draw, most, sum(sizes))


def _some_impostor(labels: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    def draw(count: int) -> np.ndarray:
        ends = generator.integers(0, len(labels), (count, 2))
        return ends[labels[ends[:, 0]] != labels[ends[:, 1]]]

    return _distinct(draw, most, len(labels))


def _distinct(draw, most: int, images: int) -> np.ndarray:
    """Draw until there are `most` different pairs; each is as likely as any other."""
    codes = np.zeros(0, np.int64)
    while len(codes) < most:
        ends = np.sort(draw(most), axis=1)
        codes = np.concatenate([codes, ends[:, 0] * images + ends[:, 1]])
        _, first = np.unique(codes, return_index=True)
        codes = codes[np.sort(first)]
    codes = codes[:most]
    return np.stack([codes // images, codes % images], axis=1)
