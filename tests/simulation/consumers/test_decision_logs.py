"""How retention reads decision logs: from a hint on, and no longer than it has time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import pytest

from harness.faults import FaultyBroker
from harness.retention import NAME, RetentionWorld
from rollstream.consumers.retention.decisions import DecisionLogs
from rollstream.runtime.deadline import Deadline
from rollstream.status import decided
from rollstream.store import Followed, read_root_id
from rollstream.streams.errors import BrokerUnavailable, LogLost
from rollstream.streams.topics.root import StoreRoot


def test_decisions_are_read_from_a_hint_on_by_the_next_sealer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decided, "HINT_EVENTS", 8)
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 8)
    sampler = world.sampler()
    for step in range(8):
        sampler.next_batch(step=step, num_groups=1)
        sampler.checkpointed(step)
    root = StoreRoot("", read_root_id(world.blobs), Followed(world.blobs))
    found = []
    for _ in range(2):
        broker = FaultyBroker(world.new_broker())
        with closing(DecisionLogs(world.config, broker, root)) as decisions:
            read = decisions.read("math", Deadline(600.0, world.clock))
            (state,) = read.values()
            found.append((broker.records_read, state.digest()))
    (whole, state_of_whole), (rest, state_of_rest) = found
    assert rest < whole / 2
    assert state_of_rest == state_of_whole


def test_a_log_that_was_cut_back_and_written_anew_is_read_from_its_beginning() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 10)
    sampler = world.sampler()
    for step in range(4):
        sampler.next_batch(step=step, num_groups=1)
        sampler.checkpointed(step)
    sampler.close()
    with closing(DecisionLogs(world.config, world.broker)) as decisions:
        (known,) = decisions.read("math", Deadline(600.0, world.clock)).values()
        assert known.open_groups() == set()
        world.logs.cut_back(world.layout.sampler_log(NAME), 4)
        for blob in [*world.blobs.list("batches/"), *world.blobs.list("snapshots/")]:
            world.blobs.delete(blob.path)  # Else no sampler starts.
        restored = world.sampler()
        served = [restored.next_batch(step=step, num_groups=1) for step in range(1, 5)]
        with pytest.raises(LogLost, match="does not hold the last of them"):
            decisions.read("math", Deadline(600.0, world.clock))
        (found,) = decisions.read("math", Deadline(600.0, world.clock)).values()
        assert len(found.open_groups()) >= len(served)


def test_a_hint_of_another_release_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decided, "HINT_EVENTS", 1)
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 2)
    world.sampler().next_batch(step=0, num_groups=2)
    root = StoreRoot("", read_root_id(world.blobs), Followed(world.blobs))
    with monkeypatch.context() as release:
        release.setattr("rollstream.__version__", "99.0.0")
        release.setattr(decided, "asdict", lambda counts: {**asdict(counts), "newer": 1})
        with closing(DecisionLogs(world.config, world.broker, root)) as decisions:
            decisions.read("math", Deadline(600.0, world.clock))
    with closing(DecisionLogs(world.config, world.broker, root)) as decisions:
        (state,) = decisions.read("math", Deadline(600.0, world.clock)).values()
        assert state.next_step == 1


def test_a_sealer_that_closes_waits_for_no_decision_log() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 2)
    world.sampler().next_batch(step=0, num_groups=2)
    decisions, deadline = DecisionLogs(world.config, world.broker), Deadline(600.0, world.clock)
    deadline.end()
    with pytest.raises(BrokerUnavailable):
        decisions.read("math", deadline)
    decisions.close()
