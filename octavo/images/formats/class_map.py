"""Which of the model's classes each class of an annotated set is.

In this order:
1. `class_map` of the set in params.yaml: by the set's class name or number, to the model's class by name or index; null leaves its
   objects out;
2. the model's class of the same name (`task.classes`), case aside where none is spelt alike;
3. what `class_map` says of all others, `"*"`;
4. without `task.classes`, as the format has it: the place in the order of the ids (COCO), the number itself (YOLO); a set that
   gives names alone (PASCAL VOC) has to be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import yaml

from octavo.errors import DataError
from octavo.images.formats.listed import GAPS, OTHERS, Classes
from octavo.images.formats.places import shown
from octavo.params.grammar import ImageSet
from octavo.progress import say

__all__ = ["Category", "class_indices"]

Key = int | str


@dataclass(frozen=True)
class Category:
    """A class of the set: what its annotations call it, and its name where that is something else."""

    key: Key
    name: str | None = None

    def __str__(self) -> str:
        return repr(self.key) if self.name in (None, self.key) else f"{self.name!r} (number {self.key})"

    @property
    def as_key(self) -> str:
        """What `class_map` in params.yaml calls it: in quotes where YAML would make something else of the name (1, no)."""
        called = [self.key if self.name is None else self.name]
        return yaml.safe_dump(called, default_flow_style=True, width=1 << 20, allow_unicode=True).strip()[1:-1]


def class_indices(
    categories: Sequence[Category],
    counts: Mapping[Key, int],
    images: ImageSet,
    where: str,
    classes: Classes,
    *,
    unnamed: Literal["order", "number", "told"],
    closed: bool = True,
) -> dict[Key, int | None]:
    """The model's class index for every class of the set that has objects.

    Args:
        categories: the set's classes, in its own order.
        counts: how many objects each has; classes without any need no place among the model's.
        images: the set's block, for `class_map`.
        where: its path in params.yaml.
        classes: what is known of the model.
        unnamed: the rule for a model without class names.
        closed: whether the categories are all that there may be, so that a `class_map` key outside them is a slip; where they are
            but those that happen to be there, a key outside them is told.

    Returns:
        Key to index; None for a class that is left out.

    Raises:
        DataError: a class has no place among the model's, or `class_map` names a class that is not there.
    """
    if closed:
        _refuse_strangers(categories, images, where)
    else:
        _tell_strangers(categories, images, where)
    names = _Names(classes, images)
    indices: dict[Key, int | None] = {}
    unplaced: list[Category] = []
    for category in (category for category in categories if counts.get(category.key)):
        told, target = _told(category, categories, images)
        like = names.like(category.name) if classes.names is not None and category.name is not None and not told else None
        if like is not None:
            indices[category.key] = like
        elif told or OTHERS in images.class_map:
            target = target if told else images.class_map[OTHERS]
            indices[category.key] = None if target is None else names.index(target, category, where)
        elif classes.names is not None and category.name is not None:
            unplaced.append(category)
        elif unnamed == "number":
            indices[category.key] = int(category.key)
        else:
            unplaced.append(category)
    if classes.names is not None:
        if unplaced:
            raise _unmatched(unplaced, counts, classes.names, where)
        return indices
    if unnamed != "told" and (not images.class_map or len(categories) == classes.count):
        _refuse_another_number(categories, classes.count, where)
    elif unplaced and classes.asked:
        raise DataError(
            f"{where}: nothing says which of the model's classes the set's {shown([str(category) for category in unplaced])} "
            f"{'is' if len(unplaced) == 1 else 'are'}",
            f"name the model's classes in `task.classes`, or write `{where}.class_map: "
            f"{{{unplaced[0].as_key}: index, ...}}`; null leaves a class out",
        )
    places = {category.key: place for place, category in enumerate(categories)}
    return indices | {category.key: places[category.key] for category in unplaced}


class _Names:
    """The model's class names; where nothing is asked of the classes, those that `class_map` speaks of serve."""

    def __init__(self, classes: Classes, images: ImageSet) -> None:
        self.names = classes.names
        if not classes.asked:
            self.names = tuple(sorted({name for name in images.class_map.values() if isinstance(name, str)}))
        found = [(name, index) for index, name in enumerate(self.names or ()) if name not in GAPS]
        self._exact = dict(reversed(found))
        self._folded = {name.strip().casefold(): index for name, index in reversed(found)}

    def like(self, name: str) -> int | None:
        """The index of the class of this name."""
        return self._exact.get(name, self._folded.get(name.strip().casefold()))

    def index(self, target: Key, category: Category, where: str) -> int:
        """What `class_map` maps a class to."""
        if isinstance(target, int):
            if target < 0:
                raise DataError(f"{where}.class_map: {category} becomes class {target}", "class indices are 0, 1, 2 ...")
            return target
        found = self.like(target)
        if found is None:
            unknown = f"{where}.class_map: {category} becomes {target!r}, "
            if self.names is None:
                raise DataError(
                    unknown + "and nothing says what the model's classes are called",
                    "name them in `task.classes`, or give the class's index",
                )
            raise DataError(
                f"{unknown}which is no class of the model{_near(target, list(self._exact))}",
                "correct it, or give the class's index",
            )
        return found


