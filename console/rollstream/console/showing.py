"""Prints tables and sentences: to a terminal in its width, else without wrapping a line."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

UNWRAPPED_COLUMNS = 10_000  # Wider than any line; no table of ours fills it.


def show(view: RenderableType) -> None:
    """Prints to stdout. Programs that read it get each sentence, and each row, as one line."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=UNWRAPPED_COLUMNS)
    console.print(view, crop=False)


def indented(line: str) -> RenderableType:
    """A sentence that belongs to the line above it; folded, it stays below that."""
    return Padding(Text(line), (0, 0, 0, 2), expand=False)


def path_of(path: str) -> RenderableType:
    """A path on a line of its own, whole in any terminal, so that it can be copied."""
    return Text(f"  {path}", no_wrap=True, overflow="ignore")


def table_of(title: str, first: str, *numbers: str, last: str) -> Table:
    """An empty table for 80 columns: a row is one line, where only a long last text is folded."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold")
    return table
