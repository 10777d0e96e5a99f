"""``rollstream replay``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from rollstream.console.options import (
    CONFIG_FILE,
    AsJson,
    ConfigOption,
    SamplerOption,
    StepOption,
    TimeoutOption,
    TrainerEpochOption,
)
from rollstream.console.services import Services, services_of
from rollstream.console.showing import show, table_of
from rollstream.runtime.config.load import load_config
from rollstream.sampler.history import FileCheck, Replayed, check_from_files, replay_step
from rollstream.sampler.history.replay import TIMEOUT_S
from rollstream.schemas.events import Replaced
from rollstream.store import read_root_id
from rollstream.store.bounded import open_bounded


def replay(
    context: typer.Context,
    sampler: SamplerOption,
    step: StepOption,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    trainer_epoch: TrainerEpochOption = None,
    from_files: Annotated[
        bool,
        typer.Option(
            "--from-files",
            help="Without Kafka: read the rows, and compare them with the decision under batches/.",
        ),
    ] = False,
    root: Annotated[
        str | None,
        typer.Option(
            help="With --from-files: the store's root; no configuration is read.", metavar="URI"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decides a served batch again from the logs, and compares it with the record. Exit code 1 if
    they differ.
    """
    if root is not None and not from_files:
        raise typer.BadParameter("--root goes with --from-files; logs are found by --config")
    services = services_of(context)
    found: dict[str, Any] = {"sampler": sampler, "step": step}
    if from_files:
        store = open_bounded(root) if root is not None else _store(services, config)
        check = check_from_files(sampler, step, store=store, trainer_epoch=trainer_epoch)
        same, lines = check.same, Group(*_of_files(check))
        found |= {"same": same, "recorded": check.recorded.hex(), "found": check.found.hex()}
        root_id = read_root_id(store).root_id
        found |= {"differing": check.differing, "root_id": root_id}
        lines.renderables.append(Text(f"root {root_id or 'without an id'}"))
    else:
        settings = load_config(config)
        with services.connected(settings, min(timeout_s, settings.kafka.timeout_s)) as broker:
            replayed = replay_step(
                sampler,
                step,
                config=settings,
                trainer_epoch=trainer_epoch,
                broker=broker,
                clock=services.clock,
                timeout_s=timeout_s,
            )
        same, lines = all(one.same for one in replayed), Group(_table(step, replayed))
        found |= {"same": same, "decisions": [_shown(one) for one in replayed]}
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(Group(lines, _verdict(sampler, step, same=same)))
    if not same:
        raise typer.Exit(1)


def _store(services: Services, config: Path) -> Any:
    return services.bounded_store(load_config(config))


def _table(step: int, replayed: list[Replayed]) -> Any:
    table = table_of(f"Decisions for step {step}", "batch", "offset", "groups", last="decided now")
    for one in replayed:
        others = [
            f"{was.group_id} was chosen, now {now}"
            for was, now in zip(one.event.groups, one.group_ids, strict=False)
            if was.group_id != now
        ]
        fewer = [] if one.group_ids else ["there are not enough groups"]
        table.add_row(
            one.event.batch_id,
            f"{one.offset:,}",
            f"{len(one.event.groups):,}",
            "the same" if one.same else "; ".join([*others, *fewer]) or "other rows",
        )
    return table


def _shown(one: Replayed) -> dict[str, Any]:
    event = one.event
    return {
        "decision": "replaced" if isinstance(event, Replaced) else "served",
        "offset": one.offset,
        "batch_id": event.batch_id,
        "trainer_epoch": event.trainer_epoch,
        "same": one.same,
        "recorded": event.digest.hex(),
        "found": one.digest.hex(),
        "groups_recorded": [group.group_id for group in event.groups],
        "groups_found": one.group_ids,
    }


def _of_files(check: FileCheck) -> list[Text]:
    return [
        Text(f"the rows of group {group} are not those that were sealed")
        for group in check.differing
    ]


def _verdict(sampler: str, step: int, *, same: bool) -> Text:
    named = f"step {step} of {sampler}"
    if same:
        return Text(f"{named}: the same", style="green")
    return Text(f"{named}: DIFFERS", style="bold red")
