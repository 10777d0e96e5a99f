"""Publishes again what dead letters hold, once somebody mended what kept it from being read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import NamedTuple, Self

from rollstream.consumers.dead_letters.reading import Source, StoredLetter, read_letters
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import DeadLetter, Retried
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.streams.broker import Broker, Delivery
from rollstream.streams.errors import BrokerUnavailable, RecordTooLarge
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import Layout

_SLICE_S = 0.1


class RetryState(StrEnum):
    """What became of a letter."""

    PUBLISHED = "published"
    BEFORE = "published before"
    REFUSED = "not published"


class Outcome(NamedTuple):
    """What ``retry_letters`` did with a letter.

    Attributes:
        entries: how many were published now.
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

    Repeating it publishes nothing again: a letter whose entry was published is marked. Where a
    process was killed before the mark, or two run at once, the sealer settles what comes twice as
    ``duplicate``. What cannot be read yet, or breaks a rule still, is refused and stays.

    Raises:
        BrokerUnavailable, PermanentBrokerError: the broker did not take it, or not in time; letters
            that were yielded are done.
    """
    layout = Layout.of(config.kafka)
    done: set[Source] = set()
    with _Sender(broker, deadline) as sender:
        for stored in read_letters(broker, layout, deadline):
            if not wanted(stored):
                continue
            if stored.retried or stored.source in done:
                yield Outcome(stored.number, RetryState.BEFORE, 0, "")
                continue
            try:
                records, broken = _records_of(stored.letter, config, layout)
                addresses = [sender.publish(record) for record in records]
            except (UnreadableEvent, RecordTooLarge) as error:
                yield Outcome(stored.number, RetryState.REFUSED, 0, str(error))
                continue
            mark = Retried(**stored.source._asdict())
            sender.publish(_Outgoing(layout.dead_letters(), 0, codec.encode(mark), 0))
            done.add(stored.source)
            entries = sum(record.entries for record in records)
            detail = ", ".join(addresses) + (
                f"; not those that break a rule: {broken}" * bool(broken)
            )
            yield Outcome(stored.number, RetryState.PUBLISHED, entries, detail)


class _Outgoing(NamedTuple):
    topic: str
    partition: int
    value: bytes
    entries: int


def _records_of(
    letter: DeadLetter, config: RollstreamConfig, layout: Layout
) -> tuple[Sequence[_Outgoing], str]:
    """The records to publish, and which entries break a rule; ``UnreadableEvent`` where none is
    sound."""
    if letter.value is None:
        raise UnreadableEvent("too_large", "the letter holds no bytes, since they were too many")
    record = decode_record(letter.value)
    section = config.environments.get(record.environment)
    if section is None:
        known = ", ".join(config.environments)
        raise UnreadableEvent(
            "wrong_environment", f"no environment {record.environment!r} is configured, but {known}"
        )
    broken = "; ".join(f"entry {entry}: {rule}" for entry, rule in sorted(record.broken.items()))
    if len(record.broken) == record.count:
        raise UnreadableEvent("inconsistent", broken)
    topic, count = layout.rollouts(record.environment), section.partitions
    return [
        _Outgoing(topic, number, record.part(entries, partitions=count), len(entries))
        for number, entries in sorted(_by_partition(record, count).items())
    ], broken


def _by_partition(record: IngestRecord, count: int) -> dict[int, list[int]]:
    """The sound entries, by the partition of their keys."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    keys = zip(record.values("group_uid"), record.values("example_id"), strict=True)
    for entry, (group_uid, example_id) in enumerate(keys):
        if entry not in record.broken:
            found[partition_of((group_uid or example_id).encode(), count)].append(entry)
    return found


class _Sender(AbstractContextManager["_Sender"]):
    """Appends one record at a time, and returns once it is in its log."""

    def __init__(self, broker: Broker, deadline: Deadline) -> None:
        self._writer = broker.writer(linger_ms=0)
        self._deadline = deadline

    def publish(self, record: _Outgoing) -> str:
        """Where it is, for people."""
        reports: list[Delivery] = []
        self._writer.append(
            record.topic, record.value, partition=record.partition, on_delivery=reports.append
        )
        where = f"{record.topic}[{record.partition}]"
        while not reports:
            if self._deadline.passed():
                raise BrokerUnavailable(
                    f"{where}: no report within {self._deadline.timeout_s} s; run it again"
                )
            self._writer.poll(self._deadline.slice_s(_SLICE_S))
        if reports[0].error is not None:
            raise reports[0].error
        return f"{where} at {reports[0].offset}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.abandon()
