"""Rewards that come late: groups wait for them, and a batch keeps those that it was served with."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.newer_records import NEWER_PREFIX
from harness.sampler_worlds import WITHOUT_RAY, LocalWorld, SamplerWorld
from rollstream.producers import Score, ScoreProducer
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, NotEnoughGroups, SamplerApi
from rollstream.sampler.history import check_from_files, replay_step
from rollstream.schemas import codec
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.events import Flushed, RolloutScore, Scored
from rollstream.schemas.rules import FLOAT32_MAX
from rollstream.status import Alarm, measure, stuck_stages
from rollstream.streams.topics.layout import Layout

WAIT_S = 60.0
LATE = GroupSpec(rewards=(None, None))
REWARDED = GroupSpec(example_id="other", rewards=(0.0, 1.0))
FOR_EVER_S = 4e9  # These groups were sealed at a time long ago.
pytestmark = pytest.mark.proves("A18", "F16")


@pytest.fixture(autouse=True)
def patient(world: SamplerWorld) -> None:
    world.configure(score_timeout_s=FOR_EVER_S)


@pytest.fixture
def scores(world: SamplerWorld) -> Iterator[ScoreProducer]:
    with scorer(world, "tests") as made:
        yield made


def scorer(world: SamplerWorld, name: str) -> ScoreProducer:
    return ScoreProducer(
        environment="math",
        scorer=name,
        namespace=world.config.kafka.namespace,
        broker=world.broker(),
    )


def uids(flushed: Flushed) -> tuple[str, ...]:
    return flushed.segments.uids


def served(sampler: SamplerApi, step: int = 0, num_groups: int = 1) -> Batch:
    return sampler.next_batch(step, num_groups, timeout_s=WAIT_S)


def rewards_by_uid(batch: Batch) -> dict[str, float]:
    return dict(zip(batch.uids, batch.rewards.tolist(), strict=True))


@WITHOUT_RAY
def test_a_group_is_ready_once_its_last_score_is_there(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    first, second = uids(world.writer().flush(LATE))
    sampler = world.open()
    sampler.resume(None)
    scores.publish(rollout_uid=first, reward=0.25, rewards={"compiles": 1.0})
    scores.flush()
    with pytest.raises(NotEnoughGroups, match="no reward and no score") as short:
        sampler.next_batch(0, 1, timeout_s=0.5)
    assert short.value.waiting == {"reward": 1}
    scores.publish(rollout_uid=second, reward=-1.5)
    scores.flush()
    batch = served(sampler)
    assert rewards_by_uid(batch) == {first: 0.25, second: -1.5}
    assert batch.trajectory_returns.tolist() == [0.25, -1.5]
    assert [one.reward for one in batch.records(0)] == [0.25, -1.5]
    np.testing.assert_array_equal(batch.reward_components["compiles"], [1.0, np.nan])


@WITHOUT_RAY
def test_a_whole_group_is_scored_at_once_and_before_its_seal(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    writer = world.writer()
    sampler = world.open()
    sampler.resume(None)
    one, other = uids(flushed := writer.flush(LATE))
    scores.upsert_scores(flushed.groups[0].group_id, {one: 1.0, other: Score(0.5, {"style": 2.0})})
    scores.flush()
    assert rewards_by_uid(served(sampler)) == {one: 1.0, other: 0.5}
    # The names of what the writer seals next are known.
    early = [uid.replace("-1-g0-", "-2-g0-") for uid in (one, other)]
    for uid in early:
        scores.publish(rollout_uid=uid, reward=3.0)
    scores.flush()
    assert uids(writer.flush(LATE)) == tuple(early)
    assert rewards_by_uid(served(sampler, 1)) == dict.fromkeys(early, 3.0)


def test_a_served_batch_keeps_its_scores_through_everything(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    first, second = uids(flushed := world.writer().flush(LATE))
    group_id = flushed.groups[0].group_id
    scores.upsert_scores(group_id, {first: 1.0, second: 0.0}, flags=["slow"])
    scores.flush()
    sampler = world.open()
    sampler.resume(None)
    batch = served(sampler)
    assert all(isinstance(array, np.ndarray) for array in batch.arrays().values())
    scores.upsert_scores(group_id, {first: 7.0, second: 8.0})
    scores.flush()
    by_rank = sampler.next_batch(0, 1, timeout_s=WAIT_S, payloads="rank")
    world.restart()
    again = served(world.open())
    for other in (by_rank, again):
        assert other.digest == batch.digest
        assert rewards_by_uid(other) == {first: 1.0, second: 0.0}
    if isinstance(world, LocalWorld):
        world.restart()  # What was decided is written when it closes.
        checked = check_from_files(world.name, 0, config=world.config, store=world.store)
        assert checked.same
    (replayed,) = replay_step(
        world.name, 0, config=world.config, broker=world.broker(), timeout_s=WAIT_S
    )
    assert replayed.same


@WITHOUT_RAY
def test_a_named_scorer_goes_before_what_was_published(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    world.configure(score_timeout_s=FOR_EVER_S, scorer="judge")
    one, other = uids(world.writer().flush(GroupSpec(rewards=(0.0, 1.0))))
    with scorer(world, "judge") as judge:
        judge.publish(rollout_uid=one, reward=5.0, rewards={"format": 9.0})
    scores.publish(rollout_uid=other, reward=6.0)
    scores.flush()
    sampler = world.open()
    sampler.resume(None)
    batch = served(sampler)
    assert rewards_by_uid(batch) == {one: 5.0, other: 1.0}
    assert batch.reward_components["format"].tolist() == [9.0, 0.5]


@WITHOUT_RAY
def test_without_a_named_scorer_a_published_reward_stays(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    one, other = uids(world.writer().flush(GroupSpec(rewards=(0.5, None))))
    scores.publish(rollout_uid=one, reward=5.0)
    scores.publish(rollout_uid=other, reward=6.0)
    scores.flush()
    sampler = world.open()
    sampler.resume(None)
    assert rewards_by_uid(served(sampler)) == {one: 0.5, other: 6.0}


@WITHOUT_RAY
def test_a_named_version_is_waited_for_and_repetitions_are_none(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    world.configure(score_timeout_s=FOR_EVER_S, scorer="tests", score_version=2)
    flushed = world.writer().flush(LATE)
    group_id = flushed.groups[0].group_id
    sampler = world.open()
    sampler.resume(None)
    for reward in (1.0, 1.0):
        scores.publish(group_id=group_id, reward=reward)
    scores.publish(group_id=group_id, reward=4.0, attempt="a")
    scores.publish(group_id=group_id, reward=5.0, attempt="a")
    scores.publish(group_id=group_id, reward=6.0, attempt="b")
    scores.flush()
    assert served(sampler).rewards.tolist() == [4.0, 4.0]


@WITHOUT_RAY
def test_groups_whose_scores_are_equal_are_left_out_as_others_are(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    flushed = world.writer().flush(LATE, LATE)
    equal, spread = (group.group_id for group in flushed.groups)
    scores.publish(group_id=equal, reward=1.0)
    *_, one, other = uids(flushed)
    scores.upsert_scores(spread, {one: 0.0, other: 1.0})
    scores.flush()
    sampler = world.open()
    sampler.resume(None)
    batch = sampler.next_batch(0, 1, accept="nonzero_std", timeout_s=WAIT_S)
    assert batch.sampled.group_ids == (spread,)
    assert sampler.stats().outcomes == {"filtered": 1}


@WITHOUT_RAY
def test_scores_filter_and_weigh_and_the_batch_replays_after_an_edit(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    world.configure(
        score_timeout_s=FOR_EVER_S, min_mean_reward=0.25, reward_weighting="spread", seed=3
    )
    specs = [GroupSpec(rewards=(None, None), example_id=f"ex-{number}") for number in range(3)]
    flushed = world.writer().flush(*specs)
    sampler = world.open()
    sampler.resume(None)
    verdicts = ((0.0, 0.0), (0.5, 0.5), (0.0, 1.0))
    for number, (group, rewards) in enumerate(zip(flushed.groups, verdicts, strict=True)):
        pair = uids(flushed)[2 * number : 2 * number + 2]
        scores.upsert_scores(group.group_id, dict(zip(pair, rewards, strict=True)))
    scores.flush()
    sampler.flush()  # All three are known.
    batch = served(sampler, num_groups=2)
    assert list(batch.example_ids) == ["ex-2", "ex-2", "ex-1", "ex-1"]
    assert sampler.stats().outcomes == {"filtered": 1}
    scores.publish(group_id=flushed.groups[2].group_id, reward=0.0)
    scores.flush()
    world.restart()
    edited = world.config.model_copy(update={"samplers": {}})
    (replayed,) = replay_step(world.name, 0, config=edited, broker=world.broker(), timeout_s=WAIT_S)
    assert replayed.same


def test_flags_reach_the_batch_and_leave_groups_out_and_the_batch_replays(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    world.configure(score_timeout_s=FOR_EVER_S, exclude_flags=["toxic"], require_flags=["checked"])
    specs = [GroupSpec(rewards=(None, None), example_id=f"ex-{number}") for number in range(4)]
    flushed = world.writer().flush(*specs)
    sampler = world.open()
    sampler.resume(None)
    verdicts = (
        {"checked": True, "toxic": True},  # Of the second rollout; the first one is clean.
        {"checked": False},
        {"checked": True, "toxic": False, "terse": True},
        {"checked": True},
    )
    clean = {"checked": True, "toxic": False}
    for number, (group, flags) in enumerate(zip(flushed.groups, verdicts, strict=True)):
        first, second = uids(flushed)[2 * number : 2 * number + 2]
        scored = {first: Score(0.0, flags=clean), second: Score(1.0, flags=flags)}
        scores.upsert_scores(group.group_id, scored)
    scores.publish(group_id=flushed.groups[3].group_id, reward=1.0, flags={"toxic": True})
    scores.flush()
    sampler.flush()  # All are known.
    batch = served(sampler)
    assert set(batch.example_ids) == {"ex-2"}
    flags_by_row = {row: score.flags for row, score in batch.scores.items()}
    assert flags_by_row == {0: ("checked",), 1: ("checked", "terse")}
    assert sampler.stats().outcomes == {"filtered": 3}
    with pytest.raises(NotEnoughGroups) as short:
        sampler.next_batch(1, 1, timeout_s=0.5)
    assert 'exclude_flags = ["toxic"] or require_flags = ["checked"]' in str(short.value)
    world.restart()
    edited = world.config.model_copy(update={"samplers": {}})
    (replayed,) = replay_step(world.name, 0, config=edited, broker=world.broker(), timeout_s=WAIT_S)
    assert replayed.same


@WITHOUT_RAY
def test_a_flag_is_of_the_score_in_effect_alone(world: SamplerWorld, scores: ScoreProducer) -> None:
    world.configure(score_timeout_s=FOR_EVER_S, scorer="judge", exclude_flags=["toxic"])
    flushed = world.writer().flush(*[GroupSpec(example_id=f"ex-{number}") for number in range(3)])
    other, taken_back, left_out = (group.group_id for group in flushed.groups)
    scores.publish(group_id=other, reward=1.0, flags=["toxic"])  # Of another scorer.
    with scorer(world, "judge") as judge:
        judge.publish(group_id=taken_back, reward=0.0, flags=["toxic"])
        judge.publish(group_id=taken_back, reward=0.0, flags=[])
        judge.publish(group_id=left_out, reward=0.0, flags=["toxic"])
    scores.flush()
    sampler = world.open()
    sampler.resume(None)
    sampler.flush()
    batch = served(sampler, num_groups=2)
    assert {*batch.sampled.group_ids} == {other, taken_back}
    assert sampler.stats().outcomes == {"filtered": 1}


@WITHOUT_RAY
def test_one_extreme_reward_or_score_stops_no_sampler_and_loses_no_other_group(
    world: SamplerWorld, scores: ScoreProducer
) -> None:
    world.configure(
        score_timeout_s=FOR_EVER_S, min_mean_reward=0.25, reward_weighting="spread", admission=False
    )
    rewards = ((1.0, 0.0), (sys.float_info.max, 1.0), (None, 1.0), (0.5, 1.0))
    specs = [GroupSpec(rewards=of, example_id=f"ex-{i}") for i, of in enumerate(rewards)]
    flushed = world.writer().flush(*specs)
    scores.publish(rollout_uid=uids(flushed)[4], reward=-FLOAT32_MAX)
    scores.flush()
    sampler = world.open()
    sampler.resume(None)
    first = served(sampler, num_groups=2)
    world.restart()
    sampler = world.open()
    second = sampler.next_batch(1, 1, timeout_s=WAIT_S)
    assert {*first.example_ids, *second.example_ids} == {"ex-0", "ex-1", "ex-3"}
    assert sampler.stats().outcomes == {"filtered": 1}


@WITHOUT_RAY
def test_a_group_that_nobody_scores_is_dropped_and_counted(world: SamplerWorld) -> None:
    world.configure(score_timeout_s=60.0)
    world.writer().flush(LATE)
    sampler = world.open()
    sampler.resume(None)
    with pytest.raises(NotEnoughGroups, match="score_timeout_s = 60 s") as short:
        sampler.next_batch(0, 1, timeout_s=0.5)
    assert short.value.dropped == {"unscored": 1}
    assert sampler.stats().outcomes == {"unscored": 1}


@WITHOUT_RAY
@pytest.mark.proves("F24")
def test_groups_whose_scores_a_newer_version_wrote_wait_and_all_others_are_served(
    world: SamplerWorld,
) -> None:
    """They have waited for longer than they may, and are not dropped: their score may be there."""
    world.configure(score_timeout_s=60.0)
    topic = Layout.of(world.config.kafka).scores("math")
    writer = world.broker().writer()
    for partition in range(2):
        writer.append(topic, NEWER_PREFIX, partition=partition)
    writer.flush(WAIT_S)
    world.writer().flush(LATE)
    sampler = world.open()
    sampler.resume(None)
    with pytest.raises(NotEnoughGroups, match="upgrade this process") as short:
        sampler.next_batch(0, 1, timeout_s=0.5)
    assert (short.value.dropped, short.value.waiting) == ({}, {"reward": 1})
    stats = sampler.stats()
    assert {*stats.aside} == {f"{topic}[0]", f"{topic}[1]"}
    assert stats.scores_behind == ("math",)
    figures = measure(world.broker(), world.config, Deadline(WAIT_S, SystemClock()))
    told = [one for one in stuck_stages(figures, world.config) if one.alarm == Alarm.PUT_ASIDE]
    assert [one.stage for one in told] == ["sampler", "sampler"]
    assert f"the scores of {topic}[0] are read no further" in told[0].reason
    world.writer().flush(REWARDED)
    assert served(sampler).rewards.tolist() == [0.0, 1.0]


@WITHOUT_RAY
def test_what_is_no_score_is_passed_over(world: SamplerWorld, scores: ScoreProducer) -> None:
    topic = Layout.of(world.config.kafka).scores("math")
    writer = world.broker().writer()
    for partition in range(2):
        writer.append(topic, b"no event", partition=partition)
    writer.flush(WAIT_S)
    flushed = world.writer().flush(LATE)
    group_id = flushed.groups[0].group_id
    with pytest.raises(InvalidRollout, match=r"reward is 1e\+308; float32, .* 3.4028235e\+38"):
        scores.publish(group_id=group_id, reward=1e308)
    with pytest.raises(InvalidRollout, match=r"rewards\['tests'\] is 1e\+39; float32"):
        scores.upsert_scores(group_id, {"u": Score(0.0, {"tests": 1e39})})
    scores.publish(group_id=group_id, reward=1.0)
    scores.flush()
    # They come later, so they would count.
    for reward, rewards in ((1e308, {}), (2.0, {"tests": -1e39})):
        score = RolloutScore("", reward, rewards, ())
        scored = Scored(
            scorer="tests", attempt="a", group_id=group_id, scored_ts=1, scores=(score,)
        )
        for partition in range(2):
            writer.append(topic, codec.encode(scored), partition=partition)
    writer.flush(WAIT_S)
    sampler = world.open()
    sampler.resume(None)
    assert served(sampler).rewards.tolist() == [1.0, 1.0]


@WITHOUT_RAY
def test_how_long_scorers_take_is_told(world: SamplerWorld, scores: ScoreProducer) -> None:
    flushed = world.writer().flush(LATE)
    sampler = world.open()
    sampler.resume(None)
    assert sampler.stats().verifier_latency_ms is None
    begun_ms = time.time() * 1e3 - flushed.now_ts / 1e3
    scores.publish(group_id=flushed.groups[0].group_id, reward=1.0)
    scores.flush()
    served(sampler)
    took_ms = sampler.stats().verifier_latency_ms
    assert took_ms is not None
    assert took_ms == pytest.approx(begun_ms, abs=WAIT_S * 1e3)
