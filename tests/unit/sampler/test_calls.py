"""What keeps others from deciding, and what does not; how many calls may wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.brokers import until
from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, memory_world, new_name
from rollstream.sampler import NotEnoughGroups, SamplerUnavailable
from rollstream.sampler.engine import calls
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker, MemoryLogs

WAIT_S = 30.0


class SlowBlobs(PassingBlobs):
    """No rows are read before ``free``."""

    def __init__(self) -> None:
        super().__init__(MemoryBlobs())
        self.reading, self.free = threading.Event(), threading.Event()

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.reading.set()
        assert self.free.wait(WAIT_S)
        return self.inner.read_ranges(path, spans)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_others_decide_while_the_rows_of_a_batch_are_read(threads: ThreadPoolExecutor) -> None:
    blobs = SlowBlobs()
    config = config_of("file:///unused", new_name())
    world = LocalWorld(MemoryBroker(MemoryLogs()), blobs, config)
    world.writer().flush(GroupSpec(), GroupSpec(example_id="ex-2"))
    sampler = world.open()
    sampler.resume(None)
    batch = threads.submit(sampler.next_batch, 0, 1, timeout_s=WAIT_S)
    assert blobs.reading.wait(WAIT_S)
    try:
        threads.submit(sampler.publish_policy, 1, policy_version="step-1").result(WAIT_S / 3)
        assert threads.submit(sampler.stats).result(WAIT_S / 3).next_step == 1
    finally:
        blobs.free.set()
    assert batch.result(WAIT_S).num_groups == 1
    world.close()


def test_a_call_beyond_the_bound_of_those_that_wait_is_refused(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "WAITING_MAX", 2)
    world = memory_world()
    sampler = world.open()
    waiting = [threads.submit(sampler.next_batch, 0, 1, timeout_s=WAIT_S) for _ in range(2)]
    until(lambda: sampler.stats().calls_waiting == 2)
    with pytest.raises(SamplerUnavailable, match="2 calls wait for groups already"):
        sampler.next_batch(0, 1, timeout_s=WAIT_S)
    world.writer().flush(GroupSpec())
    assert len({wait.result(WAIT_S).digest for wait in waiting}) == 1
    world.close()


def test_calls_that_ended_are_forgotten() -> None:
    world = memory_world()
    sampler = world.open()
    for _ in range(3):
        with pytest.raises(NotEnoughGroups):
            sampler.next_batch(0, 1, timeout_s=0.0)
    assert sampler.stats().calls_waiting == 0
    world.close()
