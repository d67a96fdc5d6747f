"""Tables for both readers: rich ones on a terminal, aligned text that nothing is cut off for a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["heading", "show_table"]

Cell = str | int | None


def heading(text: str) -> None:
    """A line above what belongs together."""
    if sys.stdout.isatty():
        Console().print(f"\n[bold]{escape(text)}[/bold]", highlight=False)
    else:
        print(f"\n{text}")


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[str] = ()) -> None:
    """Print rows under a header line.

    Args:
        columns: their headings; all empty: none is printed.
        rows: a cell a column; None is `-`.
        right: headings of the columns of numbers.
    """
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        table = Table(show_header=any(columns), box=None, pad_edge=False)
        for name in columns:
            table.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in texts:
            table.add_row(*map(escape, row))
        Console().print(table, highlight=False)
        return
    lines = ([list(columns)] if any(columns) else []) + texts
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))] if lines else []
    for line in lines:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(line, widths, columns, strict=True)
        ]
        print("  ".join(cells).rstrip())
