"""The clients with which owners write and read their logs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Broker, LogReader, OnDelivery, TopicPartition, Writer
from rollstream.streams.errors import BrokerUnavailable

READERS_EACH = 2  # A claim reads the log, and what others wrote while it is confirmed.


class OwnerClients:
    """One client that appends and a few that read, for all logs that a process owns: their number
    does not grow with the logs. Any thread may use them.

    Nobody takes back what was appended. What an owner gave up may land late, where the fence hides
    it; a late claim of its own fences the owner, which claims again.

    Args:
        threads: how many use it at a time.
    """

    def __init__(self, broker: Broker, threads: int = 1) -> None:
        self._broker = broker
        self._lock = threading.Lock()  # Held while clients are made and while one appends.
        self._writer: Writer | None = None
        self._free: queue.LifoQueue[LogReader | None] = queue.LifoQueue()
        for _ in range(READERS_EACH * threads):
            self._free.put(None)  # Made when it is needed.
        self._made: set[LogReader] = set()

    def append(self, where: TopicPartition, value: bytes, on_delivery: OnDelivery) -> None:
        """Sends a record once. Raises as ``Writer.append``."""
        with self._lock:
            if self._writer is None:
                self._writer = self._broker.writer(linger_ms=0.0, retries=False)
            self._writer.append(
                where.topic, value, partition=where.partition, on_delivery=on_delivery
            )

    def poll(self, timeout_s: float = 0.0) -> None:
        """Tells what became of appends, whosever they are; waits up to ``timeout_s`` for one."""
        writer = self._writer
        if writer is not None:
            writer.poll(timeout_s)

    @contextmanager
    def reader(self, where: TopicPartition, deadline: Deadline) -> Iterator[LogReader]:
        """Lends a reader of this log, which is sought before it is polled.

        Raises:
            BrokerUnavailable: all were in use up to the deadline.
        """
        try:
            reader = self._free.get(timeout=deadline.left_s())
        except queue.Empty:
            raise BrokerUnavailable(
                f"{where}: no reader was free within {deadline.timeout_s} s"
            ) from None
        try:
            if reader is None:
                reader = self._broker.reader({})
                with self._lock:
                    self._made.add(reader)
            yield reader
            reader.drop(where)
        except BaseException:
            if reader is not None:  # It may have more to tell of this log.
                with self._lock:
                    self._made.discard(reader)
                reader.close()
                reader = None
            raise
        finally:
            self._free.put(reader)

    def close(self) -> None:
        """Closes all of them; what is on its way is in doubt. Idempotent."""
        with self._lock:
            writer, self._writer = self._writer, None
            readers, self._made = self._made, set()
        if writer is not None:
            writer.abandon()
        for reader in readers:
            reader.close()
        for _ in range(self._free.qsize()):
            self._free.get()
            self._free.put(None)
