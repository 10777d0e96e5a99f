"""HTTP connections in their bounds: what uvicorn would wait for, or queue, without an end."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rollstream.gateway import problems
from rollstream.gateway.problems import MEDIA_TYPE, Refused, refused

CONNECTIONS_MAX = 4_096  # Each may hold a head, and as much of a body as is read at once.
HEAD_BYTES_MAX = 64 * 1024  # A token, a path and what proxies add have a few KiB.
PIPELINED_MAX = 16  # Requests behind the one that is answered; one read may bring thousands.
LINGER_S = 2.0  # For a client to read why it was refused before its connection ends.


class BoundedConnection(HttpToolsProtocol):
    """One connection, which ends on its own wherever its client leaves it.

    A head comes within ``head_timeout_s`` and ``HEAD_BYTES_MAX``; what was answered is read by then
    as well; of a body that was answered before its end no more than ``LINGER_S`` is waited for.
    What is no HTTP is a problem, with status 400 or 431; so are more than ``PIPELINED_MAX``
    requests that wait for one before them, which may have been taken then.
    """

    head_timeout_s: float
    _timer: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _awaits_head = True
    _head_bytes = 0
    _problem: Refused | None = None
    _ended = False
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._arm(self.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.resume_writing()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ended or self.transport.is_closing():
            return
        if self._awaits_head and self._timer is None:
            self._arm(self.head_timeout_s)
        # Counted before they are parsed, since the parser holds a header until it is whole.
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._ended and self._awaits_head and self._head_bytes > HEAD_BYTES_MAX:
            self._problem = _too_large_a_head()
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        self._awaits_head = False
        self._disarm()
        if self.parser.should_upgrade():  # The parser would pass over the body.
            self._problem = _upgrade()
            raise ConnectionAbortedError("an upgrade")  # The parser raises its own error.
        if len(self.pipeline) >= PIPELINED_MAX:
            self._problem = _too_many()
            raise ConnectionAbortedError("too many requests")
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > (
            HEAD_BYTES_MAX
        ):
            self._problem = _too_large_a_head()
            raise ConnectionAbortedError("too large a head")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._disarm()
        self._awaits_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()
        elif not self._awaits_head and not self.pipeline:
            self._arm(LINGER_S)

    def timeout_keep_alive_handler(self) -> None:
        self._end()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.head_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        opened = self._opened()
        # A client takes it for the answer of the first request that has none.
        if any(cycle.response_started for cycle in opened):
            self._end()
            return
        found = self._problem or (_no_http_behind() if opened else _no_http())
        content = found.problem.model_dump_json(exclude_none=True).encode()
        head = (
            f"HTTP/1.1 {found.problem.status} {found.problem.title}\r\n"
            f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(content)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self._end()

    def _opened(self) -> list[RequestResponseCycle]:
        """The requests whose answers were not written whole."""
        opened = [cycle for cycle, _ in self.pipeline]
        if self._running is not None and not self._running.response_complete:
            opened.append(self._running)
        return opened

    def _end(self) -> None:
        """Writes nothing more, and passes over what still comes, until the client closes it or for
        ``LINGER_S``: closed with bytes unread, it would take the answer from the client."""
        self._ended = True
        for cycle in self._opened():
            cycle.disconnected = True
            cycle.message_event.set()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
        self._disarm()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(timeout_s, self._end)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bounded(timeout_s: float) -> type[BoundedConnection]:
    """Connections whose heads come, and answers are read, within so long."""
    return type("Connection", (BoundedConnection,), {"head_timeout_s": timeout_s})


def _no_http() -> Refused:
    finding = "the request is no HTTP/1.1, as RFC 9112 has it"
    return refused(problems.NO_HTTP, finding, "use a client library, without TLS")


def _no_http_behind() -> Refused:
    finding = "what follows a request is no HTTP/1.1; the request may have been taken"
    return refused(problems.NO_HTTP, finding, "send a Content-Length with all of its body")


def _too_many() -> Refused:
    return refused(
        problems.NO_HTTP,
        f"more than {PIPELINED_MAX} requests wait behind one that is open; some may have been "
        "taken",
        "wait for an answer before the next request, or open more connections",
    )


def _upgrade() -> Refused:
    return refused(
        problems.NO_HTTP,
        "the headers ask for an upgrade to another protocol",
        "speak HTTP/1.1 alone: some clients, as Java's, ask for HTTP/2 unless told otherwise",
        "Upgrade",
    )


def _too_large_a_head() -> Refused:
    return refused(
        problems.HEAD_TOO_LARGE,
        f"the path and the headers have more than {HEAD_BYTES_MAX} bytes",
        "send fewer or shorter headers",
    )
