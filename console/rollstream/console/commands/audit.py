"""``rollstream audit``"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollstream.console.options import CONFIG_FILE, AsJson, ConfigOption, TimeoutOption
from rollstream.console.services import services_of
from rollstream.console.showing import show, table_of
from rollstream.consumers.audit import AuditReport, PartitionAudit
from rollstream.consumers.audit import audit as run_audit
from rollstream.runtime.config.load import load_config

TIMEOUT_S = 600.0  # It reads every seal log from its beginning, and what ingest logs have kept.


def audit(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    digests: Annotated[
        bool, typer.Option("--digests", help="Also decode every row and compare its digest.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Accounts for every published entry, and compares every file with its event.

    It holds if entries + imported = pending + sealed + settled and no file differs. Otherwise the
    exit code is 1.
    """
    services, settings = services_of(context), load_config(config)
    with services.connected(settings, timeout_s) as broker:
        report = run_audit(
            settings,
            broker=broker,
            store=services.bounded_store(settings),
            clock=services.clock,
            digests=digests,
            timeout_s=timeout_s,
        )
    if as_json:
        typer.echo(json.dumps({"holds": report.holds, **asdict(report)}, indent=2))
    else:
        show(audit_view(report))
    if not report.holds:
        raise typer.Exit(1)


def audit_view(report: AuditReport) -> RenderableType:
    """A table with a row for each partition and environment, then what producers did wrong, the
    problems and the verdict."""
    title = "entries + imported = pending + sealed + settled"
    numbers = ("entries", "imported", "pending", "sealed", "groups", "files")
    table = table_of(title, "partition", *numbers, last="settled")
    for name in dict.fromkeys(row.environment for row in report.partitions):
        for row in report.partitions:
            if row.environment == name:
                _add(table, f"{name}[{row.partition}]", row, "")
        _add(table, name, report.environment(name), "bold")
    verdict = (
        Text("the audit holds", style="green")
        if report.holds
        else Text(f"THE AUDIT DOES NOT HOLD; problems: {len(report.problems)}", style="bold red")
    )
    mistakes = (Text(f"- by a producer: {one}", style="yellow") for one in report.mistakes)
    return Group(table, *mistakes, *(Text(f"- {one}") for one in report.problems), verdict)


def _add(table: Table, name: str, row: PartitionAudit, style: str) -> None:
    settled = ", ".join(f"{count:,} {reason}" for reason, count in sorted(row.settled.items()))
    of_log = (row.published, row.imported, row.pending, row.sealed)
    figures = (*of_log, row.groups, row.files)
    table.add_row(name, *(f"{figure:,}" for figure in figures), settled or "none", style=style)
