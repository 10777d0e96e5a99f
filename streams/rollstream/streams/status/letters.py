"""Counts the dead letters that nobody published again."""

from __future__ import annotations

from contextlib import closing

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import DeadLetter, Retried
from rollstream.streams.broker import EARLIEST, Broker, Record, TopicPartition
from rollstream.streams.reading import read_between
from rollstream.streams.status.figures import DeadLetterFigures
from rollstream.streams.status.sampling import age_s

LETTERS_READ_MAX = 1_000  # The newest; each may have a record's bytes.
_Source = tuple[str, int, int, int]  # Topic, partition, offset and entry.


def measure_letters(
    broker: Broker, topic: str, now_us: int, deadline: Deadline
) -> DeadLetterFigures:
    """Only the newest records are read; each before them counts as a letter, but for those that a
    mark among the newest says were published again."""
    where = TopicPartition(topic, 0)
    letters: dict[_Source, tuple[int, str, str]] = {}
    marked: set[_Source] = set()
    with closing(broker.reader({where: EARLIEST})) as reader:
        first, end = reader.bounds(where, deadline.left_s())
        start = max(first, end - LETTERS_READ_MAX)
        for record in read_between(reader, where, start, end, deadline):
            event, reason = _letter(record)
            if isinstance(event, DeadLetter | Retried):
                source = (event.topic, event.partition, event.offset, event.entry)
            else:
                source = (record.topic, record.partition, record.offset, 0)
            if isinstance(event, Retried):
                marked.add(source)
                continue
            stood = f"{TopicPartition(*source[:2])} at {source[2]}" if event is not None else ""
            letters[source] = (record.timestamp_us, reason, stood)
    older = max(0, start - first - len(marked - letters.keys()))
    kept = [letter for source, letter in letters.items() if source not in marked]
    if not kept:
        return DeadLetterFigures(kept=older)
    timestamp_us, reason, stood = kept[-1]
    return DeadLetterFigures(
        kept=older + len(kept),
        newest_age_s=age_s(now_us, timestamp_us),
        newest_reason=reason,
        newest_from=stood,
    )


def _letter(record: Record) -> tuple[DeadLetter | Retried | None, str]:
    """The letter or mark, and why the entry could not be read; a letter that cannot be read itself
    is no reason to show nothing."""
    try:
        event = decode(record.value)
    except UnreadableEvent as error:
        return None, f"the letter cannot be read: {error}"
    if isinstance(event, DeadLetter):
        return event, f"{event.reason}: {event.detail}"
    if isinstance(event, Retried):
        return event, ""
    return None, f"the letter is a {type(event).__name__}"
