"""``rollstream demo``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

FOLDER = Path("runs/demo")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo", epilog="Example: rollstream demo --chaos")(demo)


def demo(
    folder: Annotated[
        Path,
        typer.Option(
            help="Emptied first, if a demo wrote it; logs, files, pictures go there.",
            metavar="FOLDER",
        ),
    ] = FOLDER,
    chaos: Annotated[
        bool,
        typer.Option("--chaos", help="Kill a sealer, the sampler and an env replica meanwhile."),
    ] = False,
) -> None:
    """The main job on this machine: a Kafka, two environments, and a policy that learns."""
    # Imported here, since it brings Ray, matplotlib and the tasks: no other command waits for them.
    from rollstream.console.demo.run import run_demo  # noqa: PLC0415

    if not run_demo(folder, chaos=chaos, console=Console()):
        raise typer.Exit(1)
