"""``rollstream eval``"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rollstream.console.options import (
    CONFIG_FILE,
    TIMEOUT_S,
    AsJson,
    ConfigOption,
    SamplerOption,
    TimeoutOption,
)
from rollstream.console.services import services_of
from rollstream.console.showing import show, table_of
from rollstream.runtime.config.load import load_config
from rollstream.sampler import Evaluation, SamplerView
from rollstream.sampler.decide.queries.evaluation import PASSING, Earned


def evaluations(
    context: typer.Context,
    sampler: SamplerOption,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    passing: Annotated[
        float, typer.Option(help="The least return that passes.", metavar="RETURN")
    ] = PASSING,
    examples: Annotated[
        bool, typer.Option("--examples", help="A row for each example of each policy.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prints what evaluation rollouts earned, by policy: mean and standard deviation of their
    returns, and the share that passed.

    It covers the environments of one sampler, and reads the logs alone.
    """
    services, settings = services_of(context), load_config(config)
    with (
        services.connected(settings, timeout_s) as broker,
        SamplerView(
            sampler,
            config=settings,
            broker=broker,
            store=services.bounded_store(settings),
            clock=services.clock,
        ) as view,
    ):
        found = view.evaluations(passing=passing)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
    elif not found:
        show(Text(f'no group of the environments of {sampler} was published with split="eval"'))
    else:
        names = sorted({one.environment for one in found})
        tables = (_table(name, [e for e in found if e.environment == name]) for name in names)
        show(Group(*tables) if not examples else Group(*map(_by_example, found)))


def _table(environment: str, rows: list[Evaluation]) -> Table:
    table = table_of(environment, "step", "examples", *_FIGURES, last="policy")
    for row in rows:
        branch = f", epoch {row.policy_epoch}" if row.policy_epoch else ""
        lineage = f", lineage {row.lineage}" if row.lineage else ""
        step = str(row.weight_step) if row.weight_step >= 0 else "-"
        policy = Text(f"{row.policy_version}{branch}{lineage}")
        table.add_row(step, f"{len(row.examples):,}", *_figures(row.total), policy)
    return table


def _by_example(row: Evaluation) -> Table:
    title = f"{row.environment}, {row.policy_version}"
    table = table_of(title, "step", *_FIGURES, last="example")
    for example_id, earned in row.examples.items():
        table.add_row(str(row.weight_step), *_figures(earned), Text(example_id))
    return table


_FIGURES = ("rollouts", "awaited", "mean", "std", "passed")


def _figures(earned: Earned) -> tuple[str, ...]:
    shown = (
        "-" if value is None else f"{value:.{digits}{kind}}"
        for value, digits, kind in (
            (earned.reward_mean, 3, "f"),
            (earned.reward_std, 3, "f"),
            (earned.pass_rate, 1, "%"),
        )
    )
    return f"{earned.trajectories:,}", f"{earned.awaited:,}", *shown
