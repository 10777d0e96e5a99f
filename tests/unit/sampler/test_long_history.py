"""A history of which the broker gives a start no more than a part."""

from __future__ import annotations

from typing import Any

import pytest

from harness.faults import FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of
from rollstream.runtime.clock import ManualClock
from rollstream.sampler import Sampler
from rollstream.sampler.engine import snapshots
from rollstream.store.layout import SNAPSHOTS
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import Broker, LogReader, Record
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker

CLAIMS, FLUSHES_OF_EACH = 10, 4
A_START_GETS = 40  # Records of seal logs, before the broker stands still.
A_POLL_S = 5.0
STARTS_MAX = 10


class FailingBroker(FaultyBroker):
    """A broker that stands still once it gave so many records."""

    def __init__(self, inner: Broker, clock: ManualClock) -> None:
        super().__init__(inner)
        self.by_hand = clock
        self.left = A_START_GETS

    def reader(self, *arguments: Any, **named: Any) -> LogReader:
        return FailingReader(self.inner.reader(*arguments, **named), self)


class FailingReader:
    """A ``LogReader`` that gives one record at a time."""

    def __init__(self, inner: LogReader, broker: FailingBroker) -> None:
        self._inner = inner
        self._broker = broker

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        if self._broker.left <= 0:
            self._broker.by_hand.advance(A_POLL_S)
            return []
        records = self._inner.poll(1, timeout_s)
        self._broker.left -= sum(".groups." in one.topic for one in records)
        self._broker.by_hand.advance(A_POLL_S)
        return records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.proves("F3")
def test_a_history_that_no_start_is_given_whole_is_folded_by_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 1)
    clock, store = ManualClock(), MemoryBlobs()
    broker = MemoryBroker(clock=clock)
    config = config_of("file:///unused", "trainer-a")
    world = LocalWorld(broker, store, config)
    for claim in range(CLAIMS):
        writer = world.writer()
        for number in range(FLUSHES_OF_EACH):
            writer.flush(GroupSpec(example_id=f"ex-{claim}-{number}"))
    with world.open() as sampler:
        sampler.resume(None)  # Somebody claimed the log before.
    for blob in list(store.list(SNAPSHOTS)):
        store.delete(blob.path)
    for start in range(STARTS_MAX):
        sampler = Sampler(
            "trainer-a",
            config=config,
            broker=FailingBroker(broker, clock),
            store=store,
            clock=clock,
        )
        try:
            assert sampler.resume(None) == 0
            assert start, "the first one was given all"
            assert sampler.stats().ready == {"math": CLAIMS * FLUSHES_OF_EACH}
            break
        except BrokerUnavailable:
            continue
        finally:
            sampler.close()
    else:
        raise AssertionError(f"not folded within {STARTS_MAX} starts")
