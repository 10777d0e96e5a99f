"""An owner whose fence lets everything pass: whoever writes counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollstream.schemas import codec
from rollstream.schemas.events import Claimed, Event, OwnedEvent
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.owned.fence import CurrentClaim, Fence
from simulation.broken.hiding import HidingBroker


class OpenFence(Fence):
    """For an owner that is given its fence."""

    def admits(self, offset: int, event: Event) -> bool:
        super().admits(offset, event)
        return True


class Forging(HidingBroker):
    """For all others: what a zombie wrote is shown as the newest owner's."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._newest: dict[TopicPartition, dict[int, CurrentClaim]] = {}

    def shown(self, records: list[Record]) -> list[Record]:
        return [self._forged(record) for record in records]

    def _forged(self, record: Record) -> Record:
        where = TopicPartition(record.topic, record.partition)
        if where not in self._claims:
            return record
        event = codec.decode(record.value)
        claims = self._newest.setdefault(where, {})
        if isinstance(event, Claimed):
            claims[record.offset] = CurrentClaim(record.offset, event.nonce)
        before = [claims[offset] for offset in sorted(claims) if offset < record.offset]
        if not isinstance(event, OwnedEvent) or not before:
            return record
        return record._replace(value=codec.encode(replace(event, **before[-1]._asdict())))