def _told(category: Category, categories: Sequence[Category], images: ImageSet) -> tuple[bool, Key | None]:
    """Whether `class_map` speaks of a class, and what it says."""
    for key in _spellings(category, categories):
        if key in images.class_map:
            return True, images.class_map[key]
    return False, None


def _spellings(category: Category, categories: Sequence[Category]) -> list[Key]:
    """What a class may be called: YAML makes a number of a name of digits, and a number beside words is quoted.

    Of house numbers the class 4 may be called "3": a quoted number is the name before it is a number.
    """
    key = category.key
    digits = int(key) if isinstance(key, str) and key.isdecimal() else None
    quoted = str(key) if str(key) not in {other.name for other in categories} else None
    return [name for name in (category.name, key, digits, quoted) if name is not None]


def _strangers(categories: Sequence[Category], images: ImageSet) -> list[str]:
    """The keys of `class_map` that are no class of these, each with those that are spelt nearly so."""
    known = {name for category in categories for name in _spellings(category, categories)} | {OTHERS}
    names = [category.name for category in categories if category.name is not None]
    return [f"{key!r}{_near(str(key), names)}" for key in images.class_map if key not in known]


def _refuse_strangers(categories: Sequence[Category], images: ImageSet, where: str) -> None:
    strangers = _strangers(categories, images)
    if strangers:
        raise DataError(
            f"{where}.class_map: the set has no class {strangers[0]}",
            f"its classes are {shown([str(category) for category in categories])}",
        )


def _tell_strangers(categories: Sequence[Category], images: ImageSet, where: str) -> None:
    """Say which keys do nothing: the class may be a rare one, or a slip that leaves the objects it means as they were."""
    strangers = _strangers(categories, images)
    if strangers:
        say(f"note: {where}.class_map: no object of the set is called {shown(strangers)}")


def _refuse_another_number(categories: Sequence[Category], count: int | None, where: str) -> None:
    """Places and numbers are the model's only where the set has all of its classes; anything else would score noise."""
    if count is not None and len(categories) != count and all(category.name is not None for category in categories):
        raise DataError(
            f"{where}: the set has {len(categories)} classes ({shown([str(category) for category in categories])}), "
            f"the model has {count}",
            f"say which is which: name the model's classes in `task.classes`, or write `{where}.class_map: {{name: index, ...}}`",
        )


def _unmatched(unplaced: Sequence[Category], counts: Mapping[Key, int], names: Sequence[str], where: str) -> DataError:
    said = [
        f"{category} ({counts[category.key]} objects{_near(category.name or '', [name for name in names if name not in GAPS])})"
        for category in unplaced
    ]
    first = unplaced[0].as_key
    return DataError(
        f"{where}: no class of the model ({len(names)}, `task.classes`) is called as the set's {shown(said)}",
        f"`{where}.class_map: {{{first}: name or index}}`, `{{{first}: null}}` to leave its objects out, "
        f'`{{"{OTHERS}": null}}` those of all that no class is called as, or correct `task.classes`',
    )


def _near(name: str, names: Sequence[str]) -> str:
    folded = {known.casefold(): known for known in names}
    close = get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.6)
    return f", near: {', '.join(folded[found] for found in close)}" if close else ""
