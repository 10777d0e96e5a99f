"""What the actor's process does for calls that wait, without Ray around it."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest

from harness.failing_blobs import PassingBlobs
from harness.faults import Append, Fate, FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.producers import ScoreProducer
from rollstream.sampler.actor.awaited_calls import AwaitedCalls
from rollstream.sampler.actor.pickled import Pickled, crossing, opened
from rollstream.sampler.actor.sampler_actor import Refused, SamplerActor
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Command, Reply, Unread
from rollstream.sampler.decide.queries.looks import (
    AskRecorded,
    AskStats,
    Flush,
    ReadBatch,
    SamplerStats,
)
from rollstream.sampler.decide.queries.progress import AskProgress
from rollstream.sampler.decide.queries.sampling import ReadGroups
from rollstream.sampler.decide.shortages import Shortage
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.engine.calls import Call
from rollstream.sampler.errors import RequestDiffers
from rollstream.schemas import codec
from rollstream.schemas.events import BatchServed
from rollstream.store.blobs import Blobs, Bytes, Pieces
from rollstream.streams.broker import Broker

WAIT_S = 30.0
RANKS, PEERS = 2, 3


class SlowBlobs(PassingBlobs):
    """No rows are read while ``free`` is cleared."""

    free = threading.Event()
    free.set()

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        assert self.free.wait(WAIT_S)
        return self.inner.read_ranges(path, spans)


class NotedBlobs(PassingBlobs):
    """Sets ``read_rows`` once rows were read."""

    read_rows = threading.Event()

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        found = self.inner.read_ranges(path, spans)
        self.read_rows.set()
        return found


@asynccontextmanager
async def actor_in(
    world: LocalWorld, broker: Broker | None = None, blobs: Blobs | None = None
) -> AsyncIterator[SamplerActor]:
    actor = SamplerActor(
        world.name, world.config, broker or world.broker(), blobs or SlowBlobs(world.store)
    )
    try:
        yield actor
    finally:
        with suppress(TypeError):  # Ray's, which has no actor to exit from here.
            await actor.leave()


async def replies_of(world: LocalWorld, cancelled: int) -> list[list[Any]]:
    """What peers get that wait for a batch, by rank; so many of each rank go while it is read."""
    async with actor_in(world) as actor:
        calls = []
        for rank in range(RANKS):
            asked = NextBatch(step=0, num_groups=RANKS, dp_rank=rank, dp_size=RANKS)
            made = [actor.execute(asked, WAIT_S) for _ in range(PEERS)]
            calls.append([asyncio.ensure_future(call) for call in made])
        await waiting(actor, RANKS * PEERS)
        SlowBlobs.free.clear()
        world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(RANKS)))
        await waiting(actor, 0)
        for peers in calls:
            for call in peers[:cancelled]:
                call.cancel()
        await asyncio.sleep(0)
        SlowBlobs.free.set()
        return [await asyncio.gather(*peers[cancelled:]) for peers in calls]


def batch_in(crossed: Any) -> Batch:
    """The batch in the answer to one call."""
    reply = opened(crossed)
    batch: Batch = reply.value.batch(waited_s=0.0, read_group=None)
    return batch


async def waiting(actor: SamplerActor, count: int) -> None:
    """Returns once so many calls wait."""
    async with asyncio.timeout(WAIT_S):
        while True:
            stats = opened(await actor.execute(AskStats(), 0.0))
            assert isinstance(stats, Reply)
            assert isinstance(stats.value, SamplerStats)
            if stats.value.calls_waiting == count:
                return


def test_peers_that_wait_get_one_share() -> None:
    world = memory_world()
    shares = []
    for peers in asyncio.run(replies_of(world, cancelled=0)):
        first, *others = peers
        assert others == [first] * (PEERS - 1), "the same bytes"
        shares.append(batch_in(first))
    assert [share.slots for share in shares] == [(0,), (1,)]
    assert not set(shares[0].uids) & set(shares[1].uids)
    world.close()


def test_peers_get_their_share_though_the_first_is_cancelled_while_it_is_read() -> None:
    world = memory_world()
    for peers in asyncio.run(replies_of(world, cancelled=PEERS - 1)):
        assert len(peers) == 1
        assert batch_in(peers[0]).num_groups == 1
    world.close()


@pytest.mark.parametrize("fate", [Fate.PASS, Fate.DOUBT_AND_DROP])
def test_rows_are_read_while_the_decision_is_appended_and_shown_once_it_is_confirmed(
    fate: Fate,
) -> None:
    world = memory_world()
    blobs = NotedBlobs(world.store)
    blobs.read_rows.clear()
    broker = FaultyBroker(world.broker())
    seen: list[tuple[bool, bool]] = []

    async def answer() -> Any:
        async with actor_in(world, broker, blobs) as actor:
            asked = NextBatch(step=0, num_groups=1)
            call = asyncio.ensure_future(actor.execute(asked, WAIT_S))
            await waiting(actor, 1)

            def fate_of(append: Append) -> Fate:
                if not isinstance(codec.decode(append.value), BatchServed):
                    return Fate.PASS
                seen.append((blobs.read_rows.wait(WAIT_S), call.done()))
                return Fate.PASS if seen[1:] else fate

            broker.decide = fate_of
            world.writer().flush(GroupSpec())
            return await call

    assert batch_in(asyncio.run(answer())).num_groups == 1
    assert seen == [(True, False)] * (1 if fate is Fate.PASS else 2)
    world.close()


def test_rows_are_freed_with_the_reply_that_has_them_before_anything_is_collected() -> None:
    rows: list[weakref.ref[Any]] = []

    def read() -> Any:
        found = np.zeros(100_000, np.uint8)
        rows.append(weakref.ref(found))
        return found

    async def replied() -> None:
        with ThreadPoolExecutor(1) as reader:
            calls = AwaitedCalls(lambda _: None, {"past": reader}, Pickled.of)
            call = Call[Any](AskStats(), 0)
            call.answer(Reply(0, Unread("rows", read)))
            reply = await calls.reply(call, WAIT_S, lambda _: None)
            assert isinstance(reply.value, Pickled)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(replied())
        assert [one() for one in rows] == [None]
    finally:
        gc.enable()


def test_what_is_asked_of_a_recorded_step_at_one_time_is_answered_to_each_by_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.folds.state.FINAL_BATCHES_KEPT", 1)
    world = memory_world()
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(6)))
    sampler = world.open()
    for step in range(3):
        sampler.next_batch(step, 2, timeout_s=WAIT_S)
        sampler.checkpointed(step)

    async def answers() -> list[Any]:
        async with actor_in(world) as actor:
            SlowBlobs.free.clear()
            asked = [NextBatch(step=0, num_groups=count) for count in (2, 3)]
            calls = [asyncio.ensure_future(actor.execute(one, WAIT_S)) for one in asked]
            for _ in range(2):  # By the second answer both were decided, and none read.
                await waiting(actor, 0)
            SlowBlobs.free.set()
            return [opened(await call) for call in calls]

    served, refused = asyncio.run(answers())
    assert served.value.batch(waited_s=0.0, read_group=None).num_groups == 2
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, RequestDiffers)
    world.close()


def test_progress_does_not_wait_for_a_recorded_step_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.folds.state.FINAL_BATCHES_KEPT", 1)
    world = memory_world()
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4)))
    sampler = world.open()
    for step in range(2):
        sampler.next_batch(step, 2, timeout_s=WAIT_S)
        sampler.checkpointed(step)

    async def answered_first() -> bool:
        async with actor_in(world) as actor:
            SlowBlobs.free.clear()
            recorded = asyncio.ensure_future(actor.execute(ReadBatch(step=0), WAIT_S))
            await waiting(actor, 0)
            try:
                await asyncio.wait_for(actor.execute(AskProgress(), 0.0), WAIT_S)
                return not recorded.done()
            finally:
                SlowBlobs.free.set()
                await recorded

    assert asyncio.run(answered_first())
    world.close()


def test_a_step_that_is_decided_anew_with_the_same_groups_is_another_batch() -> None:
    world = memory_world()
    world.writer().flush(GroupSpec())
    asked = NextBatch(step=0, num_groups=1)

    async def answers() -> list[Any]:
        async with actor_in(world) as actor:
            SlowBlobs.free.clear()
            calls = []
            for _ in range(2):
                await actor.execute(Resume(checkpointed_step=None, later="release"), 0.0)
                calls.append(asyncio.ensure_future(actor.execute(asked, WAIT_S)))
                await waiting(actor, 0)  # It was decided, and is not read.
            SlowBlobs.free.set()
            return [batch_in(await call) for call in calls]

    first, second = asyncio.run(answers())
    assert first.digest == second.digest
    assert second.batch_id == f"{world.name}-2-0"
    world.close()


def test_a_look_shows_the_scores_that_there_are_though_an_equal_one_is_read() -> None:
    world = memory_world()
    world.configure(score_timeout_s=4e9)  # By its log time the group is old.
    flushed = world.writer().flush(GroupSpec(rewards=(None, None)))
    asked = ReadGroups(group_ids=(flushed.groups[0].group_id,))
    scores = ScoreProducer(
        broker=world.broker(),
        environment="math",
        scorer="tests",
        namespace=world.config.kafka.namespace,
    )

    async def rewards() -> list[list[float | None]]:
        async with actor_in(world) as actor:
            opened(await actor.execute(Resume(checkpointed_step=None), 0.0))
            SlowBlobs.free.clear()
            calls = [asyncio.ensure_future(actor.execute(asked, 0.0))]
            await waiting(actor, 0)  # It was decided, and is not read.
            for uid in flushed.segments.uids:
                scores.publish(rollout_uid=uid, reward=0.5)
            scores.close()
            opened(await actor.execute(Flush(), 0.0))
            calls.append(asyncio.ensure_future(actor.execute(asked, 0.0)))
            await waiting(actor, 0)
            SlowBlobs.free.set()
            groups = [opened(await call).value[0] for call in calls]
            return [[one.reward for one in group.rollouts] for group in groups]

    assert asyncio.run(rewards()) == [[None, None], [0.5, 0.5]]
    world.close()


def test_a_call_whose_end_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = memory_world()

    async def answer() -> None:
        async with actor_in(world) as actor:
            await asyncio.wait_for(actor.execute(NextBatch(step=0, num_groups=1), 0.01), WAIT_S)

    monkeypatch.setattr(Shortage, "error", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(answer())
    world.close()


def test_calls_are_decided_again_once_a_thread_is_to_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = memory_world()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("rollstream-decider"):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def answers() -> None:
        async with actor_in(world) as actor:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                with pytest.raises(RuntimeError, match="can't start"):
                    await actor.execute(AskStats(), 0.0)
            opened(await asyncio.wait_for(actor.execute(AskStats(), 0.0), WAIT_S))

    asyncio.run(answers())
    world.close()


class HeldBlobs(PassingBlobs):
    """Blobs whose path contains ``held`` are neither read nor written while ``free`` is cleared."""

    def __init__(self, inner: Blobs, held: str) -> None:
        super().__init__(inner)
        self.held, self.free = held, threading.Event()

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        assert self.held not in path or self.free.wait(WAIT_S)
        return super().read_ranges(path, spans)

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        assert self.held not in path or self.free.wait(WAIT_S)
        super().replace(path, data)


@pytest.mark.parametrize("behind", ["files", "an old batch", "groups"])
def test_a_batch_waits_for_nothing_that_others_read_or_have_written(
    behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollstream.folds.state.FINAL_BATCHES_KEPT", 1)
    world = memory_world()
    first = world.writer().flush(GroupSpec(example_id="ex-0")).files[0].path
    sampler = world.open()
    for step in range(3):
        sampler.next_batch(step, 1, timeout_s=WAIT_S)
        sampler.checkpointed(step)
        last = world.writer().flush(GroupSpec(example_id=f"ex-{step + 1}"))
    commands: dict[str, Command[Any]] = {
        "files": Flush(),
        "an old batch": AskRecorded(step=0),
        "groups": ReadGroups(group_ids=(last.groups[0].group_id,)),
    }
    asked = commands[behind]
    held = {"files": "batches/", "an old batch": first, "groups": last.files[0].path}[behind]
    blobs = HeldBlobs(world.store, held)

    async def answers() -> tuple[Any, Any]:
        async with actor_in(world, blobs=blobs) as actor:
            try:
                batch = NextBatch(step=2 if behind == "groups" else 3, num_groups=1)
                await actor.execute(AskStats(), 0.0)
                if behind == "files":  # One is to be written.
                    await actor.execute(batch, WAIT_S)
                slow = asyncio.ensure_future(actor.execute(asked, WAIT_S))
                await waiting(actor, 0)  # Answered after it was decided.
                quick = await actor.execute(batch, WAIT_S)
                assert not slow.done()
            finally:
                blobs.free.set()
            return quick, opened(await slow)

    quick, slow = asyncio.run(answers())
    assert batch_in(quick).num_groups == 1
    assert isinstance(slow, Reply)
    world.close()


@pytest.mark.parametrize("bytes_each", [2_000, 200_000])
def test_what_crosses_arrives_read_only_however_large_it_is(bytes_each: int) -> None:
    pickled = Pickled.of({"array": np.zeros(bytes_each, np.uint8)})
    crossed = crossing(Reply(3, pickled))
    assert isinstance(crossed, bytes) == (bytes_each == 2_000)
    one = opened(crossed)
    assert one.trainer_epoch == 3
    assert one.value["array"].nbytes == bytes_each
    assert not one.value["array"].flags.writeable
    assert opened(crossing(Reply(5, "small"))) == Reply(5, "small")


def test_what_is_pickled_once_is_opened_without_a_copy_of_its_arrays() -> None:
    array = np.arange(1_000)
    pickled = Pickled.of({"array": array, "text": "a"})
    opened = pickled.open()
    assert opened["text"] == "a"
    assert np.shares_memory(opened["array"], array)
    assert len(pickled.header) < array.nbytes


def test_progress_over_the_actor_is_what_a_sampler_in_process_answers() -> None:
    world = memory_world()
    world.writer().flush(*(GroupSpec(example_id=f"ex-{n % 3}") for n in range(8)))
    sampler = world.open()
    for step in range(2):
        sampler.next_batch(step, 2, timeout_s=WAIT_S)
    sampler.checkpointed(0)
    there = sampler.progress()

    async def answer() -> Any:
        async with actor_in(world) as actor:
            return opened(await actor.execute(AskProgress(), WAIT_S)).value

    assert asyncio.run(answer()) == there
    assert there.trained["math"]
    assert there.handed_out["math"]
    world.close()
