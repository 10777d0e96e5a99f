"""Evaluations are a table by policy and never batches; members that did not end by themselves."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import tracemalloc
from typing import Any

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec, flush_of
from rollstream.folds.group.scored import Given
from rollstream.folds.saved_state import copied
from rollstream.sampler import Earned, Evaluation
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.queries.evaluation import AskEvaluations
from rollstream.sampler.errors import NotEnoughGroups
from rollstream.schemas.events import RolloutScore, Scored


def table(sampler: Decider, passing: float = 1.0) -> dict[tuple[str, str], Evaluation]:
    found = sampler.do(AskEvaluations(passing=passing))
    return {(one.environment, one.policy_version): one for one in found}


def evaluated(example_id: str, *rewards: float | None, step: int = 0) -> GroupSpec:
    return GroupSpec(example_id=example_id, rewards=rewards, weight_step=step, split="eval")


@pytest.mark.proves("F16")
def test_evaluations_are_told_by_environment_policy_and_example() -> None:
    sampler = Decider()
    sampler.seal(evaluated("a", 0.0, 1.0), evaluated("b", 1.0, 1.0))
    sampler.seal(evaluated("a", 0.0, 0.0, step=1), GroupSpec(rewards=(9.0, 9.0)))
    sampler.seal(evaluated("a", 0.5, step=1), log=LOGS[2])
    sampler.seal(evaluated("a", 0.25), log=LOGS[0])
    found = table(sampler)
    assert list(found) == [("code", "step-0"), ("math", "step-0"), ("math", "step-1")]
    first = found["math", "step-0"]
    assert (first.weight_step, first.policy_epoch, first.lineage) == (0, 0, "")
    assert first.total == Earned(4, 0, 0.75, math.sqrt(3) / 4, 0.75)
    assert first.examples == {"a": Earned(2, 0, 0.5, 0.5, 0.5), "b": Earned(2, 0, 1.0, 0.0, 1.0)}
    second = found["math", "step-1"].total
    assert (second.trajectories, second.pass_rate) == (3, 0.0)
    assert second.reward_mean == pytest.approx(1 / 6)
    assert table(sampler, passing=0.5)["math", "step-1"].total.pass_rate == pytest.approx(1 / 3)


@pytest.mark.proves("F16")
def test_a_trajectory_counts_once_by_the_sum_of_its_segments() -> None:
    sampler = Decider()
    turns = [{"rollout_uid": "t", "segment_idx": index} for index in range(2)]
    sampler.seal(GroupSpec(rewards=(0.5, 0.5), extras=turns, split="eval"))
    assert table(sampler)["math", "step-0"].total == Earned(1, 0, 1.0, 0.0, 1.0)


@pytest.mark.proves("F16")
def test_rewards_that_are_awaited_are_counted_apart_and_in_no_mean() -> None:
    sampler = Decider()
    sampler.seal(evaluated("a", 1.0, None), evaluated("b", 1.0, 0.0))
    assert table(sampler)["math", "step-0"].total == Earned(2, 2, 0.5, 0.5, 0.5)
    sampler.seal(evaluated("c", None, step=1))
    assert table(sampler)["math", "step-1"].total == Earned(0, 1, None, None, None)


@pytest.mark.proves("F16")
def test_evaluations_are_never_served_and_wait_for_nothing() -> None:
    sampler = Decider()
    sampler.seal(*[evaluated("a", 0.0, 1.0)] * 3)
    assert isinstance(sampler.choose(NextBatch(step=0, num_groups=1)), NotEnoughGroups)
    assert sampler.state.waiting == {}
    assert sampler.state.ready.counts() == {}


@pytest.mark.proves("F16")
def test_the_table_is_the_same_in_whatever_order_partitions_are_read() -> None:
    rewards = random.Random(1)
    drawn = [(log, evaluated("a", *(rewards.random() for _ in range(3)))) for log in LOGS[1:] * 20]
    tables = []
    for order in (1, -1):
        sampler = Decider()
        offsets = dict.fromkeys(LOGS, 0)
        for log, spec in sorted(drawn, key=lambda one: order * one[0].partition):
            flush = flush_of([spec], name=f"{log.partition}-{offsets[log]}")
            sampler.state.apply_groups(log, offsets[log], flush)
            offsets[log] += 1
        tables.append((table(sampler), sampler.state.digest()))
    assert tables[0] == tables[1]


@pytest.mark.proves("F16", "A18")
@pytest.mark.parametrize("scored_first", [False, True])
@pytest.mark.parametrize(
    ("settings", "last"),
    [({}, 0.25), ({"scorer": "tests"}, 0.5), ({"scorer": "tests", "score_version": 1}, 0.0)],
)
def test_late_scores_are_in_the_table_as_a_batch_would_have_them(
    scored_first: bool, settings: dict[str, Any], last: float
) -> None:
    sampler, offsets = Decider(**settings), itertools.count()

    def score(uid: str, reward: float, scorer: str = "tests") -> None:
        event = Scored(
            scorer=scorer,
            attempt="",
            group_id="",
            scored_ts=0,
            scores=(RolloutScore(uid, reward, {}, ()),),
        )
        offset = next(offsets)
        sampler.state.apply_scores(LOGS[1], offset, Given(event, offset))

    late = [{"rollout_uid": uid} for uid in ("one", "other")]
    group = dataclasses.replace(evaluated("a", None, None), extras=late)
    if not scored_first:
        sampler.seal(group, evaluated("a", 4.0))
        assert table(sampler)["math", "step-0"].total == Earned(1, 2, 4.0, 0.0, 1.0)
    score("one", 1.0)
    score("other", 0.0)
    if scored_first:
        sampler.seal(group, evaluated("a", 4.0))
        score("other", 0.0)  # It says nothing new.
    else:
        assert table(sampler)["math", "step-0"].total.reward_mean == pytest.approx(5.0 / 3)
        sampler.state = copied(sampler.state)
    score("other", 0.5)
    score("other", 0.25, "a judge")
    total = table(sampler)["math", "step-0"].total
    assert (total.trajectories, total.awaited) == (3, 0)
    assert total.reward_mean == pytest.approx((1.0 + last + 4.0) / 3)
    assert sampler.state.waiting == {}
    assert sampler.state.ready.counts() == {}


# Members.


@pytest.mark.proves("F16")
def test_members_that_did_not_end_by_themselves_are_told_by_example() -> None:
    sampler = Decider()
    sampler.seal(
        GroupSpec(example_id="cut", stop_reason="length"),
        GroupSpec(example_id="cut", stop_reason="length", rewards=(0.0, 1.0, 0.5)),
        GroupSpec(example_id="stopped", stop_reason="abort", failed_members=3),
        GroupSpec(example_id="whole"),
        GroupSpec(example_id="seen", stop_reason="length", split="eval"),
    )
    sampler.serve(0, 2)
    assert sampler.progress().unfinished == {
        "math": {"cut": {"truncated": 5}, "stopped": {"failed": 3, "aborted": 2}}
    }


@pytest.mark.proves("F16")
def test_a_trajectory_is_truncated_by_its_last_segment() -> None:
    sampler = Decider()
    for uid, (first, last) in (("t", ("length", "stop")), ("u", ("stop", "length"))):
        turns = [
            {"rollout_uid": uid, "segment_idx": index, "stop_reason": reason}
            for index, reason in enumerate((first, last))
        ]
        sampler.seal(GroupSpec(example_id=uid, extras=turns))
    assert sampler.progress().unfinished == {"math": {"u": {"truncated": 1}}}


def test_a_copy_of_the_state_costs_the_policies_that_were_evaluated_since() -> None:
    sampler = Decider()
    for step in range(40):
        sampler.seal(*(evaluated(f"example-{n}", 0.0, 1.0, step=step) for n in range(100)))
    first, then = copied(sampler.state), sampler.state.digest()
    log, offset, _ = sampler.sealed[-1]
    newer = flush_of([evaluated("example-0", 5.0, step=39)], name="newer", now_ts=offset + 1)
    tracemalloc.start()
    try:
        sampler.state.apply_groups(log, offset + 1, newer)
        second = copied(sampler.state)
        cost = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # One pointer to each example of each policy, and what a copy costs besides.
    assert cost < 40 * 100 * 8 + 4_096
    assert first.digest() == then
    assert second.digest() == sampler.state.digest() != then
    first.apply_groups(log, offset + 1, newer)  # What a copy is given does not reach the original.
    assert first.digest() == second.digest() == sampler.state.digest()
    assert table(sampler)["math", "step-39"].examples["example-0"].trajectories == 3
