"""What keeps others from deciding, and what does not; how many calls may wait."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from harness.brokers import until
from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, memory_world, new_name
from rollstream.sampler import NotEnoughGroups, SamplerUnavailable
from rollstream.sampler.actor.awaited_calls import AwaitedCalls
from rollstream.sampler.actor.pickled import Pickled
from rollstream.sampler.decide.command import Reply, Unread
from rollstream.sampler.decide.queries.looks import AskStats
from rollstream.sampler.decide.shortages import Shortage
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


class Answer:
    """What is read for a call."""


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
def test_what_was_read_for_a_call_is_freed_with_its_answer_and_not_at_a_collection() -> None:
    freed: list[bool] = []

    def read(_: object) -> Pickled:
        rows = np.zeros(1 << 20, np.uint8)
        weakref.finalize(rows, freed.append, True)
        return Pickled(b"", [rows], {})

    async def answer(lane: ThreadPoolExecutor) -> None:
        awaited = AwaitedCalls(lambda _: None, {"past": lane}, read)
        call = calls.Call(AskStats(), 0)
        waiting = calls.WaitingCalls()

        def decide(decided: Callable[[], None]) -> None:
            waiting.add(call, cast(Shortage, None))
            decided()
            call.answer(Reply(0, cast(Any, Unread("key", Answer))))
            awaited.hand_over()

        reply = await awaited.reply(call, WAIT_S, lambda decided: lane.submit(decide, decided))
        assert isinstance(reply.value, Pickled)
        assert not freed

    with ThreadPoolExecutor(1) as lane:
        asyncio.run(answer(lane))
    assert freed
