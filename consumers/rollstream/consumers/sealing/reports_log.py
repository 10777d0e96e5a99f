"""Writes the log of what holds now of an environment's partitions."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from math import inf

from rollstream.runtime.clock import Clock
from rollstream.schemas import codec
from rollstream.schemas.events import Event
from rollstream.streams.broker import Broker, Delivery, Writer
from rollstream.streams.errors import BufferFull, PermanentBrokerError

_AGAIN_S = 60.0  # After a refusal, as where the topic is not there.
_log = logging.getLogger("rollstream.sealer")


class ReportsLog:
    """Appends reports, and waits for none: what does not arrive is reported again.

    Not shared between threads.

    Args:
        topic: ``Layout.reports`` of the environment.
    """

    def __init__(self, broker: Broker, topic: str, clock: Clock) -> None:
        self._broker = broker
        self._topic = topic
        self._clock = clock
        self._writer: Writer | None = None
        self._refused_until_s = -inf

    @property
    def takes(self) -> bool:
        """Whether anything may be written now."""
        return self._clock.monotonic_s() >= self._refused_until_s

    def append(self, partition: int, event: Event) -> Future[bool]:
        """Queues a report. A later ``poll``, or ``close``, sets whether it is in the log; not where
        the queue is full, or the broker refuses it."""
        arrived: Future[bool] = Future()

        def delivered(delivery: Delivery) -> None:
            if isinstance(delivery.error, PermanentBrokerError):
                if self.takes:
                    _log.warning("how producers stand is not reported: %s", delivery.error)
                self._refused_until_s = self._clock.monotonic_s() + _AGAIN_S
            arrived.set_result(delivery.error is None)

        if self._writer is None:
            self._writer = self._broker.writer(linger_ms=0.0)
        try:
            self._writer.append(
                self._topic, codec.encode(event), partition=partition, on_delivery=delivered
            )
        except (BufferFull, PermanentBrokerError) as error:  # Of an earlier answer of the broker.
            delivered(Delivery(self._topic, partition, -1, error))
        return arrived

    def poll(self) -> None:
        """Takes down what arrived, without waiting for it."""
        if self._writer is not None:
            self._writer.poll(0.0)

    def close(self) -> None:
        """Closes, and waits for nothing: the next owner reports all anew. Idempotent."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
