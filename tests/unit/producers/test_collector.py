"""Awaited calls leave nothing to the collector: it would stop all coroutines, again and again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from harness.producers import new_layout, sampled
from rollstream.producers import AsyncStepProducer, Step
from rollstream.streams.memory import MemoryBroker

CALLS = 50
ENVIRONMENT = "web"
Call = Callable[[AsyncStepProducer, int], Awaitable[object]]


def step(number: int) -> Step:
    return Step([1], [2], 1.0, f"t{number}", "p", 0, 5)


def submitted(producer: AsyncStepProducer, number: int) -> Awaitable[object]:
    return producer.submit_step(step(number), environment=ENVIRONMENT)


def published(producer: AsyncStepProducer, number: int) -> Awaitable[object]:
    return producer.publish(example_id=f"ex-{number}", environment=ENVIRONMENT, **sampled())


def flushed(producer: AsyncStepProducer, _: int) -> Awaitable[object]:
    return producer.flush()


@pytest.mark.parametrize("call", [submitted, published, flushed])
def test_an_awaited_call_leaves_no_cycle(call: Call) -> None:
    async def scenario() -> int:
        broker = MemoryBroker()
        layout = new_layout(broker, ENVIRONMENT)
        async with AsyncStepProducer(broker=broker, namespace=layout.namespace) as producer:
            await call(producer, -1)  # Its topic is known.
            await producer.flush()
            gc.collect()
            gc.disable()
            try:
                for number in range(CALLS):
                    await call(producer, number)
                return gc.collect()
            finally:
                gc.enable()

    assert asyncio.run(scenario()) < CALLS
