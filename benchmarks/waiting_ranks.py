"""A process of ranks that wait for batches, in one event loop."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

from benchmarks.systems.rollstream_source import SAMPLER
from rollstream.sampler import AsyncSamplerClient

TIMEOUT_S = 120.0


class Wait(NamedTuple):
    """What the ranks of a process are asked to wait for."""

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
        pipe.send("ready")
        while True:
            try:
                wait: Wait = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            pipe.send(
                await asyncio.gather(*(_rank(sampler, wait, rank) for rank in range(wait.calls)))
            )


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
