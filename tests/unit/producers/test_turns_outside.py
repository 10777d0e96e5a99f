"""A turn that nothing would publish is refused: only the end of a block publishes the newest."""

from __future__ import annotations

import asyncio

import pytest

from harness.brokers import TIMEOUT_S
from harness.producers import sampled
from rollstream.producers import AsyncRolloutProducer, InvalidRollout, RolloutProducer
from rollstream.streams.broker import TopicSpec
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import Layout

REMEDY = "write `with … as trajectory:` around its turns, or `async with`"


def deployed() -> MemoryBroker:
    broker = MemoryBroker()
    broker.admin().create([TopicSpec(Layout().rollouts("math"), 1, {})], TIMEOUT_S)
    return broker


def test_a_turn_outside_of_the_block_of_its_trajectory_is_refused() -> None:
    with RolloutProducer(environment="math", broker=deployed()) as producer:
        trajectory = producer.trajectory(example_id="ex")
        with pytest.raises(InvalidRollout, match=REMEDY):
            trajectory.turn(**sampled())


def test_a_turn_of_an_async_producer_outside_of_its_block_is_refused() -> None:
    async def scenario() -> None:
        async with AsyncRolloutProducer(environment="math", broker=deployed()) as producer:
            trajectory = producer.trajectory(example_id="ex")
            with pytest.raises(InvalidRollout, match=REMEDY):
                await trajectory.turn(**sampled())

    asyncio.run(scenario())
