"""What becomes of steps when the broker loses, refuses or is full."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import numpy as np
import pytest

from harness.brokers import TIMEOUT_S, until
from harness.faults import Fate, FaultyBroker, always_pass
from harness.producer_faults import Doubtful, NarrowBroker, SilentBroker, turns, until_late
from harness.producers import PARTITIONS, flush_by_jumps, new_layout, published, segments_of
from rollstream.producers import (
    AsyncStepProducer,
    BrokerUnavailable,
    BufferFull,
    DeliveryFailed,
    FlushTimedOut,
    ProducerClosed,
    Step,
    StepProducer,
)
from rollstream.producers.engine.gather import HELD_BYTES_MAX
from rollstream.producers.errors import Contradiction
from rollstream.producers.steps.submitted import Submitted
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.ids import step_rollout_uid
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

ENVIRONMENT = "web"
# Prompts in partitions of their own, so that neither waits for the other's answer.
APART = ("ex-0", "ex-1")
assert len({partition_of(prompt.encode(), PARTITIONS) for prompt in APART}) == 2


def step(uid: str, prompt: str = "p", tokens: Any = (1, 2)) -> Step:
    return Step([1], tokens, 1.0, uid, prompt, 0, "step-1", 1, is_last=True, n_rollouts=1)


def uids(broker: FaultyBroker, layout: Any) -> list[str]:
    found = segments_of(published(broker, layout, ENVIRONMENT))
    return sorted(one["trajectory_uid"] for one in found)


def test_a_submission_in_doubt_names_what_is_not_known_to_be_in_the_log() -> None:
    clock = ManualClock()
    broker = FaultyBroker(MemoryBroker(clock=clock), Doubtful(Fate.HOLD, "a"))
    layout = new_layout(broker, ENVIRONMENT)

    async def scenario() -> None:
        producer = AsyncStepProducer(broker=broker, namespace=layout.namespace, clock=clock)
        await producer.submit_steps([], environment=ENVIRONMENT)  # Its policies are known.
        both = [step("a", APART[0]), step("b", APART[1])]
        with pytest.raises(DeliveryFailed, match="no answer within 30 s") as told:
            await until_late(clock, producer.submit_steps(both, environment=ENVIRONMENT))
        assert told.value.uids == ("a",)
        with pytest.raises(FlushTimedOut):
            await until_late(clock, producer.flush())
        with pytest.raises(DeliveryFailed):
            await until_late(clock, producer.close())

    asyncio.run(scenario())
    assert uids(broker, layout) == ["b"]


def test_a_submission_that_is_cancelled_before_it_was_sent_is_not_in_the_log() -> None:
    broker = FaultyBroker(MemoryBroker())
    layout = new_layout(broker, ENVIRONMENT)

    async def scenario() -> None:
        async with AsyncStepProducer(broker=broker, namespace=layout.namespace) as producer:
            await producer.submit_step(step("first"), environment=ENVIRONMENT)
            several = [step(f"t{number}") for number in range(3)]
            task = asyncio.create_task(producer.submit_steps(several, environment=ENVIRONMENT))
            asyncio.get_running_loop().call_soon(task.cancel)  # Before the end of its turn.
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
    assert uids(broker, layout) == ["first"]


def test_a_step_of_a_sync_producer_fails_in_a_later_call() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT_AND_DROP, "a"))
    layout = new_layout(broker, ENVIRONMENT)
    with StepProducer(broker=broker, namespace=layout.namespace) as producer:
        producer.submit_step(step("a"), environment=ENVIRONMENT)
        with pytest.raises(DeliveryFailed) as told:
            producer.flush()
        assert told.value.uids == ("a",)
        producer.submit_step(step("b"), environment=ENVIRONMENT)
    assert uids(broker, layout) == ["b"]


def other(uid: str, index: int = 0, last: bool = True, size: int = 1) -> Step:
    """Of the same trajectory and index as another step, with other content."""
    return Step([1], (7, 7), 0.0, uid, "p", index, "step-1", 1, is_last=last, n_rollouts=size)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_failed_is_no_first_one_that_another_step_or_end_could_contradict(kind: str) -> None:
    """A step, a group's size and a trajectory's length of which nothing is in the log."""
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT_AND_DROP, "a", "ENDED"))
    layout = new_layout(broker, ENVIRONMENT)
    given: dict[str, Any] = {"broker": broker, "namespace": layout.namespace}
    end: dict[str, Any] = {"environment": ENVIRONMENT, "prompt_uid": "q"}

    def with_sync() -> None:
        with StepProducer(**given) as producer:
            producer.submit_step(step("a"), environment=ENVIRONMENT)
            with pytest.raises(DeliveryFailed):
                producer.flush()
            producer.complete_trajectory("e", steps=3, **end)
            with pytest.raises(DeliveryFailed):
                producer.flush()
            broker.decide = always_pass
            producer.submit_step(other("a", last=False), environment=ENVIRONMENT)
            producer.submit_step(other("a", 1), environment=ENVIRONMENT)
            producer.complete_trajectory("e", steps=2, **end)

    async def with_async() -> None:
        async with AsyncStepProducer(**given) as producer:
            with pytest.raises(DeliveryFailed):
                await producer.submit_step(step("a"), environment=ENVIRONMENT)
            with pytest.raises(DeliveryFailed):
                await producer.complete_trajectory("e", steps=3, **end)
            broker.decide = always_pass
            await producer.submit_step(other("a", last=False), environment=ENVIRONMENT)
            await producer.submit_step(other("a", 1), environment=ENVIRONMENT)
            await producer.complete_trajectory("e", steps=2, **end)

    if kind == "sync":
        with_sync()
    else:
        asyncio.run(with_async())
    assert uids(broker, layout) == ["a", "a"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_arrived_is_the_first_one_that_others_contradict(kind: str) -> None:
    """Also where something else failed meanwhile."""
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT_AND_DROP, "a"))
    layout = new_layout(broker, ENVIRONMENT)
    given: dict[str, Any] = {"broker": broker, "namespace": layout.namespace}
    first = step("b", "r")

    def with_sync() -> None:
        with StepProducer(**given) as producer:
            producer.submit_step(first, environment=ENVIRONMENT)
            producer.flush()
            producer.submit_step(step("a"), environment=ENVIRONMENT)
            with pytest.raises(DeliveryFailed):
                producer.flush()
            with pytest.raises(Contradiction, match="the first one counts"):
                producer.submit_step(first._replace(reward=0.5), environment=ENVIRONMENT)

    async def with_async() -> None:
        async with AsyncStepProducer(**given) as producer:
            await producer.submit_step(first, environment=ENVIRONMENT)
            with pytest.raises(DeliveryFailed):
                await producer.submit_step(step("a"), environment=ENVIRONMENT)
            with pytest.raises(Contradiction, match="the first one counts"):
                await producer.submit_step(first._replace(reward=0.5), environment=ENVIRONMENT)

    if kind == "sync":
        with_sync()
    else:
        asyncio.run(with_async())


def test_what_is_known_of_steps_takes_no_more_where_their_names_are_long() -> None:
    """Measured beside the same number of short names. The names of prompts are kept once."""

    def held(chars: int) -> int:
        submitted = Submitted(4_096)
        tracemalloc.start()
        try:
            for number in range(500):
                one = step(f"{number:08d}".ljust(chars, "t"), f"{number:08d}".ljust(chars, "p"))
                uid = step_rollout_uid(one.prompt_uid, one.trajectory_uid)
                draft = submitted.draft(0.0)
                draft.size_of(one)
                draft.take(one, uid, number)
                submitted.add(draft)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert held(4_096) < 1.5 * held(8) + 500 * 4_096


@pytest.mark.proves("B4", "B7")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_full_queue_is_refused_at_once_and_drops_nothing(kind: str) -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker, ENVIRONMENT)
    given: dict[str, Any] = {
        "broker": broker,
        "namespace": layout.namespace,
        "clock": broker.manual_clock,
    }
    wide = np.zeros(HELD_BYTES_MAX // 4 // 4 - 360, np.int32)

    async def with_async() -> None:
        async with AsyncStepProducer(**given) as producer:
            await producer.submit_step(step("first"), environment=ENVIRONMENT)
            broker.refusals = 10_000
            waiting = [
                asyncio.create_task(
                    producer.submit_step(step(f"w{n}", tokens=wide), environment=ENVIRONMENT)
                )
                for n in range(4)
            ]
            await asyncio.sleep(0)  # They are queued.
            begun_s = broker.manual_clock.monotonic_s()
            with pytest.raises(BufferFull, match="no room now"):
                await producer.submit_step(step("late"), environment=ENVIRONMENT)
            assert broker.manual_clock.monotonic_s() == begun_s
            broker.refusals = 0
            await asyncio.gather(*waiting)
            await producer.submit_step(step("late"), environment=ENVIRONMENT)

    def with_sync() -> None:
        with StepProducer(**given) as producer:
            producer.submit_step(step("first"), environment=ENVIRONMENT)
            flush_by_jumps(producer)
            broker.refusals = 10_000
            for number in range(4):
                producer.submit_step(step(f"w{number}", tokens=wide), environment=ENVIRONMENT)
            with pytest.raises(BufferFull, match="no room now"):
                producer.submit_step(step("late"), environment=ENVIRONMENT)
            broker.refusals = 0
            producer.flush()
            producer.submit_step(step("late"), environment=ENVIRONMENT)

    if kind == "sync":
        with_sync()
    else:
        asyncio.run(with_async())
    assert uids(broker, layout) == ["first", "late", "w0", "w1", "w2", "w3"]


def test_a_submission_is_told_that_nobody_said_what_trainers_announced() -> None:
    broker = SilentBroker()
    layout = new_layout(broker, ENVIRONMENT)
    broker.names_topics = True
    broker.stopped.set()
    told = r"SilentBroker did not say within 0\.3 s what trainers and samplers announced: .*; check"

    async def scenario() -> None:
        given: Any = {"broker": broker, "namespace": layout.namespace}
        async with AsyncStepProducer(**given, timeout_s=0.3) as producer:
            with pytest.raises(BrokerUnavailable, match=told):
                await producer.submit_steps([step("a")], environment=ENVIRONMENT)

    asyncio.run(scenario())


def test_a_close_ends_a_submission_that_waits_for_what_trainers_announced() -> None:
    broker = SilentBroker()
    layout = new_layout(broker, ENVIRONMENT)
    broker.names_topics = True
    broker.stopped.set()

    async def scenario() -> None:
        producer = AsyncStepProducer(broker=broker, namespace=layout.namespace)
        submitting = asyncio.create_task(
            producer.submit_steps([step("a")], environment=ENVIRONMENT)
        )
        await asyncio.to_thread(until, lambda: bool(broker.asking))
        await turns(100)
        await producer.close()
        with pytest.raises(ProducerClosed):
            await asyncio.wait_for(submitting, TIMEOUT_S / 2)

    asyncio.run(scenario())


@pytest.mark.parametrize("ends", ["flush", "close"])
def test_steps_are_in_the_log_though_the_clock_of_a_test_jumps_while_a_call_waits(
    ends: str,
) -> None:
    """They are held until other threads know the topic and its policies."""
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    layout = new_layout(broker, ENVIRONMENT)
    for number in range(5):
        producer = StepProducer(broker=broker, namespace=layout.namespace, clock=clock)
        producer.submit_step(step(f"t{number}"), environment=ENVIRONMENT)
        if ends == "flush":
            producer.flush()
        else:
            producer.close()
        found = segments_of(published(broker, layout, ENVIRONMENT))
        assert len(found) == number + 1
        producer.close()


def test_the_end_of_a_producer_waits_for_a_broker_in_real_time_up_to_its_time_out() -> None:
    broker = SilentBroker()
    layout = new_layout(broker, ENVIRONMENT)
    broker.stopped.set()
    clock = ManualClock()
    producer = StepProducer(broker=broker, namespace=layout.namespace, clock=clock, timeout_s=0.2)
    producer.submit_step(step("a"), environment=ENVIRONMENT)
    with pytest.raises(DeliveryFailed) as told:
        producer.close()
    assert told.value.uids == ("a",)
    assert clock.monotonic_s() == 0.0
