"""A fold of long logs: it is waited for, goes on where it ended, and says how far it is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from harness.faults import CountingReader, Fate, FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import Sampler
from rollstream.sampler.actor.agreement import Agree
from rollstream.sampler.actor.pickled import opened
from rollstream.sampler.actor.sampler_actor import SamplerActor, Why
from rollstream.sampler.decide.queries.looks import Flush
from rollstream.sampler.engine import snapshots
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.engine.reading import READ_TIMEOUT_S_MIN
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import IDLE_S, Broker, LogReader, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker, MemoryLogs

FLUSHES = 200
WAIT_S = 30.0
pytestmark = pytest.mark.proves("F20")


class SlowBroker(FaultyBroker):
    """A broker that delivers one record in ``seconds`` of the clock, to readers of seal logs."""

    def __init__(self, inner: Broker, clock: ManualClock) -> None:
        super().__init__(inner, lambda _: Fate.PASS, clock=clock)
        self.by_hand = clock
        self.seconds = 0.0
        self.stops_after: int | None = None  # Polls of which each delivers; later ones do not.
        self.during: Callable[[], object] = lambda: None
        self.newest: Mapping[TopicPartition, int] = {}  # Starts of the newest reader.

    def reader(self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S) -> LogReader:
        self.newest = starts
        return SlowReader(self, self.inner.reader(starts, idle_s=idle_s))


class SlowReader(CountingReader):
    """A ``LogReader``."""

    def __init__(self, broker: SlowBroker, inner: LogReader) -> None:
        super().__init__(broker, inner)
        self._slow = broker

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        if not self._slow.seconds:
            return super().poll(records_max, timeout_s)
        self._slow.during()
        self._slow.by_hand.wait(threading.Event(), self._slow.seconds)
        if self._slow.stops_after is not None:
            self._slow.stops_after -= 1
            if self._slow.stops_after < 0:
                return []
        return super().poll(1, timeout_s)


class World:
    """A seal log of so many flushes, under several claims."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        config = config_of("file:///unused", new_name())
        broker = MemoryBroker(MemoryLogs(self.clock))
        self.local = LocalWorld(broker, MemoryBlobs(), config)
        for number in range(FLUSHES):
            if number % 20 == 0:  # What a state is gone on from is a claim.
                writer = self.local.writer()
            writer.flush(GroupSpec(example_id=f"ex-{number}"))
        self.broker = SlowBroker(broker, self.clock)

    def sampler(self) -> Sampler:
        local = self.local
        return Sampler(
            local.name,
            config=local.config,
            broker=self.broker,
            store=local.store,
            clock=self.clock,
        )

    def owner(self) -> OwnerInProcess:
        local = self.local
        return OwnerInProcess(
            local.name,
            local.config,
            broker=self.broker,
            store=local.store,
            clock=self.clock,
            entropy=SystemEntropy(),
        )


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.local.close()


def test_a_call_waits_for_it_and_says_how_far_it_is_now_and_then(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rollstream.wait")
    with world.sampler() as sampler:
        world.broker.seconds = 0.45
        assert sampler.stats().ready["math"] == FLUSHES
    lines = [one for one in caplog.messages if "logs to be read to their ends" in one]
    assert len(lines) == 3
    assert "waited 30 s so far" in lines[0]
    assert " of 2" in lines[0]
    assert ".groups.math.1[0] up to " in lines[0]


def test_it_takes_as_long_as_it_needs_while_it_goes_on(world: World) -> None:
    with world.sampler() as sampler:
        world.broker.seconds = 10.0
        assert sampler.stats().ready["math"] == FLUSHES


def test_an_attempt_that_stands_still_says_how_far_it_is_and_the_next_goes_on(
    world: World,
) -> None:
    with world.sampler() as sampler:
        world.broker.seconds, world.broker.stops_after = 0.8, 150
        begun_s = world.clock.monotonic_s()
        told = r"groups\.math\.1\[0\] was read up to .* in all 1\d\d of 2\d\d offsets \("
        with pytest.raises(BrokerUnavailable, match=told):
            sampler.stats()
        assert world.clock.monotonic_s() - begun_s >= READ_TIMEOUT_S_MIN
        world.broker.stops_after = None
        assert sampler.stats().ready["math"] == FLUSHES


def test_it_waits_for_long_also_where_a_brokers_answer_may_not_take_long(world: World) -> None:
    kafka = world.local.config.kafka.model_copy(update={"timeout_s": 5.0})
    world.local.config = world.local.config.model_copy(update={"kafka": kafka})
    with world.sampler() as sampler:
        world.broker.seconds = 0.3
        assert sampler.stats().ready["math"] == FLUSHES


def test_others_are_told_meanwhile_and_nothing_afterwards(world: World) -> None:
    owner = world.owner()
    told: list[str] = []
    world.broker.seconds = 0.1
    world.broker.during = lambda: told.append(owner.folding())
    owner.execute(Agree(config=world.local.config), 0.0)
    world.broker.during = lambda: None
    assert any(" of 2" in one and "groups.math.1[0] up to 1" in one for one in told)
    assert owner.folding() == ""
    owner.execute(Flush(), 0.0)  # Which reads all logs to their ends.
    assert owner.folding() == ""
    owner.close()


def test_what_was_folded_to_attach_is_saved_on_the_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 16)
    monkeypatch.setattr(snapshots, "SECONDS_BETWEEN", 1.0)
    with world.sampler() as first:
        first.resume(None)
        assert not list(world.local.store.list("snapshots/"))
    owner = world.owner()
    world.broker.seconds, world.broker.stops_after = 1.0, 150
    with pytest.raises(BrokerUnavailable):
        owner.execute(Agree(config=world.local.config), 0.0)
    owner.close()
    assert list(world.local.store.list("snapshots/"))


def test_who_attaches_to_an_actor_is_told_while_it_folds(world: World) -> None:
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        if len(world.broker.newest) > 1:  # Of all seal logs.
            held.set()
            assert free.wait(WAIT_S)

    async def attach() -> tuple[Why, Any]:
        world.broker.seconds, world.broker.during = 0.001, hold
        local = world.local
        actor = SamplerActor(local.name, local.config, world.broker, local.store)
        agree = Agree(config=local.config)
        answer = asyncio.ensure_future(actor.execute(agree, 0.0))
        await asyncio.to_thread(held.wait, WAIT_S)
        why = await asyncio.wait_for(actor.why_waiting(agree), WAIT_S)
        free.set()
        try:
            return why, opened(await answer)
        finally:
            with suppress(TypeError):  # Ray's, which has no actor to exit from here.
                await actor.leave()

    why, reply = asyncio.run(attach())
    assert " of 2" in why.folding
    assert ".groups.math.1[0] up to 0 of 2" in why.folding
    assert reply.value is None
