"""``rollstream import``"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from rollstream.console.options import (
    CONFIG_FILE,
    TIMEOUT_S,
    AnswerTimeoutOption,
    AsJson,
    ConfigOption,
)
from rollstream.console.services import services_of
from rollstream.consumers import read_old_batches, write_rollout_groups
from rollstream.runtime.config.load import load_config


def import_batches(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSON Lines, or *.parquet.", metavar="FILE", exists=True, dir_okay=False
        ),
    ],
    environment: Annotated[
        str, typer.Option(help="Of rollouts that name none.", metavar="NAME")
    ] = "",
    config: ConfigOption = CONFIG_FILE,
    timeout_s: AnswerTimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Appends old rollouts to the data, from files with the metadata once a batch of rollouts.

    The sealers do it. Each rollout gets the metadata of its batch. What is in the data already is
    skipped, so you may run the command again after any failure. A batch that breaks a rule ends it
    with exit code 1. The message has file, line, field and value. Batches before it may be there.
    Samplers drop what is older than max_policy_lag.
    """
    services, settings = services_of(context), load_config(config)
    groups = chain.from_iterable(read_old_batches(file, environment) for file in files)
    with services.connected(settings, timeout_s) as broker:
        report = write_rollout_groups(
            settings.store.root,
            groups,
            config=settings,
            broker=broker,
            store=services.bounded_store(settings, timeout_s),
            clock=services.clock,
            timeout_s=timeout_s,
        )
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
        return
    groups_imported = f"{report.imported:,} group{'s'[: report.imported != 1]}"
    typer.echo(f"imported {groups_imported}, skipped {report.skipped:,}")
    for detail in report.details:
        typer.echo(detail)
