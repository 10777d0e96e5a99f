"""Prints tables and sentences: to a terminal in its width, else without wrapping a line."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table

UNWRAPPED_COLUMNS = 10_000  # Wider than any line; no table of ours fills it.


def show(view: RenderableType) -> None:
    """Prints to stdout. Programs that read it get each sentence, and each row, as one line."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=UNWRAPPED_COLUMNS)
    console.print(view)


def table_of(title: str, first: str, *numbers: str, last: str) -> Table:
    """An empty table for 80 columns: a row is one line, where only a long last text is folded."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold")
    return table
