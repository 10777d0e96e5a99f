"""Steps that version 3 of the sampler's rules decided stay as they were, and what they left over is
carried on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.limited_worker import StillClock
from harness.rollouts import CREATED_TS
from harness.sampler_worlds import LocalWorld, memory_world
from harness.training_batches import WAIT_S, everything, made_by, run, trained_uids
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import (
    BatchMaker,
    ChannelB,
    DecidedByOlder,
    GrpoBatchMaker,
    ReadyPacks,
    RequestDiffers,
    RlooBatchMaker,
    Sampler,
    SamplerApi,
    TrainingBatch,
)
from rollstream.sampler.batch.carried import CarriedGroup, Shaping
from rollstream.sampler.decide.batches import new_batch
from rollstream.sampler.decide.choosing.choose import ALGORITHM
from rollstream.sampler.history import replay_step
from rollstream.sampler.training.ready_packs.decision import decide
from rollstream.sampler.training.ready_packs.offered import Offered

OLD = 3


@contextmanager
def rules(algorithm: int) -> Iterator[None]:
    """New steps are recorded as decided by these, which makers and ready packs go by."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(new_batch, "ALGORITHM", algorithm)
        yield


def two_epochs(world: LocalWorld) -> SamplerApi:
    """A trainer at step 1, with groups of a step 2 that it went back behind, and of its own step 1:
    by step those are newer, and by epoch these."""
    world.configure(off_branch="keep", max_policy_lag=-1, order="ready")
    sampler = world.open()
    sampler.resume(None)
    for step in range(2):
        world.writer().flush(GroupSpec(example_id=f"first-{step}"))
        sampler.next_batch(step, 1, timeout_s=WAIT_S)
        left = sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
    sampler.resume(None, later="release")
    sampler.ack(sampler.next_batch(0, 2, timeout_s=WAIT_S))
    sampler.checkpointed(0)
    now = sampler.publish_policy(1, policy_version="step-1")
    assert (left.step, now.step) == (2, 1)
    world.writer().flush(
        *[
            GroupSpec(
                example_id=f"ex-{n}",
                rewards=(0.0, 1.0, n % 3, 0.5),
                weight_step=policy.step,
                policy_epoch=policy.epoch,
                extras=[{"rollout_uid": f"{name}-{n}-{member}"} for member in range(4)],
            )
            for n in range(6)
            for name, policy in (("left", left), ("now", now))
        ]
    )
    return sampler


def kept(training: TrainingBatch) -> set[str]:
    """By which weights those were sampled that a later step may train on."""
    batch = training.batch
    rows = np.isin(batch.trajectory_index, training.made.kept)
    return {batch.uids[row].split("-")[0] for row in np.flatnonzero(rows).tolist()}


