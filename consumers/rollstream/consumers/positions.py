"""How far the readers of a name are, in ``positions.<env>``: compacted, and kept for ever.

Kafka forgets a consumer group's offsets 7 days after its last member left. The topic forgets
nothing. Only the group knows which reader owns a partition, so a reader writes here after the group
took its commit.

Compaction keeps the last record of a key. A record of a former owner may come late and be the last.
So each assignment of a partition has a key of its own, and the position furthest ahead holds. An
owner deletes older keys once its own record is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from rollstream.consumers.delivering import Outgoing, deliver
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.schemas.codec import decode_as, encode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Claimed, Event, ReaderPosition, is_position_of, position_key
from rollstream.streams.broker import Broker, Committed, Record, TopicPartition, Writer
from rollstream.streams.compacted import newest_records
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    DeliveryUnknown,
    OffsetLost,
    PermanentBrokerError,
    UnreadableLog,
)
from rollstream.streams.owned.fence import Fence

Newest = Mapping[tuple[TopicPartition, bytes | None], Record]
_log = logging.getLogger("rollstream.sealed_groups")


@dataclass(slots=True)
class StoredPosition:
    """The stored position of a partition while it is assigned to this reader.

    Attributes:
        log: partition of the topic of positions.
        key: of this assignment's records.
        found: the position at the beginning; None: there was none.
        next_offset: of the newest position that is durable, or -1.
        older_keys: what this assignment's first record replaces.
    """

    log: TopicPartition
    key: bytes
    found: ReaderPosition | None = None
    next_offset: int = -1
    older_keys: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Position:
    """Where the reading of a seal log is.

    Attributes:
        stored: its position in the topic of positions.
        committed: the offset that the group has, or -1.
        wanted_from: flushes before it were committed under this reader's name.
        begun_at: the claim that it was begun at, or 0.
        next_offset: after the newest record that was taken.
        nonce: of that claim, if a stored position names it and it is not read yet; else empty.
    """

    stored: StoredPosition
    committed: int
    wanted_from: int
    begun_at: int
    next_offset: int
    nonce: str = ""
    fence: Fence = field(default_factory=Fence)

    @classmethod
    def furthest(cls, stored: StoredPosition, of_group: Committed | None) -> Self:
        """Begins where the topic or the group is further ahead, whichever that is."""
        committed, found = -1 if of_group is None else of_group.offset, stored.found
        if found is not None and found.next_offset > committed:
            claim = found.claim_epoch
            return cls(stored, committed, found.next_offset, claim, claim, found.claim_nonce)
        metadata = "" if of_group is None else of_group.metadata
        claim = int(metadata) if metadata.isdecimal() else 0
        return cls(stored, committed, max(committed, 0), claim, claim)

    def from_beginning(self) -> Position:
        """Begins with the log's first record, which needs no claim, and has the group's offset."""
        found, stored = self.stored.found, self.stored
        if found is not None and found.next_offset > self.committed:
            _log.warning(
                "%s names offset %d of another seal log. It does not count. The offset of the "
                "consumer group counts",
                stored.log,
                found.next_offset,
            )
            stored.found, stored.next_offset = None, -1
        return Position(stored, self.committed, max(self.committed, 0), 0, 0)

    def is_refuted(self, record: Record, event: Event | None) -> bool:
        """Whether the log does not hold the claim that the position names. Each record is given."""
        nonce, self.nonce = self.nonce, ""
        claim = event if record.offset == self.begun_at and isinstance(event, Claimed) else None
        if nonce:
            return claim is None or claim.nonce != nonce
        return record.offset == self.begun_at > 0 and claim is None

    def due(self) -> ReaderPosition | None:
        """Returns what a commit stores now; None before a claim was read, since only a claim says
        which events behind it count."""
        claim = self.fence.current_claim
        if claim is None:
            return None
        return ReaderPosition(
            next_offset=max(self.next_offset, self.wanted_from),
            claim_epoch=claim.epoch,
            claim_nonce=claim.nonce,
        )


class Positions:
    """Reads and writes the positions of one reader name.

    If a topic is missing or refused, the log says so once. Then its environment goes on without
    stored positions; the next assignment tries again. Not shared between threads.

    Args:
        reader: the name that the readers share.
        topics: the topic of positions of each seal log's topic.
    """

    def __init__(
        self, reader: str, topics: Mapping[str, str], broker: Broker, entropy: Entropy
    ) -> None:
        self._reader = reader
        self._topics = topics
        self._broker = broker
        self._entropy = entropy
        self._writer: Writer | None = None
        self._off: set[str] = set()
        self._warned: set[str] = set()

    def read(
        self, logs: Collection[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, StoredPosition]:
        """Returns the stored position of each of these partitions of seal logs.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        found: dict[TopicPartition, StoredPosition] = {}
        for topic in sorted({where.topic for where in logs}):
            of_topic = [where for where in logs if where.topic == topic]
            where_stored = {
                TopicPartition(self._topics[topic], where.partition): where for where in of_topic
            }
            records = self._newest(self._topics[topic], where_stored, deadline)
            for stored, where in where_stored.items():
                found[where] = self._furthest(stored, records)
        return found

    def store(
        self, due: Sequence[tuple[StoredPosition, ReaderPosition]], deadline: Deadline
    ) -> None:
        """Writes these positions, unless the topic holds them already.

        Raises:
            BrokerUnavailable: a record is not known to be durable. Store it again.
        """
        new = [
            (stored, position)
            for stored, position in due
            if stored.log.topic not in self._off and position.next_offset > stored.next_offset
        ]
        records = [Outgoing(one.log, encode(position), one.key) for one, position in new]
        unknown: BrokerError | None = None
        older: list[Outgoing] = []
        for (stored, position), found in zip(new, self._write(records, deadline), strict=True):
            if isinstance(found, int):
                stored.next_offset = position.next_offset
                older += [Outgoing(stored.log, None, one) for one in stored.older_keys]
                stored.older_keys.clear()
            elif isinstance(found, PermanentBrokerError):
                self._do_without(stored.log.topic, found)
            else:
                # It may come behind the next record, which so needs another key.
                stored.older_keys.append(stored.key)
                stored.key = self._new_key(stored.log.partition)
                unknown = found
        if older and unknown is None:
            self._write(older, deadline)  # One that stays does no harm: it is behind.
        if unknown is not None:
            raise BrokerUnavailable(
                f"The position of reader {self._reader!r} may not be stored: {unknown}. The "
                "consumer group has it. Commit again to store it"
            ) from unknown

    def close(self) -> None:
        """Drops the writer. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()

    def _newest(self, topic: str, logs: Collection[TopicPartition], deadline: Deadline) -> Newest:
        """The newest record of each key; none if the topic is missing or refused."""
        self._off.discard(topic)
        try:
            return newest_records(self._broker, logs, deadline)
        except (PermanentBrokerError, OffsetLost, UnreadableLog) as error:
            self._do_without(topic, error)
            return {}

    def _furthest(self, log: TopicPartition, records: Newest) -> StoredPosition:
        stored = StoredPosition(log, self._new_key(log.partition))
        for (where, key), record in records.items():
            of_reader = where == log and is_position_of(key, self._reader, log.partition)
            if key is None or not of_reader or not record.value:
                continue
            try:
                position = decode_as(ReaderPosition, record.value)
            except UnreadableEvent as error:
                _log.warning("%s, offset %d: %s; it is passed over", log, record.offset, error)
                continue
            stored.older_keys.append(key)
            if position.next_offset > stored.next_offset:
                stored.found, stored.next_offset = position, position.next_offset
        return stored

    def _write(self, records: Sequence[Outgoing], deadline: Deadline) -> list[int | BrokerError]:
        if self._writer is None:
            self._writer = self._broker.writer(linger_ms=0.0)  # The caller waits for the record.
        found = deliver(self._writer, records, deadline)
        if any(isinstance(one, DeliveryUnknown) for one in found):
            self.close()
        return found

    def _do_without(self, topic: str, error: Exception) -> None:
        self._off.add(topic)
        if topic not in self._warned:
            self._warned.add(topic)
            _log.warning(
                "Positions of reader %r are not stored in %s: %s. The reader goes on with the "
                "offsets of its consumer group. Kafka forgets them 7 days after the last reader "
                "left; then all groups are handed out again",
                self._reader,
                topic,
                error,
            )

    def _new_key(self, partition: int) -> bytes:
        return position_key(self._reader, partition, self._entropy.token())
