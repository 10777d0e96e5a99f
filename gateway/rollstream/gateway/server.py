"""Runs the gateway until a signal, then drains it."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from math import ceil
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from rollstream.gateway.app import create_app
from rollstream.gateway.connections import Connection
from rollstream.gateway.intake import Intake
from rollstream.gateway.metrics import show_metrics
from rollstream.gateway.scores import LateScores
from rollstream.producers import AsyncStepProducer, ScoreProducer
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics.liveness import Heartbeat
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.broker import Broker

_LOOK_S = 0.05  # How late a signal may be seen.
_BACKLOG = 1_024
_SCORES_S = 5.0  # How long a score waits for room and for its topic, and an end for scores.
_OTHER_FILES = 256  # Of the broker's connections, the log, and connections that are being closed.
_KEEP_ALIVE_S = 75  # Longer than load balancers keep connections, so that none uses a closed one.
_log = logging.getLogger("rollstream.gateway")


class NoTokens(RollstreamError):
    """The gateway would let everybody write; the message says what to configure."""


class CannotListen(RollstreamError):
    """The address cannot be listened at; the message names it, the cause and the remedy."""


class TooFewFiles(RollstreamError):
    """The process may open fewer files than it needs; the message names both numbers."""


def _reserve_files(connections: int) -> None:
    """Raises the process's soft limit of open files to what so many connections need.

    Raises:
        TooFewFiles: the hard limit is below that.
    """
    needed = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except ValueError as over:
        raise TooFewFiles(
            f"gateway.max_connections is {connections}, which needs {needed} open files, and this "
            f"process may have {hard}; lower it to {max(1, hard - _OTHER_FILES)}, or raise the "
            "limit: ulimit -Hn, LimitNOFILE= of systemd, or --ulimit nofile= of Docker"
        ) from over


def check_open_to_all(config: GatewayConfig, host: str) -> None:
    """Without tokens only this machine may reach it, and only where the configuration says so.

    Raises:
        NoTokens: names what is configured, and the remedy.
    """
    if not config.tokens and not (config.allow_anonymous and _is_loopback(host)):
        raise NoTokens(
            f"gateway.tokens is empty, so that everybody who reaches {host} could write; write "
            '[gateway.tokens] with math = ["A-LONG-RANDOM-TOKEN"], or allow_anonymous = true under '
            "[gateway] and --host 127.0.0.1"
        )


def serve(
    config: RollstreamConfig,
    *,
    broker: Broker,
    host: str,
    port: int,
    stopping: threading.Event,
    clock: Clock | None = None,
) -> None:
    """Answers requests until ``stopping`` is set. From then on ``/readyz`` answers 503. After
    ``shutdown_delay_s`` it takes no more, and ends once open requests were answered and the broker
    has what was accepted, or ``drain_timeout_s`` passed.

    Args:
        broker: is not closed.
        port: 0: any that is free; the log names it.
        clock: for tests.

    Raises:
        NoTokens: everybody could write.
        TooFewFiles: the process may not open so many connections as are configured.
        CannotListen: nothing can listen at the address.
    """
    check_open_to_all(config.gateway, host)
    _reserve_files(config.gateway.max_connections)
    kafka, timeout_s = config.kafka, config.gateway.timeout_s
    of: dict[str, Any] = {"namespace": kafka.namespace, "generation": kafka.generation}
    of |= {"broker": broker, "clock": clock}
    most = config.gateway.max_open_prompts
    writer = AsyncStepProducer(max_open_prompts=most, timeout_s=timeout_s, **of)
    scores = LateScores(partial(ScoreProducer, timeout_s=_SCORES_S, **of), timeout_s)
    app = create_app(config, writer=writer, reach=broker.admin().reach, scores=scores)
    with _listening(host, port, config.gateway.client_timeout_s) as listening:
        settings = uvicorn.Config(
            app,
            loop="none",  # The runner below makes it.
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=ceil(config.gateway.drain_timeout_s),
        )
        address, at = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        _log.info("listening on http://%s:%d, its API at /docs", shown, at)
        gc.freeze()  # Modules and routes stay: collections need not look at them again.
        loop = Heartbeat(clock or SystemClock())
        end = show_metrics(config, app.state.gateway.intake, loop, broker)
        with ExitStack() as shown, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            shown.callback(end)
            delay_s = config.gateway.shutdown_delay_s
            runner.run(_until(stopping, _Server(settings), listening, app, delay_s, loop))
        scores.close()


def _listening(host: str, port: int, client_timeout_s: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CannotListen(
            f"cannot listen at {host} port {port}: {error.strerror or error}; end what listens "
            "there, or use another --host or --port"
        ) from error
    if sys.platform == "linux":  # Its connections have it, too: it ends those that nobody reads.
        unread_ms = ceil(1e3 * client_timeout_s)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
    return listening


async def _until(
    stopping: threading.Event,
    server: _Server,
    listening: socket.socket,
    app: FastAPI,
    delay_s: float,
    loop: Heartbeat,
) -> None:
    intake: Intake = app.state.gateway.intake
    serving = asyncio.create_task(server.serve([listening]))
    delay = None
    while not serving.done():
        loop.beat()
        if delay is None and stopping.is_set():
            intake.stopping, delay = True, Deadline(delay_s)
            _log.info("ending: /readyz answers 503, and calls are taken for %g s more", delay_s)
        server.should_exit |= delay is not None and delay.passed()
        await asyncio.wait([serving], timeout=_LOOK_S)
    await serving


class _Server(uvicorn.Server):
    """Leaves signals alone: the command's own handler sets ``stopping``, and a drained process
    exits with 0, not by the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
