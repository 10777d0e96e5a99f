"""``rollstream without-logs``"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rollstream.console.options import CONFIG_FILE, AsJson, ConfigOption, SamplerOption
from rollstream.console.services import services_of
from rollstream.console.showing import indented, path_of, show, table_of
from rollstream.runtime.config.load import load_config
from rollstream.sampler.history import KnownWithoutLogs, Steps, known_without_logs

_MEANING = {
    "final": "final",
    "trained": "acked as trained when the snapshot was written",
    "failed": "acked as failed when the snapshot was written",
    "served": "not acked when the snapshot was written",
    "in_file": "by its file; whether it was acked stands in none",
    "in_no_file": "STANDS IN NO FILE: which groups it had is not known",
}


def without_logs(
    context: typer.Context,
    sampler: SamplerOption,
    config: ConfigOption = CONFIG_FILE,
    as_json: AsJson = False,
) -> None:
    """Prints what the store's files know of a sampler whose logs are gone: which steps it decided,
    and which sealed groups are in none of them.

    It needs the configuration as it was, and no Kafka. It writes nothing.
    """
    settings = load_config(config)
    store = services_of(context).bounded_store(settings)
    known = known_without_logs(sampler, config=settings, store=store)
    if as_json:
        steps = [one._asdict() for one in known.steps]
        typer.echo(json.dumps({**asdict(known), "steps": steps}, indent=2))
    else:
        show(Group(*_lines(known)))


def _lines(known: KnownWithoutLogs) -> Iterator[RenderableType]:
    table = table_of(f"Steps of {known.sampler}", "steps", "trainer epoch", last="known")
    for one in known.steps:
        epoch = "" if one.trainer_epoch is None else str(one.trainer_epoch)
        table.add_row(_named(one), epoch, _MEANING[one.known])
    yield table
    if known.steps:
        newest = known.steps[-1].last
        yield Text(
            f"Steps after {newest:,} stand in no file, if any were decided: the trainer's newest "
            "checkpoint says so."
        )
    else:
        yield Text("No step is known.")
    if known.snapshot:
        yield Text("Snapshot:")
        yield path_of(known.snapshot)
    else:
        yield Text("There is no snapshot that can be used: all is from batch files and manifests.")
    yield Text("Sealed groups in none of these batches:")
    for environment, ids in known.ready.items():
        yield indented(f"{environment}: {len(ids):,}")
    yield indented(f"waiting, cannot be served as they are: {known.waiting:,}")
    if known.in_no_file:
        steps = ", ".join(map(_named, known.in_no_file))
        yield Text(
            f"Some of them may have been in a batch of which no file is known; steps: {steps}"
        )
    if known.replaced:
        steps = ", ".join(f"{step:,}" for step in known.replaced)
        yield Text(f"Some of them may have been replaced by others; steps: {steps}")
    for path, why in known.unreadable.items():
        yield Text(f"Passed over, {why}:", style="red")
        yield path_of(path)


def _named(one: Steps) -> str:
    return f"{one.first:,}" if one.first == one.last else f"{one.first:,} to {one.last:,}"
