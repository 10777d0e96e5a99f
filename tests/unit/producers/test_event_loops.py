"""An awaited producer belongs to one event loop at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness.producers import new_layout, sampled
from harness.step_writers import STEP
from rollstream.producers import AsyncStepProducer, ProducerClosed, SeveralEventLoops, Step
from rollstream.streams.memory import MemoryBroker

Call = Callable[[AsyncStepProducer], Awaitable[object]]


async def publish(producer: AsyncStepProducer) -> None:
    await producer.publish(environment="math", example_id="ex", **sampled())


async def dispatch(producer: AsyncStepProducer) -> None:
    async with producer.dispatch(environment="math", example_id="ex", group_size=1, timeout_s=0):
        pass


async def submit(producer: AsyncStepProducer) -> None:
    await producer.submit_step(Step(**STEP, reward=1.0), environment="math")


CALLS: dict[str, Call] = {
    "publish": publish,
    "dispatch": dispatch,
    "submit_step": submit,
    "policy": lambda producer: producer.policy(environment="math", timeout_s=0.1),
    "flush": lambda producer: producer.flush(),
    "close": lambda producer: producer.close(),
}


def new_producer() -> AsyncStepProducer:
    broker = MemoryBroker()
    return AsyncStepProducer(broker=broker, namespace=new_layout(broker).namespace)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_producer_in_use_in_a_running_loop_refuses_calls_of_another(call: Call) -> None:
    async def scenario() -> None:
        producer = new_producer()
        await publish(producer)

        def in_another_loop() -> None:
            with pytest.raises(SeveralEventLoops, match="make a producer in each event loop"):
                asyncio.run(_awaited(call(producer)))

        await asyncio.to_thread(in_another_loop)
        await producer.close()

    asyncio.run(scenario())


def test_a_producer_goes_on_in_another_loop_once_the_first_one_has_stopped() -> None:
    producer, first = new_producer(), asyncio.new_event_loop()
    first.run_until_complete(publish(producer))
    asyncio.run(publish(producer))
    asyncio.run(producer.close())
    first.close()


def test_a_closed_producer_closes_again_in_another_loop_and_refuses_its_calls() -> None:
    async def scenario() -> None:
        producer = new_producer()
        await publish(producer)
        await producer.close()

        def in_another_loop() -> None:
            asyncio.run(producer.close())
            with pytest.raises(ProducerClosed):
                asyncio.run(publish(producer))

        await asyncio.to_thread(in_another_loop)

    asyncio.run(scenario())


def test_a_loop_that_was_stopped_within_its_turn_keeps_nothing_of_the_next_loop() -> None:
    producer, first = new_producer(), asyncio.new_event_loop()

    async def stop() -> None:
        publishing = asyncio.ensure_future(publish(producer))
        await asyncio.sleep(0)
        first.stop()
        await publishing

    task = first.create_task(stop())
    first.run_forever()
    asyncio.run(publish(producer))
    first.run_until_complete(task)
    first.run_until_complete(producer.close())
    first.close()


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable
