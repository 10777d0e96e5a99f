"""An owner that takes for durable what it only means to write with its next event."""

from __future__ import annotations

from typing import Any

from harness.faults import Append, FaultyBroker, FaultyWriter, write_now
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed
from rollstream.streams.broker import Broker, Delivery, Headers, OnDelivery, TopicPartition


class ReportingEarly(FaultyBroker):
    """Reports an event as delivered, and writes it when the next one comes."""

    def writer(self, **settings: Any) -> FaultyWriter:
        return _Writer(self, self.inner)


class _Writer(FaultyWriter):
    def __init__(self, broker: ReportingEarly, inner: Broker) -> None:
        super().__init__(broker, inner.writer())
        self._log = inner
        self._unwritten: list[Append] = []
        self._reports: list[tuple[OnDelivery, Delivery]] = []

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for append in unwritten:
            write_now(self._log, append)
        assert partition is not None
        assert on_delivery is not None
        if isinstance(codec.decode(value or b""), Claimed):
            super().append(topic, value, key=key, partition=partition, on_delivery=on_delivery)
            return
        where = TopicPartition(topic, partition)
        end = self._log.reader({where: 0}).bounds(where, 1.0)[1]
        self._unwritten.append(Append(topic, value or b"", key, partition, headers))
        self._reports.append((on_delivery, Delivery(topic, partition, end, None, 0)))

    def poll(self, timeout_s: float = 0.0) -> None:
        reports, self._reports = self._reports, []
        for on_delivery, delivery in reports:
            on_delivery(delivery)
        super().poll(timeout_s)
