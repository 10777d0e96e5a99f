"""What the actor's process does for calls that wait, without Ray around it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np

from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.sampler.deciding.batches import NextBatch
from rollstream.sampler.deciding.command import Reply
from rollstream.sampler.deciding.queries import AskStats, SamplerStats
from rollstream.sampler.serving.actor import SamplerActor
from rollstream.sampler.serving.pickled import Pickled

WAIT_S = 30.0
RANKS, PEERS = 2, 3


class SlowBlobs(PassingBlobs):
    """No rows are read before ``free``."""

    free = threading.Event()

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        assert self.free.wait(WAIT_S)
        return self.inner.read_ranges(path, spans)


@asynccontextmanager
async def actor_in(world: LocalWorld) -> AsyncIterator[SamplerActor]:
    actor = SamplerActor(world.name, world.config, world.broker(), SlowBlobs(world.store))
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


async def waiting(actor: SamplerActor, count: int) -> None:
    """Returns once so many calls wait."""
    async with asyncio.timeout(WAIT_S):
        while True:
            stats = await actor.execute(AskStats(), 0.0)
            assert isinstance(stats, Reply)
            assert isinstance(stats.value, SamplerStats)
            if stats.value.calls_waiting == count:
                return


def test_peers_that_wait_get_one_share_which_is_made_once() -> None:
    world = memory_world()
    shares = []
    for peers in asyncio.run(replies_of(world, cancelled=0)):
        first = peers[0].value
        assert isinstance(first, Pickled)
        assert all(peer.value is first for peer in peers)
        shares.append(first.open().batch(waited_s=0.0, read_group=None))
    assert [share.slots for share in shares] == [(0,), (1,)]
    assert not set(shares[0].uids) & set(shares[1].uids)
    world.close()


def test_peers_get_their_share_though_the_first_is_cancelled_while_it_is_read() -> None:
    world = memory_world()
    for peers in asyncio.run(replies_of(world, cancelled=PEERS - 1)):
        assert len(peers) == 1
        assert peers[0].value.open().batch(waited_s=0.0, read_group=None).num_groups == 1
    world.close()


def test_what_is_pickled_once_is_opened_without_a_copy_of_its_arrays() -> None:
    array = np.arange(1_000)
    pickled = Pickled.of({"array": array, "text": "a"})
    opened = pickled.open()
    assert opened["text"] == "a"
    assert np.shares_memory(opened["array"], array)
    assert len(pickled.header) < array.nbytes
