"""What ``SamplerView`` shows of a sampler that runs, rests or crashed; it writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.brokers import nobody_listens
from harness.faults import FaultyBroker
from harness.groups import GroupSpec, every_extra
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, config_of, log_end, memory_world
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import (
    InvalidRequest,
    Sampler,
    SamplerApi,
    SamplerStats,
    SamplerUnavailable,
    SamplerView,
    UnknownSampler,
    UnknownStep,
)
from rollstream.schemas.order import Policy
from rollstream.streams.errors import BrokerUnavailable, TopicMismatch
from rollstream.streams.memory import MemoryBroker, MemoryLogs

pytestmark = pytest.mark.proves("F20")
WAIT_S = 30.0


@contextmanager
def looking_at(world: SamplerWorld) -> Iterator[SamplerView]:
    """A view that must not write."""
    written = log_end(world)
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        yield view
    assert log_end(world) == written


@pytest.mark.proves("F17")
@pytest.mark.parametrize("of", [Sampler, SamplerView])
def test_a_broker_that_refuses_is_told_apart_long_before_the_deadline(
    tmp_path: Path, of: type[Sampler | SamplerView]
) -> None:
    with nobody_listens() as address:
        config = config_of(tmp_path.as_uri(), "trainer-a", bootstrap=address)
        long = Deadline(config.kafka.timeout_s)
        with pytest.raises(BrokerUnavailable, match=rf"{address} cannot be reached: .*refused"):
            of("trainer-a", config=config)
    assert long.left_s() > config.kafka.timeout_s / 2


def specs(count: int, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}", **fields) for i in range(count)]


def shared(stats: SamplerStats) -> SamplerStats:
    """Without what is of the process that answered."""
    return replace(
        stats,
        pid=0,
        groups_read=0,
        cached_bytes=0,
        sample_latency_ms_p50=None,
        sample_latency_ms_p99=None,
    )


def trained(world: SamplerWorld) -> SamplerApi:
    """A sampler with one final batch, an acked one and an open one of three groups each."""
    world.writer("math").flush(*specs(6, extras=(every_extra(),)))
    world.writer("code").flush(*specs(4))
    sampler = world.open()
    sampler.resume(None)
    for step in range(3):
        batch = sampler.next_batch(step, 3, timeout_s=WAIT_S)
        if step < 2:
            sampler.ack(batch)
            sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
    sampler.checkpointed(0)
    return sampler


def test_a_view_of_a_running_sampler_shows_what_its_trainer_sees(world: SamplerWorld) -> None:
    sampler = trained(world)
    with looking_at(world) as view:
        assert shared(view.stats()) == shared(sampler.stats())
        assert view.progress() == sampler.progress()
        assert view.policy() == Policy("", 0, 2, "step-2")
        first, second, third = view.batches()
        assert [(b.step, b.status, b.final) for b in (first, second, third)] == [
            (0, "trained", True),
            (1, "trained", False),
            (2, None, False),
        ]
        assert view.batches(last=2) == view.batches(np.int64(2)) == (second, third)
        assert sum(sum(b.groups.values()) for b in view.batches()) == 9
    sampler.next_batch(0, 3, timeout_s=WAIT_S)


@WITHOUT_RAY
def test_a_view_follows_what_is_decided_and_sealed_later(world: SamplerWorld) -> None:
    world.writer().flush(*specs(2))
    sampler = world.open()
    view = SamplerView(world.name, config=world.config, broker=world.broker(), store=world.store)
    with view:
        assert (view.stats().owner, view.stats().epoch, view.policy()) == ("", -1, None)
        assert (view.stats().ready, view.batches()) == ({"math": 2}, ())
        step = sampler.resume(None)
        sampler.publish_policy(0, policy_version="step-0")
        batch = sampler.next_batch(step, 2, timeout_s=WAIT_S)
        assert view.stats().owner == sampler.stats().owner != ""
        assert (view.stats().ready, view.policy()) == ({}, Policy("", 0, 0, "step-0"))
        assert [b.batch_id for b in view.batches()] == [batch.batch_id]
        world.writer().flush(GroupSpec(example_id="spare"))
        replaced = sampler.replace(batch, [0], "tried", timeout_s=WAIT_S)
        (summary,) = view.batches()
        assert (summary.replacements, summary.groups) == (1, {"math": 2})
        assert view.batch(step).digest == replaced.digest


def test_later_calls_of_a_view_read_only_what_is_new() -> None:
    world = memory_world()
    sampler = trained(world)
    broker = FaultyBroker(world.broker())
    with SamplerView(world.name, config=world.config, broker=broker, store=world.store) as view:
        view.stats()
        read = broker.records_read
        assert (view.stats().next_step, view.progress().next_step) == (3, 3)
        assert broker.records_read == read
        world.writer("math").flush(GroupSpec(example_id="late"))
        sampler.next_batch(3, 2, timeout_s=WAIT_S)
        assert view.stats().next_step == 4
        # The flush after its sealer's claim, the batch, and the record before, which is compared.
        assert broker.records_read == read + 5
    world.close()


@WITHOUT_RAY
def test_a_view_reads_the_rows_of_a_batch_as_the_trainer_got_them(world: SamplerWorld) -> None:
    sampler = trained(world)
    columns = ("ref_logprobs",)
    given = sampler.next_batch(1, 3, timeout_s=WAIT_S, columns=columns)
    with looking_at(world) as view:
        seen = view.batch(1, columns=columns)
        assert list(seen.arrays()) == list(given.arrays())
        for name, array in given.arrays().items():
            assert array.tobytes() == seen.arrays()[name].tobytes()
        assert (seen.batch_id, seen.digest, seen.uids) == (
            given.batch_id,
            given.digest,
            given.uids,
        )
        uids = [record.rollout_uid for record in seen.records(0)]
        assert uids == [record.rollout_uid for record in given.records(0)]


def test_a_view_of_a_sampler_that_died_shows_what_it_decided(world: SamplerWorld) -> None:
    sampler = trained(world)
    progress, stats = sampler.progress(), shared(sampler.stats())
    world.restart()
    with looking_at(world) as view:
        assert (view.progress(), shared(view.stats())) == (progress, stats)
        assert [batch.step for batch in view.batches()] == [0, 1, 2]


def test_a_view_says_what_it_cannot_show() -> None:
    world = memory_world()
    trained(world)
    with looking_at(world) as view:
        with pytest.raises(UnknownStep, match="step 7 has no batch"):
            view.batch(7)
        for last in (0, -1, "all"):
            with pytest.raises(InvalidRequest, match=f"last is {last!r}; give "):
                view.batches(last=last)  # type: ignore[arg-type]
    with pytest.raises(SamplerUnavailable, match="closed"):
        view.stats()
    with pytest.raises(UnknownSampler, match=r"no \[samplers\.nobody\]"):
        SamplerView("nobody", config=world.config, broker=world.broker(), store=world.store)
    with pytest.raises(TopicMismatch, match="topics create"):
        SamplerView(
            world.name, config=world.config, broker=MemoryBroker(MemoryLogs()), store=world.store
        )
    world.close()


@pytest.mark.proves("F16")
def test_evaluations_are_told_alike_by_the_sampler_and_by_who_looks(world: SamplerWorld) -> None:
    world.writer("math").flush(
        GroupSpec(example_id="seen", split="eval", rewards=(0.0, 1.0), weight_step=3),
        GroupSpec(example_id="trained"),
    )
    with looking_at(world) as view:
        (found,) = view.evaluations()
        assert (found.environment, found.policy_version) == ("math", "step-3")
        assert (found.total.reward_mean, found.total.pass_rate) == (0.5, 0.5)
        assert list(found.examples) == ["seen"]
        assert view.stats().waiting == 0
        with pytest.raises(InvalidRequest, match="passing is nan"):
            view.evaluations(passing=float("nan"))
    with world.open() as sampler:
        assert sampler.evaluations() == (found,)
        (strict,) = sampler.evaluations(passing=1.5)
        assert strict.total.pass_rate == 0.0
