"""When an awaited publish ends that gets no answer: by the producer's clock, never by luck."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.faults import Append, Fate, FaultyBroker
from harness.producer_faults import Doubtful, NarrowBroker, turns, until_late, until_sent
from harness.producers import PARTITIONS, new_layout, published, sampled, segments_of
from rollstream.producers import (
    AsyncRolloutProducer,
    BufferFull,
    DeliveryFailed,
    FlushTimedOut,
    ProducerDied,
)
from rollstream.runtime.clock import ManualClock
from rollstream.streams.broker import OnDelivery
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

# Of examples in partitions of their own, so that neither waits for the other's answer.
APART = {"b": "ex-0", "a": "ex-1"}
assert len({partition_of(example.encode(), PARTITIONS) for example in APART.values()}) == 2


def test_await_publish_without_an_answer_is_in_doubt_at_its_deadline() -> None:
    clock = ManualClock()
    broker = FaultyBroker(MemoryBroker(clock=clock), Doubtful(Fate.HOLD, "a"))
    layout = new_layout(broker)

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, clock=clock
        )
        with pytest.raises(DeliveryFailed, match="no answer within 30 s") as told:
            await until_late(clock, producer.publish(example_id="ex", rollout_uid="a", **sampled()))
        assert told.value.uids == ("a",)
        with pytest.raises(FlushTimedOut):
            await until_late(clock, producer.flush())
        # Told above already; a close that cannot know says it again rather than not at all.
        with pytest.raises(DeliveryFailed):
            await until_late(clock, producer.close())

    asyncio.run(scenario())


def test_await_publish_takes_its_time_from_the_clock_it_was_given() -> None:
    """Each publish has all of its time, whenever it began; the machine's clock decides nothing."""
    clock = ManualClock()
    broker = FaultyBroker(MemoryBroker(clock=clock), Doubtful(Fate.HOLD, "a", "b"))
    layout = new_layout(broker)
    half_s = 1e-5  # On the machine it is over in a few turns of the loop.

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker,
            environment="math",
            namespace=layout.namespace,
            clock=clock,
            timeout_s=2 * half_s,
        )
        publishing = []
        for uid, example in APART.items():
            publishing.append(
                asyncio.create_task(
                    producer.publish(example_id=example, rollout_uid=uid, **sampled())
                )
            )
            await until_sent(broker, len(publishing))
            await turns(100)
            clock.advance(half_s)
        with pytest.raises(DeliveryFailed, match="no answer within 2e-05 s"):
            await publishing[0]
        await turns(100)
        assert not publishing[1].done()
        clock.advance(2 * half_s)
        with pytest.raises(DeliveryFailed, match="no answer within 2e-05 s"):
            await publishing[1]
        with pytest.raises(DeliveryFailed):
            await until_late(clock, producer.close())

    asyncio.run(scenario())


def test_coroutines_that_get_no_room_are_told_within_the_deadline() -> None:
    clock = ManualClock()
    broker = NarrowBroker(MemoryBroker(), clock)
    layout = new_layout(broker)

    async def scenario() -> list[Any]:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, clock=clock
        )
        broker.refusals = 1_000_000
        publishing = asyncio.gather(
            *(producer.publish(example_id="ex", **sampled()) for _ in range(5)),
            return_exceptions=True,
        )
        told: list[Any] = await until_late(clock, publishing)
        await producer.close()
        return told

    told = asyncio.run(scenario())
    assert [type(error) for error in told] == [BufferFull] * 5


class BreakingBroker(FaultyBroker):
    """A broker whose client breaks once something was sent."""

    broken = False

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        self.broken = True
        return on_delivery

    def before_poll(self, timeout_s: float) -> float:
        if self.broken:
            self.broken = False
            raise MemoryError("no room for reports")
        return timeout_s


def test_await_publish_ends_with_the_task_that_would_have_told_it_its_answer() -> None:
    clock = ManualClock()
    broker = BreakingBroker(MemoryBroker(clock=clock))
    layout = new_layout(broker)

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, clock=clock
        )
        with pytest.raises(DeliveryFailed, match=r"no answer: .*no room for reports") as told:
            await producer.publish(example_id="ex", **sampled())
        with pytest.raises(ProducerDied, match="no room for reports"):
            await producer.publish(example_id="ex", **sampled())
        with pytest.raises(ProducerDied):
            await producer.close()
        (uid,) = told.value.uids
        retrying = AsyncRolloutProducer(
            broker=broker.inner, environment="math", namespace=layout.namespace, clock=clock
        )
        async with retrying:
            await retrying.publish(example_id="ex", rollout_uid=uid, **sampled())
        segments = segments_of(published(broker, layout))
        assert [one["rollout_uid"] for one in segments] == [uid, uid]

    asyncio.run(scenario())
