"""``rollstream page``"""

from __future__ import annotations

import logging
import threading
from typing import Annotated

import typer

from rollstream.console.options import (
    CONFIG_FILE,
    TIMEOUT_S,
    AnswerTimeoutOption,
    ConfigOption,
    SamplerOption,
)
from rollstream.console.page.look import RunLook
from rollstream.console.page.server import PageServer, is_loopback
from rollstream.console.services import Services, services_of
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas.errors import RollstreamError

FILES_EVERY_S = 5.0
FIRST_S = 0.3
LOGS_SHARE = 10  # The logs are read again after so many times what reading them took.
_STOPS_IN_S = 5.0
_log = logging.getLogger("rollstream.page")


def page(
    context: typer.Context,
    sampler: SamplerOption,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: AnswerTimeoutOption = TIMEOUT_S,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at; any but loopback needs the token that is printed.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65_535)] = 8090,
    from_files: Annotated[
        bool, typer.Option("--from-files", help="Without Kafka, as where it is gone.")
    ] = False,
) -> None:
    """Serves a page of a run, live or over, until SIGTERM or Ctrl-C: rewards, lag, waits,
    throughput, drops, what is stuck, and every sealed rollout with a search and a page of its own.
    """
    services, settings = services_of(context), load_config(config)
    look = RunLook(services, settings, sampler, from_files=from_files, timeout_s=timeout_s)
    token = None if is_loopback(host) else SystemEntropy().token(24)
    stopping = services.stopping()
    with PageServer(look, host, port, token) as server:
        typer.echo(
            f"the page of {sampler}: {server.url}{'' if token is None else f'?token={token}'}"
        )
        threads = [
            threading.Thread(target=server.serve_forever, name="page", daemon=True),
            threading.Thread(
                target=_read, args=(look, services, stopping), name="page-reader", daemon=True
            ),
        ]
        for thread in threads:
            thread.start()
        stopping.wait()
        server.shutdown()
        threads[1].join(_STOPS_IN_S)


def _read(look: RunLook, services: Services, stopping: threading.Event) -> None:
    """Reads the run again and again, the logs less often the longer they are."""
    logs_at_s = 0.0
    while True:
        try:
            within_s = FIRST_S  # Then the page shows what was read, the newest part.
            while look.read_files(Deadline(within_s, services.clock)) and not stopping.is_set():
                within_s *= 4
            begun_s = services.clock.monotonic_s()
            if begun_s >= logs_at_s and not stopping.is_set():
                look.read_logs()
                ended_s = services.clock.monotonic_s()
                logs_at_s = ended_s + LOGS_SHARE * (ended_s - begun_s)
        except RollstreamError as error:
            _log.warning("the page stays as it is, until the next look: %s", error)
        except Exception:  # noqa: BLE001 - a page that stays as it is for ever would look well
            _log.exception("the page stays as it is, until the next look")
        if services.clock.wait(stopping, FILES_EVERY_S):
            return
