"""Samplers that start from snapshots, of which some are wrong, decide as the logs alone say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rollstream.sampler.engine import snapshots
from rollstream.store.layout import SNAPSHOTS
from rollstream.streams.broker import IDLE_S, Broker, LogReader, Record, TopicPartition
from simulation.sampler.snapshots import Snapshots, written_at_once
from simulation.sampler.trainers import NAME, Trainers


@pytest.fixture
def _at_once() -> Iterator[None]:
    with written_at_once():
        yield


@pytest.mark.usefixtures("_at_once")
def test_old_snapshots_are_removed() -> None:
    world = Snapshots(0, foreign=[])
    most = 0
    for _ in range(60):
        world.act()
        most = max(most, len(world.paths()))
    # One that was passed over stays until the log was compared with the files.
    assert snapshots.KEPT <= most <= snapshots.KEPT + 1
    assert all(f"sampler={NAME}/" in path for path in world.paths())


class CountingBroker:
    """Counts the records that readers got."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.records = 0

    def reader(self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S) -> LogReader:
        reader = self._broker.reader(starts, idle_s=idle_s)
        poll = reader.poll

        def counted(records_max: int, timeout_s: float) -> list[Record]:
            records = poll(records_max, timeout_s)
            self.records += len(records)
            return records

        reader.poll = counted  # type: ignore[method-assign]
        return reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


@pytest.mark.usefixtures("_at_once")
def test_a_snapshot_that_fails_in_a_way_nobody_foresaw_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: Any) -> Any:
        raise AttributeError("a class is gone")

    world = Trainers(3, trouble=0.0)
    for _ in range(50):
        world.act()
    monkeypatch.setattr(snapshots, "from_bytes", gone)
    digests = []
    for _ in range(2):
        sampler = world._start(world._plain)
        sampler.stats()
        digests.append(sampler._owner._logs.state.digest())
        monkeypatch.undo()
    assert "a class is gone" in caplog.text
    assert len({*digests}) == 1


@pytest.mark.usefixtures("_at_once")
def test_a_start_after_a_snapshot_reads_what_came_after_it() -> None:
    world = Trainers(3, trouble=0.0)
    for _ in range(200):
        world.act()
    read, digests = [], set()
    for _ in range(2):
        broker = CountingBroker(world._plain)
        sampler = world._start(broker)
        sampler.stats()
        digests.add(sampler._owner._logs.state.digest())
        read.append(broker.records)
        for blob in list(world._store.list(SNAPSHOTS)):
            world._store.delete(blob.path)
    with_snapshot, without = read
    assert with_snapshot < without / 2
    assert len(digests) == 1
