"""Seeded, class-stratified parts of one folder, stable under renaming, order and duplicates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeVar

from octavo.files import sha256_bytes
from octavo.images.pairs import joined
from octavo.params.grammar import Calibrate, Split

__all__ = ["hold_out", "part", "part_of_identities", "pick", "pick_identities"]


class _Item(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def label(self) -> int | None: ...


T = TypeVar("T", bound=_Item)


def part(items: Sequence[T], split: Split) -> list[T]:
    """The items whose place in the stratified order lies in [start, stop), in the order of their names.

    Identical files (by content) have one place, so they never fall on both sides of a border.
    """
    order = _stratified(items, split.seed)
    low, high = round(split.start * len(order)), round(split.stop * len(order))
    chosen = set(order[low:high])
    return [item for item in items if item.sha256 in chosen]


def pick(items: Sequence[T], count: int, seed: int) -> list[T]:
    """`count` items spread evenly over the classes, in the order of their names; all of them where there are fewer."""
    chosen = set(_stratified(items, seed)[:count])
    picked: list[T] = []
    taken: set[str] = set()
    for item in items:
        if item.sha256 in chosen and item.sha256 not in taken:
            taken.add(item.sha256)
            picked.append(item)
    return picked


def part_of_identities(items: Sequence[T], split: Split) -> list[T]:
    """The items of the identities whose place in a seeded order lies in [start, stop), in the order of their names.

    No identity falls on both sides of a border: start and stop are shares of the identities, whatever each has of images.
    Identities with an identical file (by content) count as one, and so does each image without identity.
    """
    order = _identities(items, split.seed)
    low, high = round(split.start * len(order)), round(split.stop * len(order))
    chosen = {digest for identity in order[low:high] for digest in identity}
    return [item for item in items if item.sha256 in chosen]


def pick_identities(items: Sequence[T], count: int, seed: int) -> list[T]:
    """Identities in a seeded order, each whole, as long as there are at most `count` images; in the order of their names.

    Where even the first has more, `count` of its images.
    """
    chosen: set[str] = set()
    order = _identities(items, seed)
    for identity in order:
        if len(chosen) + len(identity) <= count:
            chosen |= identity
    chosen = chosen or set(sorted(order[0])[:count])
    taken: dict[str, T] = {}
    for item in items:
        if item.sha256 in chosen:
            taken.setdefault(item.sha256, item)
    return list(taken.values())


def _identities(items: Sequence[T], seed: int) -> list[set[str]]:
    """The content hashes of each identity, in an order that the seed and these hashes alone decide."""
    first: dict[int, str] = {}
    links = [(first.setdefault(item.label, item.sha256), item.sha256) for item in items if item.label is not None]
    groups: dict[str, set[str]] = defaultdict(set)
    for digest, group in joined({item.sha256 for item in items}, links).items():
        groups[group].add(digest)
    return [groups[group] for group in sorted(groups, key=lambda group: _uniform(f"{seed} identity {group}"))]


def hold_out(items: Sequence[T], settings: Calibrate) -> tuple[list[T], list[T]]:
    """Part the calibration images in two: what statistics are made from, and what choices are measured on.

    Returns:
        (counted, held out), each in the order of their names. At most a quarter is held out, and nothing of fewer than 4 images.
    """
    held = {item.sha256 for item in pick(items, min(settings.held_out, len(items) // 4), settings.seed + 1)}
    return [item for item in items if item.sha256 not in held], [item for item in items if item.sha256 in held]


def _stratified(items: Sequence[T], seed: int) -> list[str]:
    """Content hashes in an order of which every stretch holds the classes in about their shares.

    The j-th of a class's n images (in an order drawn by the seed) stands at (j + u) / n, u drawn per class.
    """
    by_class: dict[int | None, set[str]] = defaultdict(set)
    first_label: dict[str, int | None] = {}
    for item in items:
        label = first_label.setdefault(item.sha256, item.label)
        by_class[label].add(item.sha256)
    placed: list[tuple[float, str]] = []
    for label, digests in by_class.items():
        offset = _uniform(f"{seed} class {label}")
        for place, digest in enumerate(sorted(digests, key=lambda digest: _uniform(f"{seed} image {digest}"))):
            placed.append(((place + offset) / len(digests), digest))
    return [digest for _, digest in sorted(placed)]


def _uniform(key: str) -> float:
    """A number in [0, 1) that depends on the key alone, on every machine and in every version."""
    return int(sha256_bytes(key.encode())[:13], 16) / 16**13
