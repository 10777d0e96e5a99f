"""``rollstream audit``"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from rollstream.console.options import CONFIG_FILE, ConfigOption, JsonOption, TimeoutOption
from rollstream.console.services import services_of
from rollstream.console.views.audit import audit_view
from rollstream.consumers.audit import audit as run_audit
from rollstream.runtime.config.load import load_config

TIMEOUT_S = 600.0  # It reads every seal log from its beginning.


def register(app: typer.Typer) -> None:
    app.command("audit", epilog="Example: rollstream audit --config rollstream.toml")(audit)


def audit(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    digests: Annotated[
        bool, typer.Option("--digests", help="Also decode every row and compare its digest.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Accounts for every published record, and compares every file with its event.

    It holds where records = pending + sealed + settled and no file differs; else exit code 1.
    """
    services, settings = services_of(context), load_config(config)
    with services.broker(settings) as broker:
        report = run_audit(
            settings,
            broker=broker,
            store=services.store(settings),
            clock=services.clock,
            digests=digests,
            timeout_s=timeout_s,
        )
    if as_json:
        typer.echo(json.dumps({"holds": report.holds, **asdict(report)}, indent=2))
    else:
        Console().print(audit_view(report))
    if not report.holds:
        raise typer.Exit(1)
