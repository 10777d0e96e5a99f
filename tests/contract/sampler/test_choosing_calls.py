"""What every sampler promises about looking at groups, limits of age, uses and purging."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec, every_extra
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, log_end
from rollstream.sampler import (
    InvalidRequest,
    NotEnoughGroups,
    RequestDiffers,
    SamplerApi,
    SamplerView,
)
from rollstream.sampler.history import check_from_files, replay_step
from rollstream.schemas.order import PolicyRef
from rollstream.store.layout import batch_path

WAIT_S = 30.0


def specs(count: int, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}", **fields) for i in range(count)]


@pytest.mark.proves("A14", "A16", "F20")
def test_looking_at_groups_claims_nothing_and_shows_what_is_served_next(
    world: SamplerWorld,
) -> None:
    world.writer().flush(*specs(6))
    world.writer("code").flush(*specs(2))
    sampler = world.open()
    written = log_end(world)
    with pytest.raises(NotEnoughGroups):
        sampler.sample_groups(9)
    seen = sampler.sample_groups(4, mix={"math": 1, "code": 1})
    groups = sampler.get_groups(group.group_id for group in reversed(seen))
    sampler.flush()
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        assert [group.group_id for group in view.sample_groups(4, mix={"math": 1, "code": 1})] == [
            group.group_id for group in seen
        ]
    assert log_end(world) == written
    assert [group.id for group in groups] == [group.group_id for group in reversed(seen)]
    assert [len(group.rollouts) for group in groups] == [group.rows for group in reversed(seen)]
    batch = sampler.next_batch(0, 4, mix={"math": 1, "code": 1}, timeout_s=WAIT_S)
    assert batch.sampled.group_ids == tuple(group.group_id for group in seen)
    assert batch.group(1).id == groups[2].id
    with pytest.raises(InvalidRequest, match=f"holds no group {'0' * 32}"):
        sampler.get_groups(["0" * 32])
    with pytest.raises(InvalidRequest, match='recency = "newest"'):
        sampler.sample_groups(2, recency_weighting="newest")  # type: ignore[arg-type]
    twice = sampler.get_groups([seen[0].group_id] * 2)
    assert [group.id for group in twice] == [seen[0].group_id] * 2, "one for each id"
    with pytest.raises(InvalidRequest, match="reason is empty"):
        sampler.drop([seen[0].group_id], "")
    with pytest.raises(InvalidRequest, match=r"^alpha 2 has no effect"):
        sampler.sample_groups(2, alpha=2.0)
    with pytest.raises(InvalidRequest, match="grouping 'any'"):
        sampler.sample_groups(2, grouping="any")  # type: ignore[arg-type]


@pytest.mark.proves("E2", "F2", "I6")
def test_a_batch_leaves_out_the_rollouts_that_are_too_old_wherever_it_is_read(
    world: SamplerWorld,
) -> None:
    world.configure(max_rollout_step_delay=2)
    rewards = (0.0, 1.0, 2.0, 3.0)
    world.writer().flush(
        *specs(2, rewards=rewards, weight_steps=(1, 5, 2, 5), extras=(every_extra(),) * 4),
        GroupSpec(example_id="old", rewards=rewards, weight_steps=(1, 1, 1, 5)),
    )
    sampler = world.open()
    sampler.resume(4)
    with pytest.raises(InvalidRequest, match="2\\*\\*63"):
        sampler.set_current_step(2**63)
    sampler.set_current_step(5)
    batch = sampler.next_batch(5, 2, timeout_s=WAIT_S, columns=["routed_experts", "metadata"])
    assert batch.rewards.tolist() == [1.0, 3.0, 1.0, 3.0]
    assert batch.weight_steps.tolist() == [5, 5, 5, 5]
    assert np.bincount(batch.group_index).tolist() == [2, 2]
    assert batch.trajectory_returns.tolist() == [1.0, 3.0, 1.0, 3.0]
    assert len(batch.token_arrays["routed_experts"]) == len(batch.tokens)
    assert [record.reward for record in batch.records(0)] == [1.0, 3.0]
    halves = [
        world.open().next_batch(5, 2, timeout_s=WAIT_S, dp_rank=rank, dp_size=2) for rank in (0, 1)
    ]
    assert [uid for half in halves for uid in half.uids] == list(batch.uids)
    sampler.checkpointed(5)
    found = sampler.stats()
    assert (found.over_step_delay, found.ready) == (7, {}), (
        "of both, and of the one that went whole"
    )
    assert found.outcomes["stale"] == 1
    sampler.flush()
    world.restart()
    again = world.open().next_batch(5, 2, timeout_s=WAIT_S)
    assert (again.uids, again.digest) == (batch.uids, batch.digest)
    (replayed,) = replay_step(world.name, 5, config=world.config, broker=world.broker())
    assert replayed.same
    assert check_from_files(world.name, 5, config=world.config, store=world.store).same


@WITHOUT_RAY
@pytest.mark.proves("E4", "F3")
def test_a_group_is_served_again_once_acked_and_rewinds_give_uses_back(
    world: SamplerWorld,
) -> None:
    world.configure(max_samples=2)
    world.writer().flush(*specs(2))
    sampler = world.open()
    first = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    with pytest.raises(NotEnoughGroups):
        sampler.next_batch(1, 2, timeout_s=0.0)
    sampler.ack(first)
    second = sampler.next_batch(1, 2, timeout_s=WAIT_S)
    assert set(second.sampled.group_ids) == set(first.sampled.group_ids)
    sampler.ack(second)
    world.restart()
    sampler = world.open()
    assert sampler.resume(0, later="release") == 1
    again = sampler.next_batch(1, 2, timeout_s=WAIT_S)
    assert set(again.sampled.group_ids) == set(first.sampled.group_ids)
    sampler.ack(again)
    sampler.checkpointed(1)
    with pytest.raises(NotEnoughGroups):
        sampler.next_batch(2, 1, timeout_s=0.0)
    assert sampler.progress().trained == {"math": {"ex-0": 2, "ex-1": 2}}


@pytest.mark.proves("A21")
def test_purging_drops_what_is_ready_and_flushing_waits_for_the_files(world: SamplerWorld) -> None:
    world.writer().flush(*specs(5))
    sampler = world.open()
    batch = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    sampler.purge()
    assert sampler.stats().ready == {}
    assert sampler.next_batch(0, 2, timeout_s=WAIT_S).digest == batch.digest
    assert sampler.stats().outcomes == {"by_trainer": 3}
    sampler.flush()
    assert world.store.info(batch_path(world.name, 0, 0)) is not None


@WITHOUT_RAY
def test_after_a_flush_all_that_was_sealed_before_is_known(world: SamplerWorld) -> None:
    """Also while a call waits for groups, for whom a thread reads what is sealed."""
    sampler, writer = world.open(), world.writer()
    sampler.resume(None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sampler.next_batch, 0, 30, timeout_s=WAIT_S)
        for count in range(1, 30):
            writer.flush(*specs(1))
            sampler.flush()
            assert sampler.stats().ready == {"math": count}
        writer.flush(*specs(1))
        assert waiting.result().num_groups == 30


def published_twice(world: SamplerWorld) -> SamplerApi:
    """A sampler at step 2 that published policies of steps 1 and 2; 39 examples have a group each,
    of policies 0 to 2, and one more is of several."""
    sampler = world.open()
    sampler.resume(1)
    for step in (1, 2):
        sampler.publish_policy(step, policy_version=f"v{step}")
    for environment, partition in (("math", 0), ("math", 1), ("code", 0)):
        world.writer(environment, partition).flush(
            *[
                GroupSpec(example_id=f"{partition}-{i}", weight_step=i % 3, policy_epoch=1)
                for i in range(13)
            ]
        )
    world.writer().flush(GroupSpec(example_id="mixed", weight_steps=(1, 2), policy_epoch=1))
    sampler.flush()
    return sampler


@pytest.mark.proves("A14", "F2", "I6")
@pytest.mark.parametrize(
    "asked",
    [
        {"seed": 5},
        {"start_offset": 3},
        {"grouping": "strict", "seed": 6, "mix": {"math": 1.0, "code": 1.0}},
        {"policy_version": "v1"},
    ],
    ids=lambda asked: next(iter(asked)),
)
@pytest.mark.parametrize("recency", ["uniform", "exp"])
@WITHOUT_RAY
def test_a_batch_takes_what_sample_groups_takes_and_is_made_again_by_it(
    world: SamplerWorld, recency: str, asked: dict[str, Any]
) -> None:
    world.configure(recency=recency)
    sampler = published_twice(world)
    seen = [group.group_id for group in sampler.sample_groups(3, **asked)]
    if "policy_version" in asked:
        ones = sampler.sample_groups(3, **asked)
        assert {group.policies for group in ones} == {(PolicyRef("", 1, 1),)}
    if asked.get("seed") and recency == "exp":
        assert seen != [group.group_id for group in sampler.sample_groups(3)]
    batch = sampler.next_batch(2, 3, timeout_s=WAIT_S, **asked)
    assert list(batch.sampled.group_ids) == seen
    assert sampler.next_batch(2, 3, timeout_s=WAIT_S, **asked).digest == batch.digest
    with pytest.raises(RequestDiffers, match=next(iter(asked))):
        sampler.next_batch(2, 3, timeout_s=WAIT_S)
    sampler.replace(batch, [0], "tried", timeout_s=WAIT_S)
    decisions = replay_step(world.name, 2, config=world.config, broker=world.broker())
    assert [one.same for one in decisions] == [True, True]


@WITHOUT_RAY
@pytest.mark.proves("A14")
def test_a_replacement_is_of_the_version_that_the_batch_was_asked_of(world: SamplerWorld) -> None:
    sampler = published_twice(world)
    of: dict[str, Any] = {"policy_version": "v2", "mix": {"code": 1.0}}
    batch = sampler.next_batch(2, 3, timeout_s=WAIT_S, **of)
    other = sampler.replace(batch, [0], "tried", timeout_s=WAIT_S)
    assert {*other.weight_steps.tolist()} == {2}
    with pytest.raises(NotEnoughGroups):
        sampler.replace(other, [0], "again", timeout_s=0.0)
    with pytest.raises(InvalidRequest, match=r"policy_version names .* which publish_policy"):
        sampler.next_batch(3, 1, policy_version="v9")
    with pytest.raises(InvalidRequest, match="grouping 'any' is unknown"):
        sampler.next_batch(3, 1, grouping="any")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="start_offset -1 chooses nothing"):
        sampler.next_batch(3, 1, start_offset=-1)


@pytest.mark.proves("E2")
def test_setting_the_step_drops_groups_that_both_limits_leave_too_small(
    world: SamplerWorld,
) -> None:
    world.configure(max_rollout_step_delay=2, max_rollout_timestamp_delay=1.2e9)
    now: dict[str, Any] = {}
    old = {"created_ts": 1}  # Since 1970 it has been longer than the limit.
    world.writer().flush(
        *specs(1, weight_steps=(5, 5, 1), rewards=(0.0, 1.0, 0.5), extras=(now,) * 3),
        *specs(1, weight_steps=(5, 1, 1), rewards=(0.0, 1.0, 0.5), extras=(now,) * 3),
        *specs(1, weight_steps=(5, 5, 5), rewards=(0.0, 1.0, 0.5), extras=(now, old, old)),
        *specs(1, weight_steps=(5, 5, 1), rewards=(0.0, 1.0, 0.5), extras=(now, old, now)),
    )
    sampler = world.open()
    sampler.resume(4)
    sampler.flush()
    assert sampler.stats().ready == {"math": 4}
    sampler.set_current_step(5)
    found = sampler.stats()
    assert (found.ready, found.outcomes) == ({"math": 1}, {"stale": 1, "too_old": 2})
    assert (found.over_step_delay, found.over_timestamp_delay) == (3, 3)


@pytest.mark.proves("F17")
def test_groups_that_are_ready_and_not_chosen_are_told_with_the_reason(world: SamplerWorld) -> None:
    world.configure(max_policy_lag=-1)
    world.writer().flush(*specs(4, weight_step=3))
    sampler = world.open()
    sampler.resume(8)
    sampler.publish_policy(9, policy_version="step-9")
    assert len(sampler.sample_groups(4)) == 4
    with pytest.raises(NotEnoughGroups, match=r"4 are left out as stale: .* max_policy_lag = 2"):
        sampler.sample_groups(1, max_policy_lag=2)
    with pytest.raises(NotEnoughGroups, match="too few of the ready ones are what is asked for"):
        sampler.sample_groups(1, policy_version="step-9")
    with pytest.raises(NotEnoughGroups, match="none was dropped: no more were sealed"):
        sampler.sample_groups(5)
