"""Runs in memory of what no simulated world does: makers, ready packs, a pool, evaluations, files
that are retired, and runs that are finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from harness.training_batches import made_by, run, seal
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import ReadyPacks, TrajectoryPool

WAIT_S = 30.0


def made() -> LocalWorld:
    """A maker's steps, some released; evaluations; a file that is retired; the end of the run."""
    world = memory_world()
    world.configure(max_policy_lag=3)
    seal(world, 6)
    writer = world.writer("code")
    writer.flush(GroupSpec(split="eval"), GroupSpec(split="eval", weight_step=1))
    retired = writer.flush(GroupSpec(example_id="retired"))
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler)
    run(batches, 0, 2)
    sampler.checkpointed(0)
    seal(world, 4, weight_step=2)
    sampler.publish_policy(2, policy_version="step-2")
    writer.retire(1, retired)
    run(batches, 2, 4)
    sampler.checkpointed(1)
    world.restart()
    sampler = world.open()
    sampler.resume(1, later="release")
    batches = made_by(sampler)
    seal(world, 4, weight_step=2)
    run(batches, 2, 5)
    sampler.set_current_step(5)
    sampler.checkpointed(4)
    sampler.publish_policy(5, policy_version="step-5")
    sampler.finish()
    return world


def packed() -> LocalWorld:
    """Ready packs, some of which get stale."""
    world = memory_world()
    world.configure(max_policy_lag=1)
    seal(world, 8)
    sampler = world.open()
    sampler.resume(None)
    config = {
        "schedule": {"b_ratio": 0.25},
        "pack_length": 10,
        "num_groups": 3,
        "gradient_accumulation_steps": 1,
        "queue_limit": 12,
        "prefetch_target_packs": 12,
        "version_window": 1,
    }
    packs = ReadyPacks(sampler, ReadyPacksConfig.model_validate(config), dp_rank=0, dp_size=1)
    for step in range(5):
        packs.ack(packs.next_step(step, timeout_s=WAIT_S))
        seal(world, 3, weight_step=step)
        sampler.checkpointed(step)
    return world


def pooled() -> LocalWorld:
    """A pool of prompts, of which one is given back."""
    world = memory_world()
    world.configure(order="ready", max_policy_lag=-1, off_branch="keep")
    writer = world.writer("math", 1)
    writer.flush(*(GroupSpec(example_id=name) for name in "abcd"))
    sampler = world.open()
    pool = TrajectoryPool(sampler)
    for _ in range(3):
        pool.fetch_batch()
    sampler.publish_policy(1, policy_version="step-1")
    pool.fetch_batch()
    return world


RUNS: Mapping[str, Callable[[], LocalWorld]] = {"made": made, "packed": packed, "pooled": pooled}
