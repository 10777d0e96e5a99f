"""A process of ranks that wait for batches, in one event loop."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from benchmarks.systems.rollstream_source import SAMPLER
from rollstream.sampler import AsyncSamplerClient

TIMEOUT_S = 120.0
BARE = "bare"  # The name of the ``BareActor``.
BARE_NAMESPACE = "bench-waiting"


class BareActor:
    """What Ray itself costs: calls wait for nothing but ``go``, and get a small array."""

    def __init__(self, reply_bytes: int) -> None:
        self._reply = np.zeros(reply_bytes, np.uint8)
        self._parked: list[asyncio.Future[None]] = []

    async def park(self) -> NDArray[np.uint8]:
        """Returns after ``go``."""
        parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked.append(parked)
        await parked
        return self._reply

    async def parked(self) -> int:
        return len(self._parked)

    async def go(self) -> int:
        """Ends all calls that wait; returns when, in microseconds since 1970."""
        us = time.time_ns() // 1000
        parked, self._parked = self._parked, []
        for each in parked:
            each.set_result(None)
        return us


class Wait(NamedTuple):
    """What the ranks of a process are asked to wait for; of no groups: for a ``BareActor``."""

    step: int
    num_groups: int
    calls: int


def run_ranks(config: str, address: str, pipe: Connection) -> None:
    """Says ``ready``, then answers each ``Wait`` with the times, in microseconds since 1970, at
    which its calls returned; ends when nobody asks any more."""
    asyncio.run(_run(config, address, pipe))


async def _run(config: str, address: str, pipe: Connection) -> None:
    client = await AsyncSamplerClient.attach(SAMPLER, config=config, address=address)
    async with client as sampler:
        await sampler.stats()
        bare = ray.get_actor(BARE, BARE_NAMESPACE)
        pipe.send("ready")
        while True:
            try:
                wait: Wait = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            ranks = range(wait.calls)
            if wait.num_groups:
                waits = [_rank(sampler, wait, rank) for rank in ranks]
            else:
                waits = [_bare_rank(bare) for _ in ranks]
            pipe.send(await asyncio.gather(*waits))


async def _bare_rank(bare: Any) -> int:
    await asyncio.wrap_future(bare.park.remote().future())
    return time.time_ns() // 1000


async def _rank(sampler: AsyncSamplerClient, wait: Wait, rank: int) -> int:
    batch = await sampler.next_batch(
        wait.step,
        wait.num_groups,
        timeout_s=TIMEOUT_S,
        dp_rank=rank % wait.num_groups,
        dp_size=wait.num_groups,
    )
    got_us = time.time_ns() // 1000
    assert batch.num_groups == 1, batch
    return got_us
