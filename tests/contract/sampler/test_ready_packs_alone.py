"""A sampler of ready packs: nothing else takes its groups, or the place of its queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import (
    GrpoBatchMaker,
    InvalidRequest,
    ReadyPacks,
    SamplerApi,
    TrainingBatches,
)

WAIT_S = 30.0
SECTION = {"schedule": {"b_ratio": 0.5}, "pack_length": 10, "num_groups": 3}


def with_groups(world: LocalWorld, count: int) -> SamplerApi:
    """A run that begins, with so many ready groups."""
    world.writer().flush(*(GroupSpec(example_id=f"ex-{n}") for n in range(count)))
    sampler = world.open()
    sampler.resume(None)
    deadline = time.monotonic() + WAIT_S
    while sampler.stats().ready.get("math", 0) < count:
        assert time.monotonic() < deadline
    return sampler


def packs_of(sampler: SamplerApi) -> ReadyPacks:
    config = ReadyPacksConfig.model_validate(SECTION)
    return ReadyPacks(sampler, config, dp_rank=0, dp_size=1)


def by_next_batch(sampler: SamplerApi, step: int) -> object:
    return sampler.next_batch(step, 1, timeout_s=0.0)


def by_a_maker(sampler: SamplerApi, step: int) -> object:
    return TrainingBatches(sampler, GrpoBatchMaker(), num_groups=1, batch_size=2).next(step)


@pytest.mark.proves("C3", "C4")
@pytest.mark.parametrize("take", [by_next_batch, by_a_maker])
@pytest.mark.parametrize(("configured", "step"), [(True, 0), (True, 1), (False, 1)])
def test_what_would_take_the_step_of_ready_packs_is_refused_and_the_queue_stays(
    take: Callable[[SamplerApi, int], object], configured: bool, step: int
) -> None:
    def next_packs(disturbed: bool) -> tuple[object, ...]:
        with closing(memory_world()) as world:
            if configured:
                world.configure(ready_packs=SECTION)
            sampler = with_groups(world, 8)
            ready = packs_of(sampler)
            for before in range(step):
                ready.ack(ready.next_step(before, timeout_s=WAIT_S))
            if disturbed:
                with pytest.raises(InvalidRequest, match=r"ready packs .*next_step\("):
                    take(sampler, step)
            found = ready.next_step(step, timeout_s=WAIT_S)
            batch = found.batch
            return batch.digest, batch.carried_groups, batch.num_groups, dict(found.metrics)

    assert next_packs(disturbed=True) == next_packs(disturbed=False)


def test_a_trainer_that_leaves_ready_packs_goes_on_after_a_resume() -> None:
    with closing(memory_world()) as world:
        sampler = with_groups(world, 8)
        ready = packs_of(sampler)
        ready.ack(ready.next_step(0, timeout_s=WAIT_S))
        sampler.checkpointed(0)
        assert sampler.resume(0) == 1
        assert sampler.next_batch(1, 1, timeout_s=WAIT_S).num_groups == 1
