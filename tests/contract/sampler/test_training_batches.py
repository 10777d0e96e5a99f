"""What a maker makes of each step: in process on the twin and on Kafka, and over Ray."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec, every_extra
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, memory_world, once_over_ray
from harness.training_batches import WAIT_S, everything, made_by, run, seal, trained_uids
from rollstream.folds import state
from rollstream.sampler import (
    Batch,
    InvalidRequest,
    RequestDiffers,
    RlooBatchMaker,
    StableMixtureBatchMaker,
    UnknownStep,
)
from rollstream.sampler.history import replay_step, report_of, stored_examples

pytestmark = pytest.mark.proves("D1", "D2", "I6")
STEPS = 6


@WITHOUT_RAY
def test_what_is_kept_is_trained_on_later_and_nothing_twice(world: SamplerWorld) -> None:
    seal(world, 2 * STEPS)
    sampler = world.open()
    sampler.resume(None)
    found = run(made_by(sampler), 0, STEPS)
    uids = [uid for one in found for uid in trained_uids(one)]
    assert len(uids) == len(set(uids)) == 3 * STEPS
    assert found[0].batch.carried_groups == 0
    assert all(one.batch.carried_groups for one in found[1:])
    old = {uid for one in found[1:] for uid in trained_uids(one)} & {*found[0].batch.uids}
    assert old, "of what the first step kept some was trained on"


@once_over_ray("restarted_before", 3, 1, STEPS - 1)
def test_a_process_that_was_killed_makes_the_same_bytes_as_one_that_was_not(
    world: SamplerWorld, restarted_before: int
) -> None:
    seal(world, 2 * STEPS, extras=(every_extra(),) * 4)
    sampler = world.open()
    sampler.resume(None)
    columns = ("routed_experts", "token_rewards")
    whole = [everything(one) for one in run(made_by(sampler, columns=columns), 0, restarted_before)]
    sampler.checkpointed(restarted_before - 1)
    world.restart()
    successor = world.open()
    assert successor.resume(restarted_before - 1) == restarted_before
    after = made_by(successor, columns=columns)
    whole += [everything(one) for one in run(after, restarted_before, STEPS)]
    rank = made_by(world.open(), columns=columns)  # From any step on, and backwards.
    for step in [*range(STEPS)][::-1]:
        assert everything(rank.next(step, timeout_s=WAIT_S)) == whole[step]
    for step in range(STEPS):
        (again,) = replay_step(world.name, step, config=world.config, broker=world.broker())
        assert again.same


@WITHOUT_RAY
def test_a_step_that_was_lost_is_made_again_as_it_was(world: SamplerWorld) -> None:
    """Served, and its trainer was killed before its ack; another one resumes."""
    seal(world, 2 * STEPS)
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler)
    run(batches, 0, 2)
    sampler.checkpointed(1)
    lost = [everything(batches.next(step, timeout_s=WAIT_S)) for step in (2, 3)]
    world.restart()
    successor = world.open()
    assert successor.resume(1) == 2
    assert [everything(one) for one in run(made_by(successor), 2, 4)] == lost
    assert successor.resume(1, later="release") == 2
    fresh = made_by(successor)
    anew = fresh.next(2, timeout_s=WAIT_S)
    assert anew.batch.carried_groups
    again = fresh.next(3, timeout_s=WAIT_S)
    assert everything(made_by(world.open()).next(3, timeout_s=WAIT_S)) == everything(again)


@WITHOUT_RAY
def test_the_same_object_goes_on_after_a_resume_that_released(world: SamplerWorld) -> None:
    seal(world, 2 * STEPS)
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler)
    run(batches, 0, 3)
    sampler.checkpointed(0)
    assert sampler.resume(0, later="release") == 1
    for step in (1, 2):
        mine = everything(batches.next(step, timeout_s=WAIT_S))
        assert everything(made_by(world.open()).next(step, timeout_s=WAIT_S)) == mine


def test_a_resume_from_behind_all_that_is_held_carries_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state, "FINAL_BATCHES_KEPT", 1)
    with closing(memory_world()) as world:
        seal(world, 2 * STEPS)
        sampler = world.open()
        sampler.resume(None)
        batches = made_by(sampler)
        for step in range(4):
            run(batches, step, step + 1)
            sampler.checkpointed(step)
        assert sampler.resume(1, later="release") == 2
        with caplog.at_level(logging.WARNING, "rollstream.sampler"):
            again = batches.next(2, timeout_s=WAIT_S)
        assert (
            "step 2 carries nothing from the one before: no batch of step 1 is held" in caplog.text
        )
        assert again.batch.carried_groups == 0
        assert everything(made_by(sampler).next(2, timeout_s=WAIT_S)) == everything(again)


@WITHOUT_RAY
@pytest.mark.proves("D2", "A16")
def test_groups_that_are_filtered_whole_count_as_such_and_give_their_capacity_back(
    world: SamplerWorld,
) -> None:
    equal = [GroupSpec(example_id="all-equal", rewards=(1.0, 1.0))]
    world.writer().flush(*equal, GroupSpec(example_id="ex-1"), GroupSpec(example_id="ex-2"))
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler, num_groups=3, batch_size=8)
    training = batches.next(0, timeout_s=WAIT_S)
    assert training.metadata["filtered/all_equal"] == 2
    assert training.metadata["filtered_groups"] == 1
    before = sampler.progress()
    assert sum(before.unacked["math"].values()) == 3
    batches.ack(training)
    batches.ack(training)
    assert not sampler.progress().unacked.get("math")
    sampler.checkpointed(0)
    progress = sampler.progress()
    assert progress.filtered == {"math": {"all-equal": 1}}
    assert progress.trained == {"math": {"ex-1": 1, "ex-2": 1}}
    totals = report_of(world.name, config=world.config, broker=world.broker()).totals
    assert (totals.dropped, totals.trained) == ({"filtered": 2}, 4)


@WITHOUT_RAY
def test_a_step_with_nothing_to_train_on_is_empty_and_acked(world: SamplerWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"e-{i}", rewards=(1.0, 1.0)) for i in range(2)))
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler)
    (training,) = run(batches, 0, 1)
    assert (len(training.examples), training.batch.num_groups) == (0, 2)
    sampler.checkpointed(0)
    assert sampler.stats().outcomes == {"filtered": 2}
    seal(world, 2)
    assert batches.next(1, timeout_s=WAIT_S).batch.carried_groups == 0


@WITHOUT_RAY
def test_another_maker_is_refused_for_a_step_and_begins_anew_after_it(
    world: SamplerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    seal(world, 2 * STEPS)
    sampler = world.open()
    sampler.resume(None)
    run(made_by(sampler), 0, 2)
    other = made_by(sampler, RlooBatchMaker())
    with pytest.raises(RequestDiffers, match='maker was "grpo"'):
        other.next(1, timeout_s=WAIT_S)
    with caplog.at_level(logging.WARNING, "rollstream.sampler"):
        third = other.next(2, timeout_s=WAIT_S)
    assert 'step 1 was shaped with other settings: maker.advantage was "rloo"' in caplog.text
    assert third.batch.carried_groups == 0
    assert other.next(3, timeout_s=WAIT_S).batch.carried_groups


@WITHOUT_RAY
@pytest.mark.proves("D3")
def test_a_mixture_asks_for_groups_in_its_shares(world: SamplerWorld) -> None:
    """Though both environments have enough of both; without it their examples would take turns."""
    for name in ("math", "code"):
        world.writer(name).flush(*(GroupSpec(example_id=f"{name}-{i}") for i in range(8)))
    sampler = world.open()
    sampler.resume(None)
    maker = StableMixtureBatchMaker(
        {name: RlooBatchMaker() for name in ("math", "code")}, {"math": 3.0, "code": 1.0}
    )
    batches = made_by(sampler, maker, num_groups=4, batch_size=8)
    for training in run(batches, 0, 2):
        rows = training.examples.rows.tolist()
        names = [training.batch.environments[row] for row in rows]
        assert (names.count("math"), names.count("code")) == (6, 2)
        assert training.metadata["math/lacking"] == training.metadata["code/lacking"] == 0
    with pytest.raises(RequestDiffers):
        made_by(sampler, maker, num_groups=4, batch_size=8, mix={"math": 1.0}).next(0)


@WITHOUT_RAY
@pytest.mark.proves("D3")
def test_an_environment_with_less_than_its_share_is_warned_of_once(
    world: SamplerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    seal(world, 4)
    sampler = world.open()
    sampler.resume(None)
    maker = StableMixtureBatchMaker(
        {name: RlooBatchMaker() for name in ("math", "code")}, {"math": 0.5, "code": 0.5}
    )
    with caplog.at_level(logging.WARNING, "rollstream.sampler"):
        found = run(made_by(sampler, maker, batch_size=4, mix={"math": 1.0}), 0, 2)
    assert [one.metadata["code/lacking"] for one in found] == [2, 2]
    said = [line for line in caplog.messages if "less than its share" in line]
    assert len(said) == 1
    assert said[0].startswith("step 0 has 2 trajectories of code less")


@pytest.mark.parametrize(
    ("served", "asked", "told"),
    [
        (("math",), {}, True),
        (("math",), {"mix": {"math": 1.0}}, False),  # Whoever names the shares means it.
        (("math", "code"), {}, False),
        (("math", "code"), {"mix": {"math": 1.0}}, False),
    ],
)
def test_an_environment_without_a_maker_is_told_before_its_groups_wait_for_ever(
    served: tuple[str, ...], asked: dict[str, Any], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    makers = {name: RlooBatchMaker() for name in served}
    with closing(memory_world()) as world:
        made_by(world.open(), StableMixtureBatchMaker(makers, dict.fromkeys(makers, 1)), **asked)
    expected = f"sampler '{world.name}' serves ['code'], of which StableMixtureBatchMaker trains on"
    assert [line.startswith(expected) for line in caplog.messages] == [True] * told


@WITHOUT_RAY
def test_what_cannot_be_is_refused(world: SamplerWorld) -> None:
    sampler = world.open()
    sampler.resume(None)
    with pytest.raises(InvalidRequest, match="batch_size is 0"):
        made_by(sampler, batch_size=0)
    with pytest.raises(InvalidRequest, match="num_groups is 0"):
        made_by(sampler, num_groups=0)
    with pytest.raises(
        UnknownStep, match="step 5 was asked for, but the next one to be served is 0"
    ):
        made_by(sampler).next(5, timeout_s=WAIT_S)
    with pytest.raises(InvalidRequest, match="negative"):
        made_by(sampler).next(-1, timeout_s=WAIT_S)


@WITHOUT_RAY
def test_segments_of_a_trajectory_stay_together_and_batches_say_what_was_used(
    world: SamplerWorld,
) -> None:
    segments: list[dict[str, Any]] = [
        {"rollout_uid": "u-0", "segment_idx": 0, "is_last_segment": False, "reward": None},
        {"rollout_uid": "u-0", "segment_idx": 1},
        {"rollout_uid": "u-1"},
        {"rollout_uid": "u-2"},
    ]
    world.writer().flush(
        GroupSpec(example_id="ex-0", rewards=(None, 1.0, 0.0, 0.5), extras=segments),
        GroupSpec(example_id="ex-1"),
    )
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler, RlooBatchMaker(), num_groups=1, batch_size=2)
    first, second = run(batches, 0, 2)
    assert trained_uids(first) == ["u-0", "u-0", "u-1"]
    assert second.batch.used is not None
    assert _uids_of_trajectories(second.batch)[second.batch.used].tolist() == ["u-0", "u-1"]
    assert trained_uids(second)[0] == "u-2"


def member(uid: str, step: int = 0, **fields: Any) -> dict[str, Any]:
    return {"rollout_uid": uid, "weight_step": step, **fields}


@WITHOUT_RAY
@pytest.mark.proves("A15")
@pytest.mark.parametrize("limit", ["max_policy_lag", "max_rollout_step_delay"])
def test_what_was_kept_is_not_trained_on_once_it_is_too_old(
    world: SamplerWorld, limit: str
) -> None:
    """A trajectory is as old as its oldest segment."""
    world.configure(**{"max_policy_lag": -1, limit: 1})
    writer = world.writer()
    writer.flush(GroupSpec(rewards=(1.0,), extras=[member("first")]))
    begun = {"is_last_segment": False, "reward": None}
    turns = [member("u-2", 0, **begun), member("u-2", 1, segment_idx=1)]
    mixed = GroupSpec(
        rewards=(0.0, 1.0, None, 0.5, 0.25),
        weight_steps=(0, 0, 0, 1, 1),
        extras=[member("u-0"), member("u-1"), *turns, member("u-3", 1)],
    )
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler, RlooBatchMaker(), num_groups=1, batch_size=1)
    found = run(batches, 0, 1)
    writer.flush(mixed)
    found += run(batches, 1, 2)
    writer.flush(GroupSpec(rewards=(1.0,), weight_step=2, extras=[member("last", 2)]))
    found += run(batches, 2, 3)
    assert [trained_uids(one) for one in found] == [["first"], ["u-0"], ["u-3"]]
    assert [one.metadata["carried_stale"] for one in found] == [0, 0, 2]
    again = made_by(world.open(), RlooBatchMaker(), num_groups=1, batch_size=1)
    assert [everything(again.next(step)) for step in range(3)] == [*map(everything, found)]


@WITHOUT_RAY
@pytest.mark.proves("A15")
@pytest.mark.parametrize(("off_branch", "stale"), [("drop", 2), ("keep", 0)])
def test_what_was_kept_is_not_trained_on_once_it_is_off_the_branch(
    world: SamplerWorld, off_branch: str, stale: int
) -> None:
    world.configure(max_policy_lag=-1, capacity=64, off_branch=off_branch)
    sampler = world.open()
    sampler.resume(None)
    world.writer().flush(GroupSpec(rewards=(0.0, 1.0, 0.5), weight_step=3))
    batches = made_by(sampler, RlooBatchMaker(), num_groups=1, batch_size=1)
    run(batches, 0, 1)
    sampler.checkpointed(0)
    assert sampler.resume(0, later="release") == 1
    seal(world, 1)
    training = batches.next(1, timeout_s=WAIT_S)
    assert training.batch.carried_stale == training.batch.metrics()["carried_stale"] == stale
    assert training.batch.used is not None
    assert int(training.batch.used.sum()) == 1 + stale


@WITHOUT_RAY
@pytest.mark.proves("A17")
def test_turns_may_be_merged_also_of_a_step_that_was_served_without(world: SamplerWorld) -> None:
    turns: list[dict[str, Any]] = [
        {"rollout_uid": "u-0", "is_last_segment": False, "reward": None, "prompt_tokens": [1]},
        {"rollout_uid": "u-0", "segment_idx": 1, "prompt_tokens": [1, 2, 3, 4, 9]},
        {"rollout_uid": "u-1", "prompt_tokens": [1]},
    ]
    extras = [
        {name: np.array(v, "<i4") if name == "prompt_tokens" else v for name, v in turn.items()}
        | {"output_tokens": np.array([2, 3, 4], "<i4")}
        for turn in turns
    ]
    world.writer().flush(GroupSpec(rewards=(None, 1.0, 0.0), extras=extras))
    sampler = world.open()
    sampler.resume(None)
    apart = made_by(sampler, RlooBatchMaker(), num_groups=1).next(0, timeout_s=WAIT_S)
    merging = made_by(sampler, RlooBatchMaker(), num_groups=1, merge_turns=True)
    merged = merging.next(0, timeout_s=WAIT_S)
    assert merged.batch.batch_id == apart.batch.batch_id
    assert apart.examples.lengths.tolist() == [4, 8, 4]
    assert [one.tokens.tolist() for one in merged.examples] == [
        [1, 2, 3, 4, 9, 2, 3, 4],
        [1, 2, 3, 4],
    ]
    assert merged.examples.metrics()["turns/merged"] == 1
    ids = [merging.create_and_store_batch(step=0)]
    ids.append(made_by(sampler, RlooBatchMaker(), num_groups=1).create_and_store_batch(step=0))
    stored = [stored_examples(one, store=world.store).examples for one in ids]
    assert [one.turns.tolist() for one in stored] == [[2, 1], [1, 1, 1]]
    assert not any(one.apart.any() for one in stored)


def _uids_of_trajectories(batch: Batch) -> Any:
    found = np.empty(batch.num_trajectories, object)
    found[batch.trajectory_index] = batch.uids
    return found
