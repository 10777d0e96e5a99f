"""What a producer says of admission, beside what it waits for."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress
from functools import partial

import pytest

from harness.admission import announce, announced
from harness.brokers import TIMEOUT_S, until
from harness.faults import Fate, FaultyBroker
from harness.limited_worker import StillClock, Worker, play
from harness.producer_faults import Doubtful
from harness.producers import PARTITIONS, AnyProducer, sampled
from rollstream.producers import DeliveryFailed, NotAdmitted, ProducerClosed, RolloutProducer
from rollstream.producers.admission import standing
from rollstream.producers.engine import shell
from rollstream.producers.engine.engine import LOOK_AGAIN_S
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

kinds = pytest.mark.parametrize("kind", ["sync", "async"])


class SilentBroker(MemoryBroker):
    """Nobody answers while it is away."""

    away = False

    def outage(self) -> str:
        return "no broker answers" if self.away else ""


@kinds
def test_not_admitted_names_the_outage_that_keeps_it_from_knowing(kind: str) -> None:
    broker = SilentBroker()
    worker = Worker(broker)
    worker.granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(NotAdmitted) as told:
            await play(producer, timeout_s=0)
        assert "cannot be read" not in str(told.value)
        broker.away = True
        with pytest.raises(NotAdmitted, match="cannot be read now: no broker answers"):
            await play(producer, timeout_s=0)
        broker.away = False

    worker.play(kind, scenario, StillClock())


def test_a_producer_says_that_it_lives_while_its_callers_wait_in_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (shell, standing):
        monkeypatch.setattr(module, "ALIVE_S", 0.05)
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.LOSE_REPORT, "unanswered"))
    worker = Worker(broker)
    producer = RolloutProducer(
        broker=broker, environment="math", namespace=worker.layout.namespace, timeout_s=1.0
    )

    def flush() -> None:
        with pytest.raises((DeliveryFailed, ProducerClosed)):
            producer.flush(10 * TIMEOUT_S)

    with producer.dispatch(example_id="ex", group_size=1) as group:
        producer.flush(TIMEOUT_S)
        # Of another partition than what says that it lives: an answer is awaited before the next
        # record of one is sent.
        own = partition_of(worker.granting.producer_id().encode(), PARTITIONS)
        names = map("ex-{}".format, itertools.count())
        other = next(one for one in names if partition_of(one.encode(), PARTITIONS) != own)
        producer.publish(example_id=other, rollout_uid="unanswered", **sampled())
        flushing = threading.Thread(target=flush)
        flushing.start()
        until(lambda: worker.count(EntryKind.SEGMENT) == 1)
        lived = worker.count(EntryKind.ALIVE)
        until(lambda: worker.count(EntryKind.ALIVE) >= lived + 3)
        assert flushing.is_alive()
        group.publish(**sampled())
    with suppress(DeliveryFailed):  # One of the two calls is told.
        producer.close()
    flushing.join(TIMEOUT_S)
    assert not flushing.is_alive()


@kinds
@pytest.mark.parametrize("asks", [False, True])
def test_who_publishes_without_asking_where_shares_are_granted_is_warned_once(
    kind: str, asks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StillClock()
    worker = Worker(MemoryBroker())
    announce(worker.broker, worker.granting.topic, announced(0))
    count = itertools.count(2)

    async def warned(producer: AnyProducer) -> int:
        """After the producer looked around, as it does once a minute, which the second one that is
        published at a time waits for at most, and the third one certainly."""
        clock.advance(LOOK_AGAIN_S)
        for _ in range(3):
            await producer.publish(example_id="ex", **sampled())
            expected = next(count)
            await asyncio.to_thread(
                until, partial(lambda least: worker.count(EntryKind.SEGMENT) >= least, expected)
            )
        return sum("publishes without asking" in line for line in caplog.messages)

    async def scenario(producer: AnyProducer) -> None:
        policy = await producer.policy(timeout_s=TIMEOUT_S)
        await producer.publish(example_id="ex", **sampled())
        assert await warned(producer) == 0  # Nobody grants any.
        await worker.grant(0, valid_s=1e6)
        announce(worker.broker, worker.granting.topic, announced(1))
        await producer.policy(newer_than=policy, timeout_s=TIMEOUT_S)
        if asks:
            with pytest.raises(NotAdmitted):
                await play(producer, timeout_s=0)
        assert [await warned(producer) for _ in range(2)] == [0 if asks else 1] * 2

    worker.play(kind, scenario, clock)
