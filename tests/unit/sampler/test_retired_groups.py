"""What a sampler makes of files that sealers retire."""

from __future__ import annotations

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.trainer.commands import Ack, Finish, MarkCheckpointed, Resume
from rollstream.sampler.errors import UnknownStep
from rollstream.schemas.events import CursorRecorded
from rollstream.streams.folds.refs import GroupRef, ref_of

LOG = LOGS[1]
NEVER = 1 << 62


def sealed(*examples: str) -> Decider:
    """A group a flush."""
    sampler = Decider()
    for example in examples:
        sampler.seal(GroupSpec(example_id=example))
    return sampler


def test_a_group_whose_file_is_retired_is_not_served_and_counted() -> None:
    sampler = sealed("a", "b")
    sampler.retire(LOG, 0)
    assert sampler.progress().ready == {"math": 1}
    sampler.evict()
    assert sampler.state.outcomes.totals() == {"retired": 1}
    assert sampler.progress().dropped == {"math": {"a": {"retired": 1}}}
    assert sampler.examples(sampler.serve(0, 1)) == ["b"]


def test_a_group_of_an_open_batch_stays_in_it_and_is_not_served_again_once_released() -> None:
    sampler = sealed("a", "b")
    batch = sampler.serve(0, 2)
    sampler.retire(LOG, 0)
    assert sampler.serve(0, 2) == batch
    assert all(sampler.state.group(chosen) is not None for chosen in batch.groups)
    sampler.evict()
    sampler.do(Resume(checkpointed_step=None, later="release"))
    assert sampler.progress().ready == {"math": 1}
    assert sampler.state.outcomes.totals() == {"retired": 1}


def test_the_cursor_is_recorded_once_after_files_were_retired() -> None:
    sampler = sealed("a", "b")
    sampler.evict()
    assert sampler.events == []
    sampler.retire(LOG, 0)
    sampler.evict()
    sampler.evict()
    (event,) = sampler.events
    assert isinstance(event, CursorRecorded)
    assert sampler.state.recorded(LOG) == 3


def test_a_batch_records_the_cursor_too() -> None:
    sampler = sealed("a", "b")
    sampler.retire(LOG, 0)
    sampler.serve(0, 1)
    assert sampler.state.recorded(LOG) == 3
    assert not sampler.state.cursor_is_due


def test_to_record_the_cursor_begins_no_run_again() -> None:
    sampler = sealed("a")
    sampler.do(Finish())
    sampler.retire(LOG, 0)
    sampler.evict()
    assert sampler.state.over


def by_decisions_alone(sampler: Decider) -> SamplerState:
    """What a sealer knows of it, who reads no seal log for that."""
    state = SamplerState("trainer-a", sampler.choosing, LOGS)
    for log in LOGS:
        state.start_at(log, NEVER)
    for offset, event in enumerate(sampler.events):
        state.apply(offset, 0, event)
    return state


@pytest.mark.proves("I7")
@pytest.mark.parametrize("uses", [1, 2])
def test_a_group_is_done_once_it_was_used_as_often_as_it_may_be(uses: int) -> None:
    sampler = Decider(max_samples=2)
    sampler.seal(GroupSpec(example_id="a"))
    ref = GroupRef(*LOG, 0, 0)
    for step in range(uses):
        assert not by_decisions_alone(sampler).is_done(ref)
        sampler.serve(step, 1)
        sampler.do(MarkCheckpointed(step=step))
    for state in (sampler.state, by_decisions_alone(sampler)):
        assert state.is_done(ref) == (uses == 2)


@pytest.mark.proves("I7")
def test_done_is_what_is_final_or_has_ended_by_the_decisions_alone() -> None:
    sampler = sealed("a", "b", "c", "d")
    batches = [sampler.serve(step, 1) for step in range(3)]
    sampler.do(MarkCheckpointed(step=0))
    sampler.do(Resume(checkpointed_step=1, later="release"))
    alone = by_decisions_alone(sampler)
    refs = [ref_of(batch.groups[0]) for batch in batches]
    never_served = ({GroupRef(*LOG, offset, 0) for offset in range(4)} - {*refs}).pop()
    for state in (sampler.state, alone):
        done = [state.is_done(ref) for ref in [*refs, never_served]]
        assert done == [True, True, False, False]
    assert not alone.is_done(GroupRef("elsewhere", 1, 0, 0, 0))


@pytest.mark.proves("I7")
def test_a_resume_that_would_replay_retired_groups_is_refused_and_may_release_them() -> None:
    sampler = sealed("a", "b", "c")
    batches = [sampler.serve(step, 1) for step in range(2)]
    sampler.do(MarkCheckpointed(step=1))
    sampler.retire(LOG, ref_of(batches[1].groups[0]).offset)
    with pytest.raises(UnknownStep, match=r"from 0 on .* the first is 1.*later='release'"):
        sampler.do(Resume(checkpointed_step=None))
    assert sampler.do(Resume(checkpointed_step=1)) == 2
    assert sampler.do(Resume(checkpointed_step=0, later="release")) == 1
    before = {batch.groups[0].group_id for batch in batches}
    assert sampler.serve(1, 1).groups[0].group_id not in before


def test_a_step_behind_a_release_is_not_called_final() -> None:
    sampler = sealed("a", "b")
    batch = sampler.serve(0, 1)
    sampler.do(MarkCheckpointed(step=0))
    sampler.do(Resume(checkpointed_step=None, later="release"))
    with pytest.raises(UnknownStep, match="next one to be served is 0 and none is final"):
        sampler.do(Ack(step=0, batch_id=batch.batch_id))
