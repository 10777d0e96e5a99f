"""HTTP for a few callers, on threads: how many there are at once, and how long each, is bounded."""

from __future__ import annotations

import io
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from rollstream.runtime.clock import SystemClock


class FewCallsServer(ThreadingHTTPServer):
    """Answers on threads that keep no process alive. A call beyond ``calls_max`` at once is closed
    unanswered."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], handler: type[TimelyCalls], calls_max: int
    ) -> None:
        self._places = threading.BoundedSemaphore(calls_max)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Binds; the base asks for the host's name, which may wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


class TimelyCalls(BaseHTTPRequestHandler):
    """A call has ``timeout`` seconds to come, however slowly, and as many to be taken."""

    timeout: ClassVar[float]

    def setup(self) -> None:
        """Reads by a deadline: a time-out of the socket begins anew with each byte."""
        super().setup()
        self.rfile = io.BufferedReader(_Timely(self.connection, self.timeout))

    def parse_request(self) -> bool:
        """The call is there; its answer has a time of its own."""
        parsed = super().parse_request()
        self.connection.settimeout(self.timeout)
        return parsed

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: they come every few seconds, and an address may hold a token."""


class _Timely(io.RawIOBase):
    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection, self._clock = connection, SystemClock()
        self._until_s = self._clock.monotonic_s() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("the call did not come in time")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)
