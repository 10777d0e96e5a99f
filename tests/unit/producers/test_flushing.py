"""What a flush waits for while others publish, or give up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.brokers import TIMEOUT_S, until
from harness.faults import Fate
from harness.producer_faults import Doubtful, MutedBroker, NarrowBroker
from harness.producers import PARTITIONS, new_layout, sampled
from rollstream.producers import AsyncRolloutProducer, DeliveryFailed, RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

# Examples whose rollouts go to different partitions, so that neither waits for the other's answer.
FIRST, SECOND = "ex-0", "ex-1"
assert len({partition_of(example.encode(), PARTITIONS) for example in (FIRST, SECOND)}) == 2


def test_a_flush_does_not_wait_for_what_others_publish_meanwhile() -> None:
    broker = MutedBroker(MemoryBroker(), Doubtful(Fate.HOLD, "second"))
    broker.muted = True
    layout = new_layout(broker)
    producer = RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, timeout_s=1.0
    )
    with ThreadPoolExecutor() as threads:
        producer.publish(example_id=FIRST, rollout_uid="first", **sampled())
        flushing = threads.submit(producer.flush, TIMEOUT_S)
        until(lambda: producer.stats().waiting["flush"] == 1)
        producer.publish(example_id=SECOND, rollout_uid="second", **sampled())
        broker.muted = False
        flushing.result(TIMEOUT_S / 2)
    with pytest.raises(DeliveryFailed) as told:
        producer.close()
    assert told.value.uids == ("second",)


def test_a_flush_ends_with_the_last_call_that_is_cancelled_before_it_was_sent() -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)

    async def scenario() -> None:
        async with AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        ) as producer:
            await producer.publish(example_id="ex", **sampled())
            broker.refusals = 1_000_000
            publishing = asyncio.create_task(producer.publish(example_id="ex", **sampled()))
            flushing = asyncio.create_task(producer.flush())
            await asyncio.to_thread(until, lambda: producer.stats().waiting["flush"] == 1)
            publishing.cancel()
            await asyncio.wait_for(flushing, TIMEOUT_S / 2)
            broker.refusals = 0

    asyncio.run(scenario())
