"""Markdown that shows what it is given: names and values cannot break a table, a mention, or GitHub's limit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LIMIT", "MARKER", "Section", "code", "compose", "folded", "plural", "table", "value"]

# The line by which CI finds its earlier comment.
MARKER = "<!-- octavo review -->"
# Characters; GitHub refuses 65,536, GitLab takes 1,000,000.
LIMIT = 60_000
# Of a value in a table.
WIDTH = 60


@dataclass(frozen=True)
class Section:
    """A part of the comment.

    Attributes:
        text: Markdown; what is always shown.
        more: what unfolds at a click; the first to go where the comment gets too long.
    """

    text: str
    more: str = ""


def code(text: object, width: int = 120) -> str:
    """A name or value that is not ours, as a code span on one line: nothing in it is Markdown, HTML or a mention.

    A bar would end a table's cell even there, so it is escaped, which GitHub and GitLab show as a bar.
    """
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", str(text)).strip() or " "
    line = line if len(line) <= width else f"{line[: width - 3]}..."
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}".replace("\\|", "|").replace("|", "\\|")


def value(found: Any) -> str:
    """A figure or setting in a cell; `-` where there is none."""
    if found is None:
        return "-"
    if isinstance(found, bool | str):
        return code(found if isinstance(found, str) else json.dumps(found), WIDTH)
    if isinstance(found, float):
        return f"{found:.6g}"
    return str(found) if isinstance(found, int) else code(json.dumps(found, ensure_ascii=False, default=str), WIDTH)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A table; cells are Markdown already.

    Args:
        right: columns of numbers.
    """
    marks = ["---:" if name in right else "---" for name in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in [columns, marks, *rows])


def folded(title: str, text: str) -> str:
    """What unfolds at a click; the empty lines are what makes the inside Markdown."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def plural(count: int, word: str, words: str | None = None) -> str:
    """`1 gate`, `2 gates`."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def compose(sections: Sequence[Section], limit: int = LIMIT) -> str:
    """Put the sections together, at most `limit` characters of them.

    What unfolds goes first, from the end; then sections are cut at a line, from the end. The first section always stays whole.
    """
    kept, gone = list(sections), 0
    for place in reversed(range(len(kept))):
        if _length(kept) <= limit:
            break
        if kept[place].more:
            kept[place], gone = Section(kept[place].text), gone + 1
    for place in reversed(range(1, len(kept))):
        over = _length(kept) - limit
        if over <= 0:
            break
        lines = kept[place].text.splitlines()
        while lines and over > -60:
            over -= len(lines.pop()) + 1
        kept[place] = Section("\n".join([*lines, "", "... cut off here: the comment would be too long."])) if lines else Section("")
        gone += not lines
    if gone:
        kept.append(Section(f"{plural(gone, 'part')} left out: the comment would be too long for a pull request."))
    return "\n\n".join(part for one in kept for part in (one.text, one.more) if part) + "\n"


def _length(sections: Sequence[Section]) -> int:
    # Characters as the service counts them, with the sentence that may be added.
    return sum(len(part) + 2 for one in sections for part in (one.text, one.more) if part) + 100
