"""``rollstream finish``"""

from __future__ import annotations

from typing import Annotated

import typer

from rollstream.console.options import CONFIG_FILE, TIMEOUT_S, ConfigOption, TimeoutOption
from rollstream.console.services import services_of
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.sampler.configuration import sampler_config
from rollstream.schemas.errors import RollstreamError
from rollstream.status import SamplerFigures, measure
from rollstream.status.verdict import QUIET_S
from rollstream.streams.errors import TopicMismatch


class StillRunning(RollstreamError):
    """A batch is with the trainer, or the sampler decided just now: to finish its run would take it
    from its trainer."""


def finish(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    sampler: Annotated[
        str | None, typer.Option(help="Only this one; else every sampler.", metavar="NAME")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although its trainer may still run: it is fenced.")
    ] = False,
) -> None:
    """Records that a run is over, so that `status` expects nothing more of it.

    It is refused while a trainer has a batch, or if a sampler decided within the last minute.
    `--force` is for trainers that are gone. A later decision begins the run again.
    """
    services, settings = services_of(context), load_config(config)
    if sampler is not None:
        sampler_config(sampler, settings)  # An unknown name is refused.
    with services.connected(settings, timeout_s) as broker:
        figures = measure(broker, settings, Deadline(timeout_s, services.clock))
        if figures.missing_topics:
            raise TopicMismatch(
                f"no run was finished: {', '.join(figures.missing_topics)} missing; correct "
                "kafka.namespace or kafka.generation, or run `rollstream topics create`"
            )
        rows = [row for row in figures.samplers if sampler in (None, row.name)]
        for row in rows:
            if not force:
                _check_resting(row)
        for row in rows:
            if not row.owner:
                typer.echo(f"{row.name}: was never started")
            elif row.over:
                typer.echo(f"{row.name}: the run was over already")
            else:
                store, clock = services.bounded_store(settings, timeout_s), services.clock
                with Sampler(
                    row.name, config=settings, broker=broker, store=store, clock=clock
                ) as owner:
                    owner.finish()
                typer.echo(f"{row.name}: the run is over")


def _check_resting(row: SamplerFigures) -> None:
    age_s = row.decision_age_s
    if row.unacked and not row.over:
        raise StillRunning(
            f"sampler {row.name} waits for acks ({row.unacked} unacked), so its trainer may be in "
            "a step: stop it, or call finish() there; where it is gone, --force"
        )
    if row.over or age_s is None or age_s >= QUIET_S:
        return
    raise StillRunning(
        f"sampler {row.name} decided {age_s:.0f} s ago, so its trainer may still run: stop it, or "
        f"call finish() there; or run this again once nothing was decided for {QUIET_S:.0f} s"
    )
