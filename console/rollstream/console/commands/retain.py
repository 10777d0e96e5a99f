"""``rollstream retain``"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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
from rollstream.consumers.retention.limits import RetentionLimits
from rollstream.consumers.retention.plan import describe_held
from rollstream.consumers.retention.requests import (
    EnvironmentPlan,
    PartitionAnswer,
    plan_request,
    request_retention,
)
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def retain(
    context: typer.Context,
    older_than: Annotated[
        str | None,
        typer.Option(help="What was sealed longer ago: 90s, 30m, 12h, 7d.", metavar="AGE"),
    ] = None,
    keep_groups: Annotated[
        int | None,
        typer.Option(
            help="What an environment has beyond these, oldest first.", metavar="N", min=1
        ),
    ] = None,
    keep_groups_per_policy: Annotated[
        int | None, typer.Option(help="What a policy version has beyond these.", metavar="N", min=1)
    ] = None,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    environment: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be repeated.", metavar="NAME")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be retired, and what is not.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Deletes files of groups that every sampler is done with, because their batch is final or they
    were dropped. Then deletes what described these files, and what killed processes left.

    The sealers do it. Readers leave the files out at once. The files are deleted once every sampler
    has recorded that it knows. Exit code 1 if a sealer refuses or stops midway: it says why, and
    you may ask again. Exit code 1 also if a partition has no sealer that answers in time. The
    request then stands, and the next sealer that owns the partition carries it out.
    """
    age_us = None if older_than is None else round(_seconds(older_than) * 1e6)
    limits = RetentionLimits(age_us, keep_groups, keep_groups_per_policy)
    if limits == RetentionLimits():
        raise typer.BadParameter(
            "nothing says which files go; give --older-than, --keep-groups or "
            "--keep-groups-per-policy"
        )
    services, settings = services_of(context), load_config(config)
    wanted = environment or []
    with services.connected(settings, timeout_s) as broker:
        deadline = Deadline(timeout_s, services.clock)
        if dry_run:
            plans = plan_request(
                settings,
                broker,
                services.bounded_store(settings, timeout_s),
                limits=limits,
                environments=wanted,
                deadline=deadline,
            )
            lines = [_planned(plan) for plan in plans]
            rows = [asdict(plan) for plan in plans]
            failed = False
        else:
            answers = request_retention(
                settings,
                broker,
                limits=limits,
                environments=wanted,
                deadline=deadline,
            )
            lines = _answered(answers)
            rows = [asdict(answer) for answer in answers]
            failed = any(answer.refused or not answer.answered for answer in answers)
    typer.echo(json.dumps(rows, indent=2) if as_json else "\n".join(lines))
    if failed:
        raise typer.Exit(1)


def _planned(plan: EnvironmentPlan) -> str:
    parts = [f"{plan.environment}: {_files(plan.files)}, {plan.bytes:,} bytes would be retired"]
    if plan.held_files:
        parts.append(describe_held(plan.held_files, plan.held))
    if plan.manifests or plan.batches or plan.orphans:
        parts.append(
            f"{plan.manifests:,} manifests and roll-ups, {plan.batches:,} batch files and "
            f"{plan.orphans:,} orphans would be deleted"
        )
    return "; ".join(parts)


def _answered(answers: Sequence[PartitionAnswer]) -> list[str]:
    lines = []
    for name in sorted({answer.environment for answer in answers}):
        own = [answer for answer in answers if answer.environment == name]
        files, size = sum(one.files for one in own), sum(one.bytes for one in own)
        lines.append(f"{name}: {_files(files)}, {size:,} bytes were retired")
        lines += [
            f"{name}[{one.partition}]: {_how_it_ended(one)}{one.detail}"
            for one in own
            if one.detail
        ]
        lines += [
            f"{name}[{one.partition}]: {_files(one.files)} so far; the sealer that owns it goes on "
            "with the others (`rollstream seal`)"
            for one in own
            if one.files and not one.answered
        ]
        silent = [str(one.partition) for one in own if not one.answered and not one.files]
        if silent:
            lines.append(
                f"{name}: no sealer has answered for partitions {', '.join(silent)}; it is done "
                "once one owns them (`rollstream seal`)"
            )
    return lines


def _how_it_ended(answer: PartitionAnswer) -> str:
    if not answer.refused:
        return ""
    if not answer.files:
        return "refused: "
    stopped = f"stopped after {_files(answer.files)}"
    return f"{stopped}; what was retired stays so, ask again for the others: "


def _files(count: int) -> str:
    return f"{count:,} file{'s'[: count != 1]}"


def _seconds(age: str) -> float:
    unit = UNITS_S.get(age[-1:])
    try:
        count = float(age[:-1]) if unit else math.nan
    except ValueError:
        count = math.nan
    if unit is None or not 0 <= count < math.inf:
        raise typer.BadParameter(
            f"--older-than {age!r} is no age; give a number and a unit, such as 90s, 30m, 12h or 7d"
        )
    return count * unit
