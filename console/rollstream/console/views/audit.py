"""The table of ``rollstream audit``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollstream.consumers.audit import AuditReport, PartitionAudit


def audit_view(report: AuditReport) -> RenderableType:
    """A table with a row for each partition and environment, then the problems and the verdict."""
    table = Table(title="records = pending + sealed + settled", title_justify="left", box=None)
    table.add_column("partition")
    for heading in ("records", "pending", "sealed", "groups", "files"):
        table.add_column(heading, justify="right")
    table.add_column("settled")
    for name in dict.fromkeys(row.environment for row in report.partitions):
        for row in report.partitions:
            if row.environment == name:
                _add(table, f"{name}[{row.partition}]", row, "")
        _add(table, name, report.environment(name), "bold")
    verdict = (
        Text("the audit holds", style="green")
        if report.holds
        else Text(f"THE AUDIT DOES NOT HOLD: {len(report.problems)} problems", style="bold red")
    )
    return Group(table, *(Text(f"- {problem}") for problem in report.problems), verdict)


def _add(table: Table, name: str, row: PartitionAudit, style: str) -> None:
    settled = ", ".join(f"{count:,} {reason}" for reason, count in sorted(row.settled.items()))
    figures = (row.published, row.pending, row.sealed, row.groups, row.files)
    table.add_row(name, *(f"{figure:,}" for figure in figures), settled or "none", style=style)
