"""A broker that has no room, and fates of records by what they are about: for producers' tests."""

from __future__ import annotations

from harness.faults import Append, Fate, FaultyBroker, FaultyWriter
from rollstream.producers import BufferFull
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.codec import Segment, decode
from rollstream.streams.broker import OnDelivery, Writer
from rollstream.streams.memory import MemoryBroker


class NarrowBroker(FaultyBroker):
    """A broker whose writers are full for a number of appends; a poll moves the clock on.

    Attributes:
        refusals: how many appends are still refused.
    """

    def __init__(self, inner: MemoryBroker, clock: ManualClock) -> None:
        super().__init__(inner)
        self.manual_clock = clock
        self.refusals = 0

    def writer(
        self, *, linger_ms: float = 5.0, report_success: bool = True, retries: bool = True
    ) -> Writer:
        inner = self.inner.writer(
            linger_ms=linger_ms, report_success=report_success, retries=retries
        )
        return NarrowWriter(self, inner)


class NarrowWriter(FaultyWriter):
    """A ``Writer``."""

    def __init__(self, broker: NarrowBroker, inner: Writer) -> None:
        super().__init__(broker, inner)
        self._narrow = broker

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        if self._narrow.refusals:
            self._narrow.refusals -= 1
            raise BufferFull("100 records are queued; poll makes room")
        super().append(topic, value, key=key, partition=partition, on_delivery=on_delivery)

    def poll(self, timeout_s: float = 0.0) -> None:
        self._narrow.manual_clock.advance(timeout_s)
        super().poll(0.0)


class Doubtful:
    """Decides that records of these uids are in doubt, as long as they are among them."""

    def __init__(self, fate: Fate, *uids: str) -> None:
        self.fate = fate
        self.uids = set(uids)

    def __call__(self, append: Append) -> Fate:
        event = decode(append.value)
        uid = event.header.rollout_uid if isinstance(event, Segment) else type(event).__name__
        return self.fate if uid in self.uids else Fate.PASS
