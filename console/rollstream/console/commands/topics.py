"""``rollstream topics create`` and ``rollstream topics check``"""

from __future__ import annotations

import json

import typer

from rollstream.console.options import CONFIG_FILE, TIMEOUT_S, AsJson, ConfigOption, TimeoutOption
from rollstream.console.services import lacks_of, root_of, services_of, specs_of
from rollstream.consumers import create_deployment
from rollstream.folds.choosing import choosing_of
from rollstream.folds.remedies import given_up_without_bound
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.store import StoreError
from rollstream.streams.topics.check import Difference, check_copies, check_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.readable import unreadable_logs
from rollstream.streams.topics.root import root_differences


def create(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Creates the topics that are missing, and gives the store's root its id, once.

    Existing topics stay as they are. Sealers and samplers start only over that root.
    """
    services, settings = services_of(context), load_config(config)
    with services.connected(settings, timeout_s) as broker:
        created = create_deployment(
            settings,
            broker=broker,
            store=services.bounded_store(settings, timeout_s),
            clock=services.clock,
            timeout_s=timeout_s,
        )
    if as_json:
        typer.echo(json.dumps(created.topics, indent=2))
        return
    for name in created.topics:
        typer.echo(f"created {name}")
    existed = len(specs_of(settings)) - len(created.topics)
    typer.echo(f"{len(created.topics)} created, {existed} existed")
    if created.recorded:
        names = ", ".join(created.recorded)
        typer.echo(f"recorded root {created.root_id} ({settings.store.root}) for {names}")


def check(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Lists what differs from the configuration, and says what to do. Exit code 1 if anything
    differs.

    Warns if the loss of a broker would lose records or stop writes. Creates a blob in the store's
    root, and deletes it, to see that this process may and that nobody can overwrite it.
    """
    services, settings = services_of(context), load_config(config)
    specs, deadline = specs_of(settings), Deadline(timeout_s, services.clock)
    with services.connected(settings, timeout_s) as broker:
        found = check_topics(broker.admin(), specs, deadline.left_s())
        layout = Layout.of(settings.kafka)
        missing = {one.topic for one in found if one.what == "missing"}
        complete = {
            name: section.partitions
            for name, section in settings.environments.items()
            if layout.groups(name) not in missing
        }
        found += unreadable_logs(broker, layout, complete, deadline)
        warnings = check_copies(broker.admin(), specs, deadline.left_s())
        try:
            root = root_of(services, settings, deadline)
            found += root_differences(broker, layout, complete, root, deadline)
            found += lacks_of(services, settings, root, deadline)
        except StoreError as error:
            until = "until then no sealer or sampler starts"
            found.append(Difference(settings.store.root, "store", "", str(error), until))
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in [*found, *warnings]], indent=2))
    else:
        for difference in found:
            typer.echo(str(difference))
        for warning in warnings:
            typer.echo(f"warning: {warning}")
        typer.echo(f"{len(specs)} topics, {len(found)} differences")
        environments = settings.environments
        samplers = {n: choosing_of(s, environments) for n, s in settings.samplers.items()}
        if given_up := given_up_without_bound(samplers):
            typer.echo(f"note: {given_up}")
    if found:
        raise typer.Exit(1)
