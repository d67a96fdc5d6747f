"""Progress bars on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import track as _track

__all__ = ["advancing", "say", "track", "working"]

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a bar on stderr where that is a terminal; quiet where it is not.

    Args:
        what: a few words on what is going on.
        total: how many items, where `items` has no length.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    count = len(items) if total is None and isinstance(items, Sized) else total
    yield from _track(items, description=what, total=count, console=Console(stderr=True), transient=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner while something of unknown length goes on."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


@contextmanager
def advancing(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal, that is told (done, of all)."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)


def say(line: str) -> None:
    """One line of what was done, for the log."""
    print(line, flush=True)
