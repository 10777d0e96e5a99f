"""``rollstream flush``"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rollstream.console.options import (
    CONFIG_FILE,
    TIMEOUT_S,
    AsJson,
    ConfigOption,
    TimeoutOption,
)
from rollstream.console.services import services_of
from rollstream.consumers.sealing.flush_requests import FlushAnswer, request_flush
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline


def flush(
    context: typer.Context,
    environment: Annotated[str, typer.Option(help="Whose groups.", metavar="NAME")],
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    force: Annotated[
        bool, typer.Option("--force", help="Also groups with fewer than min_group_size members.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Seals the pending groups of an environment now, and waits until they are committed.

    The sealers do it. Rollouts that arrive later begin new groups. Exit code 1 if a partition has
    no sealer that answers in time. The request then stands, and the next sealer that owns the
    partition carries it out.
    """
    services, settings = services_of(context), load_config(config)
    with services.connected(settings, timeout_s) as broker:
        answers = request_flush(
            settings,
            broker,
            environment=environment,
            force=force,
            deadline=Deadline(timeout_s, services.clock),
        )
    if as_json:
        typer.echo(json.dumps([asdict(answer) for answer in answers], indent=2))
    else:
        for answer in answers:
            typer.echo(f"{answer.environment}[{answer.partition}]: {_told(answer)}")
    if any(answer.refused or not answer.answered for answer in answers):
        raise typer.Exit(1)


def _told(answer: FlushAnswer) -> str:
    if answer.refused:
        return f"refused: {answer.detail}"
    parts = []
    if answer.groups:
        parts.append(
            f"sealed {answer.groups:,} group{'s'[: answer.groups != 1]}, "
            f"{answer.rows:,} row{'s'[: answer.rows != 1]}"
        )
    if not answer.answered:
        parts.append(
            "no sealer has answered; the request stands, and it is carried out once one owns the "
            "partition (`rollstream seal`)"
        )
    if answer.detail:
        parts.append(answer.detail)
    return "; ".join(parts) or "nothing was pending"
