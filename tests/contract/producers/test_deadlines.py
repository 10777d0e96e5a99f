"""Each call has its own deadline, whatever other threads wait for: a broker that does not answer.

The only timed assertions: each call ends within its own time, and what a busy machine adds.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import pytest

from harness.brokers import TIMEOUT_S, until
from harness.halting import go_on, halt
from harness.producer_faults import FILLING, NarrowBroker, SilentBroker, fill, wide_rollout
from harness.producers import new_layout, published, sampled, segments_of
from rollstream.producers import (
    AsyncRolloutProducer,
    BrokerUnavailable,
    BufferFull,
    FlushTimedOut,
    RolloutProducer,
)
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.broker import Broker
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import Layout

LONG_S = 300.0
GRACE_S = 1.0  # A loaded machine is slow.
WIDE = wide_rollout()


class Outage(NamedTuple):
    """Brokers that stop to answer.

    Attributes:
        broker: for producers.
        layout: of two environments, ``math`` and ``code``.
        stop: nothing is answered from now on.
    """

    broker: Broker
    layout: Layout
    stop: Callable[[], None]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def outage(request: pytest.FixtureRequest) -> Iterator[Outage]:
    if request.param == "memory":
        silent = SilentBroker()
        yield Outage(silent, new_layout(silent.inner, "math", "code"), silent.stopped.set)
        return
    kafka = request.getfixturevalue("own_kafka")()
    with KafkaBroker(kafka.bootstrap) as broker:
        layout = new_layout(broker, "math", "code")
        yield Outage(broker, layout, partial(halt, kafka.pid))
        go_on(kafka.pid)


@contextmanager
def flushed_for_long(producer: RolloutProducer, stop: Callable[[], None]) -> Iterator[None]:
    """Another thread waits meanwhile for what is never answered, until the producer ends."""
    producer.publish(example_id="ex", **sampled())
    producer.flush(TIMEOUT_S)
    stop()
    producer.publish(example_id="ex", **sampled())

    def flush() -> None:
        with pytest.raises(RollstreamError):
            producer.flush(LONG_S)

    thread = threading.Thread(target=flush)
    thread.start()
    until(lambda: waiting([thread]) == 1)
    yield
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def took_s(call: Callable[[], object]) -> float:
    clock = SystemClock()
    begun_s = clock.monotonic_s()
    call()
    return clock.monotonic_s() - begun_s


def test_no_call_waits_for_another_threads_flush(outage: Outage) -> None:
    producer = RolloutProducer(
        broker=outage.broker,
        environment="math",
        namespace=outage.layout.namespace,
        timeout_s=1.0,
    )

    def publish(environment: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            producer.publish(**{**WIDE, "environment": environment})

    def flush() -> None:
        with pytest.raises(FlushTimedOut):
            producer.flush(2.0)

    def close() -> None:
        with pytest.raises(RollstreamError):
            producer.close()

    with flushed_for_long(producer, outage.stop):
        assert took_s(lambda: producer.publish(example_id="ex", **sampled())) < GRACE_S
        assert took_s(lambda: publish("code", BrokerUnavailable)) < 1.0 + GRACE_S
        for _ in range(FILLING - 1):
            producer.publish(**WIDE)
        assert took_s(lambda: publish("math", BufferFull)) < 1.0 + GRACE_S
        assert took_s(flush) < 2.0 + GRACE_S
        assert took_s(close) < 1.0 + GRACE_S


def test_a_loop_goes_on_while_a_topic_is_unknown_and_the_broker_away() -> None:
    broker = SilentBroker()
    layout = new_layout(broker.inner)
    broker.stopped.set()

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, timeout_s=1.0
        )
        publishing = asyncio.ensure_future(producer.publish(example_id="ex", **sampled()))
        while not broker.asking:  # Each turn of the loop comes, though no answer does.
            await asyncio.sleep(0)
        with pytest.raises(BrokerUnavailable):
            await publishing
        await producer.close()

    asyncio.run(scenario())
    assert threading.current_thread() not in broker.asking


def test_threads_that_wait_for_room_are_served_in_the_order_of_their_arrival() -> None:
    broker = NarrowBroker(MemoryBroker(), ManualClock())
    layout = new_layout(broker)
    uids = [f"uid-{number}" for number in range(8)]
    with RolloutProducer(broker=broker, environment="math", namespace=layout.namespace) as producer:
        broker.refusals = 1_000_000
        fill(producer)
        threads = []
        for count, uid in enumerate(uids, 1):
            rollout = {"example_id": "ex", "rollout_uid": uid, **sampled()}
            threads.append(threading.Thread(target=producer.publish, kwargs=rollout))
            threads[-1].start()
            until(lambda count=count: waiting(threads) == count)  # type: ignore[misc]
        broker.refusals = 0
        for thread in threads:
            thread.join(TIMEOUT_S)
    found = [one["rollout_uid"] for one in segments_of(published(broker, layout))]
    assert [uid for uid in found if uid in uids] == uids


def waiting(threads: Sequence[threading.Thread]) -> int:
    """How many of these threads wait in a call of the producer."""
    frames = sys._current_frames()
    stacks = (traceback.extract_stack(frames[one.ident or 0]) for one in threads if one.is_alive())
    return sum(any(frame.name == "wait" for frame in stack) for stack in stacks)
