"""A list of pairs of images, genuine (of one identity) and impostor (of two): LFW's form, or two paths and 0 or 1 a line.

LFW's (http://vis-www.cs.umass.edu/lfw/README.txt): the first line has the number of folds and of pairs of each kind in a fold, or
that number alone (one fold); then `name n1 n2` for the n1-th and n2-th image of one identity, `name1 n1 name2 n2` for one each of
two; an image is <root>/<name>/<name>_%04d.<ext>. The simple form has no first line of numbers: `path1 path2 1`, paths below <root>,
1 for genuine and 0 for impostor; who is who follows from the genuine pairs. Columns are parted by tabs, or by spaces where a line
has no tab.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import DataError
from octavo.images.decode import EXTENSIONS
from octavo.images.formats.listed import Classes, Listed
from octavo.images.formats.places import annotations_path, refuse_outside, text_lines
from octavo.images.pairs import Pair, joined
from octavo.params.grammar import ImageSet

__all__ = ["PAIRS", "read"]

# What the list is called where `annotations` does not say.
PAIRS = "pairs.txt"


@dataclass(frozen=True)
class _Line:
    """A pair as the list has it: paths below the set's folder, and the line for errors."""

    first: str
    second: str
    same: bool
    entry: str
    fold: int | None = None


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:  # noqa: ARG001 - one signature for all readers
    """The images that the list names, each with its identity's number and the pairs of which it is the first.

    Raises:
        DataError: no list, an empty one, a malformed line, other numbers of pairs than the first line says, an image that is not
            there or leads out of the folder, an image paired with itself, or pairs that contradict each other.
    """
    file = annotations_path(root, images, where) or root / PAIRS
    if not file.is_file():
        raise DataError(f"{where}.annotations: no list of pairs {file}", "name it, or put it there as pairs.txt")
    rows = [(f"{file}:{number}", _columns(line)) for number, line in enumerate(text_lines(file), start=1) if line.strip()]
    if not rows:
        raise DataError(f"{file} is empty", "a list has a pair a line: `name n1 n2`, `name1 n1 name2 n2`, or `path1 path2 0|1`")
    numbers = rows[0][1]
    if len(numbers) <= 2 and all(word.isdecimal() for word in numbers):
        lines = _of_lfw(root, file, [int(word) for word in numbers], rows[1:])
        identity = {name: name.split("/")[0] for line in lines for name in (line.first, line.second)}
    else:
        lines = [_of_paths(root, entry, words) for entry, words in rows]
        names = {name for line in lines for name in (line.first, line.second)}
        identity = joined(names, [(line.first, line.second) for line in lines if line.same])
        _refuse_contradictions(lines, identity)
    return _listed(root, lines, identity)


def _listed(root: Path, lines: Sequence[_Line], identity: dict[str, str]) -> list[Listed]:
    place = {name: number for number, name in enumerate(sorted(set(identity.values())))}
    pairs: dict[str, list[Pair]] = defaultdict(list)
    for line in lines:
        pairs[line.first].append(Pair(line.second, line.same, line.fold))
    return [Listed(root / name, place[identity[name]], pairs=tuple(pairs.get(name, ()))) for name in sorted(identity)]


def _columns(line: str) -> list[str]:
    return [word.strip() for word in line.split("\t") if word.strip()] if "\t" in line.strip() else line.split()


def _of_lfw(root: Path, file: Path, numbers: Sequence[int], rows: Sequence[tuple[str, list[str]]]) -> list[_Line]:
    folds, each = numbers if len(numbers) == 2 else (1, numbers[0])
    if len(rows) != 2 * folds * each or not rows:
        raise DataError(
            f"{file}:1 says {folds} fold(s) of {each} genuine and {each} impostor pairs, {2 * folds * each} in all; "
            f"{len(rows)} follow",
            "correct the first line, or restore the list",
        )
    files = _Numbered(root)
    found = []
    for place, (entry, words) in enumerate(rows):
        fold = place // (2 * each) if folds > 1 else None
        if len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
            ends, same = ((words[0], words[1]), (words[0], words[2])), True
        elif len(words) == 4 and words[1].isdecimal() and words[3].isdecimal():
            ends, same = ((words[0], words[1]), (words[2], words[3])), False
        else:
            raise DataError(
                f"{entry}: {' '.join(words)!r} is neither `name n1 n2` nor `name1 n1 name2 n2`", "correct or remove the line"
            )
        if not same and words[0] == words[2]:
            raise DataError(f"{entry}: an impostor pair of one identity, {words[0]!r}", f"as a genuine pair: {words[0]} n1 n2")
        first, second = (files.find(name, int(number), entry) for name, number in ends)
        found.append(_line(first, second, same, entry, fold))
    for fold in range(folds):
        block = found[2 * each * fold : 2 * each * (fold + 1)]
        genuine = sum(line.same for line in block)
        if genuine != each:
            raise DataError(
                f"{block[0].entry}: fold {fold + 1} of {folds} begins here and has {genuine} genuine and {len(block) - genuine} "
                f"impostor pairs; the first line says {each} of each",
                "correct the first line, or restore the list",
            )
    return found


class _Numbered:
    """Files by an identity's name and a number, as LFW has them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._of: dict[str, dict[str, list[str]]] = {}

    def find(self, name: str, number: int, entry: str) -> str:
        refuse_outside(name, entry, self._root)
        if name not in self._of:
            self._of[name] = defaultdict(list)
            folder = self._root / name
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.suffix.lower() in EXTENSIONS:
                    self._of[name][path.stem].append(f"{name}/{path.name}")
        stem = f"{name}_{number:04d}"
        found = self._of[name].get(stem, [])
        if len(found) != 1:
            several = f"may be any of {', '.join(found)}" if found else f"is not there: no {self._root / name / stem}.jpg, .png ..."
            raise DataError(f"{entry}: image {number} of {name!r} {several}", "restore it, keep one of them, or remove the line")
        return found[0]


def _of_paths(root: Path, entry: str, words: Sequence[str]) -> _Line:
    if len(words) != 3 or words[2] not in ("0", "1"):
        raise DataError(
            f"{entry}: {' '.join(words)!r} is not `path1 path2 0` or `path1 path2 1`",
            "correct the line; a list in LFW's form begins with the number of folds and of pairs, or of pairs alone",
        )
    for name in words[:2]:
        refuse_outside(name, entry, root)
        if not (root / name).is_file():
            raise DataError(f"{entry}: no image {root / name}", f"name it by its path below {root}, restore it, or remove the line")
    first, second = ((root / name).relative_to(root).as_posix() for name in words[:2])
    return _line(first, second, words[2] == "1", entry)


def _line(first: str, second: str, same: bool, entry: str, fold: int | None = None) -> _Line:
    if first == second:
        raise DataError(f"{entry}: pairs {first} with itself", "correct or remove the line")
    return _Line(first, second, same, entry, fold)


def _refuse_contradictions(lines: Sequence[_Line], identity: dict[str, str]) -> None:
    for line in lines:
        if not line.same and identity[line.first] == identity[line.second]:
            raise DataError(
                f"{line.entry}: {line.first} and {line.second} are an impostor pair, and one identity by the list's genuine pairs",
                "correct one of these lines",
            )
