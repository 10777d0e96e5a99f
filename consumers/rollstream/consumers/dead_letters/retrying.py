"""Publishes again what dead letters hold, once somebody mended what kept it from being read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from rollstream.consumers.dead_letters.settled import SettledSources, settled_sources
from rollstream.consumers.delivering import Outgoing, deliver_all, writing
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import DeadLetter, Retried
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.schemas.ingest.wire import record_headers
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.dead_letters import Source, StoredLetter, read_letters
from rollstream.streams.errors import RecordTooLarge
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import Layout


class RetryState(StrEnum):
    """What became of a letter."""

    PUBLISHED = "published"
    PARTLY = "published in part"
    BEFORE = "published before"
    SETTLED = "was sealed"
    REFUSED = "not published"


class Outcome(NamedTuple):
    """What ``retry_letters`` did with a letter.

    Attributes:
        entries: how many were published now, without those that break a rule.
        detail: where to, or why not, for a person.
    """

    number: int
    state: RetryState
    entries: int
    detail: str


def retry_letters(
    config: RollstreamConfig,
    broker: Broker,
    wanted: Callable[[StoredLetter], bool],
    deadline: Deadline,
) -> Iterator[Outcome]:
    """Publishes what the wanted letters hold, as records of their own, to the log of the entry's
    environment and the partition of its key; yields what became of each letter.

    Repeating it publishes nothing again: a letter whose entry was published is marked. Nor does it
    publish what a sealer could read after all, and so sealed or settled otherwise; the seal logs
    are asked first, and what they have not settled yet is refused until they have. Where a process
    was killed before the mark, or two run at once, the sealer settles what comes twice as
    ``duplicate``, within its dedupe horizon. What cannot be read yet, or breaks a rule still, is
    refused and stays; where only some entries of a letter break one, they are published with the
    others, so that each comes back as a letter of its own.

    Args:
        deadline: for each answer of the broker.

    Raises:
        BrokerUnavailable, PermanentBrokerError: the broker did not take it, or not in time; letters
            that were yielded are done.
    """
    layout = Layout.of(config.kafka)
    partitions = {name: section.partitions for name, section in config.environments.items()}
    asked: dict[Source, int] = {}
    for stored in read_letters(broker, layout, deadline):
        if wanted(stored) and not stored.retried:
            asked.setdefault(stored.source, stored.timestamp_us)
    settled = settled_sources(broker, layout, partitions, asked, deadline)
    done: set[Source] = set()
    with writing(broker) as writer:

        def publish(*records: Outgoing) -> list[int]:
            deadline.restart()
            return deliver_all(writer, records, deadline)

        for stored in read_letters(broker, layout, deadline):
            if not wanted(stored):
                continue
            if stored.retried or stored.source in done:
                yield Outcome(stored.number, RetryState.BEFORE, 0, "")
                continue
            outcome = _retry(stored, config, layout, settled, publish)
            if outcome.state in (RetryState.PUBLISHED, RetryState.PARTLY):
                done.add(stored.source)
            yield outcome


def _retry(
    stored: StoredLetter,
    config: RollstreamConfig,
    layout: Layout,
    settled: SettledSources,
    publish: Callable[..., list[int]],
) -> Outcome:
    """Publishes what the letter holds, and the mark."""
    number = stored.number
    try:
        record = _record_in(stored.letter, config)
        # A letter of several entries is about a whole record, so it is of its entry 0.
        ending = settled.sealed_as(stored.source, whole=record.count > 1)
        if ending:
            return Outcome(number, RetryState.SETTLED, 0, f"its seal log says {ending}")
        if stored.source not in settled.endings:
            detail = "no seal log says yet what became of it; run it again when sealers went on"
            return Outcome(number, RetryState.REFUSED, 0, detail)
        records = _records_of(record, config, layout)
        offsets = publish(*records)
    except (UnreadableEvent, RecordTooLarge) as error:
        return Outcome(number, RetryState.REFUSED, 0, str(error))
    mark = Retried(**stored.source._asdict())
    where = TopicPartition(layout.dead_letters(), 0)
    publish(Outgoing(where, codec.encode(mark), headers=record_headers()))
    addresses = zip((one.where for one in records), offsets, strict=True)
    detail = ", ".join(f"{where} at {offset}" for where, offset in addresses)
    state = RetryState.PUBLISHED
    if record.broken:
        detail += f"; letters again, since they break a rule: {_rules_broken(record)}"
        state = RetryState.PARTLY
    return Outcome(number, state, record.count - len(record.broken), detail)


def _record_in(letter: DeadLetter, config: RollstreamConfig) -> IngestRecord:
    """What the letter holds; ``UnreadableEvent`` where no entry of it could be sealed."""
    if letter.value is None:
        raise UnreadableEvent("too_large", "the letter holds no bytes; its detail says why")
    record = decode_record(letter.value)
    if record.environment not in config.environments:
        known = ", ".join(config.environments)
        raise UnreadableEvent(
            "wrong_environment", f"no environment {record.environment!r} is configured, but {known}"
        )
    if len(record.broken) == record.count:
        raise UnreadableEvent("inconsistent", _rules_broken(record))
    return record


def _rules_broken(record: IngestRecord) -> str:
    return "; ".join(f"entry {entry}: {rule}" for entry, rule in sorted(record.broken.items()))


def _records_of(record: IngestRecord, config: RollstreamConfig, layout: Layout) -> list[Outgoing]:
    """The record's entries, as one record for each partition of their keys."""
    topic = layout.rollouts(record.environment)
    count = config.environments[record.environment].partitions
    found: defaultdict[int, list[int]] = defaultdict(list)
    keys = zip(record.values("group_uid"), record.values("example_id"), strict=True)
    for entry, (group_uid, example_id) in enumerate(keys):
        found[partition_of((group_uid or example_id).encode(), count)].append(entry)
    return [
        Outgoing(
            TopicPartition(topic, number),
            record.part(entries, partitions=count),
            headers=record_headers(),
        )
        for number, entries in sorted(found.items())
    ]
