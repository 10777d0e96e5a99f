"""The clients with which owners write and read their logs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Broker, LogReader, OnDelivery, TopicPartition, Writer
from rollstream.streams.errors import BrokerError
from rollstream.streams.owned.lending import Lender
from rollstream.streams.reading import bounds_in_time

IDLE_S = 0.005  # A claim seeks and asks several times, each behind the request before.
FIND_S, FIND_TRIES = 3.0, 3
FIND_EVERY_S = 1.0  # Claims of many logs come together, and one answer is about all of a topic.


class OwnerClients:
    """One client that appends and a few that read, for all logs that a process owns: their number
    does not grow with the logs. Any thread may use them.

    Nobody takes back what was appended. What an owner gave up may land late, where the fence hides
    it; a late claim of its own fences the owner, which claims again.

    Args:
        readers: how many are lent at a time.
    """

    def __init__(self, broker: Broker, readers: int = 1) -> None:
        self._broker = broker
        self._lock = threading.Lock()  # Held while one is made that appends, and while it does.
        self._writer: Writer | None = None
        self._found_s: dict[str, float] = {}  # When the leaders of a topic were found.
        self._readers = Lender(partial(broker.reader, {}, idle_s=IDLE_S), readers)

    def append(self, where: TopicPartition, value: bytes, on_delivery: OnDelivery) -> None:
        """Sends a record once. Raises as ``Writer.append``."""
        with self._lock:
            if self._writer is None:
                self._writer = self._broker.writer(linger_ms=0.0, retries=False)
            self._writer.append(
                where.topic, value, partition=where.partition, on_delivery=on_delivery
            )

    def find_leaders(self, topic: str, now_s: float) -> None:
        """Asks who leads the topic's logs now, if appends may go to an earlier leader that is
        silent: it would be noticed ``SILENT_MS_MAX`` after an append. Waits ``FIND_S`` at most.
        An answer counts for ``FIND_EVERY_S``.

        Args:
            now_s: by a monotonic clock.
        """
        writer, found_s = self._writer, self._found_s.get(topic, -inf)
        if writer is None or now_s < found_s + FIND_EVERY_S:
            return  # A new one asks by itself.
        for _ in range(FIND_TRIES):
            with suppress(BrokerError):  # Each time another broker may be asked; an append says it.
                writer.partitions(topic, FIND_S / FIND_TRIES)
                self._found_s[topic] = now_s
                break

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
        self.serve(deadline.clock.monotonic_s())
        with self._readers.lend(f"{where}: no reader was free", deadline) as reader:
            yield reader
            reader.pause(where)  # After an error it is lent no more: it may have more to tell.

    def wait_for_leader(self, where: TopicPartition, deadline: Deadline) -> None:
        """Returns once the leader of the log answers.

        Raises:
            BrokerUnavailable: it does not by the deadline.
        """
        with self.reader(where, deadline) as reader:
            bounds_in_time(reader, where, deadline)

    def serve(self, now_s: float) -> None:
        """Polls those that nobody uses, once a second, as ``Lender.serve``."""
        self.poll()
        self._readers.serve(now_s)

    def close(self) -> None:
        """Closes all of them; what is on its way is in doubt. Idempotent."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        self._readers.close()
