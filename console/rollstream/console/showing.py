"""Prints tables and sentences: to a terminal in its width, else without wrapping a line."""

from __future__ import annotations

from rich.console import Console, RenderableType

UNWRAPPED_COLUMNS = 10_000  # Wider than any line; no table of ours fills it.


def show(view: RenderableType) -> None:
    """Prints to stdout. Programs that read it get each sentence, and each row, as one line."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=UNWRAPPED_COLUMNS)
    console.print(view)
