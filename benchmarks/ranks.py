"""Measures what a step of 1,000 ranks costs the sampler, and how long ``progress()`` holds it up.

``python -m benchmarks.ranks``: 1,000 data-parallel ranks ask the sampler's actor at one time for
their shares of a batch of 2,048 groups of eight, with ``payloads="rank"``, so that no row crosses.
Then each acks the batch. The medians of the steps are printed. Then the fold is given a million
examples that were trained on, and acks are repeated, alone and while ``progress()`` is answered.

The actor runs in this process, in memory and without Ray; for Ray's own costs see ``waiting``.
Bytes are those of pickled commands, answers, and what goes into Ray's object store, once.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from dataclasses import replace
from statistics import median
from typing import Any
from unittest.mock import patch

import ray

from benchmarks.folds import GROUP_SIZE, flushes
from rollstream.consumers import create_deployment
from rollstream.folds.group.known import Key
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.actor.sampler_actor import Refused, SamplerActor
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Command
from rollstream.sampler.decide.queries.progress import AskProgress
from rollstream.sampler.decide.trainer.commands import Ack, MarkCheckpointed, Resume
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Claimed
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import Layout

RANKS, BATCH_GROUPS, STEPS, EXAMPLES = 1_000, 2_048, 5, 1_000_000
ROUNDS, ALONE_S, PAUSE_S, WAIT_S = 5, 1.0, 0.002, 60.0
REFERENCE_BYTES = 256  # About as large as Ray's reference with its owner's address, pickled.
DECIDING_MS_MAX, CROSSED_MB_MAX, BESIDE_MS_MAX = 150, 5, 5
CONFIG = {
    "kafka": {"bootstrap": "in-memory:0"},
    "store": {"root": "file:///unused"},
    "environments": {"math": {"partitions": 1}},
    "samplers": {"trainer": {"environments": ["math"], "max_policy_lag": -1}},
}


class Bench:
    """Calls the actor of a sampler. Of row files only sizes are right, since nobody reads them."""

    def __init__(self) -> None:
        logs, store, config = MemoryLogs(), MemoryBlobs(), RollstreamConfig.model_validate(CONFIG)
        broker = MemoryBroker(logs)
        create_deployment(config, broker=broker, store=store)
        log = TopicPartition(Layout().groups("math"), 0)
        epoch = logs.append(log, None, encode(Claimed(owner="bench", nonce="bench"))).offset
        for event in flushes((STEPS + 1) * BATCH_GROUPS * GROUP_SIZE):
            groups = replace(event.groups, example_ids=event.groups.group_ids)
            store.create(event.files[0].path, bytes(event.files[0].size))
            logs.append(log, None, encode(replace(event, epoch=epoch, groups=groups)))
        self.actor = SamplerActor("trainer", config, broker, store)
        self.owner, self._stored_bytes = self.actor._owner, 0

    def put(self, value: object) -> bytes:
        """In place of ``ray.put``."""
        self._stored_bytes += len(pickle.dumps(value, protocol=5))
        return bytes(REFERENCE_BYTES)

    async def ask(self, *commands: Command[Any]) -> tuple[int, float]:
        """The bytes that cross for commands that come at one time; the longest wait [ms]."""

        async def one(command: Command[Any]) -> tuple[Any, float]:
            begun_s = time.perf_counter()
            answer = await self.actor.execute(command, WAIT_S)
            return answer, 1e3 * (time.perf_counter() - begun_s)

        answers, waits_ms = zip(*await asyncio.gather(*map(one, commands)), strict=True)
        for answer in answers:
            reply = pickle.loads(answer) if isinstance(answer, bytes) else answer
            if isinstance(reply, Refused):
                raise reply.error
        crossed = (pickle.dumps(one, protocol=5) for one in (*commands, *answers))
        return sum(map(len, crossed)), max(waits_ms)

    async def step(self, step: int) -> tuple[float, float, float, float]:
        """The deciding thread's time for shares, for acks; megabytes; a rank's wait [ms]."""
        batch = NextBatch(step=step, num_groups=BATCH_GROUPS, dp_size=RANKS, payloads="rank")
        self._stored_bytes, begun_s = 0, self._decider_s()
        shares, wait_ms = await self.ask(*[replace(batch, dp_rank=rank) for rank in range(RANKS)])
        shared_s = self._decider_s()
        acks, _ = await self.ask(*[_ack(step)] * RANKS)
        took_ms = 1e3 * (shared_s - begun_s), 1e3 * (self._decider_s() - shared_s)
        await self.ask(MarkCheckpointed(step=step))
        return *took_ms, (shares + acks + self._stored_bytes) / 1e6, wait_ms

    async def progress(self) -> tuple[float, float, float]:
        """The longest that an ack takes beside ``progress()``; the deciding thread's time for that;
        the longest that an ack takes alone [ms]."""
        begun_s = self._decider_s()
        asked = asyncio.create_task(self.actor.execute(AskProgress(), WAIT_S))
        beside_ms, spent_ms = await self._ack_ms(asked), 1e3 * (self._decider_s() - begun_s)
        return beside_ms, spent_ms, await self._ack_ms(asyncio.create_task(asyncio.sleep(ALONE_S)))

    def _decider_s(self) -> float:
        return self.actor._decider.submit(time.thread_time).result()

    async def _ack_ms(self, until: asyncio.Future[Any]) -> float:
        longest_s, due_s = 0.0, time.perf_counter()
        while not until.done():
            self.owner.decide(self.owner.begin(_ack(STEPS)))  # As the actor's own thread would.
            longest_s = max(longest_s, time.perf_counter() - due_s)
            due_s = time.perf_counter() + PAUSE_S  # A pause that takes longer holds up an ack, too.
            await asyncio.sleep(PAUSE_S)
        return 1e3 * longest_s


def _ack(step: int) -> Ack:
    return Ack(step=step, batch_id=f"trainer-1-{step}")  # Of the first trainer.


async def _measure() -> None:
    bench = Bench()
    with patch.object(ray, "put", bench.put):
        await bench.ask(Resume(checkpointed_step=None))
        steps = [await bench.step(step) for step in range(STEPS + 1)][1:]  # The first warms up.
    shares_ms, acks_ms, crossed_mb, wait_ms = map(median, zip(*steps, strict=True))
    print(
        f"a step of {RANKS:,} ranks, {BATCH_GROUPS:,} groups: {shares_ms + acks_ms:.0f} ms of the "
        f"deciding thread (at most {DECIDING_MS_MAX}), {acks_ms:.0f} of them for acks; "
        f"{crossed_mb:.2f} MB (at most {CROSSED_MB_MAX}); a rank waits up to {wait_ms:.0f} ms"
    )
    outcomes = bench.owner._logs.state.outcomes
    for number in range(EXAMPLES):
        outcomes.add("trained", Key("math", f"{number:032x}"))
    rounds = [await bench.progress() for _ in range(ROUNDS)]
    beside_ms, spent_ms, alone_ms = map(median, zip(*rounds, strict=True))
    print(
        f"{EXAMPLES:,} examples: an ack takes up to {beside_ms:.1f} ms beside progress() (at most "
        f"{BESIDE_MS_MAX}), which takes {spent_ms:.1f} of its thread; alone {alone_ms:.1f} ms"
    )
    bench.owner.close()


if __name__ == "__main__":
    asyncio.run(_measure())
