"""A history that takes longer to fold than one start has time for."""

from __future__ import annotations

from typing import Any

import pytest

from harness.faults import FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of
from rollstream.runtime.clock import ManualClock
from rollstream.sampler import Sampler
from rollstream.sampler.engine import logs, snapshots
from rollstream.store.layout import SNAPSHOTS
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import Broker, LogReader, Record
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker

CLAIMS, FLUSHES_OF_EACH = 10, 4
A_RECORD_S = 5.0
STARTS_MAX = 10


class SlowBroker(FaultyBroker):
    """Each record of a seal log takes a while, by the clock."""

    def __init__(self, inner: Broker, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def reader(self, *arguments: Any, **named: Any) -> LogReader:
        return SlowReader(self.inner.reader(*arguments, **named), self._clock)


class SlowReader:
    """A ``LogReader`` that gives one record at a time."""

    def __init__(self, inner: LogReader, clock: ManualClock) -> None:
        self._inner = inner
        self._clock = clock

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        records = self._inner.poll(1, timeout_s)
        self._clock.advance(A_RECORD_S * sum(".groups." in one.topic for one in records))
        return records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.proves("F3")
def test_a_history_that_is_longer_than_a_start_has_time_for_is_folded_by_several(
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
    time_s = config.kafka.timeout_s * logs.READ_TIMEOUT_FACTOR
    assert time_s < CLAIMS * FLUSHES_OF_EACH * A_RECORD_S
    for start in range(STARTS_MAX):
        sampler = Sampler(
            "trainer-a",
            config=config,
            broker=SlowBroker(broker, clock),
            store=store,
            clock=clock,
        )
        try:
            assert sampler.resume(None) == 0
            assert start, "the first one had time for all"
            assert sampler.stats().ready == {"math": CLAIMS * FLUSHES_OF_EACH}
            break
        except BrokerUnavailable:
            continue
        finally:
            sampler.close()
    else:
        raise AssertionError(f"not folded within {STARTS_MAX} starts")
