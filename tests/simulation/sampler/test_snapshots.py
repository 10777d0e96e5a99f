"""Samplers that start from snapshots, of which some are wrong, decide as the logs alone say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from rollstream.sampler import Sampler
from rollstream.sampler.serving import snapshots
from rollstream.store.layout import SNAPSHOTS
from rollstream.streams.broker import Broker, LogReader, Record, TopicPartition
from rollstream.streams.owned.fold import FoldedLog
from simulation.sampler.trainers import NAME, Trainers

SEEDS = 24
DAMAGE = ("none", "none", "flip", "cut", "delete", "older", "foreign", "empty")


class Snapshots(Trainers):
    """Snapshots at every decision; before a start one is damaged, or something else is found in
    its place.

    Args:
        foreign: snapshots of a sampler of this name and root, whose logs hold something else.

    Attributes:
        damaged: how often, by kind.
    """

    def __init__(self, seed: int, foreign: list[bytes], *, trouble: float | None = None) -> None:
        self._damaging = random.Random(seed)
        self._foreign = foreign
        self.damaged = Counter[str]()
        super().__init__(seed, trouble=trouble)

    def paths(self) -> list[str]:
        """Of the snapshots, the newest last."""
        return [blob.path for blob in self._store.list(SNAPSHOTS)]

    def contents(self) -> list[bytes]:
        """Of the same."""
        return list(map(self._store.read, self.paths()))

    def _start(self, broker: Broker) -> Sampler:
        if self.paths():
            self._damage(self.paths())
        return super()._start(broker)

    def _damage(self, paths: list[str]) -> None:
        kind = self._damaging.choice(DAMAGE)
        data = self._store.read(paths[-1])
        at = self._damaging.randrange(len(data) + 1)
        match kind:
            case "flip":
                self._store.replace(paths[-1], data[:at] + b"?" + data[at + 1 :])
            case "cut":
                self._store.replace(paths[-1], data[:at])
            case "delete":
                self._store.delete(paths[-1])
            case "older":  # As where a zombie writes late what it knew.
                self._store.replace(paths[-1], self._store.read(paths[0]))
            case "foreign" if self._foreign:
                self._store.replace(paths[-1], self._damaging.choice(self._foreign))
            case "empty":
                self._store.replace(paths[-1], b"")
        self.damaged[kind] += 1


class AtOnce:
    """A thread that runs before whoever starts it goes on, so that a seed repeats."""

    def __init__(self, target: Any, args: tuple[Any, ...], **_: Any) -> None:
        self.start = lambda: target(*args)

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float) -> None:
        pass


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
    monkeypatch.setattr(snapshots, "Thread", AtOnce)
    return counts


@pytest.mark.proves("F1", "I4", "I5", "I6", "I7")
def test_wrong_stale_and_missing_snapshots_change_no_decision(going_on: Counter[str]) -> None:
    damaged = Counter[str]()
    for seed in range(SEEDS):
        twin = Snapshots(seed, [], trouble=0.3)
        for _ in range(20):
            twin.act()
        world = Snapshots(seed, twin.contents())
        world.run()
        damaged += world.damaged
    assert going_on["starts"] > SEEDS
    assert set(damaged) == set(DAMAGE)


def test_old_snapshots_are_removed(going_on: Counter[str]) -> None:
    world = Snapshots(0, [])
    most = 0
    for _ in range(60):
        world.act()
        most = max(most, len(world.paths()))
    assert most == snapshots.KEPT
    assert all(f"sampler={NAME}/" in path for path in world.paths())


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
    world = Trainers(3, trouble=0.0)
    for _ in range(200):
        world.act()
    read, digests = [], set()
    for _ in range(2):
        broker = CountingBroker(world._plain)
        sampler = world._start(broker)
        sampler.stats()
        digests.add(sampler._owner.state_digest())
        read.append(broker.records)
        for blob in list(world._store.list(SNAPSHOTS)):
            world._store.delete(blob.path)
    with_snapshot, without = read
    assert with_snapshot < without / 2
    assert len(digests) == 1
