"""While no broker answers, each call of a sampler ends by its own deadline, on a clock by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from harness.faults import Append, CountingReader, Fate, FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.ready_packs import ReadyPacksConfig, ScheduleConfig
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import NotEnoughGroups, ReadyPacks, Sampler, SamplerApi, SamplerView
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import IDLE_S, Broker, LogReader, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, ClaimFailed
from rollstream.streams.memory import MemoryBroker, MemoryLogs

KAFKA_S = 30.0  # ``kafka.timeout_s``.
ATTEMPT_S = 10.5  # The last attempt is under way when the time is up, and polls wait in slices.
UNANSWERED = (BrokerUnavailable, ClaimFailed)


class AwayBroker(FaultyBroker):
    """Answers nothing until ``back_at_s``; who asks waits for nothing."""

    def __init__(self, inner: Broker, clock: ManualClock) -> None:
        super().__init__(inner, self._fate, clock=clock)
        self.by_hand = clock
        self.back_at_s = 0.0
        self.leaves_in_next_poll = False

    def leave(self, seconds: float = 1e9) -> None:
        self.back_at_s = self.by_hand.monotonic_s() + seconds

    def wait(self, timeout_s: float) -> bool:
        """Waits in vain; returns whether it is away."""
        away = self.by_hand.monotonic_s() < self.back_at_s
        if away:
            left_s = self.back_at_s - self.by_hand.monotonic_s()
            self.by_hand.wait(threading.Event(), min(timeout_s, left_s))
        return away

    def reader(self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S) -> LogReader:
        return AwayReader(self, self.inner.reader(starts, idle_s=idle_s))

    def outage(self) -> str:
        return "nobody answers" if self.by_hand.monotonic_s() < self.back_at_s else ""

    def _fate(self, append: Append) -> Fate:
        return Fate.DROP if self.by_hand.monotonic_s() < self.back_at_s else Fate.PASS


class AwayReader(CountingReader):
    """A ``LogReader``."""

    def __init__(self, broker: AwayBroker, inner: LogReader) -> None:
        super().__init__(broker, inner)
        self._away = broker

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        if timeout_s and self._away.leaves_in_next_poll:
            self._away.leaves_in_next_poll = False
            self._away.leave()
        return [] if self._away.wait(timeout_s) else super().poll(records_max, timeout_s)

    def bounds(self, where: TopicPartition, timeout_s: float) -> tuple[int, int]:
        if self._away.wait(timeout_s):
            raise BrokerUnavailable(f"{where}: nobody answers")
        return super().bounds(where, timeout_s)


class World:
    """A sampler with four groups ready, and its broker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        config = config_of("file:///unused", new_name())
        self.local = LocalWorld(MemoryBroker(MemoryLogs(self.clock)), MemoryBlobs(), config)
        self.local.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4)))
        self.broker = AwayBroker(self.local.broker(), self.clock)
        self.shared: dict[str, Any] = {
            "broker": self.broker,
            "store": self.local.store,
            "clock": self.clock,
        }
        self.sampler = Sampler(self.local.name, config=config, **self.shared)

    def seconds(self, call: Callable[[], object]) -> float:
        """How long a call takes that fails since nobody answers."""
        begun_s = self.clock.monotonic_s()
        with pytest.raises(UNANSWERED):
            call()
        return self.clock.monotonic_s() - begun_s


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.broker.back_at_s = 0.0
    made.sampler.close()
    made.local.close()


def test_calls_that_wait_for_no_groups_end_by_the_brokers_deadline(world: World) -> None:
    sampler: SamplerApi = world.sampler
    sampler.resume(None)
    batch = sampler.next_batch(0, 2)
    world.broker.leave()
    calls: list[Callable[[], object]] = [
        lambda: sampler.ack(batch),  # It appends.
        lambda: sampler.ack(batch),  # It claims first: what the call before wrote is not known.
        lambda: sampler.publish_policy(1, policy_version="step-1"),
        lambda: sampler.checkpointed(0),
        lambda: sampler.resume(None),
        sampler.progress,
        sampler.stats,
    ]
    for call in calls:
        assert KAFKA_S <= world.seconds(call) <= KAFKA_S + ATTEMPT_S


@pytest.mark.parametrize("timeout_s", [5.0, 20.0, 100.0])
def test_a_call_that_waits_for_groups_ends_by_its_own_deadline(
    world: World, timeout_s: float
) -> None:
    world.sampler.resume(None)
    world.broker.leave()
    for _ in range(2):
        took_s = world.seconds(lambda: world.sampler.next_batch(0, 2, timeout_s=timeout_s))
        assert timeout_s <= took_s <= timeout_s + ATTEMPT_S


