"""Reads what is kept of one ingest log, beside the events that settle it."""

from __future__ import annotations

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
        self, broker: Broker, where: TopicPartition, deadline: Deadline, request_timeout_s: float
    ) -> None:
        self._broker = broker
        self._reader = broker.reader({where: 0})
        self._where = where
        self._deadline = deadline
        self._request_timeout_s = request_timeout_s
        self._records: Iterator[Record] = iter(())
        self._next: Record | None = None  # Read, and not handed over.
        self._position = 0
        self._end: int | None = None

    def check_below(self, stop: int, ledger: Ledger) -> None:
        """The records below ``stop`` that were not handed over yet."""
        self._begin(ledger)
        while True:
            record, self._next = self._next or self._read(ledger), None
            if record is None:
                return
            if record.offset >= stop:
                self._next = record
                return
            ledger.check_record(record.offset, _entry_count(record.value))

    def check_rest(self, ledger: Ledger) -> int:
        """All the others; returns the log's end."""
        end = self._begin(ledger)
        self.check_below(end, ledger)
        return end

    def close(self) -> None:
        """Idempotent."""
        self._reader.close()

    def _begin(self, ledger: Ledger) -> int:
        if self._end is None:
            timeout_s = self._deadline.slice_s(self._request_timeout_s)
            first, self._end = self._reader.bounds(self._where, timeout_s)
            self._begin_at(first, self._end, ledger)
        return self._end

    def _begin_at(self, first: int, end: int, ledger: Ledger) -> None:
        """What is before ``first`` and was not read is deleted, or cannot be read."""
        ledger.add_deleted(self._position, first)
        self._position = first
        self._records = read_between(self._reader, self._where, first, end, self._deadline)

    def _read(self, ledger: Ledger) -> Record | None:
        assert self._end is not None, "it has begun"
        while True:
            try:
                record = next(self._records, None)
            except OffsetLost as lost:
                if lost.first <= self._position:
                    raise
                self._begin_at(lost.first, self._end, ledger)  # Retention was faster.
            except DamagedRecord as damaged:
                start = max(self._position, damaged.offset)
                stop = next_readable(self._broker, self._where, start, self._deadline)
                self._begin_at(stop, self._end, ledger)
            else:
                if record is not None:
                    self._position = record.offset + 1
                return record


def _entry_count(value: bytes) -> int:
    """Of a record; one whose frame is broken ends as one dead letter of one entry."""
    try:
        return decode_record(value).count
    except UnreadableEvent:
        return 1
