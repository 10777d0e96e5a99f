"""How workers get policies, and say what sampled: both producers, in memory and on Kafka."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from typing import Any

import pytest

from harness.admission import announce, announced
from harness.brokers import TIMEOUT_S
from harness.producer_stage import Stage
from harness.producers import AnyProducer, sampled, segments_of
from rollstream.producers import (
    FollowedPolicy,
    NoPolicy,
    ProducerClosed,
    RunOver,
    SeveralLineages,
)
from rollstream.schemas.events import PolicyAnnounced
from rollstream.schemas.order import Policy

SHORT_S = 0.5  # For what does not come.


def tell(stage: Stage, *events: PolicyAnnounced, environment: str = "math") -> None:
    """A trainer's sampler writes these."""
    announce(stage.broker, stage.layout.admission(environment), *events)


async def newest(producer: AnyProducer, **arguments: Any) -> FollowedPolicy:
    return await producer.policy(timeout_s=TIMEOUT_S, **arguments)


@pytest.mark.proves("F22")
def test_the_newest_policy_is_there_at_once_with_all_that_its_trainer_said(stage: Stage) -> None:
    tell(stage, announced(1), announced(2, policy_epoch=3, metadata='{"bits":8}', lineage="a"))

    async def scenario(producer: AnyProducer) -> FollowedPolicy:
        policy = await newest(producer)
        assert not policy.stale()
        return policy

    policy = stage.play(scenario)
    assert (policy.version, policy.step, policy.epoch, policy.lineage) == ("step-2", 2, 3, "a")
    assert (policy.weights, policy.metadata) == ("/weights/2", {"bits": 8})


