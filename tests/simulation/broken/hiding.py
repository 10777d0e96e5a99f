"""A broker that hides events from one owner: what that owner never read, it cannot know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.faults import Append, CountingReader, FaultyBroker
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Adopted, Claimed, Event
from rollstream.streams.broker import IDLE_S, LogReader, OnDelivery, Record, TopicPartition

NOBODYS = codec.encode(Adopted(epoch=-1, nonce="nobody", fold_from=0, watermark=0, counts={}))


@dataclass
class OwnClaim:
    """The owner's newest claim of one partition.

    Attributes:
        nonce: its own.
        pending: whether it was not read back yet.
        end_before: of the partition, when it was appended.
    """

    nonce: str
    pending: bool
    end_before: int


class HidingBroker(FaultyBroker):
    """Asks ``hides`` about each event that the owner would read in a partition that it claimed; it
    shows what no owner writes as it is."""

    _claims: dict[TopicPartition, OwnClaim]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._claims = {}

    def hides(self, claim: OwnClaim, offset: int, event: Event) -> bool:
        raise NotImplementedError

    def reader(self, starts: Any, *, idle_s: float = IDLE_S) -> LogReader:
        return _Reader(self, self.inner.reader(starts, idle_s=idle_s))

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        if append.partition is not None:
            self._record_claim(TopicPartition(append.topic, append.partition), append.value)
        return on_delivery

    def _record_claim(self, where: TopicPartition, value: bytes) -> None:
        try:
            event = codec.decode(value)
        except UnreadableEvent:
            return
        if isinstance(event, Claimed):
            end = self.inner.reader({where: 0}).bounds(where, 1.0)[1]
            self._claims[where] = OwnClaim(event.nonce, True, end)

    def shown(self, records: list[Record]) -> list[Record]:
        """The records as the owner reads them: what is hidden stands there as nobody's event."""
        return [self._shown(record) for record in records]

    def _shown(self, record: Record) -> Record:
        claim = self._claims.get(TopicPartition(record.topic, record.partition))
        if claim is None:
            return record
        try:
            event = codec.decode(record.value)
        except UnreadableEvent:
            return record  # A stranger's.
        if isinstance(event, Claimed) and event.nonce == claim.nonce:
            claim.pending = False
        hidden = self.hides(claim, record.offset, event)
        return record._replace(value=NOBODYS) if hidden else record


class _Reader(CountingReader):
    def __init__(self, broker: HidingBroker, inner: LogReader) -> None:
        super().__init__(broker, inner)
        self._hiding = broker

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        return self._hiding.shown(super().poll(records_max, timeout_s))
