"""Readers that are lent to one thread at a time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import LogReader
from rollstream.streams.errors import BrokerError, BrokerUnavailable

SERVE_S = 1.0  # How often those that are not lent say what piles up in them.


class Lender:
    """Lends readers, which are made when they are needed; the one that came back last goes first.

    Any thread may use it. librdkafka keeps each log line and error of a client until it is polled,
    so somebody has to call ``serve`` again and again.

    Args:
        make: makes a reader.
        count: how many are lent at a time, at most.
    """

    def __init__(self, make: Callable[[], LogReader], count: int) -> None:
        self._make = make
        self._closed = 0  # How often.
        self._served_s = -inf
        self._free: queue.LifoQueue[LogReader | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)  # Made when it is needed.

    @contextmanager
    def lend(self, why_not: str, deadline: Deadline) -> Iterator[LogReader]:
        """Lends one. It is lent again unless an error is raised with it.

        Raises:
            BrokerUnavailable: all were lent up to the deadline, as ``why_not`` says.
        """
        try:
            client = self._free.get(timeout=deadline.left_s())
        except queue.Empty:
            raise BrokerUnavailable(f"{why_not} within {deadline.timeout_s} s") from None
        closed, keeps = self._closed, False
        try:
            if client is None:
                client = self._make()
            yield client
            keeps = True
        finally:
            self._take_back(client, closed, keeps=keeps)

    def serve(self, now_s: float) -> None:
        """Polls those that are not lent, once a second.

        Args:
            now_s: by a monotonic clock.
        """
        if now_s - self._served_s < SERVE_S:
            return
        self._served_s, closed = now_s, self._closed
        for client in reversed(self._take_free()):  # Those that were made are lent first.
            if client is not None:
                with suppress(BrokerError):
                    client.poll(1, 0.0)
            self._take_back(client, closed)

    def close(self) -> None:
        """Closes all; one that is lent, when it comes back. Whoever lends later has a new one."""
        self._closed += 1
        for client in self._take_free():
            if client is not None:
                client.close()
            self._free.put(None)

    def _take_back(self, client: LogReader | None, closed: int, *, keeps: bool = True) -> None:
        """It is lent again, unless all were closed meanwhile."""
        try:
            if client is not None and not (keeps and closed == self._closed):
                ended, client = client, None
                ended.close()
        finally:
            self._free.put(client)

    def _take_free(self) -> list[LogReader | None]:
        taken: list[LogReader | None] = []
        with suppress(queue.Empty):
            while True:
                taken.append(self._free.get_nowait())
        return taken
