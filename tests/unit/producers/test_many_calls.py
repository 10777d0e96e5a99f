"""Many awaited calls cost memory while they wait, and their end costs the same for each."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from harness.brokers import until
from harness.faults import Fate, FaultyBroker
from harness.producer_faults import Doubtful, turns
from harness.producers import PARTITIONS, new_layout, sampled
from rollstream.producers import AsyncRolloutProducer, DeliveryFailed
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.waits import Wait
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

SLOW, QUICK = "ex-0", "ex-1"
assert len({partition_of(one.encode(), PARTITIONS) for one in (SLOW, QUICK)}) == 2
CLOSE_S = 5.0  # So long "a" waits, and behind it many that end at once.


def waiting_calls() -> int:
    gc.collect()
    return sum(isinstance(one, Wait) for one in gc.get_objects())


async def behind_one(
    producer: AsyncRolloutProducer, broker: FaultyBroker, count: int, example_id: str
) -> Sequence[asyncio.Task[str]]:
    """Publishes "a", which gets no answer, and as many others."""
    calls = [producer.publish(example_id=SLOW, rollout_uid="a", **sampled())]
    first = asyncio.ensure_future(calls[0])
    await asyncio.to_thread(until, lambda: broker.held == 1)
    others = [producer.publish(example_id=example_id, **sampled()) for _ in range(count)]
    return [first, *map(asyncio.ensure_future, others)]


def test_calls_that_ended_behind_one_that_waits_are_forgotten() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.HOLD, "a"))
    layout = new_layout(broker)

    async def scenario() -> int:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, timeout_s=CLOSE_S
        )
        before = waiting_calls()
        first, *others = await behind_one(producer, broker, 50, QUICK)
        await asyncio.gather(*others)
        del others
        for _ in range(10):
            await asyncio.gather(
                *(producer.publish(example_id=QUICK, **sampled()) for _ in range(50))
            )
        found = waiting_calls() - before
        assert not first.done(), "the others took too long"
        first.cancel()
        with pytest.raises(DeliveryFailed):
            await producer.close()
        return found

    assert asyncio.run(scenario()) <= 150


def steps_to_cancel(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many lines, and comparisons of entries and calls, it takes to cancel so many publishes
    that are gathered."""
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.HOLD, "a"))
    layout = new_layout(broker)
    steps = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        return trace

    def compare(one: object, other: object) -> bool:
        nonlocal steps
        steps += 1
        return one is other

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, timeout_s=CLOSE_S
        )
        first, *others = await behind_one(producer, broker, count, SLOW)
        await turns(2)
        assert producer.stats().outstanding == count + 1
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for one in others:
                one.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        finally:
            sys.settrace(before)
        assert producer.stats().outstanding == 1
        first.cancel()
        with pytest.raises(DeliveryFailed):
            await producer.close()

    with monkeypatch.context() as patch:
        for kind in (Outgoing, Wait):
            patch.setattr(kind, "__eq__", compare)
        asyncio.run(scenario())
    return steps


def test_cancelling_costs_each_call_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (steps_to_cancel(count, monkeypatch) for count in (200, 800))
    assert many < 5 * few
