"""``rollstream lineage``"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rollstream.console.options import (
    CONFIG_FILE,
    AsJson,
    ConfigOption,
    TimeoutOption,
    TrainerEpochOption,
)
from rollstream.console.rollout_text import failures_told, utc_time
from rollstream.console.services import services_of
from rollstream.console.showing import indented, path_of, show
from rollstream.runtime.config.load import load_config
from rollstream.sampler.history import (
    RolloutLineage,
    SamplerLineage,
    StepLineage,
    Use,
    lineage_of_rollout,
    lineage_of_step,
)
from rollstream.sampler.history.lineage import TIMEOUT_S
from rollstream.streams.tracing import TracedEntry

_WITHOUT = {False: "left out of the batch", True: "not kept for this step"}  # By what is carried.


def lineage(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    sampler: Annotated[
        str | None, typer.Option(help="Whose step; with --uid: only this one.", metavar="NAME")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Of the trainer.", metavar="N")] = None,
    trainer_epoch: TrainerEpochOption = None,
    uid: Annotated[
        str | None, typer.Option(help="A rollout's, or a trajectory's of steps.", metavar="UID")
    ] = None,
    since_hours: Annotated[
        float | None,
        typer.Option(help="With --uid: published within so many hours.", metavar="HOURS", min=0),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """From a step to its groups, their files and rows, their entries in the ingest log and their
    env replicas (--sampler, --step); or back from a rollout: where it is, why it was dropped, and
    which steps trained on it (--uid). A trajectory's uid names a rollout of each prompt that has
    one of that uid. From the logs alone.
    """
    if (step is None) == (uid is None) or uid == "":
        raise typer.BadParameter("give --sampler and --step, or --uid with a rollout's uid")
    services, settings = services_of(context), load_config(config)
    found: StepLineage | tuple[RolloutLineage, ...]
    with services.connected(settings, min(timeout_s, settings.kafka.timeout_s)) as broker:
        if step is None:
            assert uid is not None
            found = lineage_of_rollout(
                uid,
                config=settings,
                sampler=sampler,
                since_hours=since_hours,
                broker=broker,
                clock=services.clock,
                timeout_s=timeout_s,
            )
        elif sampler is None:
            raise typer.BadParameter("--step needs --sampler: whose step it is")
        else:
            found = lineage_of_step(
                sampler,
                step,
                config=settings,
                trainer_epoch=trainer_epoch,
                broker=broker,
                clock=services.clock,
                timeout_s=timeout_s,
            )
    if isinstance(found, StepLineage):
        shown: Any = asdict(found)
        view = _step_view(found)
    else:
        shown = [asdict(one) for one in found]
        each = (_rollout_view(one, several=len(found) > 1) for one in found)
        view = Group(*chain.from_iterable(each), *_unread(found[0].since_ts))
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
    else:
        show(view)


def _step_view(found: StepLineage) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"Step {found.step} of {found.sampler}, trainer epoch {found.trainer_epoch}")
    ]
    for one in found.groups:
        origin, mask = one.origin, one.use.row_mask
        parts += [Text(f"slot {one.use.slot}: group {origin.group_id}"), path_of(origin.path)]
        parts += map(indented, failures_told(origin))
        for row in origin.segments:
            out = "" if one.use.outcomes is None else f", {one.use.outcomes[row.index]}"
            if mask is not None and not mask[row.index]:
                out = f", {_WITHOUT[one.use.carried]}"
            at = _entry(origin.environment, origin.partition, row.offset, row.entry)
            segment = _segment(row.rollout_uid, row.segment_idx)
            parts.append(indented(f"row {row.row}: {segment} from {row.replica_id}, {at}{out}"))
    lines = [
        f"in slot {one.use.slot} before: group {one.origin.group_id}, {_ended(one.use)}"
        for one in found.replaced
    ]
    states = sorted({one.use.state for one in found.groups})
    return Group(*parts, *map(Text, lines), Text(f"the batch: {', '.join(states)}"))


def _rollout_view(found: RolloutLineage, *, several: bool) -> Iterator[RenderableType]:
    if several:
        groups = {entry.group.group_uid: None for entry in found.entries if entry.group}
        yield Text(f"rollout {found.rollout_uid} of {', '.join(groups) or 'no sealed group'}")
    for entry in found.entries:
        at = _entry(entry.environment, entry.partition, entry.offset, entry.entry)
        replica = "" if entry.replica_id is None else f" from {entry.replica_id}"
        segment = _segment(found.rollout_uid, entry.segment_idx)
        yield Text(f"{segment}{replica}, {at}: {_state(entry)}")
        if entry.group is not None:
            yield path_of(entry.group.path)
            yield from map(indented, failures_told(entry.group))
    for sampler in found.samplers:
        yield from map(Text, _sampler_lines(sampler))


def _unread(since_ts: int) -> Iterator[Text]:
    if since_ts:
        yield Text(
            f"seal logs were read from {utc_time(since_ts)} on; --since-hours reads older entries"
        )


def _state(entry: TracedEntry) -> str:
    if entry.group is None:
        return f"{entry.state}{entry.detail and f', {entry.detail}'}"
    group = entry.group
    rows = ", ".join(str(row.row) for row in group.segments if row.offset == entry.offset)
    kept = " (split eval: never served)" if group.split == "eval" else ""
    return (
        f"sealed in group {group.group_id}{kept}, row {rows}{entry.detail and f'; {entry.detail}'}"
    )


def _sampler_lines(found: SamplerLineage) -> Iterator[str]:
    for use in found.uses:
        kept = ", kept for it by the step before" if use.carried else ""
        where = f"step {use.step}, slot {use.slot} of {use.batch_id}{kept}"
        yield f"{found.sampler}: {where}: {_ended(use)}"
    for drop in found.drops:
        yield f"{found.sampler}: dropped, {drop.reason}{drop.detail and f': {drop.detail}'}"
    if not found.uses and not found.drops:
        yield f"{found.sampler}: neither served nor dropped"


def _ended(use: Use) -> str:
    acked = "" if use.acked is None or use.acked == use.state else f", acked as {use.acked}"
    return f"{use.state}{acked}{use.detail and f': {use.detail}'}"


def _segment(uid: str, index: int) -> str:
    return uid if index <= 0 else f"{uid}, segment {index}"


def _entry(environment: str, partition: int, offset: int, entry: int) -> str:
    return f"{environment}[{partition}] offset {offset}, entry {entry}"
