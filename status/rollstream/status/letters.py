"""Counts the dead letters that nobody published again."""

from __future__ import annotations

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import DeadLetter, Retried
from rollstream.status.figures import DeadLetterFigures
from rollstream.status.sampling import age_s
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.dead_letters import Source, open_letters, source_of
from rollstream.streams.topics.layout import Layout

LETTERS_READ_MAX = 1_000  # The newest; each may have a record's bytes.


def measure_letters(
    broker: Broker, layout: Layout, now_us: int, deadline: Deadline
) -> DeadLetterFigures:
    """Only the newest records are read; each before them counts as a letter, but for those that a
    mark among the newest says were published again."""
    letters: dict[Source, tuple[int, str, str]] = {}
    marked: set[Source] = set()
    with open_letters(broker, layout, deadline) as log:
        start = max(log.first, log.end - LETTERS_READ_MAX)
        for offset, timestamp_us, event in log.records(start):
            if isinstance(event, Retried):
                marked.add(source_of(event))
            elif isinstance(event, DeadLetter):
                stood = f"{TopicPartition(event.topic, event.partition)} at {event.offset}"
                reason = f"{event.reason}: {event.detail}"
                letters[source_of(event)] = timestamp_us, reason, stood
            else:  # A letter that cannot be read itself is no reason to show nothing.
                reason = f"the letter cannot be read: {event}"
                letters[Source(*log.where, offset, 0)] = timestamp_us, reason, ""
    older = max(0, start - log.first - len(marked - letters.keys()))
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
