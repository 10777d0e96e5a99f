"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP, on threads of its own."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from http import HTTPStatus
from typing import Any

from prometheus_client.exposition import choose_encoder

from rollstream.runtime.few_calls import FewCallsServer, TimelyCalls
from rollstream.runtime.metrics.exposition import Exposition

REQUESTS_MAX = 8  # At once; a further one is closed unanswered, and the scraper comes again.
CLIENT_S = 5.0  # For a request to come, and for its answer to be taken.
AGAIN_S = 5.0  # How often an address that is taken is tried again.
POLL_S = 0.1  # How soon it notices that it is closed.
_log = logging.getLogger("rollstream.metrics")
_all: weakref.WeakSet[MetricsServer] = weakref.WeakSet()


class MetricsServer:
    """Answers while the process lives, or until it is closed. An address that is taken is logged
    and tried again: metrics never stop what they watch.

    Args:
        port: 0: any that is free.

    Attributes:
        exposition: what it shows.
        address: where it listens; None: the address is taken so far.
        is_of_parent: whether this process was forked off the one that made it.
    """

    def __init__(self, host: str, port: int) -> None:
        self.exposition = Exposition()
        self.address: tuple[str, int] | None = None
        self.is_of_parent = False
        self._wanted = host, port
        self._closing = threading.Event()
        self._server: _Server | None = None
        self._open()
        self._thread = threading.Thread(target=self._run, name="rollstream-metrics", daemon=True)
        self._thread.start()
        _all.add(self)

    def close(self) -> None:
        """Closes the port. Idempotent."""
        self._closing.set()
        self._thread.join()
        if self._server is not None:
            self._server.server_close()

    def leave_to_parent(self) -> None:
        """Runs in a forked child, which has no thread: else the child would hold the port."""
        self.is_of_parent = True
        if self._server is not None:
            self._server.socket.close()

    def _run(self) -> None:
        while self._server is None:
            if self._closing.wait(AGAIN_S):
                return
            self._open(again=True)
        # Not serve_forever: a port that opens while it is closed would not notice.
        while not self._closing.is_set():
            self._server.handle_request()

    def _open(self, *, again: bool = False) -> None:
        host, port = self._wanted
        try:
            self._server = _Server(self._wanted, self.exposition)
        except OSError as error:
            if not again:
                _log.error(
                    "no metrics are shown: cannot listen at %s port %d: %s. It is tried again "
                    "every %g s. End what listens there, or give this process another port, for "
                    "example with ROLLSTREAM_METRICS__PORT",
                    *(host, port, error.strerror or error, AGAIN_S),
                )
            return
        at, port = self._server.socket.getsockname()[:2]
        self.address = at, port
        _log.info("metrics at http://%s:%d/metrics, with /healthz and /readyz", at, port)


class _Server(FewCallsServer):
    timeout = POLL_S

    def __init__(self, address: tuple[str, int], exposition: Exposition) -> None:
        self.exposition = exposition
        super().__init__(address, _Handler, REQUESTS_MAX)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request to the metrics was not answered", exc_info=True)


class _Handler(TimelyCalls):
    timeout = CLIENT_S
    server: _Server

    def do_GET(self) -> None:
        exposition = self.server.exposition
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, content_type, encode(exposition.registry))
            case "/healthz":
                self._probe(exposition.stalled())
            case "/readyz":
                self._probe(exposition.stalled() or exposition.unready())
            case path:
                told = f"there is no {path!r:.100}; ask for /metrics, /healthz or /readyz\n"
                self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", told.encode())

    do_HEAD = do_GET

    def _probe(self, why_not: str) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK
        self._answer(status, "text/plain; charset=utf-8", f"{why_not or 'ok'}\n".encode())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _after_fork() -> None:
    for server in [*_all]:
        server.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
