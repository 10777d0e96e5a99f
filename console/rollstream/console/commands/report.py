"""``rollstream report``"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollstream.console.options import (
    CONFIG_FILE,
    AsJson,
    ConfigOption,
    SamplerOption,
    TimeoutOption,
)
from rollstream.console.page.look import page_of
from rollstream.console.rollout_text import one_line
from rollstream.console.services import services_of
from rollstream.console.showing import show, table_of
from rollstream.runtime.config.load import load_config
from rollstream.sampler.history import ReportRow, SamplerReport, report_of
from rollstream.sampler.history.report import TIMEOUT_S

FAILURES_SHOWN = 10  # Of an environment, the most frequent; --json has all.
REASON_SHOWN = 50  # Characters of why members failed; --json has all that is kept.


def report(
    context: typer.Context,
    sampler: SamplerOption,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    steps: Annotated[
        str, typer.Option(help="From step A on, before B; either may be left out.", metavar="A:B")
    ] = ":",
    by: Annotated[
        int | None, typer.Option(help="Steps in a row of the last table.", min=1, metavar="STEPS")
    ] = None,
    environment: Annotated[str | None, typer.Option(help="Of it alone.", metavar="NAME")] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write the page of the whole run there instead, from files alone where no broker "
            "answers.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Counts rollouts by what became of them: trained, served, waiting, dropped and why, or ended
    before they were sealed.

    The tables are by environment, length, lag and step. It reads the logs alone. If limits of age
    starve the longest rollouts, their row says so.
    """
    first, stop = _range_of(steps)
    services, settings = services_of(context), load_config(config)
    if html is not None:
        html.write_bytes(page_of(services, settings, sampler, timeout_s=timeout_s))
        typer.echo(f"wrote {html}")
        return
    with services.connected(settings, min(timeout_s, settings.kafka.timeout_s)) as broker:
        found = report_of(
            sampler,
            config=settings,
            first=first,
            stop=stop,
            environment=environment,
            steps_a_row=by,
            broker=broker,
            clock=services.clock,
            timeout_s=timeout_s,
        )
    if as_json:
        typer.echo(json.dumps(_object(found), indent=2))
    else:
        show(Group(*_tables(found)))


def _range_of(steps: str) -> tuple[int, int | None]:
    first, between, stop = steps.partition(":")
    if not between or not all(one.isdecimal() or not one for one in (first, stop)):
        raise typer.BadParameter(f"--steps {steps!r} is no range; give A:B, A: or :B")
    return int(first or 0), int(stop) if stop else None


def _tables(found: SamplerReport) -> Iterator[RenderableType]:
    parts: list[tuple[str, str, Mapping[Any, ReportRow]]] = [
        ("By environment", "environment", found.by_environment),
        ("By length", "output tokens", found.by_length),
        ("By lag", "steps of lag", found.by_lag),
        ("By step", "steps", found.by_steps),
    ]
    yield Text(f"Rollouts of {found.sampler}, whose next step is {found.next_step:,}")
    for title, first, rows in parts:
        columns = (first, "trained", "served", "waiting", "dropped", "share")
        table = table_of(title, *columns, last="why dropped, or not sealed; unfinished")
        for name, row in rows.items():
            _add(table, name if isinstance(name, str) else _named(name), row)
        if title == "By environment":
            _add(table, "all", found.totals, "bold")
        yield table
    if found.failures:
        table = table_of("Why members failed", "environment", "members", last="reason")
        for environment, reasons in found.failures.items():
            for reason, members in islice(reasons.items(), FAILURES_SHOWN):
                table.add_row(
                    environment, f"{members:,}", one_line(reason, REASON_SHOWN) or "others"
                )
        yield table
    for log, why in found.aside.items():
        yield Text(f"not counted: what {log} holds behind a record that cannot be read: {why}")
    if found.carry_lost:
        table = table_of("Would have been carried, but its file is lost", "group", last="why")
        for group_id, why in islice(found.carry_lost.items(), FAILURES_SHOWN):
            table.add_row(group_id, one_line(why, REASON_SHOWN))
        yield table


def _add(table: Table, name: str, row: ReportRow, style: str = "") -> None:
    share = "" if row.dropped_share is None else f"{row.dropped_share:.0%}"
    figures = (row.trained, row.served, row.waiting, sum(row.dropped.values()))
    why = [f"{count:,} {reason}" for reason, count in row.dropped.items()]
    why += [f"{count:,} {reason} before sealing" for reason, count in row.unsealed.items()]
    also = [f"{count:,} {reason}" for reason, count in row.unfinished.items()]
    others = ("unknown", row.unknown), ("kept", row.kept), ("eval", row.eval)
    also += [f"{count:,} {name}" for name, count in others if count]
    told = "; ".join(", ".join(part) for part in (why, also) if part)
    table.add_row(name, *(f"{one:,}" for one in figures), share, told, style=style)


def _named(bounds: tuple[int, int] | None) -> str:
    if bounds is None:
        return "not known"
    first, last = bounds
    if last < 0:
        return "below 0"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _object(found: SamplerReport) -> dict[str, Any]:
    tables: dict[str, tuple[str, Mapping[Any, ReportRow]]] = {
        "by_environment": ("environment", found.by_environment),
        "by_length": ("tokens", found.by_length),
        "by_lag": ("lag", found.by_lag),
        "by_steps": ("steps", found.by_steps),
    }
    return {
        "sampler": found.sampler,
        "next_step": found.next_step,
        "totals": _row(found.totals),
        **{
            table: [{key: name, **_row(row)} for name, row in rows.items()]
            for table, (key, rows) in tables.items()
        },
        "failures": found.failures,
        "carry_lost": found.carry_lost,
        "aside": found.aside,
    }


def _row(row: ReportRow) -> dict[str, Any]:
    return {**asdict(row), "dropped_share": row.dropped_share}
