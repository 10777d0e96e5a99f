"""Every figure of a replay buffer's ``stats()`` moves with what it is of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec, flush_of
from harness.published_run import Run
from harness.rollouts import CREATED_TS
from harness.sampler_worlds import memory_world
from rollstream.runtime.clock import ManualClock
from rollstream.sampler import NotEnoughGroups, Sampler, SamplerStats
from rollstream.sampler.decide.queries.looks import AskStats
from rollstream.sampler.decide.trainer.commands import Ack, PublishPolicy
from rollstream.schemas.events import GroupsBegun, Settlements
from rollstream.schemas.reasons import SettleReason

SECOND_US = 1_000_000
WAIT_S = 30.0


class World(Decider):
    """A decider whose flushes come a second after one another, from when rollouts were made."""

    def flush(self, *specs: GroupSpec, log: int = 1, after_s: float = 1.0, **fields: Any) -> None:
        offset = self.state.applied(LOGS[log])
        event = flush_of(
            specs,
            name=f"{log}-{offset}",
            environment=LOGS[log].environment,
            now_ts=CREATED_TS + round(after_s * SECOND_US),
        )
        self.state.apply_groups(LOGS[log], offset, replace(event, **fields))

    def stats(self, after_s: float = 1.0) -> SamplerStats:
        self.now_us = CREATED_TS + round(after_s * SECOND_US)
        return self.do(AskStats())


@pytest.fixture
def world() -> World:
    return World(max_policy_lag=-1)


def settled(reason: SettleReason, count: int) -> Settlements:
    offsets, entries = np.arange(count), np.zeros(count, np.int32)
    names = tuple(f"again-{number}" for number in range(count))
    return Settlements(
        reason=reason, offsets=offsets, entries=entries, uids=names, segment_idxs=entries
    )


def test_a_decision_does_not_wait_for_figures_that_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = memory_world()
    memory.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4)))
    computing, free, percentile = threading.Event(), threading.Event(), np.percentile

    def slow(*given: Any) -> Any:
        computing.set()
        assert free.wait(WAIT_S)
        return percentile(*given)

    sampler = memory.open()
    sampler.resume(None)
    batch = sampler.next_batch(0, num_groups=2)
    monkeypatch.setattr(np, "percentile", slow)
    with ThreadPoolExecutor(2) as threads:
        stats = threads.submit(sampler.stats)
        assert computing.wait(WAIT_S)
        try:
            threads.submit(sampler.ack, batch).result(WAIT_S / 3)
        finally:
            free.set()
        assert stats.result(WAIT_S).ack_latency_ms_p50 is None, "it shows more than was asked for"
    assert sampler.stats().ack_latency_ms_p50 is not None
    memory.close()


@pytest.mark.proves("A19")
def test_rates_are_over_the_last_minute_of_log_time(world: World) -> None:
    assert (world.stats().ingest_per_s, world.stats().seal_per_s) == (0.0, 0.0)
    alive = (settled(SettleReason.ALIVE, 50), settled(SettleReason.STALE, 4))
    world.flush(*[GroupSpec()] * 3, settled=alive)
    world.flush(*[GroupSpec()] * 3, log=2, after_s=31.0)
    found = world.stats(after_s=32.0)
    assert (found.ingest_per_s, found.seal_per_s) == ((6 + 4 + 6) / 60, 6 / 60)
    later = world.stats(after_s=62.0)
    assert (later.ingest_per_s, later.seal_per_s) == (6 / 60, 3 / 60)
    assert world.stats(after_s=200.0).seal_per_s == 0.0


@pytest.mark.proves("A19")
def test_seal_times_are_from_the_first_rollout_to_the_flush(world: World) -> None:
    assert world.stats().seal_time_ms_p50 is None
    for number in range(100):
        slow = 9.0 if number >= 98 else 0.5
        world.flush(GroupSpec(), log=1 + number % 2, after_s=slow)
    found = world.stats(after_s=10.0)
    assert found.seal_time_ms_p50 == 500.0
    assert found.seal_time_ms_p99 is not None
    assert found.seal_time_ms_p99 > 8_000


@pytest.mark.proves("A19")
def test_ready_groups_are_told_by_policy_and_by_lag(world: World) -> None:
    world.flush(*[GroupSpec(weight_step=3)] * 2, GroupSpec(weight_step=5))
    world.flush(GroupSpec(weight_steps=(3, 4)), GroupSpec(weight_step=-1))
    found = world.stats()
    assert found.ready == {"math": 5}
    assert found.ready_by_policy_version == {"mixed": 1, "step--1": 1, "step-3": 2, "step-5": 1}
    assert found.policy_lag_histogram == {-5: 1, -3: 3}
    world.serve(0, 1)
    world.do(PublishPolicy(step=1, policy_version="v1"))
    found = world.stats()
    assert sum(found.ready_by_policy_version.values()) == 4
    assert found.policy_lag_histogram == {-4: 1, -2: 3}


@pytest.mark.proves("A19")
def test_an_ack_is_timed_from_its_batch(world: World) -> None:
    world.flush(GroupSpec(), GroupSpec())
    batch = world.serve(0, 1)
    assert world.stats().ack_latency_ms_p50 is None
    world.events += world.events * 3_999  # A decision is a microsecond after the one before it.
    world.do(Ack(step=0, batch_id=batch.batch_id))
    found = world.stats()
    assert found.ack_latency_ms_p50 == found.ack_latency_ms_p99 == pytest.approx(4.0, rel=0.01)


@pytest.mark.proves("A19")
@pytest.mark.parametrize(
    ("name", "move", "expected"),
    [
        (
            "duplicates",
            lambda world: world.flush(GroupSpec(), settled=(settled(SettleReason.DUPLICATE, 3),)),
            3,
        ),
        ("evictions", lambda world: (world.flush(*[GroupSpec()] * 4), world.evict()), 2),
        (
            "generator_queue_len",
            lambda world: world.state.apply_groups(
                LOGS[1],
                0,
                GroupsBegun(
                    epoch=0,
                    nonce="",
                    now_ts=CREATED_TS,
                    example_ids=("a", "b"),
                    entries=np.array([1, 2]),
                    ages_s=np.zeros(2, np.float32),
                ),
            ),
            2,
        ),
    ],
)
def test_a_count_moves_with_what_it_counts(
    name: str, move: Callable[[World], Any], expected: int
) -> None:
    world = World(max_policy_lag=-1, capacity_groups=2)
    assert getattr(world.stats(), name) == 0
    move(world)
    assert getattr(world.stats(), name) == expected


class TickingClock(ManualClock):
    """A millisecond passes whenever somebody looks at it."""

    def now_us(self) -> int:
        self.advance(0.001)
        return super().now_us()


@pytest.mark.proves("A19")
def test_calls_for_batches_are_timed_and_calls_that_look_are_not() -> None:
    world, clock = memory_world(), TickingClock()
    world.writer("math").flush(*[GroupSpec(example_id=str(n)) for n in range(3)])
    parts: dict[str, Any] = {"broker": world.broker(), "store": world.store, "clock": clock}
    with Sampler(world.name, config=world.config, **parts) as sampler:
        sampler.resume(None)
        assert sampler.stats().sample_latency_ms_p99 is None
        with pytest.raises(NotEnoughGroups):
            sampler.next_batch(0, 9, timeout_s=0.0)
        assert sampler.stats().sample_latency_ms_p99 is None
        sampler.next_batch(0, 2)
        found = sampler.stats()
    world.close()
    assert found.sample_latency_ms_p50 == found.sample_latency_ms_p99
    assert found.sample_latency_ms_p50 is not None
    assert 0 < found.sample_latency_ms_p50 < 1_000


@pytest.mark.proves("A19")
def test_a_sealer_that_lags_is_seen_in_the_seal_times_and_in_the_rates(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.publish("a", "b")
    lag_s = 600.0
    run.line.clock.advance(lag_s)
    with run.sampler() as sampler:
        run.seal(2)
        found = sampler.stats()
        assert found.seal_time_ms_p50 is not None
        assert found.seal_time_ms_p50 >= lag_s * 1e3
        assert (found.ingest_per_s, found.seal_per_s) == (4 / 60, 2 / 60)
        run.line.clock.advance(61.0)
        found = sampler.stats()
        assert (found.ingest_per_s, found.seal_per_s) == (0.0, 0.0)


@pytest.mark.proves("A19", "F5")
def test_capacity_counts_nothing_that_a_resume_left_in_flight_behind_it() -> None:
    world = memory_world()
    world.configure(groups_per_step=4, environments=("math",), target_policy_lag=2)
    sealer = world.writer("math")
    sealer.flush(*[GroupSpec(example_id=str(n)) for n in range(8)])
    with world.open() as sampler:
        sampler.resume(None)
        for step in (0, 1):
            sampler.publish_policy(step, policy_version=f"v{step}")
            sampler.ack(sampler.next_batch(step, 4))
        sampler.publish_policy(2, policy_version="v2")
        sealer.report(a=(10, 10, 0))
        sampler.flush()
        assert sampler.stats().capacity == {"math": 2}
        sampler.resume(0, later="release")
        for _ in range(2):
            stats = sampler.stats()
            assert stats.capacity == {"math": 12 - stats.ready["math"]}
    world.close()
