"""``rollstream show``"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from rollstream.console.options import (
    CONFIG_FILE,
    AsJson,
    ConfigOption,
    TimeoutOption,
    TrainerEpochOption,
)
from rollstream.console.paging import show_paged
from rollstream.console.rollout_text import rollout_object, rollout_view
from rollstream.console.services import Services, services_of
from rollstream.console.tokens import NOT_INSTALLED, Decode, configured_tokenizer, decoder_of
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.history import (
    AskedRollouts,
    Recorded,
    RecordedInFiles,
    RecordedInLogs,
    find_rollouts,
)
from rollstream.sampler.history.lineage import TIMEOUT_S
from rollstream.sampler.history.ranking import Order
from rollstream.store.blobs import Blobs
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.topics.layout import Layout

_Order = tuple[Order, int]
_GIVE = (
    "give a UID, or --sampler and --step, or one of --lowest-reward, --highest-reward and "
    "--longest, also of a step; --environment and --policy leave others out"
)


def show_rollouts(
    context: typer.Context,
    uid: Annotated[
        str, typer.Argument(help="A rollout's, or a trajectory's of steps.", metavar="[UID]")
    ] = "",
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    sampler: Annotated[
        str | None, typer.Option(help="Whose step; else whom to ask what became.", metavar="NAME")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Of the trainer: its batch.", metavar="N")
    ] = None,
    trainer_epoch: TrainerEpochOption = None,
    lowest_reward: Annotated[
        int | None, typer.Option(help="So many with the lowest reward.", min=1, metavar="COUNT")
    ] = None,
    highest_reward: Annotated[
        int | None, typer.Option(help="So many with the highest.", min=1, metavar="COUNT")
    ] = None,
    longest: Annotated[
        int | None, typer.Option(help="So many with the most output.", min=1, metavar="COUNT")
    ] = None,
    environment: Annotated[str | None, typer.Option(help="Of it alone.", metavar="NAME")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Sampled by this version alone.", metavar="VERSION")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts.")] = False,
    from_files: Annotated[
        bool, typer.Option("--from-files", help="Without Kafka, as where it is gone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Shows sealed rollouts as text: one by its uid (a trajectory's: one of each prompt that has
    it), those of a step, or the worst, best or longest (of a step too): messages, or tokens by the
    configured tokenizer, rewards, where each is from, and what became of it. On a terminal through
    $PAGER.
    """
    orders = _orders(lowest_reward, highest_reward, longest)
    if len(orders) > 1 or bool(uid) == (step is not None or bool(orders)):
        raise typer.BadParameter(_GIVE)
    if step is not None and sampler is None:
        raise typer.BadParameter("--step needs --sampler: whose step it is")
    order, count = orders[0] if orders else (None, 0)
    asked = AskedRollouts(
        uid=uid,
        sampler=sampler,
        step=step,
        trainer_epoch=trainer_epoch,
        order=order,
        count=count,
        environment=environment,
        policy_version=policy,
    )
    services, settings = services_of(context), load_config(config)
    store = services.bounded_store(settings, timeout_s)
    with ExitStack() as open_until:
        recorded: Recorded = RecordedInFiles(store)
        if not from_files:
            recorded = _recorded(services, settings, store, timeout_s, open_until)
        found = find_rollouts(asked, config=settings, store=store, recorded=recorded)
    decoders = _decoders(settings, {one.origin.environment for one in found})
    if as_json:
        objects = [rollout_object(one, decoders[one.origin.environment]) for one in found]
        typer.echo(json.dumps(objects, indent=2))
        return
    views = [rollout_view(one, decoders[one.origin.environment], full=full) for one in found]
    show_paged(Group(*(part for view in views for part in (view, Text()))))


def _orders(lowest: int | None, highest: int | None, longest: int | None) -> list[_Order]:
    """What was asked to come first, and how many."""
    given: list[tuple[Order, int | None]] = [
        ("lowest_reward", lowest),
        ("highest_reward", highest),
        ("longest", longest),
    ]
    return [(order, count) for order, count in given if count is not None]


def _recorded(
    services: Services,
    settings: RollstreamConfig,
    store: Blobs,
    timeout_s: float,
    open_until: ExitStack,
) -> Recorded:
    """What samplers decided: by their logs, or by files where no broker answers, which is said."""
    reach_s = min(timeout_s, settings.kafka.timeout_s)
    try:
        broker = open_until.enter_context(services.connected(settings, reach_s))
    except BrokerUnavailable as error:
        typer.echo(f"from files alone, since no broker answers: {error}", err=True)
        return RecordedInFiles(store)
    layout = Layout.of(settings.kafka)
    return RecordedInLogs(broker, layout, Deadline(timeout_s, services.clock))


def _decoders(settings: RollstreamConfig, environments: set[str]) -> dict[str, Decode | None]:
    """What makes tokens text, by environment."""
    decoders: dict[str, Decode | None] = {}
    for environment in sorted(environments):
        path = configured_tokenizer(settings, environment)
        decoders[environment] = None if path is None else decoder_of(path)
        if path is not None and decoders[environment] is None:
            typer.echo(f"{environment}: {NOT_INSTALLED}", err=True)
    return decoders
