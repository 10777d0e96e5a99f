"""An owned log that claims without reading up to its own claim."""

from __future__ import annotations

from typing import Any

from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed, Event
from rollstream.streams.broker import Record
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog


class WithoutBarrier(OwnedLog[SealFold]):
    """Folds what was there before it claimed; what came in between is passed over."""

    def _claim_once(self, deadline: Deadline, *args: Any) -> None:
        self._known_end = self._open_reader().bounds(self.where, 1.0)[1]
        super()._claim_once(deadline, *args)

    def _apply_record(self, record: Record) -> Event:
        if record.offset < self._known_end:
            return super()._apply_record(record)
        event = codec.decode(record.value)
        assert not isinstance(event, codec.Segment)
        if isinstance(event, Claimed):
            return super()._apply_record(record)
        self._next = record.offset + 1
        return event
