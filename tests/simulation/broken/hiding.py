"""A broker that hides events from one owner: what that owner never read, it cannot know."""

from __future__ import annotations

from typing import Any

from harness.faults import CountingReader, FaultyBroker, FaultyWriter
from rollstream.schemas import codec
from rollstream.schemas.events import Adopted, Claimed, Event
from rollstream.streams.broker import LogReader, OnDelivery, Record, TopicPartition, Writer

NOBODYS = codec.encode(Adopted(epoch=-1, nonce="nobody", fold_from=0, watermark=0, counts={}))


class HidingBroker(FaultyBroker):
    """Asks ``hides`` about each event that the owner would read.

    Attributes:
        nonce: of the owner's newest claim.
        claiming: whether that claim was not read back yet.
        end_before_claim: of the log, when that claim was appended.
    """

    nonce = ""
    claiming = False
    end_before_claim = 0

    def hides(self, offset: int, event: Event) -> bool:
        raise NotImplementedError

    def writer(self, **settings: Any) -> Writer:
        return _Writer(self, self.inner.writer(**settings))

    def reader(self, starts: Any) -> LogReader:
        return _Reader(self, self.inner.reader(starts))

    def note_append(self, where: TopicPartition, value: bytes) -> None:
        event = codec.decode(value)
        if isinstance(event, Claimed):
            self.nonce, self.claiming = event.nonce, True
            self.end_before_claim = self.inner.reader({where: 0}).bounds(where, 1.0)[1]

    def shown(self, records: list[Record]) -> list[Record]:
        """The records as the owner reads them: what is hidden stands there as nobody's event."""
        shown = []
        for record in records:
            event = codec.decode(record.value)
            if isinstance(event, Claimed) and event.nonce == self.nonce:
                self.claiming = False
            hidden = self.hides(record.offset, event)
            shown.append(record._replace(value=NOBODYS) if hidden else record)
        return shown


class _Writer(FaultyWriter):
    def __init__(self, broker: HidingBroker, inner: Writer) -> None:
        super().__init__(broker, inner)
        self._hiding = broker

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        assert partition is not None
        self._hiding.note_append(TopicPartition(topic, partition), value)
        super().append(topic, value, partition=partition, on_delivery=on_delivery)


class _Reader(CountingReader):
    def __init__(self, broker: HidingBroker, inner: LogReader) -> None:
        super().__init__(broker, inner)
        self._hiding = broker

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        return self._hiding.shown(super().poll(records_max, timeout_s))
