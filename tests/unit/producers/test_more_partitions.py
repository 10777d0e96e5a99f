"""Somebody adds partitions to a topic while producers publish to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from harness.brokers import TIMEOUT_S, until
from harness.faults import Fate, FaultyBroker, FaultyWriter
from harness.producer_faults import Doubtful, turns, until_late
from harness.producers import PARTITIONS, new_layout, sampled
from rollstream.producers import (
    AsyncRolloutProducer,
    DeliveryFailed,
    FlushTimedOut,
    RolloutProducer,
    TopicMismatch,
)
from rollstream.producers.engine.engine import LOOK_AGAIN_S
from rollstream.producers.engine.outbox import Outgoing
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.broker import Delivery, Writer
from rollstream.streams.memory import MemoryBroker

SHORT_S = 0.5  # How long a close waits for the answer that never comes.


class JumpingClock(SystemClock):
    """The machine's clock, ``ahead_s`` of its time."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class GrowingBroker(FaultyBroker):
    """A broker whose topics have ``more`` partitions than they had; "a" is never answered."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker(), Doubtful(Fate.HOLD, "a"))
        self.more = 0

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        return GrowingWriter(self, self.inner.writer())


class GrowingWriter(FaultyWriter):
    def __init__(self, broker: GrowingBroker, inner: Writer) -> None:
        super().__init__(broker, inner)
        self._growing = broker

    def partitions(self, topic: str, timeout_s: float) -> int:
        return super().partitions(topic, timeout_s) + self._growing.more


GREW = f"has {PARTITIONS + 1} partitions by now and had {PARTITIONS}"


def test_a_producer_refuses_and_names_what_it_holds() -> None:
    broker, clock = GrowingBroker(), JumpingClock()
    layout = new_layout(broker)
    producer = RolloutProducer(
        broker=broker,
        environment="math",
        namespace=layout.namespace,
        clock=clock,
        timeout_s=SHORT_S,
    )
    producer.publish(example_id="ex", rollout_uid="a", **sampled())
    with pytest.raises(FlushTimedOut):
        producer.flush(0)
    until(lambda: broker.held == 1)
    producer.publish(example_id="ex", rollout_uid="b", **sampled())  # Gathered behind "a".
    broker.more = 1
    clock.ahead_s = LOOK_AGAIN_S
    failed: list[DeliveryFailed] = []

    def flush() -> None:
        try:
            producer.flush(0)
        except FlushTimedOut:
            pass
        except DeliveryFailed as told:
            failed.append(told)

    until(lambda: bool(failed), flush)
    assert (failed[0].uids, failed[0].outstanding) == (("b",), 1)
    assert GREW in str(failed[0])
    with pytest.raises(TopicMismatch, match=f"{GREW}.*make a new producer"):
        producer.publish(example_id="ex", rollout_uid="c", **sampled())
    with pytest.raises(DeliveryFailed) as left:
        producer.close()
    assert left.value.uids == ("a",)


def test_an_awaited_publish_that_is_held_is_told() -> None:
    broker, clock = GrowingBroker(), ManualClock()
    layout = new_layout(broker)

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker,
            environment="math",
            namespace=layout.namespace,
            clock=clock,
            timeout_s=2 * LOOK_AGAIN_S,
        )
        publishing = []
        for uid in ("a", "b"):
            call = producer.publish(example_id="ex", rollout_uid=uid, **sampled())
            publishing.append(asyncio.ensure_future(call))
            await asyncio.to_thread(until, lambda: broker.held == 1)
            await turns(2)  # "a" was sent; "b" is gathered behind it.
        first, second = publishing
        broker.more = 1
        clock.advance(LOOK_AGAIN_S)
        with pytest.raises(DeliveryFailed, match=GREW) as told:
            await asyncio.wait_for(second, TIMEOUT_S)
        assert told.value.uids == ("b",)
        with pytest.raises(TopicMismatch, match=GREW):
            await producer.publish(example_id="ex", rollout_uid="c", **sampled())
        with pytest.raises(DeliveryFailed, match="no answer"):
            await until_late(clock, first)
        with pytest.raises(DeliveryFailed) as left:
            await until_late(clock, producer.close())
        assert left.value.uids == ("a",)

    asyncio.run(scenario())


class WatchedProducer(RolloutProducer):
    """It notes on which threads entries are settled."""

    threads: set[str]

    def _settled(
        self, record: Sequence[Outgoing], delivery: Delivery | None, error: RollstreamError | None
    ) -> None:
        self.threads.add(threading.current_thread().name)
        super()._settled(record, delivery, error)


def test_what_it_holds_is_settled_by_the_thread_that_sends() -> None:
    broker, clock = GrowingBroker(), JumpingClock()
    layout = new_layout(broker)
    given = {"environment": "math", "namespace": layout.namespace, "timeout_s": SHORT_S}
    producer = WatchedProducer(broker=broker, clock=clock, **given)  # type: ignore[arg-type]
    producer.threads = set()
    producer.publish(example_id="ex", rollout_uid="a", **sampled())
    with pytest.raises(FlushTimedOut):
        producer.flush(0)
    until(lambda: broker.held == 1)
    producer.publish(example_id="ex", rollout_uid="b", **sampled())  # Gathered behind "a".
    broker.more, clock.ahead_s = 1, LOOK_AGAIN_S
    told: list[str] = []

    def flush() -> None:
        try:
            producer.flush(0)
        except FlushTimedOut:
            pass
        except DeliveryFailed as failed:
            told.extend(failed.uids)

    until(lambda: told == ["b"], flush)
    assert producer.threads == {"rollstream-engine"}
    with pytest.raises(DeliveryFailed):
        producer.close()
