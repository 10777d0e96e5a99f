"""Samplers that start from snapshots, of which some are wrong, decide as the logs alone say."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from rollstream.sampler import Sampler
from rollstream.sampler.serving import snapshots
from rollstream.store.layout import SNAPSHOTS
from rollstream.streams.broker import Broker, LogReader, Record, TopicPartition
from rollstream.streams.owned.fold import FoldedLog
from simulation.sampler.test_sampler_under_seeds import ACTIONS, NAME, Simulation, check

SEEDS = 16
DAMAGE = ("none", "none", "flip", "cut", "delete", "older", "foreign", "half")


class SnapshotWorld(Simulation):
    """Snapshots at every decision; before a start one is damaged, or something else is found in
    its place.

    Attributes:
        others: snapshots of a sampler of this name and root, whose logs hold something else.
    """

    def __init__(self, seed: int, others: list[bytes], *, trouble: float = 0.15) -> None:
        self.damaging = random.Random(seed)
        self.others = others
        self.damaged = Counter[str]()
        super().__init__(seed, trouble=trouble)

    def snapshots(self) -> list[str]:
        """Paths, once all that is being written is there."""
        for thread in threading.enumerate():
            if thread.name == "rollstream-snapshot":
                thread.join()
        return [blob.path for blob in self.store.list(SNAPSHOTS)]

    def _start(self, broker: Broker) -> Sampler:
        paths = self.snapshots()
        if paths:
            self._damage(paths)
        return super()._start(broker)

    def _damage(self, paths: list[str]) -> None:
        kind = self.damaging.choice(DAMAGE)
        data = self.store.read(paths[-1])
        at = self.damaging.randrange(len(data) + 1)
        match kind:
            case "flip":
                self.store.replace(paths[-1], data[:at] + b"?" + data[at + 1 :])
            case "cut":
                self.store.replace(paths[-1], data[:at])
            case "delete":
                self.store.delete(paths[-1])
            case "older":  # As where a zombie writes late what it knew.
                self.store.replace(paths[-1], self.store.read(paths[0]))
            case "foreign" if self.others:
                self.store.replace(paths[-1], self.damaging.choice(self.others))
            case "half":  # As an object store that is not atomic might leave it.
                self.store.replace(paths[-1], b"")
        self.damaged[kind] += 1


@pytest.fixture
def going_on(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Snapshots at every decision; counts the folds that went on from one."""
    counts = Counter[str]()
    plain = FoldedLog.going_on.__func__  # type: ignore[attr-defined]

    def counted(cls, saved, fence):  # type: ignore[no-untyped-def]
        counts["starts"] += 1
        return plain(cls, saved, fence)

    monkeypatch.setattr(FoldedLog, "going_on", classmethod(counted))
    monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 1)
    monkeypatch.setattr(snapshots, "SECONDS_BETWEEN", 0.0)
    return counts


@pytest.mark.proves("F1", "I4", "I5", "I6", "I7")
def test_wrong_stale_and_missing_snapshots_change_no_decision(going_on: Counter[str]) -> None:
    damaged = Counter[str]()
    for seed in range(SEEDS):
        twin = SnapshotWorld(seed, [], trouble=0.3)
        for _ in range(ACTIONS // 2):
            twin.act()
        world = SnapshotWorld(seed, [twin.store.read(path) for path in twin.snapshots()])
        for _ in range(ACTIONS):
            world.act()
        check(world)
        damaged += world.damaged
    assert going_on["starts"] > SEEDS
    assert set(damaged) == set(DAMAGE)


def test_old_snapshots_are_removed(going_on: Counter[str]) -> None:
    world = SnapshotWorld(0, [])
    for _ in range(ACTIONS):
        world.act()
        assert len(world.snapshots()) <= snapshots.KEPT + 1
    assert world.snapshots()
    assert all(f"sampler={NAME}/" in path for path in world.snapshots())


class CountingBroker:
    """Counts the records that readers got."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.records = 0

    def reader(self, starts: Mapping[TopicPartition, int]) -> LogReader:
        reader = self._broker.reader(starts)
        poll = reader.poll

        def counted(records_max: int, timeout_s: float) -> list[Record]:
            records = poll(records_max, timeout_s)
            self.records += len(records)
            return records

        reader.poll = counted  # type: ignore[method-assign]
        return reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


def test_a_start_after_a_snapshot_reads_what_came_after_it(going_on: Counter[str]) -> None:
    world = Simulation(3, trouble=0.0)
    for _ in range(4 * ACTIONS):
        world.act()
    read, digests = [], set()
    for _ in range(2):
        broker = CountingBroker(world.plain)
        sampler = world._start(broker)  # type: ignore[arg-type]
        sampler.stats()
        digests.add(sampler._owner.state_digest())
        read.append(broker.records)
        for blob in list(world.store.list(SNAPSHOTS)):
            world.store.delete(blob.path)
    with_snapshot, without = read
    assert with_snapshot < without / 2
    assert len(digests) == 1
