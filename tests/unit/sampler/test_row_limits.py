"""Rollouts that are too old: left out one by one, counted, and groups that go whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.examples import examples
from harness.groups import GroupSpec, flush_of
from rollstream.folds.batches.served import ServedBatch
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.choosing.dropping import useless_groups
from rollstream.sampler.decide.choosing.row_limits import RowLimits
from rollstream.sampler.decide.queries.looks import AskStats, SamplerStats
from rollstream.sampler.decide.queries.progress import AskProgress
from rollstream.sampler.decide.trainer.commands import (
    MarkCheckpointed,
    PublishPolicy,
    Resume,
    SetCurrentStep,
)
from rollstream.sampler.errors import InvalidRequest, NotEnoughGroups, UnknownStep

LONG_AGO_US = -10_000_000  # A decider's clock begins at 0.


def group(*steps: int, example: str = "ex", made: tuple[int, ...] = ()) -> GroupSpec:
    """A rollout a step; each of another reward."""
    return GroupSpec(
        example_id=example,
        rewards=tuple(map(float, range(len(steps)))),
        weight_steps=steps,
        extras=[{"created_ts": ts} for ts in made],
    )


ROLLOUTS = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 0)), min_size=2, max_size=4)


def begun_at(step: int, **settings: Any) -> Decider:
    """A sampler whose trainer resumed and does this step next."""
    sampler = Decider(**settings)
    sampler.do(Resume(checkpointed_step=step - 1))
    return sampler


def mask(batch: ServedBatch, slot: int = 0) -> list[bool] | None:
    found = batch.groups[slot].row_mask
    return None if found is None else found.tolist()


def stats(sampler: Decider) -> SamplerStats:
    return sampler.do(AskStats())


@pytest.mark.proves("E2")
def test_rollouts_of_older_weights_are_left_out_one_by_one_and_counted() -> None:
    sampler = begun_at(5, max_rollout_step_delay=2)
    sampler.seal(group(0, 3, 4, 5), group(5, 5, 5, 5, example="fresh"))
    sampler.do(SetCurrentStep(step=5))
    batch = sampler.serve(5, 2)
    assert batch.current_step == 5
    masks = dict(zip(sampler.examples(batch), (mask(batch, 0), mask(batch, 1)), strict=True))
    assert masks == {"ex": [False, True, True, True], "fresh": None}
    assert stats(sampler).over_step_delay == 0, "as long as the batch may be released"
    sampler.do(MarkCheckpointed(step=5))
    found = stats(sampler)
    assert (found.over_step_delay, found.over_timestamp_delay) == (1, 0)


@pytest.mark.proves("E2")
def test_rollouts_that_were_made_too_long_ago_are_left_out_and_counted_apart() -> None:
    sampler = begun_at(5, max_rollout_timestamp_delay=5.0, max_rollout_step_delay=5)
    sampler.seal(group(0, 5, 5, 5, made=(LONG_AGO_US, LONG_AGO_US)))
    batch = sampler.choose(NextBatch(step=5, num_groups=1))
    assert isinstance(batch, ServedBatch)
    assert mask(batch) == [False, False, True, True]
    sampler.do(MarkCheckpointed(step=5))
    assert stats(sampler).over_timestamp_delay == 2


@pytest.mark.proves("E2")
@pytest.mark.parametrize(
    ("steps", "made", "reason"),
    [
        ((0, 0, 0, 9), (), "stale"),
        ((9, 9, 9, 9), (LONG_AGO_US,) * 3, "too_old"),
        ((0, 0, 9, 9), (0, 0, LONG_AGO_US), "too_old"),
        ((0, 0, 0, 0), (), "stale"),
    ],
)
def test_a_group_that_falls_below_its_minimum_goes_whole(
    steps: tuple[int, ...], made: tuple[int, ...], reason: str
) -> None:
    sampler = begun_at(
        9, max_policy_lag=-1, max_rollout_step_delay=5, max_rollout_timestamp_delay=5.0
    )
    sampler.seal(group(*steps, made=made))
    sampler.do(SetCurrentStep(step=9))
    error = sampler.choose(NextBatch(step=9, num_groups=1))
    assert isinstance(error, NotEnoughGroups)
    assert error.dropped == {reason: 1}
    assert stats(sampler).ready == {}
    late = (steps.count(0), sum(ts < 0 for ts in made))
    assert (stats(sampler).over_step_delay, stats(sampler).over_timestamp_delay) == late


def test_a_group_whose_rollouts_all_fit_is_served_whole_however_small() -> None:
    sampler = Decider(max_rollout_step_delay=0)
    sampler.seal(group(0))
    assert mask(sampler.serve(0, 1)) is None


def test_setting_the_step_drops_what_is_wholly_too_old_at_once() -> None:
    sampler = begun_at(4, max_rollout_step_delay=1)
    sampler.seal(group(0, 0), group(4, 4, example="fresh"))
    sampler.do(SetCurrentStep(step=4))
    found = stats(sampler)
    assert (found.ready, found.over_step_delay) == ({"math": 1}, 2)


@pytest.mark.proves("E2")
def test_setting_the_step_applies_both_limits_and_drops_groups_that_are_left_too_small() -> None:
    late = LONG_AGO_US
    sampler = begun_at(9, max_rollout_step_delay=2, max_rollout_timestamp_delay=5.0)
    sampler.seal(
        group(9, 9, 9, 9, example="fresh"),
        group(2, 9, 9, example="enough by step"),
        group(2, 2, 9, example="by step"),
        group(9, 9, 9, example="enough by time", made=(late, 0, 0)),
        group(9, 9, 9, example="by time", made=(late, late, 0)),
        group(2, 9, 9, example="by both", made=(0, late, 0)),
        group(2, 9, 9, example="one twice", made=(late, 0, 0)),
        group(9, example="small"),
        group(9, example="small and old", made=(late,)),
    )
    sampler.do(SetCurrentStep(step=9))
    assert sampler.do(AskProgress()).dropped == {
        "math": {
            "by step": {"stale": 1},
            "by time": {"too_old": 1},
            "by both": {"too_old": 1},
            "small and old": {"too_old": 1},
        }
    }
    found = stats(sampler)
    assert (found.ready, found.over_step_delay, found.over_timestamp_delay) == ({"math": 5}, 3, 4)
    sampler.now_us += 6_000_000
    before = len(sampler.events)
    sampler.do(SetCurrentStep(step=9))
    assert len(sampler.events) == before, "no time passed in the log"


@pytest.mark.parametrize("limits", [(3, 1), (1, 3)])
def test_of_a_limit_on_groups_and_one_on_rollouts_the_narrower_holds(
    limits: tuple[int, int],
) -> None:
    lag, delay = limits
    sampler = begun_at(5, max_policy_lag=lag, max_rollout_step_delay=delay)
    sampler.seal(group(3, 5, 5, example="mixed"), group(2, 2, 2, example="old"))
    sampler.do(SetCurrentStep(step=5))
    assert stats(sampler).ready == ({"math": 1} if lag > delay else {})
    if lag > delay:
        assert mask(sampler.serve(5, 1)) == [False, True, True]


@pytest.mark.proves("E2")
def test_the_batchs_step_is_the_clock_until_the_trainer_sets_one() -> None:
    sampler = Decider(max_rollout_step_delay=1)
    for step in range(3):
        sampler.seal(group(0, 0, step), group(step, step, step, example="b"))
        assert mask(sampler.serve(step, 1)) is None
    sampler.seal(group(0, 3, 3, example="d"))
    assert mask(sampler.serve(3, 1)) == [False, True, True]


@pytest.mark.parametrize("step", [4, 10**9, 2**63])
def test_a_step_that_cannot_be_there_yet_is_refused_and_drops_nothing(step: int) -> None:
    sampler = begun_at(3, max_rollout_step_delay=1, max_policy_lag=2)
    sampler.seal(group(3, 3))
    with pytest.raises(UnknownStep, match=r"set_current_step\(n\) with n of at most 3"):
        sampler.do(SetCurrentStep(step=step))
    assert stats(sampler).ready == {"math": 1}


def test_a_resume_begins_a_clock_of_its_own() -> None:
    sampler = begun_at(7, max_rollout_step_delay=1)
    sampler.do(SetCurrentStep(step=7))
    with pytest.raises(InvalidRequest, match="step 6 is before 7"):
        sampler.do(SetCurrentStep(step=6))
    sampler.do(Resume(checkpointed_step=None))
    sampler.seal(group(0, 0))
    assert mask(sampler.serve(0, 1)) is None


@pytest.mark.parametrize("rewards", [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0)])
def test_what_is_left_must_still_differ_where_that_was_asked(rewards: tuple[float, ...]) -> None:
    sampler = begun_at(5, max_rollout_step_delay=1)
    sampler.seal(GroupSpec(rewards=rewards, weight_steps=(0, 5, 5)))
    sampler.do(SetCurrentStep(step=5))
    found = sampler.choose(NextBatch(step=5, num_groups=1, accept="nonzero_std"))
    if rewards[1:] == (1.0, 1.0):
        assert isinstance(found, NotEnoughGroups)
        assert found.dropped == {"filtered": 1}
    else:
        assert isinstance(found, ServedBatch)


def test_a_replacement_has_a_mask_of_its_own() -> None:
    sampler = begun_at(5, max_rollout_step_delay=1)
    sampler.seal(group(3, 4, 5), group(4, 3, 5, example="other"))
    sampler.do(SetCurrentStep(step=5))
    first = sampler.serve(5, 1)
    assert mask(first) == [step >= 4 for step in weights(sampler, first)]
    other = sampler.choose(Replace(step=5, digest=first.digest, slots=(0,), reason="no"))
    assert isinstance(other, ServedBatch)
    assert mask(other) == [step >= 4 for step in weights(sampler, other)] != mask(first)


def test_the_digest_of_a_batch_covers_its_masks() -> None:
    digests = []
    for delay in (0, 1, 2):
        sampler = begun_at(5, max_rollout_step_delay=delay)
        sampler.seal(group(3, 4, 5, 5))
        sampler.do(SetCurrentStep(step=5))
        digests.append(sampler.serve(5, 1).digest)
    assert len(set(digests)) == 3


def weights(sampler: Decider, batch: ServedBatch) -> list[Any]:
    known = sampler.state.group(batch.groups[0])
    assert known is not None
    steps: list[Any] = known.rows.unpack().weight_steps.tolist()
    return steps


def test_a_policy_that_is_published_moves_the_clock_too() -> None:
    sampler = Decider(max_rollout_step_delay=0)
    sampler.seal(group(0, 0), group(0, 0, example="b"))
    sampler.serve(0, 1)
    sampler.do(PublishPolicy(step=1, policy_version="v1"))
    error = sampler.choose(NextBatch(step=1, num_groups=1))
    assert isinstance(error, NotEnoughGroups)
    assert "max_rollout_step_delay = 0" in str(error)


@pytest.mark.proves("E2", "F22")
@pytest.mark.parametrize("limit", ["max_policy_lag", "max_rollout_step_delay"])
def test_with_a_limit_in_steps_groups_of_an_unknown_age_are_dropped(limit: str) -> None:
    sampler = Decider(**{"max_policy_lag": -1, limit: 2})
    sampler.seal(
        group(0, -1, example="unknown"),
        GroupSpec(lineage="other", weight_step=-1, example_id="unknown"),
        GroupSpec(lineage="other"),
        group(0, 0, example="fresh"),
    )
    error = sampler.choose(NextBatch(step=0, num_groups=2))
    assert isinstance(error, NotEnoughGroups)
    assert (error.ready, error.waiting) == ({"math": 1}, {"lineage": 1})
    assert error.dropped == {"no_weight_step": 2}
    assert f"{limit} is 2; workers must publish(policy=…)" in str(error)
    assert f"samplers.trainer-a.{limit} = -1 serves weights of any age" in str(error)
    assert sampler.do(AskProgress()).dropped == {"math": {"unknown": {"no_weight_step": 2}}}
    assert sampler.serve(0, 1).groups[0].group_id, "the rest is served"


@pytest.mark.proves("F22")
def test_groups_of_an_unknown_age_are_bounded_by_default_and_else_served_as_any() -> None:
    bounded, unbounded = Decider(), Decider(max_policy_lag=-1)
    for sampler in (bounded, unbounded):
        sampler.seal(group(-1, -1), group(-1, 0, example="b"))
    error = bounded.choose(NextBatch(step=0, num_groups=1))
    assert isinstance(error, NotEnoughGroups)
    assert error.dropped == {"no_weight_step": 2}
    assert len(unbounded.serve(0, 2).groups) == 2


NOW_US = 3_600_000_000


@pytest.mark.parametrize(("made_us", "kept"), [(0, True), (-1, False), (2 * NOW_US, True)])
@pytest.mark.parametrize("sealed_us", [NOW_US - 1_000_000, NOW_US - 9_000_000])
def test_a_rollout_is_as_old_as_its_seal_at_least_and_where_its_time_is_unknown(
    made_us: int, kept: bool, sealed_us: int
) -> None:
    sampler = Decider(max_rollout_timestamp_delay=5.0)
    spec = group(0, 0, made=(made_us, made_us))
    flush = flush_of([spec], name="late", environment="math", now_ts=sealed_us)
    sampler.state.apply_groups(LOGS[1], 0, flush)
    (ref,) = sampler.state.ready.refs()
    limits = RowLimits(sampler.state, sampler.choosing, 0, NOW_US, spread=False)
    late = limits.kept(sampler.state.sealed(ref)).drop is not None
    assert late != (kept and sealed_us == NOW_US - 1_000_000)


@given(
    sealed=st.lists(ROLLOUTS, min_size=1, max_size=6),
    steps=st.sampled_from([-1, 2]),
    late_s=st.sampled_from([-1.0, 1.5]),
)
@settings(max_examples=examples(60), deadline=None)
def test_what_goes_by_both_limits_is_what_a_look_at_each_group_finds(
    sealed: list[list[tuple[int, int]]], steps: int, late_s: float
) -> None:
    sampler = begun_at(5, max_rollout_step_delay=steps, max_rollout_timestamp_delay=late_s)
    made = [
        group(
            *(step for step, _ in one), example=str(at), made=tuple(10**6 * s - 1 for _, s in one)
        )
        for at, one in enumerate(sealed)
    ]
    sampler.seal(*made)
    state = sampler.state
    limits = RowLimits(state, state.choosing, 5, 0, spread=False)
    expected = {}
    for ref in map(state.ready.packed.pack, state.ready.refs()):
        kept = limits.kept(state.ready.at(ref))
        if kept.drop is not None:
            expected[ref] = (kept.drop, *kept[1:3])
    drops = useless_groups(state, state.choosing, 5, 0, all_equal=False)
    found = [(ref, (why, *kept[1:3])) for why, of in drops.items() for ref, kept in of.items()]
    assert dict(found) == expected
