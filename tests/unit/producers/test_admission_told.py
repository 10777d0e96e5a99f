"""What a producer says of admission, beside what it waits for."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

import pytest

from harness.admission import announce, announced
from harness.brokers import TIMEOUT_S, until
from harness.limited_worker import StillClock, Worker, play
from harness.producers import AnyProducer, sampled
from rollstream.producers import NotAdmitted
from rollstream.producers.engine.engine import LOOK_AGAIN_S
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.streams.memory import MemoryBroker

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
