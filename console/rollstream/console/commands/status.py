"""``rollstream status``"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollstream.console.options import CONFIG_FILE, TIMEOUT_S, AsJson, ConfigOption, TimeoutOption
from rollstream.console.services import services_of
from rollstream.console.showing import show, table_of
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.runtime.deadline import Deadline
from rollstream.streams.folds.sampler.remedies import describe_waiting
from rollstream.streams.status import (
    Figures,
    PartitionFigures,
    SamplerFigures,
    Verdict,
    first_stuck,
    measure,
)


def status(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Shows how far each stage is, and the first one that is stuck with the likely reason."""
    services, settings = services_of(context), load_config(config)
    with services.connected(settings, timeout_s) as broker:
        figures = measure(broker, settings, Deadline(timeout_s, services.clock))
    verdict = first_stuck(figures, settings)
    if as_json:
        typer.echo(json.dumps({**asdict(figures), "stuck": verdict._asdict()}, indent=2))
    else:
        show(status_view(figures, verdict, settings.samplers))


def status_view(
    figures: Figures, verdict: Verdict, samplers: Mapping[str, SamplerConfig]
) -> RenderableType:
    """A table of partitions, one of samplers (configured by ``samplers``), and the verdict."""
    parts: list[RenderableType] = []
    if figures.partitions:
        parts.append(_partitions(figures))
    if figures.samplers:
        parts.append(_samplers(figures))
        parts += [
            Text(line) for row in figures.samplers for line in _not_ready(row, samplers[row.name])
        ]
    if verdict.stage:
        parts.append(Text.assemble((f"stuck: {verdict.stage}", "bold red"), f" – {verdict.reason}"))
    else:
        parts.append(Text(verdict.reason, style="green"))
    return Group(*parts)


def _partitions(figures: Figures) -> Table:
    numbers = ("records", "newest", "backlog", "entries", "groups", "flushed")
    table = table_of("Sealing", "partition", *numbers, last="owner")
    for row in figures.partitions:
        table.add_row(
            f"{row.environment}[{row.partition}]",
            f"{row.ingest_end:,}",
            age(row.published_age_s),
            Text(f"{row.backlog:,}", style="yellow" if row.backlog else ""),
            _waiting(row),
            f"{row.groups:,}",
            age(row.flush_age_s),
            Text(row.owner or "none"),
        )
    return table


def _waiting(row: PartitionFigures) -> str:
    """Entries of the backlog; ~ where only the mean of other records is known, ? without any."""
    if row.waiting is None:
        return "?"
    return f"~{row.waiting:,}" if row.unread else f"{row.waiting:,}"


def _samplers(figures: Figures) -> Table:
    numbers = ("ready", "batches", "acked", "open", "next", "policy", "decided")
    table = table_of("Sampling", "sampler", *numbers, last="owner")
    for row in figures.samplers:
        table.add_row(
            Text(row.name),
            f"{row.ready:,}",
            f"{row.batches:,}",
            f"{row.acked:,}",
            f"{row.open_batches:,}",
            f"{row.next_step:,}",
            "none" if row.policy_step < 0 else f"{row.policy_step:,}",
            age(row.decision_age_s),
            Text(row.owner or "none"),
        )
    return table


def _not_ready(row: SamplerFigures, config: SamplerConfig) -> list[str]:
    lines = [
        f"{row.name}: {sentence}" for sentence in describe_waiting(row.waiting, row.name, config)
    ]
    if row.older:
        lines.append(
            f"{row.name}: {row.older:,} groups from before the dedupe horizon were neither served "
            "nor dropped; whether they are ready is not looked up here"
        )
    return lines


def age(seconds: float | None) -> str:
    """A span of seconds in the unit that fits; "never" for None."""
    if seconds is None:
        return "never"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
