"""Sends what was gathered, and learns what became of it; used by both producers, on one thread at a
time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.outbox import Address, Outbox, Outgoing
from rollstream.producers.errors import IF_NO_TOPIC, RolloutTooLarge
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.ingest.record import decode_record
from rollstream.schemas.ingest.wire import record_headers
from rollstream.streams.broker import Delivery, Writer
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    BufferFull,
    RecordTooLarge,
    TopicMismatch,
    UnknownTopic,
)
from rollstream.streams.partitioning import partition_of

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

_KEYS_KEPT = 4_096

Settle = Callable[[Sequence[Outgoing], RollstreamError | None], None]


class Sender:
    """Gathers entries, sends records, and settles each entry once: in the log, or why not.

    Args:
        settle: called for the entries of one record together, inside ``poll`` or a call that sends.

    Attributes:
        gatherer: what is gathered or on its way.
        partitions: how many each topic has that was asked for, as first read.
        full_cause: what the writer said when it had no room the last time.
    """

    def __init__(self, writer: Writer, outbox: Outbox, settle: Settle) -> None:
        self._writer = writer
        self._outbox = outbox
        self._settle = settle
        self.gatherer = Gatherer()
        self._ready: set[Address] = set()  # Partitions that a record may be sent to now.
        self._mismatches: dict[str, str] = {}
        # Of each key, by topic.
        self._places: dict[str, _lru_cache_wrapper[Address]] = {}
        self.partitions: dict[str, int] = {}
        self.full_cause: BufferFull | None = None

    @property
    def outstanding(self) -> int:
        """How many entries are gathered or on their way."""
        return self.gatherer.entries

    def append(self, outgoing: Outgoing) -> bool:
        """Gathers an entry, and sends what is full; False where there is no room for it.

        Raises:
            TopicMismatch: the topic has more partitions by now.
        """
        address = self._address(outgoing.topic, outgoing.key)
        if not self.gatherer.has_room(outgoing):
            return False
        self._gather(outgoing, address)
        return True

    def append_together(self, outgoing: Sequence[Outgoing]) -> bool:
        """Gathers all of them, or none where there is no room; otherwise as ``append``.

        Raises:
            RolloutTooLarge: there will never be room for all of them at once.
        """
        addresses = [self._address(one.topic, one.key) for one in outgoing]
        if not self.gatherer.has_room_for(outgoing):
            return False
        for one, address in zip(outgoing, addresses, strict=True):
            self._gather(one, address)
        return True

    def appended(self, topic: str) -> int:
        """How many entries were gathered for a topic so far, or a few more; on any thread. Each
        asked for its partition once, and that is counted anyway."""
        places = self._places.get(topic)
        if places is None:
            return 0
        asked = places.cache_info()
        return asked.hits + asked.misses

    def send_all(self) -> None:
        """Sends everything that is gathered."""
        for address in self.gatherer.end_linger():
            self._send(address)

    def send_group(self, topic: str, group_uid: str) -> None:
        """Sends what is gathered where the group belongs."""
        if topic in self.partitions and topic not in self._mismatches:
            for address in self.gatherer.end_linger(self._address(topic, group_uid)):
                self._send(address)

    def poll(self, timeout_s: float) -> None:
        """Settles what the broker answered, waiting up to ``timeout_s`` for a first answer, and
        sends what waited for that."""
        self._writer.poll(timeout_s)
        ready, self._ready = self._ready, set()
        for address in ready:
            self._send(address)

    def find_partitions(self, topic: str, timeout_s: float) -> None:
        """Learns how many partitions a topic has; once.

        Raises:
            UnknownTopic, NotAuthorised, BrokerUnavailable: the broker's answer, or none in time.
        """
        try:
            count = self._writer.partitions(topic, timeout_s)
        except UnknownTopic as error:
            raise UnknownTopic(
                f"topic {topic} does not exist on {self._outbox.broker}; {IF_NO_TOPIC}"
            ) from error
        self.partitions[topic] = count
        # A group's entries come close together.
        self._places[topic] = lru_cache(_KEYS_KEPT)(
            lambda key: (topic, partition_of(key.encode(), count))
        )

    def changed_partitions(self, topic: str, timeout_s: float) -> int | None:
        """Asks again, on any thread: the number of partitions where it is another, else None."""
        try:
            found = self._writer.partitions(topic, timeout_s)
        except BrokerError:
            return None  # The next look may be answered.
        return None if found == self.partitions[topic] else found

    def refuse(self, topic: str, found: int) -> None:
        """From now on the topic is not published to: half of its keys would move to partitions
        where nobody expects them. What is gathered for it has failed."""
        self._mismatches[topic] = (
            f"{topic} has {found} partitions by now and had {self.partitions[topic]} when this "
            "producer began; set partitions of the environment to the number that it has, restart "
            "its sealers, and make a new producer"
        )
        self._settle(self.gatherer.drop(topic), TopicMismatch(self._mismatches[topic]))

    def abandon(self) -> None:
        """Settles everything: what is on its way is in doubt, what is gathered was not sent."""
        self._writer.abandon()
        dropped = self.gatherer.drop()
        self._settle(dropped, BrokerUnavailable("it was never sent: the broker took no more"))

    def _gather(self, outgoing: Outgoing, address: Address) -> None:
        outgoing.address = address
        if self.gatherer.append(outgoing):
            self._ready.add(address)
            self.poll(0.0)

    def _address(self, topic: str, key: str) -> Address:
        if topic in self._mismatches:
            raise TopicMismatch(self._mismatches[topic])
        return self._places[topic](key)

    def _send(self, address: Address) -> None:
        """Sends the next record of a partition, if one is to be sent now."""
        topic, partition = address
        while record := self.gatherer.take(address):
            value = self._outbox.encode(record, self.partitions[topic])
            on_delivery = partial(self._on_delivery, record)
            try:
                self._writer.append(
                    topic,
                    value,
                    partition=partition,
                    headers=record_headers(),
                    on_delivery=on_delivery,
                )
            except BufferFull as full:
                self.full_cause = full
                self.gatherer.put_back(record)
                self._ready.add(address)
                return
            except BrokerError as error:
                self._answer(record, error, value)
            else:
                for one in record:
                    one.entry = None  # The writer has it: payloads are held there alone.

    def _on_delivery(self, record: Sequence[Outgoing], delivery: Delivery) -> None:
        self._answer(record, delivery.error, delivery.value)
        self._ready.add(record[0].address)

    def _answer(
        self, record: Sequence[Outgoing], error: RollstreamError | None, value: bytes
    ) -> None:
        """Settles the record of these bytes, or makes it ready to be sent in parts."""
        if isinstance(error, RecordTooLarge):
            if len(record) > 1:
                refused = decode_record(value)
                for index, one in enumerate(record):
                    one.entry = refused.entry(index)
                self.gatherer.put_back(record, too_large=True)
                return
            about = record[0].named
            what = f"rollout {about}" if about else f"an event of group {record[0].group_uid}"
            error = RolloutTooLarge(what, len(value), None, str(error))
        self.gatherer.answered(record)
        self._settle(record, error)
