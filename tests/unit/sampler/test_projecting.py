"""Decisions as files while the disk is slow: the newest of a step is what stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.brokers import until
from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import Batch, SamplerApi, SamplerError
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.queries.progress import AskProgress
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.engine.outbox import projecting
from rollstream.sampler.history import FileCheck, check_from_files
from rollstream.store import Bytes, MemoryBlobs, Pieces
from rollstream.store.layout import batch_path
from rollstream.streams.memory import MemoryBroker, MemoryLogs

WAIT_S = 30.0
LAST = 64  # Of the steps that fill the queue after step 0.


class StuckBlobs(PassingBlobs):
    """The first projection is not written before ``free``."""

    def __init__(self) -> None:
        super().__init__(MemoryBlobs())
        self.stuck, self.free = threading.Event(), threading.Event()

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        if not self.stuck.is_set():
            self.stuck.set()
            assert self.free.wait(WAIT_S)
        self.inner.replace(path, data)


class StuckWorld(LocalWorld):
    """A sampler whose disk is slow; step 0 keeps it and steps 1 to ``LAST`` wait for it."""

    def __init__(self) -> None:
        self.blobs = StuckBlobs()
        config = config_of(
            "file:///unused", new_name(), max_policy_lag=-1, max_open_batches=2 * LAST
        )
        super().__init__(MemoryBroker(MemoryLogs()), self.blobs, config)

    def fill(self) -> tuple[SamplerApi, Batch]:
        """The sampler, and the batch that waits last."""
        self.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(LAST + 5)))
        sampler = self.open()
        sampler.resume(None)
        sampler.next_batch(0, 1, timeout_s=WAIT_S)
        assert self.blobs.stuck.wait(WAIT_S)
        batches = [sampler.next_batch(step, 1, timeout_s=WAIT_S) for step in range(1, LAST + 1)]
        return sampler, batches[-1]

    def written(self, step: int) -> bool:
        return self.store.info(batch_path(self.name, 1, step)) is not None

    def check(self, step: int) -> FileCheck:
        return check_from_files(self.name, step, config=self.config, store=self.store)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckWorld]:
    monkeypatch.setattr(projecting, "PENDING_MAX", LAST)
    made = StuckWorld()
    yield made
    made.blobs.free.set()
    made.close()


@pytest.mark.proves("F2")
def test_a_replacement_while_the_disk_hangs_is_written_after_what_it_replaces(
    world: StuckWorld,
) -> None:
    sampler, batch = world.fill()
    newest = sampler.replace(batch, [0], "tried", timeout_s=WAIT_S)
    world.blobs.free.set()
    world.restart()
    assert world.check(LAST).recorded == newest.digest != batch.digest
    assert world.check(LAST).same


@pytest.mark.proves("F2")
def test_no_call_waits_for_a_hung_disk_and_what_did_not_fit_is_written_with_a_later_decision(
    world: StuckWorld,
) -> None:
    sampler, _ = world.fill()
    for step in (LAST + 1, LAST + 2):  # The disk hangs until these have returned.
        sampler.ack(sampler.next_batch(step, 1, timeout_s=WAIT_S))
    world.blobs.free.set()
    until(lambda: world.written(LAST))
    assert not world.written(LAST + 1)
    sampler.next_batch(LAST + 3, 1, timeout_s=WAIT_S)
    world.restart()
    assert all(world.check(step).same for step in range(LAST, LAST + 4))


@pytest.mark.proves("F2")
def test_what_a_hung_disk_did_not_take_is_written_by_the_next_owner(
    world: StuckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, _ = world.fill()
    batch = sampler.next_batch(LAST + 1, 1, timeout_s=WAIT_S)
    newest = sampler.replace(batch, [0], "tried", timeout_s=WAIT_S)
    sampler.checkpointed(LAST + 1)
    world.blobs.free.set()
    world.restart()
    assert not world.written(LAST + 1)
    monkeypatch.setattr(projecting, "PENDING_MAX", 2 * LAST)  # More than the state holds.
    world.open().checkpointed(LAST + 1)
    world.restart()
    assert world.check(LAST + 1).recorded == newest.digest != batch.digest


def test_closing_waits_for_a_hung_disk_only_so_long_and_loses_nothing(
    world: StuckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projecting, "CLOSE_WAIT_S", 0.01)
    world.fill()
    world.restart()
    world.blobs.free.set()
    until(lambda: world.written(LAST))


class PuzzledBlobs(PassingBlobs):
    """Step 0 meets what no disk does."""

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        if path == batch_path("trainer", 1, 0):
            raise TypeError("Type is not JSON serializable")
        self.inner.replace(path, data)


@pytest.mark.proves("F20")
def test_what_ends_the_thread_is_raised_by_the_next_call_and_the_others_are_written() -> None:
    config = config_of("file:///unused", "trainer")
    world = LocalWorld(MemoryBroker(MemoryLogs()), PuzzledBlobs(MemoryBlobs()), config)
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4)))
    sampler = world.open()
    sampler.resume(None)
    batch = sampler.next_batch(0, 2, timeout_s=WAIT_S)

    def told() -> bool:
        try:
            sampler.ack(batch)
        except SamplerError as error:
            return "cannot be written: TypeError" in str(error)
        return False

    until(told)
    sampler.ack(batch)
    sampler.next_batch(1, 2, timeout_s=WAIT_S)
    sampler.close()
    path = batch_path(world.name, 1, 1)
    assert world.store.info(path) is not None
    world.close()


class LatePuzzle(StuckBlobs):
    """Step 0 meets what no disk does, once it is free."""

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        super().replace(path, data)
        if path.endswith(f"{0:012d}.json"):
            raise TypeError("Type is not JSON serializable")


@pytest.mark.proves("F20")
def test_what_ends_the_thread_is_told_to_who_decides_and_to_nobody_who_waits_or_asks() -> None:
    name, blobs = new_name(), LatePuzzle()
    world = LocalWorld(MemoryBroker(MemoryLogs()), blobs, config_of("file:///unused", name))
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(2)))
    shared: dict[str, Any] = {"clock": SystemClock(), "entropy": SystemEntropy()}
    owner = OwnerInProcess(name, world.config, broker=world.broker(), store=blobs, **shared)
    for step in range(2):
        owner.execute(NextBatch(step=step, num_groups=1), 0.0)
    waiting = owner.begin(NextBatch(step=2, num_groups=1))
    owner.decide(waiting)
    blobs.free.set()
    until(lambda: blobs.info(batch_path(name, 0, 1)) is not None)  # Written after step 0 was not.
    world.writer().flush(GroupSpec(example_id="late"))
    while not waiting.ended:
        owner.follow(WAIT_S)
    assert waiting.answered.exception() is None
    assert owner.execute(AskProgress(), 0.0).value.next_step == 3
    with pytest.raises(SamplerError, match="cannot be written: TypeError"):
        owner.execute(NextBatch(step=2, num_groups=1), 0.0)
    owner.close()
    world.close()
