"""Options that several commands take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from rollstream.runtime.logs import LogFormat


def _timeout(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise typer.BadParameter(f"{seconds:g} is no time; give a number of seconds above 0")
    return seconds


ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration.", metavar="FILE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        help="Of log lines, on stderr: json is an object a line.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        help="Seconds that the command may take.",
        metavar="SECONDS",
        callback=_timeout,
    ),
]
AnswerTimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        help="Seconds for each answer, however much is read.",
        metavar="SECONDS",
        callback=_timeout,
    ),
]
SamplerOption = Annotated[str, typer.Option(help="The sampler.", metavar="NAME")]
StepOption = Annotated[int, typer.Option(help="The trainer's step.", metavar="N")]
TrainerEpochOption = Annotated[
    int | None,
    typer.Option(help="Of a decision; by default the newest.", metavar="N"),
]
CONFIG_FILE = Path("rollstream.toml")
TIMEOUT_S = 60.0
