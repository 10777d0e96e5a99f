"""What both producers promise of admission, on the broker in memory and on Kafka."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from itertools import groupby
from typing import Any

import pytest

from harness.admission import announce, announced, granted
from harness.granting import Granting
from harness.producer_stage import Stage
from harness.producers import AnyProducer, sampled
from rollstream.producers import (
    InvalidRollout,
    InvalidSettings,
    NotAdmitted,
    ProducerClosed,
    RunOver,
    SeveralLineages,
    TooManyGroups,
)
from rollstream.schemas.ingest.entry import EntryKind


@pytest.fixture
def granting(stage: Stage) -> Granting:
    return Granting(stage.broker, stage.layout)


async def elsewhere(call: Any, *arguments: Any) -> Any:
    """Calls it on a thread, so that the loop goes on."""
    return await asyncio.to_thread(call, *arguments)


async def play(producer: AnyProducer, example_id: str = "ex", **arguments: Any) -> None:
    """Dispatches a group of one, and publishes it."""
    async with producer.dispatch(example_id=example_id, group_size=1, **arguments) as group:
        await group.publish(**sampled())


async def admitted_now(producer: AnyProducer) -> int:
    """How many groups it may begin without waiting, at most 9; it keeps none of them open."""
    for number in range(9):
        try:
            await play(producer, timeout_s=0)
        except NotAdmitted:
            return number
    return 9


def test_where_no_sampler_ever_granted_any_nothing_is_limited(stage: Stage) -> None:
    assert stage.play(admitted_now) == 9  # There is no topic.
    Granting(stage.broker, stage.layout)
    assert stage.play(admitted_now) == 9
    Granting(stage.broker, stage.layout).grant(lineage="another")
    assert stage.play(admitted_now, lineage="main") == 9
    assert stage.play(admitted_now) == 0


def test_a_producer_that_nobody_knows_tells_that_it_waits_and_begins_what_it_is_granted(
    stage: Stage, granting: Granting
) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        playing = asyncio.ensure_future(play(producer))
        await elsewhere(granting.until_told, 0, 1)
        assert not playing.done()
        await elsewhere(granting.grant, 3)
        await playing
        assert await admitted_now(producer) == 2

    stage.play(scenario)
    kinds = [one.entry.kind for one in stage.log()]
    assert kinds.count(EntryKind.DISPATCHED) == 3
    assert {one.producer_id for one in granting.told()} == {granting.told()[0].producer_id}
    begun = [one.begun for one in granting.told()]
    assert max(begun) == 3
    telling = {one.record for one in stage.log() if one.record.producer is not None}
    assert all({EntryKind.DISPATCHED, EntryKind.ALIVE} & {*one.kinds} for one in telling)


def test_those_that_wait_when_the_run_ends_begin_nothing(stage: Stage, granting: Granting) -> None:
    announce(stage.broker, granting.topic, announced(5))
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        waiting = [asyncio.ensure_future(play(producer)) for _ in range(3)]
        await elsewhere(granting.until_told, 0, 3)
        announce(stage.broker, granting.topic, announced(5, offset=6, over=True))
        await elsewhere(partial(granting.grant, valid_s=-1.0))
        for one in waiting:
            with pytest.raises(RunOver, match=r"the run of sampler 'a' is over"):
                await one
        await play(producer, timeout_s=0)  # Who begins later is not limited.

    stage.play(scenario)
    assert [one.entry.kind for one in stage.log()].count(EntryKind.DISPATCHED) == 1


def test_those_that_wait_begin_once_admission_is_off(stage: Stage, granting: Granting) -> None:
    announce(stage.broker, granting.topic, announced(5))
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        waiting = asyncio.ensure_future(play(producer))
        await elsewhere(granting.until_told, 0, 1)
        await elsewhere(partial(granting.grant, valid_s=-1.0))
        await waiting

    stage.play(scenario)


def test_those_that_wait_are_admitted_in_their_order(stage: Stage, granting: Granting) -> None:
    granting.grant()
    admitted: list[int] = []

    async def scenario(producer: AnyProducer) -> None:
        async def work(number: int) -> None:
            async with producer.dispatch(example_id=f"ex-{number}", group_size=1) as group:
                admitted.append(number)
                await group.publish(**sampled())

        working = []
        for number in range(3):
            working.append(asyncio.ensure_future(work(number)))
            if not number:
                await elsewhere(granting.until_told, 0, 1)
        await elsewhere(granting.grant, 1)
        await working[0]
        with pytest.raises(NotAdmitted):  # Nobody overtakes those that wait.
            await play(producer, timeout_s=0)
        await elsewhere(granting.grant, 3)
        await asyncio.gather(*working)

    stage.play(scenario)
    assert admitted[0] == 0
    assert sorted(admitted) == [0, 1, 2]


def test_more_groups_than_can_ever_be_open_are_refused_at_once(
    stage: Stage, granting: Granting
) -> None:
    granting.grant(most=8)

    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(TooManyGroups, match=r"^groups is 9.*sampler a.* 8 or fewer") as refused:
            async with producer.admit(groups=9):
                pass
        wrong = refused.value
        assert (wrong.groups, wrong.most, wrong.field, wrong.value) == (9, 8, "groups", 9)
        assert wrong.remedy.startswith("ask for 8 or fewer")
        with pytest.raises(NotAdmitted):
            async with producer.admit(groups=8, timeout_s=0):
                pass

    stage.play(scenario)


def test_who_waits_for_more_than_turns_out_to_be_possible_is_refused_then(
    stage: Stage, granting: Granting
) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        async def begin(groups: int) -> None:
            async with producer.admit(groups=groups):
                pass

        waiting = asyncio.ensure_future(begin(9))
        await elsewhere(granting.until_told, 0, 9)
        behind = asyncio.ensure_future(begin(2))
        await elsewhere(partial(granting.grant, 4, most=8))
        with pytest.raises(TooManyGroups):
            await waiting
        await behind

    stage.play(scenario)


def test_of_several_samplers_the_smallest_total_holds_until_it_leaves(
    stage: Stage, granting: Granting
) -> None:
    granting.grant(sampler="b")
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        assert await admitted_now(producer) == 0
        await elsewhere(partial(granting.grant, 1, sampler="b"))
        await elsewhere(granting.grant, 5)
        await play(producer)
        assert await admitted_now(producer) == 0
        granting.grant(sampler="b", valid_s=0.0)  # It leaves.
        await play(producer)
        assert await admitted_now(producer) == 3

    stage.play(scenario)


def test_where_samplers_of_two_lineages_grant_shares_the_producer_names_one(
    stage: Stage, granting: Granting
) -> None:
    granting.grant(lineage="main")

    async def either(producer: AnyProducer) -> None:
        waiting = asyncio.ensure_future(play(producer))
        await elsewhere(granting.until_told, 0, 1)
        await elsewhere(partial(granting.grant, sampler="b", lineage="other"))
        with pytest.raises(SeveralLineages, match="'main' and 'other'"):  # What waits is told.
            await waiting
        with pytest.raises(SeveralLineages):
            await play(producer)
        with pytest.raises(SeveralLineages) as told:
            async with producer.admit():
                pass
        assert told.value.lineages == ("main", "other")
        await play(producer, split="eval")

    stage.play(either)
    assert stage.play(admitted_now, lineage="other") == 0
    assert stage.play(admitted_now, lineage="third") == 9


def test_a_zombies_older_epoch_and_what_is_late_or_repeated_change_nothing(
    stage: Stage, granting: Granting
) -> None:
    granting.grant()
    granting.grant(sampler="b")

    async def scenario(producer: AnyProducer) -> None:
        assert await admitted_now(producer) == 0
        me = await elsewhere(granting.producer_id)
        announce(
            stage.broker,
            granting.topic,
            granted(3, {me: 1}, epoch=7),
            granted(2, {me: 9}, epoch=7),
            granted(3, {me: 9}, epoch=7),
            granted(99, {me: 9}, epoch=6),
            granted(3, {me: 9}, sampler="b"),  # When it has begun one, all of these were read.
        )
        await play(producer)
        assert await admitted_now(producer) == 0

    stage.play(scenario)


def test_a_new_worker_that_reads_a_zombies_shares_is_healed_by_the_owners_next(
    stage: Stage, granting: Granting
) -> None:
    granting.grant(epoch=6)

    async def scenario(producer: AnyProducer) -> None:
        playing = asyncio.ensure_future(play(producer))
        me = await elsewhere(granting.producer_id)
        announce(stage.broker, granting.topic, granted(1, {me: 1}, epoch=7))
        await playing

    stage.play(scenario)


def test_not_admitted_names_what_was_waited_for_and_the_groups_that_are_open(
    stage: Stage, granting: Granting
) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> NotAdmitted:
        assert await admitted_now(producer) == 0
        await elsewhere(partial(granting.grant, limit="samples_per_insert"), 1)
        async with producer.dispatch(example_id="outer", group_size=1, group_uid="g-1") as group:
            with pytest.raises(NotAdmitted) as told:
                await play(producer, "inner", timeout_s=0.05)
            await group.publish(**sampled())
        return told.value

    told = stage.play(scenario)
    assert (told.sampler, told.capacity, told.away_s) == ("a", 1, None)
    assert told.open_groups == ("g-1 of outer",)
    assert "not admitted within 0.05 s" in str(told)
    assert "sampler a allowed it 1 in all" in str(told)
    assert "shared out room for 1 among all producers when that last changed" in str(told)
    assert ", by its samples_per_insert" in str(told)
    assert "this producer's own blocks hold 1 (g-1 of outer)" in str(told)
    (dispatched,) = [one for one in stage.log() if one.entry.kind == EntryKind.DISPATCHED]
    assert dispatched.fields["example_id"] == "outer"


def test_groups_for_evaluation_are_neither_limited_nor_counted(
    stage: Stage, granting: Granting
) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        for _ in range(3):
            await play(producer, split="eval")
        assert await admitted_now(producer) == 0
        await elsewhere(granting.grant, 1)
        await play(producer)

    stage.play(scenario)
    assert {one.begun for one in granting.told()} == {0, 1}


def test_admit_gives_back_what_was_not_used(stage: Stage, granting: Granting) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        assert await admitted_now(producer) == 0
        await elsewhere(granting.grant, 3)
        async with producer.admit(groups=3):
            assert await admitted_now(producer) == 0
        async with producer.admit(groups=2, timeout_s=0):
            await producer.publish(example_id="ex", **sampled())
        assert await admitted_now(producer) == 2

    stage.play(scenario)


def test_admit_waits_until_there_is_room_for_all_and_others_pass_it_in_their_turn(
    stage: Stage, granting: Granting
) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        async def take() -> None:
            async with producer.admit(groups=2):
                pass

        taking = asyncio.ensure_future(take())
        await elsewhere(granting.until_told, 0, 2)
        await elsewhere(granting.grant, 1)
        await play(producer)
        assert not taking.done()
        await elsewhere(granting.grant, 3)
        await taking
        assert await admitted_now(producer) == 2

    stage.play(scenario)


@pytest.mark.parametrize("groups", [0, -1, 1.5, True, "2"])
def test_admit_takes_a_number_of_groups(stage: Stage, groups: Any) -> None:
    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(InvalidSettings, match=f"groups is {groups!r}"):
            async with producer.admit(groups=groups):
                pass

    stage.play(scenario)


def test_a_time_that_is_none_and_an_environment_that_is_none_are_refused(stage: Stage) -> None:
    async def scenario(producer: AnyProducer) -> None:
        for block in (producer.admit, producer.dispatch):
            arguments = {} if block == producer.admit else {"example_id": "ex", "group_size": 1}
            with pytest.raises(InvalidSettings, match="timeout_s is -1"):
                async with block(timeout_s=-1, **arguments):
                    pass
            with pytest.raises(InvalidRollout, match="environment"):
                async with block(environment="a.b", **arguments):
                    pass

    stage.play(scenario)


@pytest.mark.parametrize("ends", ["by time-out", "by close"])
def test_a_producer_that_waits_no_more_says_so(stage: Stage, granting: Granting, ends: str) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        async with AsyncExitStack() as stack:
            timeout_s = 5.0 if ends == "by time-out" else 60.0  # With the broker's first answers.
            playing = asyncio.ensure_future(play(producer, timeout_s=timeout_s))
            await elsewhere(granting.until_told, 0, 1)
            if ends == "by close":
                stack.push_async_callback(producer.close)
        with pytest.raises(NotAdmitted if ends == "by time-out" else ProducerClosed):
            await playing
        if ends == "by time-out":
            await elsewhere(granting.until_told, 0, 0)

    stage.play(scenario)
    told = [one[1:] for one in granting.told()]  # While it waits, again each 2 s.
    assert [one for one, _ in groupby(told)] == [(0, 1), (0, 0)]


def test_close_ends_what_waits(stage: Stage, granting: Granting) -> None:
    granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        async with AsyncExitStack() as stack:
            playing = asyncio.ensure_future(play(producer))
            await elsewhere(granting.until_told, 0, 1)
            stack.push_async_callback(producer.close)
        with pytest.raises(ProducerClosed):
            await playing
        with pytest.raises(ProducerClosed):
            await play(producer)

    stage.play(scenario)


def test_a_process_that_dispatches_again_begins_at_none_with_a_name_of_its_own(
    stage: Stage, granting: Granting
) -> None:
    for _ in range(2):
        stage.play(play)
    told = granting.told()
    assert [one[1:] for one in told] == [(1, 0), (1, 0)]
    assert len({one.producer_id for one in told}) == 2