@pytest.mark.proves("F22")
def test_a_policy_is_waited_for_and_then_the_next_one(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> list[int]:
        first = asyncio.create_task(newest(producer))
        await asyncio.to_thread(tell, stage, announced(1))
        second = asyncio.create_task(newest(producer, newer_than=await first))
        await asyncio.to_thread(tell, stage, announced(0, offset=2), announced(3))
        return [(await first).step, (await second).step]

    assert stage.play(scenario) == [1, 3]


@pytest.mark.proves("F22")
def test_who_waits_for_a_newer_one_is_told_that_the_run_is_over_and_may_begin_again(
    stage: Stage,
) -> None:
    tell(stage, announced(4))

    async def scenario(producer: AnyProducer) -> int:
        fourth = await newest(producer)
        waiting = asyncio.create_task(newest(producer, newer_than=fourth))
        tell(stage, announced(5), announced(5, offset=6, over=True))
        fifth = await waiting
        with pytest.raises(RunOver, match=r"the run of sampler 'a' is over.* 'step-5' \(step 5\)"):
            await newest(producer, newer_than=fifth)
        with pytest.raises(RunOver, match="start its trainer again to extend the run"):
            await producer.policy(timeout_s=0)
        tell(stage, announced(6, offset=9), announced(5, offset=6, over=True))
        return (await until_newer(producer, fifth)).step

    async def until_newer(producer: AnyProducer, policy: FollowedPolicy) -> FollowedPolicy:
        while True:
            try:
                return await newest(producer, newer_than=policy)
            except RunOver:
                await asyncio.sleep(0.01)

    assert stage.play(scenario) == 6


@pytest.mark.proves("F22")
def test_who_starts_before_the_trainer_of_an_extended_run_waits_for_it(stage: Stage) -> None:
    tell(stage, announced(5))

    async def scenario(producer: AnyProducer) -> int:
        fifth = await newest(producer)
        await asyncio.to_thread(tell, stage, announced(5, offset=6, over=True))
        with pytest.raises(RunOver):  # It has read that.
            await newest(producer, newer_than=fifth)
        with pytest.raises(RunOver, match=r"the run of sampler 'a' is over.* 'step-5' \(step 5\)"):
            await producer.policy(timeout_s=SHORT_S)
        waiting = asyncio.create_task(newest(producer))
        await asyncio.to_thread(tell, stage, announced(5, offset=7))
        return (await waiting).step

    assert stage.play(scenario) == 5


@pytest.mark.proves("F22")
def test_where_another_trainer_of_the_lineage_goes_on_a_finished_run_is_not_followed(
    stage: Stage,
) -> None:
    """It published last, and would serve what the other one drops."""
    tell(stage, announced(5, sampler="b", published_ts=100, max_policy_lag=1))

    async def scenario(producer: AnyProducer) -> list[tuple[str, int]]:
        found = [await newest(producer)]
        tell(stage, announced(7, policy_version="a-7", published_ts=200))
        found.append(await newest(producer, newer_than=found[-1]))
        tell(stage, announced(7, offset=8, policy_version="a-7", published_ts=200, over=True))
        found.append(await newest(producer, newer_than=found[-1]))
        assert await newest(producer) == found[-1]
        assert not found[-1].stale()
        tell(stage, announced(8, sampler="b", published_ts=300, max_policy_lag=1))
        found.append(await newest(producer, newer_than=found[-1]))
        assert found[0].stale()
        over = announced(8, offset=9, sampler="b", published_ts=300, over=True)
        tell(stage, over)
        with pytest.raises(RunOver, match=r"the run of sampler 'b' is over.* 'step-8' \(step 8\)"):
            await newest(producer, newer_than=found[-1])
        return [(one.version, one.step) for one in found]

    assert stage.play(scenario) == [("step-5", 5), ("a-7", 7), ("step-5", 5), ("step-8", 8)]


def test_many_may_wait_at_once(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> list[int]:
        waiting = [asyncio.create_task(newest(producer)) for _ in range(20)]
        await asyncio.to_thread(tell, stage, announced(4))
        return [policy.step for policy in await asyncio.gather(*waiting)]

    assert stage.play(scenario) == [4] * 20


@pytest.mark.proves("F17")
def test_where_none_comes_it_says_what_was_waited_for_and_what_to_look_at(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(
            NoPolicy, match=r"policy in environment 'math' was not known within 3 s; .*trainer"
        ):
            await producer.policy(timeout_s=3.0)  # A broker may lack a new topic's leader first.
        await asyncio.to_thread(tell, stage, announced(4, lineage="a"))
        policy = await newest(producer)
        with pytest.raises(NoPolicy, match=r"newer than 'step-4' \(step 4\) of lineage 'a' in"):
            await producer.policy(newer_than=policy, timeout_s=SHORT_S)
        with pytest.raises(NoPolicy, match="of lineage 'b' in environment 'math'"):
            await producer.policy(lineage="b", timeout_s=SHORT_S)
        with pytest.raises(NoPolicy, match=r"'elsewhere' was not .*`rollstream topics create`"):
            await producer.policy(environment="elsewhere", timeout_s=3.0)

    stage.play(scenario)


@pytest.mark.proves("F22")
def test_of_two_models_in_training_one_is_named(stage: Stage) -> None:
    tell(stage, announced(5, lineage="a"), announced(7, lineage="b", sampler="b"))

    async def either(producer: AnyProducer) -> list[int]:
        with pytest.raises(
            SeveralLineages, match=r"'a' and 'b' in training; .* policy\(lineage=…\)$"
        ) as both:
            await newest(producer)
        assert both.value.lineages == ("a", "b")
        first = await newest(producer, lineage="a")
        tell(stage, announced(6, lineage="a"))
        return [first.step, (await newest(producer, newer_than=first)).step]

    async def own(producer: AnyProducer) -> int:
        return (await newest(producer)).step

    assert stage.play(either) == [5, 6]
    assert stage.play(own, lineage="b") == 7


@pytest.mark.proves("F22")
def test_the_default_lineage_is_named_beside_another_one(stage: Stage) -> None:
    tell(stage, announced(5, lineage="s"), announced(7, sampler="b"))

    async def either(producer: AnyProducer) -> tuple[int, str]:
        with pytest.raises(SeveralLineages, match=r"'' \(the default\) and 's' in training"):
            await newest(producer)
        found = await newest(producer, lineage="")
        return found.step, found.lineage

    async def own(producer: AnyProducer) -> tuple[int, str]:
        found = await newest(producer)
        with pytest.raises(NoPolicy, match=r"newer than 'step-7' .* of lineage '' in"):
            await producer.policy(newer_than=found, timeout_s=SHORT_S)
        return found.step, found.lineage

    assert stage.play(either) == (7, "")
    assert stage.play(own, lineage="") == (7, "")


@pytest.mark.proves("F22")
def test_a_trainer_that_goes_on_under_another_sampler_is_followed_at_once(stage: Stage) -> None:
    """Its epochs begin anew. The old sampler's repetition, by a zombie or not, changes nothing."""
    old = announced(9, sampler="old", policy_epoch=3, published_ts=100, max_policy_lag=2)
    tell(stage, announced(8, sampler="old", policy_epoch=3, published_ts=90))

    async def scenario(producer: AnyProducer) -> list[tuple[int, int]]:
        found = [await newest(producer)]
        tell(stage, old)
        found.append(await newest(producer, newer_than=found[-1]))
        for policy in (
            announced(9, sampler="new", published_ts=200, policy_version="anew"),
            announced(10, sampler="new", published_ts=300),
        ):
            tell(stage, policy, old)
            found.append(await newest(producer, newer_than=found[-1]))
        tell(stage, old)
        with pytest.raises(NoPolicy):
            await producer.policy(newer_than=found[-1], timeout_s=SHORT_S)
        found.append(await newest(producer))
        return [(one.epoch, one.step) for one in found]

    assert stage.play(scenario) == [(3, 8), (3, 9), (0, 9), (0, 10), (0, 10)]


@pytest.mark.proves("F22")
def test_where_the_trainer_that_published_last_went_back_behind_all_it_published_none_is_given(
    stage: Stage,
) -> None:
    tell(stage, announced(5, sampler="old", published_ts=100))
    tell(stage, announced(8, sampler="new", published_ts=200, branches={1: 3}))

    async def scenario(producer: AnyProducer) -> int:
        with pytest.raises(NoPolicy):
            await producer.policy(timeout_s=SHORT_S)
        back = announced(4, offset=12, policy_epoch=1, branches={1: 3})
        tell(stage, dataclasses.replace(back, sampler="new", published_ts=300))
        return (await newest(producer)).step

    assert stage.play(scenario) == 4


@pytest.mark.proves("F22")
def test_an_environment_has_policies_of_its_own(stage: Stage) -> None:
    tell(stage, announced(5))
    tell(stage, announced(9), environment="code")

    async def scenario(producer: AnyProducer) -> list[int]:
        return [
            (await newest(producer)).step,
            (await newest(producer, environment="code")).step,
        ]

    assert stage.play(scenario) == [5, 9]


@pytest.mark.proves("F22")
def test_what_is_too_far_behind_or_off_the_branch_is_stale(stage: Stage) -> None:
    tell(stage, announced(5, max_policy_lag=2))

    async def scenario(producer: AnyProducer) -> None:
        fifth = await newest(producer)
        tell(stage, announced(7, max_policy_lag=2))
        seventh = await newest(producer, newer_than=fifth)
        assert (fifth.stale(), seventh.stale()) == (False, False)
        tell(stage, announced(8, max_policy_lag=2))
        eighth = await newest(producer, newer_than=seventh)
        assert (fifth.stale(), seventh.stale(), eighth.stale()) == (True, False, False)
        # The trainer goes back: weights 7 on are computed anew.
        back = {"policy_version": "step-6", "max_policy_lag": 2, "branches": {1: 6}}
        tell(stage, announced(6, offset=20, **back))
        sixth = await newest(producer, newer_than=eighth)
        assert (sixth.step, sixth.epoch) == (6, 0)
        stale = [one.stale() for one in (fifth, sixth, seventh, eighth)]
        assert stale == [False, False, True, True]

    stage.play(scenario)


@pytest.mark.proves("F22")
def test_no_policy_that_its_trainer_left_is_handed_out(stage: Stage) -> None:
    tell(stage, announced(8, offset=9, branches={1: 3}))

    async def scenario(producer: AnyProducer) -> int:
        with pytest.raises(NoPolicy):
            await producer.policy(timeout_s=SHORT_S)
        tell(stage, announced(4, offset=12, policy_epoch=1, branches={1: 3}))
        return (await newest(producer)).epoch

    assert stage.play(scenario) == 1


@pytest.mark.proves("F22", "A15")
def test_a_policy_is_published_whole_by_every_call(stage: Stage) -> None:
    tell(stage, announced(5, policy_epoch=2, lineage="a"))
    rest = {"output_tokens": [3, 4], "logprobs": [-0.5, -0.25]}

    async def scenario(producer: AnyProducer) -> None:
        policy = await newest(producer)
        await producer.publish(example_id="ex", policy=policy, **rest)
        async with producer.dispatch(example_id="ex", group_size=2) as group:
            await group.publish(policy=Policy("a", 2, 5, "step-5"), **rest)
            async with group.trajectory() as trajectory:
                await trajectory.turn(policy=policy, **rest)
                await trajectory.turn(policy=pickle.loads(pickle.dumps(policy)), **rest)

    stage.play(scenario)
    said = [
        (one["policy_version"], one["weight_step"], one["policy_epoch"], one["lineage"])
        for one in segments_of(stage.log())
    ]
    assert said == [("step-5", 5, 2, "a")] * 4


@pytest.mark.proves("F22")
def test_a_group_is_not_wanted_once_its_oldest_policy_is_stale(stage: Stage) -> None:
    tell(stage, announced(5, max_policy_lag=2))

    async def scenario(producer: AnyProducer) -> None:
        policy = await newest(producer)
        async with producer.dispatch(example_id="a", group_size=4) as group:
            assert group.wanted()
            async with producer.dispatch(example_id="b", group_size=4) as other:
                await other.publish(**sampled(weight_step=6))
                await group.publish(**sampled(weight_step=6))
                await group.publish(**sampled(weight_step=5))
                tell(stage, announced(8, max_policy_lag=2))
                await newest(producer, newer_than=policy)
                assert (group.wanted(), other.wanted()) == (False, True)

    stage.play(scenario)


def test_before_its_first_member_a_group_is_as_old_as_the_newest_policy_then(
    stage: Stage,
) -> None:
    tell(stage, announced(5, max_policy_lag=2))

    async def scenario(producer: AnyProducer) -> None:
        policy = await newest(producer)
        async with producer.dispatch(example_id="a", group_size=4) as group:
            assert group.wanted()
            tell(stage, announced(8, max_policy_lag=2))
            await newest(producer, newer_than=policy)
            assert not group.wanted()
            async with group.trajectory() as trajectory:
                await trajectory.turn(**sampled(weight_step=7))
                assert group.wanted()

    stage.play(scenario)


def test_a_close_ends_the_wait_for_a_policy_and_what_is_known_of_one(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        waiting = asyncio.create_task(newest(producer))
        with pytest.raises(NoPolicy):  # So that the other one waits, too.
            await producer.policy(timeout_s=SHORT_S)
        tell(stage, announced(1))
        policy = await waiting
        waiting = asyncio.create_task(newest(producer, newer_than=policy))
        await producer.close()
        with pytest.raises(ProducerClosed):
            await waiting
        with pytest.raises(ProducerClosed):  # Nobody knows by now.
            policy.stale()
        with pytest.raises(ProducerClosed):
            await newest(producer)

    stage.play(scenario)
