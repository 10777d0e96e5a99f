"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration.", metavar="FILE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds that the command may take.", metavar="SECONDS")
]
AnswerTimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", help="Seconds for each answer, however much is read.", metavar="SECONDS"
    ),
]
SamplerOption = Annotated[str, typer.Option(help="Whose.", metavar="NAME")]
StepOption = Annotated[int, typer.Option(help="Of the trainer.", metavar="N")]
TrainerEpochOption = Annotated[
    int | None,
    typer.Option(help="In which it was decided; else the newest.", metavar="N"),
]
CONFIG_FILE = Path("rollstream.toml")
TIMEOUT_S = 60.0
