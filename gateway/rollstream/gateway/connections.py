"""The connections of one process: bounded, and cut off where nothing comes, or too much."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rollstream.gateway.answers import problem_answer
from rollstream.gateway.intake import Intake
from rollstream.gateway.problems import Kind, Refused
from rollstream.runtime.config.gateway import GatewayConfig

# Of an address with its headers, or of the lines behind a body in chunks. In memory they take seven
# times as much, before there is a token. A trajectory's uid in an address has up to 48 KiB.
HEAD_BYTES_MAX = 64 * 1024
PIPELINED_MAX = 8  # Requests of a connection that wait for the answer to another one.
_READ_BYTES = 16 * 1024


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
        self._nobodys: dict[Connection, None] = {}  # Those without an environment, as they came.

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
        connection.environment = ""
        self._nobodys[connection] = None

    def claim(self, connection: Connection, environment: str) -> None:
        """Counts it as this environment's.

        Raises:
            Refused: the environment has too many.
        """
        before = connection.environment
        if before is None or before == environment:
            return
        self._limit.give(before)
        try:
            self._limit.take(environment)
        except Refused as full:
            self._limit.take(before)
            raise full.closing() from None
        connection.environment = environment
        self._nobodys.pop(connection, None)

    def close(self, connection: Connection) -> None:
        """Counts it no more."""
        if connection.environment is not None:
            self._limit.give(connection.environment)
            connection.environment = None
            self._nobodys.pop(connection, None)


class _TooManyPipelined(Exception):
    """Ends the parser; nobody sees it."""


class Connection(HttpToolsProtocol):
    """Cuts a client off that does not send the headers of a request in time, or whose headers have
    no end. Requests that came whole before are answered first.

    Attributes:
        bounded_by: all of them.
        environment: of its last call; empty: there was none. None: it is not counted.
    """

    environment: str | None = None
    bounded_by: Connections
    _cutting: asyncio.TimerHandle | None = None
    _in_headers = False
    _head_bytes = 0  # Since the last byte of a body, or the beginning of a request.
    _refusal: Refused | None = None  # What comes is not read any more.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.bounded_by = self.app_state["connections"]
        try:
            self.bounded_by.open(self)
        except Refused as full:
            self.cut_off(full)
        else:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
        self.bounded_by.close(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), _READ_BYTES):
            if self._refusal is not None:
                return
            part = data[at : at + _READ_BYTES]
            self._head_bytes += len(part)
            super().data_received(part)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(Refused(Kind.HEAD, _HEAD_FINDING, "send fewer and shorter headers"))
        if self.cycle is None or self.cycle.response_complete:  # Also of a body that is not read.
            self._await_headers()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            remedy = "read answers before you send more, or open more connections"
            self._refuse(Refused(Kind.FULL, _PIPELINED_FINDING, remedy))
            raise _TooManyPipelined
        super().on_message_begin()
        self._in_headers = True
        self._head_bytes = 0
        self.scope["state"]["connection"] = self

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._have_headers()
        super().on_headers_complete()
        if self.bounded_by.intake.stopping:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self._refusal is not None:
            if is_last and not self.transport.is_closing():
                self._say(self._refusal)
            return
        rest_is_to_come = self._in_headers or self.cycle.more_body
        if self.cycle.response_complete and rest_is_to_come:
            self._await_headers()

    def cut_off(self, why: Refused) -> None:
        """Answers with a problem, unless a request was answered that has not come whole; closes."""
        self._have_headers()
        if self._refusal is None and not self.transport.is_closing():
            self._answer(why)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are no HTTP."""
        remedy = "send a request of HTTP/1.1, without TLS"
        self._refuse(Refused(Kind.NOT_HTTP, "the bytes are no request of HTTP/1.1", remedy))

    def _refuse(self, why: Refused) -> None:
        """Answers, and closes once the client has: it may read the answer when it has sent all of
        what is not read any more. Requests that came whole before are answered first."""
        if self._refusal is not None:
            return
        self._refusal, cycle = why, self.cycle
        others_run = bool(self.pipeline)
        if others_run and cycle.more_body:
            self.pipeline.popleft()  # The newest: the rest of it never comes.
        elif cycle is not None:
            others_run |= not (cycle.more_body or cycle.response_complete)
        if not others_run:
            self._say(why)

    def _say(self, why: Refused) -> None:
        self._answer(why)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # What answers it writes no more.
            cycle.message_event.set()
        self.transport.write_eof()
        self._await_headers()

    def _answer(self, why: Refused) -> None:
        if self.cycle is None or not (self.cycle.response_started and self.cycle.more_body):
            self.bounded_by.intake.refused[why.kind] += 1
            answer = problem_answer(why.closing())
            lines = [b"%b: %b\r\n" % header for header in answer.raw_headers]
            parts = (STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body))
            self.transport.write(b"".join(parts))

    def _await_headers(self) -> None:
        if self._cutting is None and not self.transport.is_closing():
            wait_s = self.bounded_by.client_timeout_s
            self._cutting = self.loop.call_later(wait_s, self._be_late, wait_s)

    def _have_headers(self) -> None:
        if self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None

    def _be_late(self, waited_s: float) -> None:
        self.cut_off(_too_long(f"no request came within {waited_s:g} s, gateway.client_timeout_s"))


_PIPELINED_FINDING = f"more than {PIPELINED_MAX} requests of this connection wait for answers"
_HEAD_FINDING = f"the address and the headers have more than {HEAD_BYTES_MAX} bytes"


def _too_long(finding: str) -> Refused:
    return Refused(Kind.SLOW, finding, "connect when there is something to send")
