"""The connections of one process: bounded, and cut off where nothing comes."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rollstream.gateway.answers import problem_answer
from rollstream.gateway.intake import Intake
from rollstream.gateway.problems import Kind, Refused
from rollstream.runtime.config.gateway import GatewayConfig


class Connections:
    """The open connections. Each belongs to the environment of its last call.

    A new one takes the place of the oldest one without an environment if there are too many, so
    that clients without a token keep nobody out.

    Args:
        intake: has their limit.
    """

    def __init__(self, intake: Intake, config: GatewayConfig) -> None:
        self.client_timeout_s = config.client_timeout_s
        self.intake = intake
        self._limit = intake.limits.connections
        self._open: dict[Connection, str] = {}
        self._nobodys: dict[Connection, None] = {}  # The oldest first.

    def open(self, connection: Connection) -> None:
        """Counts it.

        Raises:
            Refused: there are too many, each of them with an environment.
        """
        try:
            self._limit.take("")
        except Refused:
            if not self._nobodys:
                raise
            oldest = next(iter(self._nobodys))
            oldest.cut_off(_too_long("no token came, and all connections are taken"))
            self.close(oldest)
            self._limit.take("")
        self._open[connection] = ""
        self._nobodys[connection] = None

    def claim(self, connection: Connection, environment: str) -> None:
        """Counts it as this environment's.

        Raises:
            Refused: the environment has too many.
        """
        before = self._open.get(connection)
        if before is None or before == environment:
            return
        self._limit.give(before)
        try:
            self._limit.take(environment)
        except Refused as full:
            self._limit.take(before)
            raise full.closing() from None
        self._open[connection] = environment
        self._nobodys.pop(connection, None)

    def close(self, connection: Connection) -> None:
        """Counts it no more."""
        environment = self._open.pop(connection, None)
        if environment is not None:
            self._limit.give(environment)
            self._nobodys.pop(connection, None)


class Connection(HttpToolsProtocol):
    """Cuts a client off that does not send the headers of a request in time."""

    _connections: Connections
    _cutting: asyncio.TimerHandle | None = None
    _in_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connections = self.app_state["connections"]
        try:
            self._connections.open(self)
        except Refused as full:
            self.cut_off(full)
        else:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
        self._connections.close(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:  # Also of a body that is not read.
            self._await_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self.scope["state"]["connection"] = self

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._have_headers()
        super().on_headers_complete()
        if self._connections.intake.stopping:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        rest_is_to_come = self._in_headers or self.cycle.more_body
        if self.cycle.response_complete and rest_is_to_come:
            self._await_headers()

    def claim(self, environment: str) -> None:
        """Counts it as this environment's; raises as ``Connections.claim``."""
        self._connections.claim(self, environment)

    def cut_off(self, why: Refused) -> None:
        """Answers with a problem, unless a request was answered that has not come whole; closes."""
        self._have_headers()
        if self.transport.is_closing():
            return
        if self.cycle is None or not (self.cycle.response_started and self.cycle.more_body):
            answer = problem_answer(why.closing())
            lines = [b"%b: %b\r\n" % header for header in answer.raw_headers]
            parts = (STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body))
            self.transport.write(b"".join(parts))
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are no HTTP."""
        remedy = "send a request of HTTP/1.1, without TLS"
        self.cut_off(Refused(Kind.NOT_HTTP, "the bytes are no request of HTTP/1.1", remedy))

    def _await_headers(self) -> None:
        if self._cutting is None and not self.transport.is_closing():
            wait_s = self._connections.client_timeout_s
            self._cutting = self.loop.call_later(wait_s, self._be_late, wait_s)

    def _have_headers(self) -> None:
        if self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None

    def _be_late(self, waited_s: float) -> None:
        self.cut_off(_too_long(f"no request came within {waited_s:g} s, gateway.client_timeout_s"))


def _too_long(finding: str) -> Refused:
    return Refused(Kind.SLOW, finding, "connect when there is something to send")
