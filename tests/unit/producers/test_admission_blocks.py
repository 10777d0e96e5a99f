"""Blocks that begin and end just when what runs behind the producer rests."""

from __future__ import annotations

import asyncio
import threading
from itertools import count

import pytest

from harness.admission import announce, announced
from harness.brokers import TIMEOUT_S, until
from harness.faults import Fate, FaultyBroker
from harness.producer_faults import Doubtful, SilentBroker, turns, until_sent
from harness.producers import AnyProducer, new_layout, open_producer, published, sampled
from rollstream.producers import AsyncRolloutProducer, DeliveryFailed, RolloutProducer
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.standing import ALIVE_S
from rollstream.producers.engine import shell
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker


class StillClock(ManualClock):
    """Moves by ``advance`` alone."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(min(timeout_s, 0.01))


class Log:
    """Counts what came."""

    def __init__(self, broker: Broker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self.layout = new_layout(self.broker)

    def count(self, kind: EntryKind) -> int:
        return [one.entry.kind for one in published(self.broker, self.layout)].count(kind)

    async def until_alive(self, count: int) -> None:
        await asyncio.to_thread(until, lambda: self.count(EntryKind.ALIVE) >= count)


async def play(producer: AnyProducer) -> None:
    async with producer.dispatch(example_id="ex", group_size=1) as group:
        await group.publish(**sampled())


async def wait_within(producer: AnyProducer) -> None:
    """Publishes nothing, however soon the broker answers: a member whose publish was cancelled may
    be in the log beside its group's end."""
    async with producer.dispatch(example_id="ex", group_size=1):
        await asyncio.Event().wait()


def test_a_block_that_begins_whenever_another_ended_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "ALIVE_S", 0.0)  # What tells looks again and again.
    clock, log = StillClock(), Log()

    async def scenario() -> None:
        producer = open_producer("async", log.broker, log.layout, environment="math", clock=clock)
        async with producer.admit():
            clock.advance(ALIVE_S)
            await log.until_alive(1)
        for ticks in range(4):
            async with producer.admit():
                await asyncio.sleep(0)
            for _ in range(ticks):
                await asyncio.sleep(0)
            async with producer.admit():
                clock.advance(ALIVE_S)
                await log.until_alive(ticks + 2)
        await producer.close()

    asyncio.run(scenario())


def test_a_first_block_after_a_publish_wakes_the_thread_that_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "ALIVE_S", 0.01)  # Once it is awake it looks soon.
    clock, log = StillClock(), Log()
    with RolloutProducer(
        broker=log.broker, environment="math", namespace=log.layout.namespace, clock=clock
    ) as producer:
        producer.publish(example_id="ex", **sampled())
        producer.flush()  # From now on the thread sleeps for longer than this test waits.
        with producer.admit():
            clock.advance(ALIVE_S)
            until(lambda: log.count(EntryKind.ALIVE) == 1)


def test_a_group_whose_dispatch_is_cancelled_after_it_left_ends_at_once() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT, "DISPATCHED"))
    broker.silent = True  # What was sent is not answered.
    log = Log(broker)

    async def scenario() -> None:
        producer = open_producer("async", broker, log.layout, environment="math")
        waiting = asyncio.ensure_future(wait_within(producer))
        await until_sent(broker, 1)
        waiting.cancel()
        await asyncio.sleep(0)
        broker.silent = False
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(DeliveryFailed):
            await producer.close()

    asyncio.run(scenario())
    assert (log.count(EntryKind.DISPATCHED), log.count(EntryKind.FAILED)) == (1, 1)


def test_what_found_no_broker_in_one_loop_is_admitted_in_the_next() -> None:
    broker = SilentBroker()
    log = Log(broker)
    producer = open_producer("async", broker, log.layout, environment="math", timeout_s=0.2)

    async def play_three() -> list[BaseException | None]:
        return await asyncio.gather(*(play(producer) for _ in range(3)), return_exceptions=True)

    broker.stopped.set()
    assert [type(one) for one in asyncio.run(play_three())] == [BrokerUnavailable] * 3
    broker.stopped.clear()
    vars(producer)["_timeout_s"] = TIMEOUT_S
    assert asyncio.run(play_three()) == [None] * 3
    asyncio.run(producer.close())


def test_an_awaited_block_keeps_its_own_time_while_another_one_waits_for_the_broker() -> None:
    broker = SilentBroker()
    layout = new_layout(broker)
    broker.stopped.set()

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        )

        async def begin(timeout_s: float) -> None:
            async with producer.admit(groups=1, timeout_s=timeout_s):
                pass

        patient = asyncio.create_task(begin(TIMEOUT_S))
        await turns(100)
        with pytest.raises(BrokerUnavailable):
            await begin(0.05)
        assert not patient.done()
        broker.stopped.clear()
        await patient
        await producer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_broker_that_is_away_while_shares_are_read_for_the_first_time_is_asked_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker()
    layout = new_layout(broker)
    announce(broker, layout.admission("math"), announced())
    wait, asked = AdmissionLog.wait, count(1)

    def away_once(log: AdmissionLog, seen: int, timeout_s: float) -> int:
        if next(asked) == 2:
            raise BrokerUnavailable("away for a moment")
        return wait(log, seen, timeout_s)

    monkeypatch.setattr(AdmissionLog, "wait", away_once)

    async def scenario() -> None:
        producer = open_producer(kind, broker, layout, environment="math")
        async with producer.admit(groups=1, timeout_s=TIMEOUT_S):
            pass
        await producer.close()

    asyncio.run(scenario())
    assert next(asked) > 3
