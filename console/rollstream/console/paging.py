"""Shows what is longer than a screen: on a terminal through $PAGER, else as it is."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from rich.console import Console, RenderableType

from rollstream.console.showing import show

PAGER = "less"
LESS = "FRX"  # As git has it: ends where all fits a screen, shows colours, leaves the text there.


def show_paged(view: RenderableType) -> None:
    """Prints to stdout; where that is a terminal, and somebody types there, by the pager."""
    console = Console()
    if not (console.is_terminal and sys.stdin.isatty()):
        show(view)
        return
    with console.capture() as captured:
        console.print(view, crop=False)
    text = captured.get()
    command = shlex.split(os.environ.get("PAGER", "")) or [PAGER]
    try:
        subprocess.run(
            command,
            input=text.encode(errors="replace"),
            env={"LESS": LESS, **os.environ},
            check=False,
        )
    except OSError:  # There is no such program.
        sys.stdout.write(text)
