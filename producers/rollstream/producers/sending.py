"""Sends what was gathered, and learns what became of it; used by both producers, on one thread at a
time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rollstream.producers.errors import RolloutTooLarge
from rollstream.producers.gather import Address, Gatherer, Pending
from rollstream.producers.outbox import Outbox, Outgoing
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.broker import Delivery, Writer
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    BufferFull,
    RecordTooLarge,
    TopicMismatch,
)
from rollstream.streams.partitioning import partition_of

Settle = Callable[[Sequence[Outgoing], RollstreamError | None], None]


class Sender:
    """Gathers entries, sends records, and settles each entry once: in the log, or why not.

    Args:
        settle: called for the entries of one record together, inside ``poll`` or a call that sends.

    Attributes:
        partitions: how many each topic has that may be published to, as first read.
    """

    def __init__(self, writer: Writer, outbox: Outbox, settle: Settle) -> None:
        self._writer = writer
        self._outbox = outbox
        self._settle = settle
        self._gatherer = Gatherer()
        self.partitions: dict[str, int] = {}
        self._mismatches: dict[str, str] = {}
        self.full_cause: BufferFull | None = None  # What the writer said last, if it has no room.

    def append(self, outgoing: Outgoing) -> bool:
        """Gathers an entry, and sends what that made full; False where there is no room for it."""
        gatherer = self._gatherer
        address = self._address(outgoing)
        if not gatherer.has_room(outgoing):
            return False
        if gatherer.append(address, outgoing):
            self._writer.poll(0.0)
            self.send()
        return True

    def take_out(self, outgoing: Outgoing) -> bool:
        """Forgets an entry that has not left; returns whether it was there to be forgotten."""
        if outgoing.topic not in self.partitions:
            return False
        return self._gatherer.take_out(self._address(outgoing), outgoing)

    def send_all(self, topic: str = "", key: bytes = b"") -> None:
        """Sends everything that is gathered, or what is gathered where ``key`` belongs."""
        if not topic:
            self._gatherer.end_linger()
        elif topic in self.partitions:
            self._gatherer.end_linger((topic, partition_of(key, self.partitions[topic])))
        self.send()

    def send(self) -> None:
        """Sends each record that is full or whose linger is over, until the writer has no room."""
        while (record := self._gatherer.take()) is not None:
            topic, partition = record.address
            value = record.value
            if value is None:
                value = self._outbox.encode(record.outgoing, self.partitions[topic])
            on_delivery = partial(self._on_delivery, record)
            try:
                self._writer.append(topic, value, partition=partition, on_delivery=on_delivery)
            except BufferFull as full:
                self.full_cause = full
                self._gatherer.give_back(record)
                return
            except BrokerError as error:
                self._leave(record)
                self._on_delivery(record, Delivery(topic, partition, -1, error, value=value))
            else:
                self._leave(record)

    def poll(self, timeout_s: float) -> None:
        """Settles what the broker answered, waiting up to ``timeout_s`` for a first answer, and
        sends what may follow."""
        self._writer.poll(timeout_s)
        self.send()

    @property
    def outstanding(self) -> int:
        """How many entries are gathered or on their way."""
        return self._gatherer.entries

    @property
    def on_their_way(self) -> int:
        """How many records the broker has to answer."""
        return self._gatherer.on_their_way

    def find_partitions(self, topic: str, timeout_s: float) -> None:
        """Learns how many partitions a topic has; once.

        Raises:
            UnknownTopic, NotAuthorised, BrokerUnavailable: the broker's answer, or none in time.
            TopicMismatch: it has another number by now.
        """
        if topic in self._mismatches:
            raise TopicMismatch(self._mismatches[topic])
        self.partitions[topic] = self._writer.partitions(topic, timeout_s)

    def changed_partitions(self, topic: str, timeout_s: float) -> int | None:
        """Asks again, on any thread: the number of partitions where it is another, else None."""
        known = self.partitions.get(topic)
        try:
            found = self._writer.partitions(topic, timeout_s)
        except BrokerError:
            return None  # The next look may be answered.
        return None if found == known else found

    def refuse(self, topic: str, found: int) -> None:
        """From now on the topic is not published to: half of its keys would move to partitions
        where nobody expects them. What is gathered for it has failed."""
        known = self.partitions.pop(topic, None)
        if known is None:
            return
        self._mismatches[topic] = (
            f"{topic} has {found} partitions by now and had {known} when this producer began; "
            "set partitions of the environment to the number that it has, restart its sealers, "
            "and make a new producer"
        )
        dropped = self._gatherer.drop(topic)
        self._settle(dropped, TopicMismatch(self._mismatches[topic]))

    def abandon(self) -> None:
        """Settles everything: what is on its way is in doubt, what is gathered was not sent."""
        self._writer.abandon()
        dropped = self._gatherer.drop()
        self._settle(dropped, BrokerUnavailable("it was never sent: the broker took no more"))

    def _address(self, outgoing: Outgoing) -> Address:
        topic = outgoing.topic
        count = self.partitions.get(topic)
        if count is None:  # It was refused while the caller waited for room.
            raise TopicMismatch(self._mismatches[topic])
        return topic, partition_of(outgoing.key, count)

    def _leave(self, record: Pending) -> None:
        """The writer has the record: its payloads are held there alone."""
        record.value = None
        for one in record.outgoing:
            one.entry = None

    def _on_delivery(self, record: Pending, delivery: Delivery) -> None:
        error: RollstreamError | None = delivery.error
        outgoing = record.outgoing
        if isinstance(error, RecordTooLarge):
            size = len(delivery.value)
            if len(outgoing) > 1:
                self._gatherer.divide(record, decode_record(delivery.value).part, size)
                return
            about = outgoing[0].rollout_uid
            what = f"rollout {about}" if about else f"an event of group {outgoing[0].group_uid}"
            error = RolloutTooLarge(what, size, None, str(error))
        self._gatherer.answered(record)
        self._settle(outgoing, error)
