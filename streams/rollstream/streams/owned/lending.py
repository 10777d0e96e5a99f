"""Readers that are lent to one thread at a time."""

from __future__ import annotations

import threading
from collections import deque
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
        count: how many are lent at a time, and how many are kept, at most.
    """

    def __init__(self, make: Callable[[], LogReader], count: int) -> None:
        self._make = make
        self._count = count
        self._lendable = threading.BoundedSemaphore(count)
        self._free: deque[LogReader] = deque()
        self._closed = 0  # How often.
        self._served_s = -inf

    @contextmanager
    def lend(self, why_not: str, deadline: Deadline) -> Iterator[LogReader]:
        """Lends one. It is lent again unless an error is raised with it.

        Raises:
            BrokerUnavailable: all were lent up to the deadline, as ``why_not`` says.
        """
        if not self._lendable.acquire(timeout=deadline.left_s()):
            raise BrokerUnavailable(f"{why_not} within {deadline.timeout_s} s")
        try:
            closed, reader = self._closed, self._take() or self._make()
            try:
                yield reader
            except BaseException:
                reader.close()
                raise
            self._keep(reader, closed)
        finally:
            self._lendable.release()

    def serve(self, now_s: float) -> None:
        """Polls those that are not lent, once a second.

        Args:
            now_s: by a monotonic clock.
        """
        if now_s - self._served_s < SERVE_S:
            return
        self._served_s, closed = now_s, self._closed
        for _ in range(len(self._free)):
            if reader := self._take():
                with suppress(BrokerError):
                    reader.poll(1, 0.0)
                self._keep(reader, closed)
                self._free.rotate()  # The next one's turn; after all of them they are as before.

    def close(self) -> None:
        """Closes all; one that is lent, when it comes back. Whoever lends later has a new one."""
        self._closed += 1
        while reader := self._take():
            reader.close()

    def _take(self) -> LogReader | None:
        with suppress(IndexError):  # Another thread may have taken the last one.
            return self._free.pop()
        return None

    def _keep(self, reader: LogReader, closed: int) -> None:
        """It is lent again, unless all were closed meanwhile, or as many were made meanwhile."""
        if closed == self._closed and len(self._free) < self._count:
            self._free.append(reader)
        else:
            reader.close()
