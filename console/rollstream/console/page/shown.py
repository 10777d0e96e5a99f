"""What the page shows of a run, as an object for JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.history import SamplerReport
from rollstream.sampler.history.report_rows import Bounds
from rollstream.sampler.history.run import Lines, RolloutRow, RunSeries, bin_of
from rollstream.schemas.ids import PartitionAddress
from rollstream.status import Verdict
from rollstream.store.rollups import VisibleFile

Axis = Literal["step", "weight step", "time"]
_LATE = "Late scores count once they are in files, about a minute after they came."


@dataclass(frozen=True, slots=True, kw_only=True)
class FromLogs:
    """What only logs tell.

    Attributes:
        report: of the sampler. stuck: every stage that is.
    """

    report: SamplerReport
    stuck: Sequence[Verdict]


def run_object(
    name: str,
    series: RunSeries,
    logs: FromLogs | None,
    *,
    without_logs: str,
    unreadable: Mapping[str, str],
    now_ts: int,
) -> dict[str, Any]:
    """The page's object.

    Args:
        logs: None: they were not read. without_logs: why.
        now_ts: microseconds, as log times.
    """
    report = None if logs is None else logs.report
    return {
        "name": name,
        "now_ts": now_ts,
        "from": "its logs and files" if logs else f"its files alone: {without_logs}",
        "facts": _facts(series, report),
        "stuck": [] if logs is None else [one._asdict() for one in logs.stuck],
        "knows_stuck": logs is not None,
        "charts": _charts(series, report),
        "failures": [
            [environment, reason or "others", members]
            for environment, reasons in (report or series).failures.items()
            for reason, members in reasons.items()
        ],
        "notes": _notes(report, unreadable),
    }


def row_object(row: RolloutRow) -> dict[str, Any]:
    """A row of the table."""
    shown = row._asdict()
    del shown["file"]
    return {**shown, "key": key_of(row.file, row.uid)}


def key_of(file: VisibleFile, uid: str) -> str:
    """The rollout of this uid in this file, as the page names it."""
    return json.dumps([*file.address, file.offset, file.path, uid])


def named_by(key: str) -> tuple[VisibleFile, str] | None:
    """The file and the uid that a key names; None: it is none."""
    try:
        environment, generation, partition, offset, path, uid = json.loads(key)
    except (ValueError, TypeError, RecursionError):
        return None
    return VisibleFile(PartitionAddress(environment, generation, partition), offset, path), uid


def _facts(series: RunSeries, report: SamplerReport | None) -> list[tuple[str, int | str]]:
    facts: list[tuple[str, int | str]] = [
        ("steps", series.steps),
        ("rollouts sealed", series.rollouts),
        ("groups", series.groups),
    ]
    if report is not None:
        totals = report.totals
        facts += [
            ("trained", totals.trained),
            ("in open batches", totals.served),
            ("waiting", totals.waiting),
            ("dropped", sum(totals.dropped.values())),
        ]
    times = {"newest flush": series.sealed_ts, "newest batch": series.served_ts}
    return [*facts, *((name, f"@{ts}") for name, ts in times.items() if ts)]


def _charts(series: RunSeries, report: SamplerReport | None) -> list[dict[str, Any]]:
    merged = "" if series.steps_a_point == 1 else f" A point is {series.steps_a_point} steps."
    waits, ready = series.waits, _ready(series, report)
    return [
        _chart("Reward by environment", "step", series.reward, f"Mean of a step. {_LATE}{merged}"),
        _chart(
            "Reward by policy",
            "weight step",
            series.policy_reward,
            f"Of all sealed rollouts, by the weights that sampled them.{merged}",
        ),
        _chart(
            "Evaluation",
            "weight step",
            series.evaluation,
            "Rollouts of split eval alone; they are in no other chart of rewards.",
        ),
        _chart("Lag", "step", series.lag, "Steps behind the newest weights at the decision."),
        _chart("Ready groups", "step", ready[0], ready[1]),
        _chart("Waits", "step", waits, "Seconds, mean of a step.", logarithmic=True),
        _chart("Throughput by stage", "time", series.throughput, "Rollouts a second."),
        _dropped(series, report),
        _lengths(series, report),
    ]


def _chart(
    title: str, axis: Axis, lines: Lines, note: str, *, logarithmic: bool = False
) -> dict[str, Any]:
    return {
        "title": title,
        "note": note.strip(),
        "axis": axis,
        "kind": "logarithmic" if logarithmic else "lines",
        "x": lines.x,
        # Half the digits: a screen shows no more.
        "lines": [[name, values.astype(np.float32)] for name, values in lines.lines.items()],
    }


def _ready(series: RunSeries, report: SamplerReport | None) -> tuple[Lines, str]:
    if report is None:
        note = "Sealed and in no batch yet; files do not tell which of these were dropped."
        return series.ready, note
    steps = np.array([*report.ready], np.int64)
    counts = np.array([*report.ready.values()], np.float64)
    size = bin_of(int(steps[-1] - steps[0]) + 1) if len(steps) else 1
    starts = np.flatnonzero(np.diff(steps // size, prepend=-1))
    means = np.add.reduceat(counts, starts) / np.diff(starts, append=len(steps))
    return Lines(steps[starts].astype(np.float64), {"ready": means}), "Once a step was decided."


def _dropped(series: RunSeries, report: SamplerReport | None) -> dict[str, Any]:
    if report is None:
        note = "Settled before sealing. What the sampler dropped only its logs tell."
        chart = _chart("Drops by reason", "step", series.ended, note)
    else:
        x = np.array([first for first, _ in report.by_steps], np.float64)
        lines: dict[str, NDArray[np.float64]] = {}
        for at, row in enumerate(report.by_steps.values()):
            before = {f"{reason} (not sealed)": n for reason, n in row.unsealed.items()}
            for reason, count in {**row.dropped, **before}.items():
                lines.setdefault(reason, np.zeros(len(x)))[at] = count
        chart = _chart("Drops by reason", "step", Lines(x, lines), "Rollouts.")
    return {**chart, "kind": "stacked"}


def _lengths(series: RunSeries, report: SamplerReport | None) -> dict[str, Any]:
    if report is None:
        note = "Rollouts by output tokens. Whether a batch was trained on only logs tell."
        bounds = [one for one, _, _ in series.by_length]
        parts = {
            "in a batch": [taken for _, taken, _ in series.by_length],
            "in none": [left for _, _, left in series.by_length],
        }
    else:
        note = "Rollouts by output tokens."
        rows = {one: row for one, row in report.by_length.items() if one is not None}
        bounds = [*rows]
        parts = {
            "trained": [row.trained for row in rows.values()],
            "open or waiting": [
                row.served + row.waiting + row.kept + row.unknown for row in rows.values()
            ],
            "dropped": [sum(row.dropped.values()) for row in rows.values()],
        }
    lines = {name: np.array(counts, np.float64) for name, counts in parts.items()}
    chart = _chart(
        "Length against what was trained",
        "step",
        Lines(np.arange(len(bounds), dtype=np.float64), lines),
        note,
    )
    return {**chart, "kind": "stacked", "labels": [_label(one) for one in bounds]}


def _label(bounds: Bounds) -> str:
    first, last = bounds
    return f"{first}" if first == last else f"{first}–{last}"


def _notes(report: SamplerReport | None, unreadable: Mapping[str, str]) -> list[str]:
    notes = [f"{path} was passed over: {why}" for path, why in unreadable.items()]
    if report is not None:
        notes += [
            f"not counted, behind a record of {log}: {why}" for log, why in report.aside.items()
        ]
        notes += [
            f"group {group} would have been carried, but its file is lost: {why}"
            for group, why in report.carry_lost.items()
        ]
    return notes
