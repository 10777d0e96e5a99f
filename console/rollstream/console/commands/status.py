"""``rollstream status``"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Annotated

import typer
from rich.console import Console

from rollstream.console.options import CONFIG_FILE, TIMEOUT_S, AsJson, ConfigOption, TimeoutOption
from rollstream.console.services import LOOK_FAILURES, Services, figures_of, services_of
from rollstream.console.showing import show
from rollstream.console.status_view import Look, status_view
from rollstream.folds.choosing import choosing_of
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.status import stuck_stages

WATCH_EVERY_S = 2.0
EXIT_STUCK = 2  # Of ``--check``; 1 is the exit code of errors.


def status(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Look again every 2 s, also after errors: in a terminal on a full screen.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 2 once a stage is stuck.")
    ] = False,
) -> None:
    """Shows how far each stage is, and every one that is stuck with the likely reason."""
    services, settings = services_of(context), load_config(config)
    look = partial(_look, services, settings, timeout_s)
    if not watch:
        found: Look | None = _shown(look(), as_json=as_json)
    elif not as_json and Console().is_terminal:
        # Loaded only here, since it takes longer than a look.
        screen = import_module("rollstream.console.watching").WatchStatus(
            look,
            settings.kafka.bootstrap,
            clock=services.clock,
            stopping=services.stopping(),
            every_s=WATCH_EVERY_S,
            until_stuck=check,
        )
        found = screen.run()
        screen.raise_defect()
        if found is not None:
            _shown(found)
    else:
        found = _looks(services, look, as_json=as_json, until_stuck=check)
    if check and found is not None and found.stuck:
        raise typer.Exit(EXIT_STUCK)


def _look(services: Services, settings: RollstreamConfig, timeout_s: float) -> Look:
    with services.connected(settings, timeout_s) as broker:
        figures = figures_of(services, settings, broker, Deadline(timeout_s, services.clock))
    environments = settings.environments
    samplers = {name: choosing_of(one, environments) for name, one in settings.samplers.items()}
    return Look(figures, stuck_stages(figures, settings), samplers)


def _looks(
    services: Services, look: Callable[[], Look], *, as_json: bool, until_stuck: bool
) -> Look | None:
    """Prints one look after another; a look is a line for programs that read many."""
    stopping = services.stopping()
    while True:
        try:
            found = look()
        except LOOK_FAILURES as error:
            typer.echo(json.dumps({"error": str(error)}) if as_json else str(error))
        else:
            _shown(found, as_json=as_json, indent=None)
            if until_stuck and found.stuck:
                return found
        if services.clock.wait(stopping, WATCH_EVERY_S):
            return None


def _shown(look: Look, *, as_json: bool = False, indent: int | None = 2) -> Look:
    if not as_json:
        show(status_view(*look))
        return look
    stuck = [verdict._asdict() for verdict in look.stuck]
    found = {**asdict(look.figures), "over": look.figures.over, "stuck": stuck}
    typer.echo(json.dumps(found, indent=indent))
    return look