@pytest.mark.proves("D2", "F2", "F19")
@pytest.mark.parametrize("maker", [GrpoBatchMaker(seed=3), RlooBatchMaker(reservoir_size=4)])
def test_a_makers_steps_are_made_again_and_their_reservoir_is_carried(
    maker: BatchMaker, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(memory_world()) as world:
        sampler = two_epochs(world)
        with rules(OLD):
            found = run(batches := made_by(sampler, maker, num_groups=4), 1, 3)
            stored = [batches.create_and_store_batch(step=step) for step in (1, 2)]
        assert all(one.batch.algorithm == OLD for one in found)
        assert [kept(one) for one in found] == [{"left"}] * 2, "the higher steps"
        caplog.clear()
        sampler.checkpointed(1)
        world.restart()
        sampler = world.open()
        assert sampler.resume(1) == 2
        again = made_by(sampler, maker, num_groups=4)
        assert everything(again.next(2, timeout_s=WAIT_S)) == everything(found[1])
        assert again.create_and_store_batch(step=2) == stored[1]
        new = again.next(3, timeout_s=WAIT_S)
        assert new.batch.algorithm == ALGORITHM
        assert new.batch.carried_groups > 0
        assert "now" in kept(new), "the newer epoch"
        for step in (1, 2):
            with pytest.raises(DecidedByOlder, match="algorithm 3"):
                replay_step(world.name, step, config=world.config, broker=world.broker())
        (replayed,) = replay_step(world.name, 3, config=world.config, broker=world.broker())
        assert replayed.same
    assert "carries nothing" not in caplog.text


@pytest.mark.proves("A15", "F2")
def test_what_a_step_carried_and_was_made_too_long_ago_is_still_trained_on_in_it() -> None:
    clock = StillClock(CREATED_TS)
    with closing(memory_world(clock)) as world:
        world.configure(max_policy_lag=-1, max_rollout_timestamp_delay=60.0)
        made = [
            {"rollout_uid": uid, "created_ts": CREATED_TS - round(ago_s * 1e6)}
            for uid, ago_s in (("a", 0), ("b", 50), ("c", 50), ("d", 50))
        ]
        world.writer().flush(
            GroupSpec(rewards=(0.0, 1.0, 0.5, 0.25), extras=made),
            *(GroupSpec(example_id=f"e-{n}") for n in range(3)),
        )
        sampler = Sampler(
            world.name, config=world.config, broker=world.broker(), store=world.store, clock=clock
        )
        with closing(sampler):
            sampler.resume(None)
            batches = made_by(sampler, RlooBatchMaker(), num_groups=1, batch_size=1)
            with rules(OLD):
                found = run(batches, 0, 1)
                clock.advance(30)
                found += run(batches, 1, 2)
            assert [trained_uids(one) for one in found] == [["a"], ["b"]]
            again = made_by(sampler, RlooBatchMaker(), num_groups=1, batch_size=1)
            assert [everything(again.next(n)) for n in range(2)] == [*map(everything, found)]
            (new,) = run(again, 2, 3)
            assert new.metadata["carried_stale"] == 2, "by the rules of now"


def left_of(sampler: SamplerApi, config: ReadyPacksConfig) -> Sequence[CarriedGroup]:
    """What step 1 left over."""
    batch = sampler.recorded_batch(1)
    assert batch is not None
    decision = decide(config, Offered.of(batch), step=1, current=batch.current_step, ranks=1)
    return decision.carried


PACKS: dict[str, Any] = {
    "schedule": {"b_ratio": 1.0},
    "pack_length": 10,  # Two trajectories.
    "queue_limit": 16,
    "prefetch_target_packs": 8,
    "version_window": 8,
    "num_groups": 4,
}


@pytest.mark.proves("C3", "C4", "F2")
@pytest.mark.parametrize("changed", [{}, {"gradient_accumulation_steps": 2}])
def test_a_queue_is_carried_on_that_was_recorded_with_what_only_asks(
    changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Settings that the record has no more are no difference."""
    config = ReadyPacksConfig.model_validate(PACKS)
    recorded = {"ready_packs": config.model_dump(mode="json"), "dp_size": 1, "algorithm": 1}
    with closing(memory_world()) as world:
        sampler = two_epochs(world)
        shaping = Shaping(settings=json.dumps(recorded), num_groups=4, min_groups=0, carried=())
        with rules(OLD):
            sampler.ack(sampler.next_shaped_batch(1, shaping, timeout_s=WAIT_S))
            first = ReadyPacks(sampler, config, dp_rank=0, dp_size=1).next_step(1)
            assert isinstance(first, ChannelB)
            assert (first.versions, first.policy_epochs) == ((1,), (0,))
            carried = {one.group_id: one.wanted.tolist() for one in left_of(sampler, config)}
            later = replace(shaping, carried=tuple(left_of(sampler, config)))
            sampler.ack(sampler.next_shaped_batch(2, later, timeout_s=WAIT_S))
        sampler.checkpointed(1)
        world.restart()
        sampler = world.open()
        assert sampler.resume(1) == 2
        now = ReadyPacksConfig.model_validate({**PACKS, "num_groups": 2, **changed})
        ready = ReadyPacks(sampler, now, dp_rank=0, dp_size=1)
        if changed:
            with pytest.raises(RequestDiffers):
                ready.next_step(2)
            sampler.resume(1, later="release")
            assert ready.next_step(2).batch.carried_groups == 0
            assert "other settings: ready_packs.gradient_accumulation_steps was 1" in caplog.text
            assert "num_groups was" not in caplog.text
            return
        assert ready.next_step(2).batch.algorithm == OLD
        sampler.resume(1, later="release")
        anew = ready.next_step(2)
        assert anew.batch.algorithm == ALGORITHM
        new = anew.batch.num_groups - anew.batch.carried_groups
        assert (new, {*anew.batch.sampled.group_ids[new:]}) == (2, {*carried})
        ready.ack(anew)
        assert ready.next_step(3).batch.carried_groups > 0
    assert "carries nothing" not in caplog.text