def test_a_broker_that_leaves_while_groups_are_waited_for_is_named(world: World) -> None:
    world.sampler.resume(None)
    with pytest.raises(NotEnoughGroups):
        world.sampler.next_batch(0, 5, timeout_s=5.0)
    world.broker.leaves_in_next_poll = True
    with pytest.raises(BrokerUnavailable, match=r"nobody answers; before that: .*\b4\b"):
        world.sampler.next_batch(0, 5, timeout_s=5.0)
    world.broker.back_at_s = 0.0
    assert len(world.sampler.next_batch(0, 4)) == 8


def test_a_call_outlives_an_outage_that_is_shorter_than_its_deadline(world: World) -> None:
    world.sampler.resume(None)
    world.broker.leave(60.0)
    batch = world.sampler.next_batch(0, 2, timeout_s=300.0)
    assert len(batch) == 4
    world.broker.leave(20.0)
    world.sampler.ack(batch)
    assert world.sampler.next_batch(0, 2).digest == batch.digest


def test_a_step_of_ready_packs_outlives_it_as_well(world: World) -> None:
    config = ReadyPacksConfig(pack_length=64, schedule=ScheduleConfig(b_ratio=0.5))
    world.sampler.resume(None)
    for step in range(2):
        world.broker.leave(60.0)
        # One that knows nothing: it asks whether the step was decided, and what the last one left.
        ready = ReadyPacks(world.sampler, config, dp_rank=0, dp_size=1)
        assert ready.next_step(step, timeout_s=300.0).step == step
    world.broker.leave()
    ready = ReadyPacks(world.sampler, config, dp_rank=0, dp_size=1)
    took_s = world.seconds(lambda: ready.next_step(2, timeout_s=100.0))
    assert 100.0 <= took_s <= 100.0 + ATTEMPT_S


def test_what_a_step_asks_before_its_groups_takes_of_the_same_time(world: World) -> None:
    config = ReadyPacksConfig(pack_length=64, schedule=ScheduleConfig(b_ratio=0.5))
    world.sampler.resume(None)
    ready = ReadyPacks(world.sampler, config, dp_rank=0, dp_size=1)
    ready.next_step(0, timeout_s=100.0)
    asked: list[float] = []

    def away_for_most(execute: Any) -> Any:
        def leave_first(command: Any, wait_s: float) -> Any:
            asked.append(wait_s)
            world.broker.leave(60.0)
            return execute(command, wait_s)

        return leave_first

    again = ReadyPacks(world.sampler, config, dp_rank=0, dp_size=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.sampler, "_execute", away_for_most(world.sampler._execute))
        with suppress(BrokerUnavailable, NotEnoughGroups):
            again.next_step(1, timeout_s=100.0)
    assert asked[0] == 100.0
    assert asked[1] <= 40.0


def test_one_that_never_claimed_or_only_looks_ends_by_the_brokers_deadline(world: World) -> None:
    config = world.local.config
    with SamplerView(world.local.name, config=config, **world.shared) as view:
        world.broker.leave()
        for call in (view.stats, lambda: world.sampler.resume(None)):
            assert KAFKA_S <= world.seconds(call) <= KAFKA_S + ATTEMPT_S


def test_calls_that_come_together_wait_for_the_broker_once(world: World) -> None:
    owner = OwnerInProcess(
        world.local.name, world.local.config, entropy=SystemEntropy(), **world.shared
    )
    world.broker.leave()
    calls = [owner.begin(Resume(checkpointed_step=None)) for _ in range(8)]
    took_s = [world.seconds(partial(owner.decide, call)) for call in calls]
    assert took_s[0] > 0
    assert took_s[1:] == [0.0] * 7
    owner.close()


def test_each_call_that_the_broker_does_not_answer_raises_an_error_of_its_own(world: World) -> None:
    owner = OwnerInProcess(
        world.local.name, world.local.config, entropy=SystemEntropy(), **world.shared
    )
    calls = [owner.begin(Resume(checkpointed_step=None)) for _ in range(4)]
    world.broker.leave()
    errors = []
    for call in calls[:3]:
        with pytest.raises(UNANSWERED) as raised:
            owner.decide(call)
        errors.append(raised.value)
    assert len({str(error) for error in errors}) == 1
    assert len(set(map(id, errors))) == 3
    world.broker.back_at_s = 0.0
    owner.execute(Resume(checkpointed_step=None), 0.0)
    owner.decide(calls[3])  # Answered again: what was begun before is attempted, too.
    assert calls[3].ended
    owner.close()
