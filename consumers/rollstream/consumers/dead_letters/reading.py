"""Every dead letter of a deployment, in the order in which they were written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import DeadLetter, Event, Retried
from rollstream.streams.broker import Broker, Record, TopicPartition
from rollstream.streams.errors import CorruptLog
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import read_between
from rollstream.streams.topics.layout import Layout

_log = logging.getLogger("rollstream.deadletters")


class Source(NamedTuple):
    """Where in an ingest log an entry stood."""

    topic: str
    partition: int
    offset: int
    entry: int


class StoredLetter(NamedTuple):
    """A letter in its log.

    Attributes:
        number: its offset there.
        timestamp_us: log time at which it was written.
        retried: whether what it holds was published again.
    """

    number: int
    timestamp_us: int
    letter: DeadLetter
    retried: bool

    @property
    def source(self) -> Source:
        """Of which entry it is; a sealer that began anew may have written a second letter of it."""
        return source_of(self.letter)


def source_of(event: DeadLetter | Retried) -> Source:
    """Where the entry stood."""
    return Source(event.topic, event.partition, event.offset, event.entry)


def read_letters(broker: Broker, layout: Layout, deadline: Deadline) -> Iterator[StoredLetter]:
    """Yields every letter that is kept, a few in memory at a time. Records that nobody of ours
    wrote are passed over, with one log message.

    Args:
        deadline: for each answer, however many letters there are: every record restarts it.

    Raises:
        BrokerUnavailable: not read in time. UnknownTopic: there is no such log. NewerEvent:
            a newer version wrote to it.
    """
    where = TopicPartition(layout.dead_letters(), 0)
    with closing(broker.reader({where: 0})) as reader:
        first, end = reader.bounds(where, deadline.left_s())

        def entries() -> Iterator[tuple[int, int, Event | None]]:
            for record in read_between(reader, where, first, end, deadline):
                yield record.offset, record.timestamp_us, _event_in(record)
                deadline.restart()

        retried, passed_over, last = set[Source](), 0, first
        for offset, _, event in entries():
            if event is None:
                passed_over, last = passed_over + 1, offset
            elif isinstance(event, Retried):
                retried.add(source_of(event))
        if passed_over:
            _log.warning(
                "%s: %d records, the last at offset %d, are no letters and are passed over",
                *(where, passed_over, last),
            )
        for offset, timestamp_us, event in entries():
            if isinstance(event, DeadLetter):
                yield StoredLetter(offset, timestamp_us, event, source_of(event) in retried)


def _event_in(record: Record) -> Event | None:
    """None: bytes of somebody else, which keep nobody from the letters: no other one follows from
    what they hold, as in an owned log."""
    try:
        return event_in(record)
    except CorruptLog:
        return None
