"""Calls that come at one time, and are decided one after the other in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.folds.state import SamplerState
from rollstream.sampler.actor.agreement import Agree
from rollstream.sampler.decide.batches.made import MadeOf
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.command import Command, Now
from rollstream.sampler.decide.trainer.commands import Ack, Resume
from rollstream.sampler.decide.trainer.pool import ResumePool
from rollstream.sampler.engine.calls import Call
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.errors import MakerDiffers, RequestDiffers
from rollstream.schemas.events import SamplerEvent
from rollstream.streams.errors import Fenced


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    world = memory_world()
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(8)))
    yield world
    world.close()


def decided(owner: OwnerInProcess, *commands: Command[Any]) -> list[Call[Any]]:
    """The calls, after one pass; none had to be asked for first."""
    calls = [owner.begin(command) for command in commands]
    assert owner.decide_all(calls, lambda: None) == []
    return calls


def batch(rank: int = 0, groups: int = 2) -> NextBatch:
    return NextBatch(step=0, num_groups=groups, dp_rank=rank, dp_size=2)


def test_of_ranks_that_ask_at_one_time_one_decides_and_each_is_answered(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, decide = list[int](), NextBatch._decide

    def noted(command: NextBatch, state: SamplerState, now: Now) -> list[SamplerEvent]:
        ranks.append(command.dp_rank)
        return decide(command, state, now)

    monkeypatch.setattr(NextBatch, "_decide", noted)
    with closing(world.owner()) as owner:
        decided(owner, Resume(checkpointed_step=None))
        calls = decided(owner, batch(0), batch(1), batch(0), batch(1))
        shares = [call.answered.result(0).value.key for call in calls]
        assert shares[:2] == shares[2:]
        assert shares[0] != shares[1]
        assert ranks == [0]
        acks = decided(owner, *[Ack(step=0, batch_id=f"{world.name}-1-0")] * 3)
        assert [call.answered.result(0).value for call in acks] == [None] * 3


def test_a_call_that_differs_among_equal_ones_fails_alone(world: LocalWorld) -> None:
    with closing(world.owner()) as owner:
        first, differs, last = decided(owner, batch(), batch(groups=3), batch())
        with pytest.raises(RequestDiffers):
            differs.answered.result(0)
        assert first.answered.result(0).value.key == last.answered.result(0).value.key


def test_equal_looks_that_come_at_one_time_are_all_answered(world: LocalWorld) -> None:
    agree = Agree(config=world.config)  # It has no hash.
    with closing(world.owner()) as owner:
        calls = decided(owner, agree, agree, agree)
        assert [call.answered.result(0).value for call in calls] == [None] * 3


def test_what_a_rank_made_is_compared_where_an_equal_call_decided(world: LocalWorld) -> None:
    def shaped(step: int, rank: int, made: MadeOf | None = None) -> NextShapedBatch:
        return NextShapedBatch(
            step=step,
            settings="{}",
            num_groups=2,
            min_groups=2,
            carried=(),
            dp_rank=rank,
            dp_size=3,
            made=made,
        )

    def made(digest: bytes) -> MadeOf:
        return MadeOf(step=0, batch_id=f"{world.name}-1-0", maker="mine", digest=digest)

    with closing(world.owner()) as owner:
        decided(owner, Resume(checkpointed_step=None), *(shaped(0, rank) for rank in range(3)))
        ranks = [shaped(1, rank, made(digest)) for rank, digest in enumerate((b"a", b"a", b"b"))]
        *same, other = decided(owner, *ranks)
        assert [call.answered.exception(0) for call in same] == [None, None]
        with pytest.raises(MakerDiffers):
            other.answered.result(0)


@pytest.mark.parametrize("resume", [Resume(checkpointed_step=None), ResumePool()])
def test_resumes_that_come_at_one_time_begin_an_epoch_each(
    resume: Command[Any], world: LocalWorld
) -> None:
    with closing(world.owner()) as owner:
        calls = decided(owner, resume, resume)
        assert [call.answered.result(0).trainer_epoch for call in calls] == [1, 2]


def test_a_decision_that_a_resume_gave_back_is_made_anew(world: LocalWorld) -> None:
    with closing(world.owner()) as owner:
        decided(owner, Resume(checkpointed_step=None))
        release = Resume(checkpointed_step=None, later="release")
        before, _, after = decided(owner, batch(), release, batch())
        replies = [call.answered.result(0) for call in (before, after)]
        assert [reply.trainer_epoch for reply in replies] == [1, 2]
        assert replies[0].value.key != replies[1].value.key


def test_nobody_is_told_that_groups_are_missing_once_a_successor_took_over(
    world: LocalWorld,
) -> None:
    with closing(world.owner()) as first, closing(world.owner()) as successor:
        decided(first, Resume(checkpointed_step=None))
        successor.execute(Resume(checkpointed_step=None), 0.0)
        with pytest.raises(Fenced):
            first.execute(batch(groups=9), 0.0)


def test_nobody_is_answered_by_what_was_decided_before_a_successor_took_over(
    world: LocalWorld,
) -> None:
    with closing(world.owner()) as first, closing(world.owner()) as successor:
        decided(first, Resume(checkpointed_step=None), batch())
        successor.execute(Resume(checkpointed_step=None), 0.0)
        calls = [first.begin(batch(rank)) for rank in (0, 1)]
        assert first.decide_all(calls, lambda: None) == calls
        for call in calls:
            with pytest.raises(Fenced):
                first.decide(call)
        assert not any(call.ended for call in calls)
