"""Reads what is kept of one ingest log, beside the events that settle it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rollstream.consumers.audit.ledger import Ledger
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.broker import Broker, Record, TopicPartition
from rollstream.streams.damaged import next_readable
from rollstream.streams.errors import DamagedRecord, OffsetLost
from rollstream.streams.reading import read_between


class IngestRecords:
    """Hands a ledger the records of one ingest log, each once, in their order.

    The log's end is asked for at the first call, when the seal log's is known: every offset that
    the seal log settles is below it.
    """

    def __init__(
        self,
        broker: Broker,
        where: TopicPartition,
        ledger: Ledger,
        deadline: Deadline,
        request_timeout_s: float,
    ) -> None:
        self._broker = broker
        self._reader = broker.reader({where: 0})
        self._where = where
        self._ledger = ledger
        self._deadline = deadline
        self._request_timeout_s = request_timeout_s
        self._records = self._read()
        self._next: Record | None = None  # Read, and not handed over.
        self._end = 0

    def check(self, stop: float = math.inf) -> int:
        """Hands over the records below ``stop`` that were not handed over yet; returns the log's
        end."""
        self._next = self._next or next(self._records, None)
        while self._next is not None and self._next.offset < stop:
            self._ledger.check_record(self._next.offset, _entry_count(self._next.value))
            self._next = next(self._records, None)
        return self._end

    def close(self) -> None:
        """Idempotent."""
        self._reader.close()

    def _read(self) -> Iterator[Record]:
        timeout_s = self._deadline.slice_s(self._request_timeout_s)
        start, self._end = self._reader.bounds(self._where, timeout_s)
        position = 0
        while True:
            # What is before ``start`` and was not read is deleted, or cannot be read.
            self._ledger.add_deleted(position, start)
            position = start
            try:
                for record in read_between(
                    self._reader, self._where, start, self._end, self._deadline
                ):
                    position = record.offset + 1
                    yield record
                return
            except OffsetLost as lost:  # Retention was faster.
                if lost.first <= position:
                    raise
                start = lost.first
            except DamagedRecord as damaged:
                start = max(position, damaged.offset)
                start = next_readable(self._broker, self._where, start, self._deadline)


def _entry_count(value: bytes) -> int:
    """Of a record; one whose frame is broken ends as one dead letter of one entry."""
    try:
        return decode_record(value).count
    except UnreadableEvent:
        return 1
