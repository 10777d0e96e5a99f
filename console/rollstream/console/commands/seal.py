"""``rollstream seal``"""

from __future__ import annotations

import json
import logging
import os
import threading
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
from rollstream.console.services import Services, services_of
from rollstream.consumers import Sealer
from rollstream.consumers.sealing.retrying import RetryAnswer, request_retry
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.store import Blobs, read_root_id
from rollstream.store.in_time import in_time
from rollstream.store.layout import ROOT_ID
from rollstream.store.warm_memory import keep_memory_warm

_log = logging.getLogger("rollstream.seal")


def seal(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    name: Annotated[
        str | None, typer.Option(help="Shown as the owner of partitions.", metavar="NAME")
    ] = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="Ask running sealers to try partitions again that they put aside."
        ),
    ] = False,
    dead_letter: Annotated[
        bool,
        typer.Option(
            "--dead-letter",
            help="Make records of newer producers dead letters instead of stopping there.",
        ),
    ] = False,
    environment: Annotated[
        str | None, typer.Option(help="With --retry: only of this one.", metavar="NAME")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="With --retry: only this one.", metavar="N")
    ] = None,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Joins rollouts into groups and writes them as Parquet, until SIGTERM or Ctrl-C.

    It then commits what is decided and ends. Several sealers share the partitions. With --retry it
    seals nothing itself: it asks those that run, and ends with exit code 1 where a partition is
    still put aside.
    """
    services, settings = services_of(context), load_config(config)
    if retry:
        if dead_letter:
            raise typer.BadParameter(
                "--dead-letter is for a sealer that starts, and --retry starts none: give one"
            )
        if partition is not None and environment is None:
            raise typer.BadParameter("--partition needs --environment: name the environment, too")
        answers = _retry(services, settings, environment, partition, timeout_s)
        _show(answers, as_json=as_json)
        if not all(answer.sealed for answer in answers):
            raise typer.Exit(1)
        return
    if environment is not None or partition is not None:
        raise typer.BadParameter("--environment and --partition go with --retry: add it")
    _seal(services, settings, name, dead_letter=dead_letter)


def _seal(
    services: Services, settings: RollstreamConfig, name: str | None, *, dead_letter: bool
) -> None:
    keep_memory_warm()
    stopping = services.stopping()
    with services.connected(settings) as broker:
        store = _store(services, settings, stopping)
        sealer = Sealer(
            settings,
            broker=broker,
            store=store,
            clock=services.clock,
            owner=name,
            dead_letter_newer=dead_letter,
        )
        _log.info("sealing %s from %s", ", ".join(settings.environments), settings.kafka.bootstrap)
        try:
            sealer.run(stopping)
        finally:
            if sealer.left_behind:  # At its end the process might wait for it for ever.
                _log.error("the process ends at once, and leaves behind: %s", sealer.left_behind)
                logging.shutdown()
                os._exit(1)
        stats = sealer.stats()
    _log.info("ended; sealed segments: %s, groups: %s", f"{stats.segments:,}", f"{stats.groups:,}")


def _store(services: Services, settings: RollstreamConfig, stopping: threading.Event) -> Blobs:
    """The store, once its root answers. A signal ends the wait."""

    def look() -> Blobs:
        store = services.store(settings)
        read_root_id(store)
        return store

    deadline = Deadline(settings.kafka.timeout_s, services.clock)
    return in_time(look, settings.store.root, deadline, f"read {ROOT_ID}", stopping)


def _retry(
    services: Services,
    settings: RollstreamConfig,
    environment: str | None,
    partition: int | None,
    timeout_s: float,
) -> list[RetryAnswer]:
    with services.connected(settings, timeout_s) as broker:
        return request_retry(
            settings,
            broker,
            services.bounded_store(settings, timeout_s),
            environment=environment,
            partition=partition,
            deadline=Deadline(timeout_s, services.clock),
        )


def _show(answers: list[RetryAnswer], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(answer) for answer in answers], indent=2))
        return
    for answer in answers:
        became = answer.detail or "is read and sealed again"
        typer.echo(f"{answer.environment}[{answer.partition}]: {became}")
    if not answers:
        typer.echo("no sealer says that it put a partition aside")
