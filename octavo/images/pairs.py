"""What a list of pairs says of an image, and whether a set of identities holds anything to tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from octavo.errors import DataError
from octavo.params.grammar import ImageSet

__all__ = ["Pair", "joined", "refuse_pairless"]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Pair:
    """Two images of which it is said whether they show the same.

    Attributes:
        other: the second image's path below the set's folder, with '/'; the first one is the image that the pair stands at.
        same: whether both are of one identity (a genuine pair) or not (an impostor pair).
        fold: the list's part that it is of, from 0; None where the list has no parts.
    """

    other: str
    same: bool
    fold: int | None = None


class _Item(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def label(self) -> int | None: ...
    @property
    def pairs(self) -> tuple[Pair, ...] | None: ...


def joined(members: Iterable[T], links: Iterable[tuple[T, T]]) -> dict[T, T]:
    """Each member's group, named by the group's smallest member; linked ones are of one group."""
    parent = {member: member for member in members}

    def top(member: T) -> T:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for first, second in links:
        low, high = sorted((top(first), top(second)))  # type: ignore[type-var]
        parent[high] = low
    return {member: top(member) for member in parent}


def refuse_pairless(items: Sequence[_Item], images: ImageSet, where: str) -> None:
    """Refuse images to validate on of which no two show one identity, or no two show two; other formats pass.

    Raises:
        DataError: saying which kind of pair is missing, and what the set holds.
    """
    if not images.of_identities:
        return
    cut = " (of what `split` and `limit` leave)" if images.split is not None or images.limit is not None else ""
    if any(item.pairs is not None for item in items):
        there = {item.name for item in items}
        kinds = {pair.same for item in items for pair in item.pairs or () if pair.other in there}
        genuine, impostor = True in kinds, False in kinds
        has = "the list names none"
    else:
        counts = Counter(item.label for item in items if item.label is not None)
        genuine, impostor = max(counts.values(), default=0) > 1, len(counts) > 1
        has = f"{sum(counts.values())} images of {len(counts)} identit{'y' if len(counts) == 1 else 'ies'}"
    if not genuine:
        raise DataError(
            f"{where}: {images.path} has no genuine pair, two images of one identity{cut}: {has}",
            "add a second image of somebody, or widen `split` and `limit`",
        )
    if not impostor:
        raise DataError(
            f"{where}: {images.path} has no impostor pair, images of two identities{cut}: {has}",
            "add a second identity, or widen `split` and `limit`",
        )
