"""How far each stage is, as tables and sentences for 80 columns or more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollstream.console.showing import table_of
from rollstream.folds.remedies import describe_waiting, given_up_without_bound
from rollstream.schemas.choosing import Choosing
from rollstream.status import (
    ERROR,
    AdmissionFigures,
    ContinuationFigures,
    Figures,
    PartitionFigures,
    SamplerFigures,
    Verdict,
)

_BACKLOG = "backlog: records read again at a restart; entries: what is open in them"
PARTITIONS_MAX = 16  # Beyond it a screen shows environments, and of partitions those in trouble.


class Look(NamedTuple):
    """What was found, the stages that are stuck, and samplers as they are configured."""

    figures: Figures
    stuck: Sequence[Verdict]
    samplers: Mapping[str, Choosing]


def status_view(
    figures: Figures, stuck: Sequence[Verdict], samplers: Mapping[str, Choosing]
) -> RenderableType:
    """Returns what ``stages_view`` and ``stuck_view`` return, one below the other."""
    return Group(stages_view(figures, samplers), stuck_view(figures, stuck))


def stages_view(figures: Figures, samplers: Mapping[str, Choosing]) -> RenderableType:
    """Returns tables of publishing, sealing and sampling (by samplers as they are configured), and
    what else is to be known, a line each."""
    parts: list[RenderableType] = []
    if figures.partitions:
        parts += [_publishing(figures), _sealing(figures)]
        if any(row.backlog for row in figures.partitions):
            # No caption: rich wraps those to the width of the table.
            parts.append(Text(_BACKLOG))
    if figures.samplers:
        parts.append(_sampling(figures))
        parts += [
            Text(line) for row in figures.samplers for line in _notes(row, samplers[row.name])
        ]
        if given_up := given_up_without_bound({s.name: samplers[s.name] for s in figures.samplers}):
            parts.append(Text(given_up))
    parts += [Text(_admission(one)) for one in figures.admission if one.waiting and one.told_by]
    parts += [Text(f"off: {line}", style="yellow") for line in figures.topics_off]
    parts += [
        Text(
            f"retention: sealers with this configuration retire no files: sampler {name!r} has a "
            f"decision log and may need them; add [samplers.{name}], or, where it is gone for "
            "good, delete its topic",
            style="yellow",
        )
        for name in figures.unnamed_samplers
    ]
    parts += [
        Text(
            f"foreign: no sealer wrote {row.foreign:,} records of the seal log of {row.environment}"
            f"[{row.partition}], and they are passed over; take the right to write to it from "
            "whoever did",
            style="yellow",
        )
        for row in figures.partitions
        if row.foreign
    ]
    parts += [
        Text(_continuations(row), style="yellow") for row in figures.partitions if row.continuations
    ]
    letters = figures.dead_letters
    if letters.kept:
        newest = (
            ""
            if letters.newest_age_s is None
            else f", the newest {age(letters.newest_age_s)} ago: {letters.newest_from}: "
            f"{letters.newest_reason}"
        )
        line = f"dead letters: {letters.kept:,}{newest}; see `rollstream deadletters list`"
        parts.append(Text(line, style="yellow"))
    return Group(*parts)


def stuck_view(figures: Figures, stuck: Sequence[Verdict]) -> RenderableType:
    """Returns a line for each stage that is stuck, or one that says that none is."""
    if not stuck:
        over = "the run is over" if figures.over else "nothing is stuck"
        return Text(over, style="green")
    return Group(
        *(
            Text.assemble(
                (f"stuck: {verdict.stage}", "bold red" if verdict.level == ERROR else "yellow"),
                f" – {verdict.reason}",
            )
            for verdict in stuck
        )
    )


def _by_environment(figures: Figures) -> dict[str, list[PartitionFigures]]:
    rows: dict[str, list[PartitionFigures]] = {}
    for row in figures.partitions:
        rows.setdefault(row.environment, []).append(row)
    return rows


def _publishing(figures: Figures) -> Table:
    numbers = ("records", "entries/s", "newest", "lost")
    table = table_of("Publishing", "environment", *numbers, last="sealers")
    for name, rows in _by_environment(figures).items():
        rate = sum(row.records_per_s * row.entries_per_record for row in rows)
        # Where records have more than one entry each, that is the mean of those that were read.
        exact = all(row.entries_per_record == 1.0 for row in rows)
        table.add_row(
            name,
            f"{sum(row.ingest_end for row in rows):,}",
            f"{'' if exact else '~'}{rate:,.1f}",
            age(_newest([row.published_age_s for row in rows])),
            f"{sum(row.lost for row in rows):,}",
            f"{figures.sealers.get(name, 0):,}",
        )
    return table


def _sealing(figures: Figures) -> Table:
    numbers = ("backlog", "entries", "groups", "groups/s", "flushed")
    table = table_of("Sealing", "partition", *numbers, last="sealer")
    every = len(figures.partitions) <= PARTITIONS_MAX
    for name, rows in _by_environment(figures).items():
        for row in rows:
            if every or row.put_aside or (row.backlog and row.held is False):
                _add(table, f"{name}[{row.partition}]", [row], _sealer(row))
        if len(rows) > 1:
            _add(table, name, rows, Text(""), "bold")
    return table


def _add(
    table: Table, name: str, rows: Sequence[PartitionFigures], sealer: Text, style: str = ""
) -> None:
    backlog = sum(row.backlog for row in rows)
    table.add_row(
        name,
        Text(f"{backlog:,}", style="yellow" if backlog else ""),
        _waiting(rows),
        f"{sum(row.groups for row in rows):,}",
        f"{sum(row.groups_per_s for row in rows):,.1f}",
        age(_newest([row.flush_age_s for row in rows])),
        sealer,
        style=style,
    )


def _sealer(row: PartitionFigures) -> Text:
    if row.put_aside:
        return Text(f"{row.owner or 'none'}, put aside", style="red")
    if row.held is None:
        return Text(f"{row.owner or 'none'}, changing", style="yellow")
    if row.held or not row.owner:
        return Text(row.owner or ("claiming" if row.held else "none"))
    return Text(f"{row.owner}, gone", style="red")


def _waiting(rows: Sequence[PartitionFigures]) -> str:
    """Entries of the backlog; ~ where only the mean of other records is known, ? without any."""
    known = [row.waiting for row in rows if row.waiting is not None]
    if len(known) < len(rows):
        return "?"
    return f"{'~' if any(row.unread for row in rows) else ''}{sum(known):,}"


def _newest(ages_s: Sequence[float | None]) -> float | None:
    return min((age_s for age_s in ages_s if age_s is not None), default=None)


def _sampling(figures: Figures) -> Table:
    numbers = ("ready", "batches", "/min", "open", "next", "policy", "decided")
    table = table_of("Sampling", "sampler", *numbers, last="owner")
    for row in figures.samplers:
        table.add_row(
            Text(row.name),
            f"{row.ready:,}",
            f"{row.batches:,}",
            f"{row.batches_per_minute:,}",
            f"{row.open_batches:,}",
            f"{row.trainer_step:,}",
            "none" if row.policy_step < 0 else f"{row.policy_step:,}",
            age(row.decision_age_s),
            Text(row.owner or "none"),
        )
    return table


def _notes(row: SamplerFigures, choosing: Choosing) -> list[str]:
    lines = [
        f"{row.name}: {sentence}" for sentence in describe_waiting(row.waiting, row.name, choosing)
    ]
    if row.older:
        lines.append(
            f"{row.name}: {row.older:,} groups from before the dedupe horizon were neither served "
            "nor dropped; whether they are ready, or evaluations, is not looked up here"
        )
    if row.ready and not row.owner and not row.lost:
        lines.append(
            f"{row.name}: was never started, and {row.ready:,} groups are ready for it; attach a "
            "trainer to it, or remove its section"
        )
    if row.over:
        lines.append(f"{row.name}: the run was finished {age(row.decision_age_s)} ago")
    return lines


def _continuations(row: PartitionFigures) -> str:
    named = [
        f"segment {one.segment_idx} of {one.uid} ({_whose(one)}) waits for {one.continues} since "
        f"{age(one.age_s)}"
        for one in row.continuing
    ]
    more = row.continuations - len(named)
    rest = f"; and {more:,} more" if more else ""
    return (
        f"{row.environment}[{row.partition}]: {row.continuations:,} trajectories wait for a "
        "rollout that they continue, and end as broken_chain if it does not come within "
        "expire_after_s: "
        f"{'; '.join(named)}{rest}"
    )


def _whose(one: ContinuationFigures) -> str:
    return f"group {one.group_uid}" if one.group_uid else f"example {one.example_id}"


def _admission(row: AdmissionFigures) -> str:
    by = " and ".join(f"{name} by {limit or 'its limits'}" for name, limit in row.told_by.items())
    return (
        f"{row.environment}: {row.waiting} of {row.producers} producers wait for admission, which "
        f"grants no more: {by}"
    )


def age(seconds: float | None) -> str:
    """A span of seconds in the unit that fits; "never" for None."""
    if seconds is None:
        return "never"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
