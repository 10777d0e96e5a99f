"""A sampler that starts from a snapshot knows and serves what one that reads all logs does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from harness.faults import FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import SamplerWorld, kafka_world, memory_world
from rollstream.sampler import Sampler
from rollstream.sampler.engine import snapshots
from rollstream.store.layout import SNAPSHOTS

STEPS = 12


class WhoeverStartsIt(Thread):
    """Has done all before ``start`` returns."""

    def start(self) -> None:
        self.run()

    def join(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SamplerWorld]:
    """Snapshots at every decision, each written before the next one."""
    monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 1)
    monkeypatch.setattr(snapshots, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(snapshots, "Thread", WhoeverStartsIt)
    made = memory_world()
    if request.param == "kafka":
        made = kafka_world(request.getfixturevalue("kafka_bootstrap"), tmp_path)
    made.configure(max_policy_lag=-1)
    yield made
    made.close()


def started(world: SamplerWorld) -> tuple[Sampler, FaultyBroker]:
    broker = FaultyBroker(world.broker())
    sampler = Sampler(world.name, config=world.config, broker=broker, store=world.store)
    return sampler, broker


@pytest.mark.proves("I5", "F1")
def test_a_start_from_a_snapshot_goes_on_as_one_from_the_logs(world: SamplerWorld) -> None:
    writer = world.writer("math")
    writer.flush(*[GroupSpec(example_id=f"ex-{i}") for i in range(2 * STEPS)])
    first, _ = started(world)
    first.resume(None)
    for step in range(STEPS):
        first.ack(first.next_batch(step, 2))
    first.checkpointed(STEPS - 2)
    first.close()
    assert list(world.store.list(SNAPSHOTS))
    writer.flush(GroupSpec(example_id="later"), GroupSpec(example_id="ex-3"))
    found = []
    for _ in range(2):
        sampler, broker = started(world)
        progress = sampler.progress()
        digest = sampler._owner._logs.state.digest()
        found.append((progress, digest, broker.records_read))
        sampler.close()
        if len(found) == 1:
            for blob in list(world.store.list(SNAPSHOTS)):
                world.store.delete(blob.path)
    (progress, digest, few), (same_progress, same_digest, all_records) = found
    assert (progress, digest) == (same_progress, same_digest)
    assert few < all_records
    successor, _ = started(world)
    assert successor.resume(STEPS - 2, later="release") == STEPS - 1
    assert successor.next_batch(STEPS - 1, 2).step == STEPS - 1
    successor.close()
