"""What a shaped step carries from the one before: what is recorded, and what is held for it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.folds import state as fold
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.saved_state import copied
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.batches.shaped import Carry, NextShapedBatch
from rollstream.sampler.decide.trainer.commands import Ack, Drop, MarkCheckpointed, Purge, Resume
from rollstream.sampler.errors import (
    CarryLost,
    CarryNeeded,
    InvalidRequest,
    NotEnoughGroups,
    RequestDiffers,
    UnknownStep,
)
from rollstream.streams.folds.refs import ref_of

pytestmark = pytest.mark.proves("D2")
BOTH, FIRST, SECOND = (True, True), (True, False), (False, True)


def sealed(*examples: str, **config: Any) -> Decider:
    sampler = Decider(**config)
    more(sampler, *examples)
    return sampler


def more(sampler: Decider, *examples: str) -> None:
    """Each in a flush, and so a file, of its own."""
    for example in examples:
        sampler.seal(GroupSpec(example_id=example))


def shape(
    sampler: Decider, step: int, carried: Carry | None = (), num_groups: int = 1, **asked: Any
) -> ServedBatch:
    command = NextShapedBatch(
        step=step,
        **{"settings": '{"maker": "m"}', "min_groups": 0, **asked},
        num_groups=num_groups,
        carried=carried,
    )
    batch = sampler.choose(command)
    if isinstance(batch, NotEnoughGroups):
        raise batch
    return batch


def ids(batch: ServedBatch) -> list[str]:
    return [one.group_id for one in batch.all_groups]


def by_decisions_alone(sampler: Decider) -> SamplerState:
    """As retention folds it."""
    state = sampler.fresh()
    for offset, event in enumerate(sampler.events):
        state.apply(offset, 0, event)
    return state


def logs_first(sampler: Decider) -> SamplerState:
    state = sampler.fresh()
    for one in sampler.sealed:
        state.apply_groups(*one)
    for offset, event in enumerate(sampler.events):
        state.apply(offset, sampler.log_us, event)
    return state


def decisions_first(sampler: Decider) -> SamplerState:
    state = by_decisions_alone(sampler)
    for one in sampler.sealed:
        state.apply_groups(*one)
    return state


def test_the_new_groups_come_first_and_the_carried_ones_last_as_they_were_served() -> None:
    sampler = sealed("a", "b", "c")
    first = shape(sampler, 0, num_groups=2)
    second = shape(sampler, 1, ((ids(first)[1], SECOND), (ids(first)[0], FIRST)))
    assert ids(second)[1:] == [ids(first)[1], ids(first)[0]]
    assert ids(second)[0] not in ids(first)
    assert second.carried[0].group == first.groups[1]
    assert second.carried[0].wanted.tolist() == [False, True]
    third = shape(sampler, 2, ((ids(first)[0], FIRST),))  # Carried twice, and no new one.
    assert ids(third) == [ids(first)[0]]


def test_the_digest_covers_what_is_carried_and_which_of_it_is_wanted() -> None:
    digests = set()
    for carry in ((), FIRST, SECOND, BOTH):
        sampler = sealed("a", "b")
        group_id = ids(shape(sampler, 0))[0]
        digests.add(shape(sampler, 1, ((group_id, carry),) if carry else ()).digest)
    assert len(digests) == 4
    chosen = shape(sealed("a", "b"), 0, num_groups=2)  # The same groups, none carried.
    assert chosen.digest not in digests


def test_as_many_groups_as_are_ready_once_there_are_enough() -> None:
    sampler = sealed("a", "b", "c")
    with pytest.raises(NotEnoughGroups, match="step 0 needs 4 groups"):
        shape(sampler, 0, num_groups=8, min_groups=4)
    assert len(ids(shape(sampler, 0, num_groups=8, min_groups=3))) == 3
    with pytest.raises(NotEnoughGroups):
        shape(sampler, 1, num_groups=8, min_groups=1)
    assert ids(shape(sampler, 1, num_groups=8)) == []
    more(sampler, "d", "e")
    assert len(ids(shape(sampler, 2, num_groups=1, min_groups=1))) == 1


@pytest.mark.parametrize(("ready", "served"), [("math", 0), ("both", 4)])
def test_fewer_groups_keep_the_shares_of_a_mix(ready: str, served: int) -> None:
    sampler = sealed("a", "b", "c")
    if ready == "both":
        sampler.seal(*(GroupSpec(example_id=f"c{i}") for i in range(2)), log=LOGS[0])
    batch = shape(sampler, 0, num_groups=16, mix={"math": 1.0, "code": 1.0})
    of = [one.environment for one in batch.groups]
    assert len(of) - of.count("math") <= of.count("code") + 1
    assert len(of) >= served


def test_what_the_ratio_holds_back_is_not_served_and_an_empty_batch_is() -> None:
    sampler = sealed("a", "b", samples_per_insert=1.0, error_buffer=(1.0, 4.0))
    assert len(ids(shape(sampler, 0, num_groups=2))) == 1
    assert ids(shape(sampler, 1, num_groups=2)) == []


def test_who_made_the_carry_of_another_batch_is_told_which_one_and_decides_nothing() -> None:
    sampler = sealed("a", "b", "c", "d")
    first = shape(sampler, 0)
    carry: Carry = ((ids(first)[0], FIRST),)
    sampler.decide(Replace(step=0, digest=first.digest, slots=(0,), reason="bad"))
    now = sampler.state.batches[0]
    events = len(sampler.events)
    for carried, after in ((carry, first.batch_id), ((), ""), (None, None)):
        with pytest.raises(CarryNeeded, match=r"recorded_batch\(0\)") as told:
            shape(sampler, 1, carried, after=after)
        needed = pickle.loads(pickle.dumps(told.value))
        assert (needed.batch_id, needed.final) == (now.batch_id, False)
        assert json.loads(needed.request)["shaping"] == {"maker": "m"}
    assert len(sampler.events) == events
    with pytest.raises(CarryNeeded) as told:
        shape(Decider(), 0, None)
    assert (told.value.batch_id, told.value.request) == ("", "{}")
    carry = ((ids(now)[0], FIRST),)
    assert shape(sampler, 1, carry, after=now.batch_id).carried


def test_who_goes_from_step_to_step_gets_what_was_served_whatever_it_only_asks_for() -> None:
    sampler = sealed("a", "b", "c", "d")
    first = shape(sampler, 0, settings='{"packs": {"length": 8, "target": 4}}')
    served = shape(
        sampler, 1, (), after=first.batch_id, settings='{"packs": {"length": 8, "target": 4}}'
    )
    asked = {"after": "another", "only_ask": ("num_groups", "shaping.packs.target")}
    other = ((ids(first)[0], SECOND),)
    again = shape(sampler, 1, other, 3, settings='{"packs": {"length": 8, "target": 6}}', **asked)
    assert again is served
    with pytest.raises(RequestDiffers, match=r"for another request: shaping\.packs\.length was 8"):
        shape(sampler, 1, other, 3, settings='{"packs": {"length": 9, "target": 6}}', **asked)


def test_a_repeated_call_gives_the_batch_and_another_request_says_what_differs() -> None:
    sampler = sealed("a", "b", "c")
    group_id = ids(shape(sampler, 0))[0]
    carry: Carry = ((group_id, FIRST),)
    served = shape(sampler, 1, carry)
    before = len(sampler.events)
    assert shape(sampler, 1, carry) is served
    assert shape(sampler, 1, None) is served  # As it was recorded.
    with pytest.raises(RequestDiffers, match=r'shaping\.maker was "m" and is now 2'):
        shape(sampler, 1, carry, settings='{"maker": 2}')
    with pytest.raises(RequestDiffers, match="num_groups was 1 and is now 2"):
        shape(sampler, 1, carry, num_groups=2)
    with pytest.raises(RequestDiffers, match=f"wanted.{group_id} was 10 and is now 01"):
        shape(sampler, 1, ((group_id, SECOND),))
    with pytest.raises(RequestDiffers, match="is now not given"):
        shape(sampler, 1, ())
    with pytest.raises(RequestDiffers, match="served for"):
        sampler.choose(NextBatch(step=1, num_groups=1))
    assert len(sampler.events) == before


def test_what_cannot_be_carried_is_refused_and_nothing_is_decided() -> None:
    sampler = sealed("a", "b", "c", "d")
    (first,) = ids(shape(sampler, 0))
    shape(sampler, 1)
    before = len(sampler.events)
    with pytest.raises(InvalidRequest, match="neither chosen nor carried"):
        shape(sampler, 2, ((first, BOTH),))
    (second,) = [one.group_id for one in sampler.state.batches[1].groups]
    with pytest.raises(
        InvalidRequest, match=r"wanted of group .* has 3 values; it was served with 2"
    ):
        shape(sampler, 2, ((second, (True, False, True)),))
    with pytest.raises(InvalidRequest, match="twice"):
        shape(sampler, 2, ((second, BOTH), (second, BOTH)))
    with pytest.raises(UnknownStep, match="was not served, so nothing is recorded"):
        shape(sampler, 2, None)
    with pytest.raises(InvalidRequest, match="are no JSON"):
        shape(sampler, 2, settings="{")
    with pytest.raises(InvalidRequest, match="min_groups 2 is not within"):
        shape(sampler, 2, num_groups=1, min_groups=2)
    assert len(sampler.events) == before
    sampler.serve(2, 1)
    plain = sampler.state.batches[2].groups[0].group_id
    with pytest.raises(InvalidRequest, match="was served by next_batch"):
        shape(sampler, 3, ((plain, BOTH),))


def test_trajectories_of_several_segments_are_wanted_or_not_with_all_their_rows() -> None:
    sampler = Decider()
    segments: list[dict[str, Any]] = [
        {"rollout_uid": "u-0", "segment_idx": 0, "is_last_segment": False},
        {"rollout_uid": "u-0", "segment_idx": 1},
        {"rollout_uid": "u-1"},
    ]
    sampler.seal(GroupSpec(rewards=(0.0, 1.0, 0.0), extras=segments))
    (group_id,) = ids(shape(sampler, 0))
    second = shape(sampler, 1, ((group_id, FIRST),))
    assert second.carried[0].wanted.tolist() == [True, True, False]
    third = shape(sampler, 2, ((group_id, SECOND),))
    assert third.carried[0].wanted.tolist() == [False, False, True]


# What is held.


def done(sampler: Decider, batch: ServedBatch) -> list[bool]:
    """Of each group, by the decisions alone: whether its file may be deleted."""
    state = by_decisions_alone(sampler)
    assert [sampler.state.is_done(ref) for ref in batch.all_refs] == [
        state.is_done(ref) for ref in batch.all_refs
    ]
    open_groups = state.open_groups()
    found = [state.is_done(ref) for ref in batch.all_refs]
    assert all(
        ref not in open_groups for ref, over in zip(batch.all_refs, found, strict=True) if over
    )
    return found


def test_the_newest_batch_is_held_though_it_is_final_until_nothing_can_carry_it() -> None:
    sampler = sealed("a", "b", "c", "d", "e")
    first = shape(sampler, 0, num_groups=2)
    sampler.do(MarkCheckpointed(step=0))
    assert done(sampler, first) == [False, False]
    second = shape(sampler, 1, ((ids(first)[0], FIRST),))
    # A release goes back to the newest final step, whose successor carries anew.
    assert done(sampler, first) == [False, False]
    sampler.do(MarkCheckpointed(step=1))
    assert done(sampler, first) == [False, True]
    assert done(sampler, second) == [False, False]
    shape(sampler, 2)
    sampler.do(MarkCheckpointed(step=2))
    assert done(sampler, first) == [True, True]
    assert done(sampler, second) == [True, True]


def test_a_batch_that_is_not_shaped_is_not_held_once_it_is_final() -> None:
    sampler = sealed("a", "b")
    batch = sampler.serve(0, 2)
    sampler.do(MarkCheckpointed(step=0))
    assert done(sampler, batch) == [True, True]


def test_a_group_that_may_be_served_again_waits_until_no_step_can_carry_it() -> None:
    sampler = sealed("a", "b", max_samples=2)
    first = shape(sampler, 0)
    ref = first.refs[0]
    sampler.do(Ack(step=0, batch_id=first.batch_id))
    assert ref not in sampler.state.ready
    sampler.do(MarkCheckpointed(step=0))
    second = shape(sampler, 1, ((ids(first)[0], FIRST),))
    assert second.refs != (ref,)
    sampler.do(Ack(step=1, batch_id=second.batch_id))
    sampler.do(MarkCheckpointed(step=1))
    third = shape(sampler, 2, num_groups=0)
    sampler.do(Ack(step=2, batch_id=third.batch_id))
    sampler.do(MarkCheckpointed(step=2))
    assert ref in sampler.state.ready  # Carrying was no use.
    sampler.do(Purge())
    assert ref not in sampler.state.ready


def test_neither_a_purge_nor_a_drop_nor_capacity_takes_what_is_held() -> None:
    sampler = sealed("a", max_samples=3, capacity_groups=1)
    first = shape(sampler, 0)
    sampler.do(Ack(step=0, batch_id=first.batch_id))
    sampler.do(MarkCheckpointed(step=0))
    more(sampler, "b", "c")
    sampler.evict()
    sampler.do(Purge())
    sampler.do(Drop(group_ids=(ids(first)[0],), reason="for a test"))
    assert ids(shape(sampler, 1, ((ids(first)[0], BOTH),))) == ids(first)


def test_a_carried_group_outlives_the_batch_that_it_was_chosen_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold, "FINAL_BATCHES_KEPT", 2)
    sampler = sealed("a", *"bcdefgh")
    (group_id,) = ids(shape(sampler, 0))
    ref = sampler.state.batches[0].refs[0]
    for step in range(1, 7):
        shape(sampler, step, ((group_id, FIRST),))
        sampler.do(MarkCheckpointed(step=step))
    assert 0 not in sampler.state.batches
    assert sampler.state.sealed(ref).group.group_id == group_id
    assert not by_decisions_alone(sampler).is_done(ref)
    assert decisions_first(sampler).digest() == sampler.state.digest()
    for step in range(7, 11):
        shape(sampler, step)
        sampler.do(MarkCheckpointed(step=step))
    assert by_decisions_alone(sampler).is_done(ref)
    assert not sampler.state.known_as([group_id])


# What resumes do.


def test_a_replay_gives_the_recorded_batches_with_what_they_carried() -> None:
    sampler = sealed("a", "b", "c")
    first = shape(sampler, 0)
    second = shape(sampler, 1, ((ids(first)[0], FIRST),))
    sampler.do(Resume(checkpointed_step=0))
    again = shape(sampler, 1, None)
    assert (again.digest, ids(again)) == (second.digest, ids(second))
    assert shape(sampler, 1, ((ids(first)[0], FIRST),)).digest == second.digest


@pytest.mark.parametrize("final", [False, True])
def test_a_release_frees_what_later_steps_had_and_goes_back_to_what_the_checkpoint_left(
    *, final: bool
) -> None:
    sampler = sealed("a", "b", "c")
    first = shape(sampler, 0)
    second = shape(sampler, 1, ((ids(first)[0], FIRST),))
    third = shape(sampler, 2, ((ids(second)[0], BOTH), (ids(first)[0], FIRST)))
    if final:
        sampler.do(MarkCheckpointed(step=0))
    sampler.do(Resume(checkpointed_step=0, later="release"))
    assert {one.group_id for one in second.groups + third.groups} == {
        sampler.state.sealed(ref).group.group_id for ref in sampler.state.ready.refs()
    }
    assert not done(sampler, first)[0]
    assert ids(shape(sampler, 1, ((ids(first)[0], SECOND),)))[1:] == ids(first)


def test_a_release_behind_what_was_final_refuses_what_was_retired() -> None:
    sampler = sealed("a", "b", "c", "d")
    first = shape(sampler, 0)
    for step in (1, 2):
        shape(sampler, step)
        sampler.do(MarkCheckpointed(step=step))
    assert done(sampler, first) == [True]
    sampler.retire(LOGS[1], first.refs[0].offset)
    sampler.do(Resume(checkpointed_step=0, later="release"))
    with pytest.raises(CarryLost, match="its file was retired"):
        shape(sampler, 1, ((ids(first)[0], FIRST),))
    assert shape(sampler, 1).event.step == 1


def test_a_replay_of_a_step_that_carries_a_retired_group_is_refused() -> None:
    sampler = sealed("a", "b", "c", "d", "e")
    first = shape(sampler, 0)
    shape(sampler, 1, ((ids(first)[0], FIRST),))
    for step in (2, 3):
        shape(sampler, step)
        sampler.do(MarkCheckpointed(step=step))
    sampler.retire(LOGS[1], first.refs[0].offset)
    with pytest.raises(UnknownStep, match="the first is 1"):
        sampler.do(Resume(checkpointed_step=0))


def test_a_group_that_the_next_step_carries_is_not_replaced_and_another_is() -> None:
    sampler = sealed("a", "b", "c", "d", "e")
    first = shape(sampler, 0, num_groups=2)
    shape(sampler, 1, ((ids(first)[0], FIRST),))
    with pytest.raises(RequestDiffers, match="carries some of them"):
        sampler.choose(Replace(step=0, digest=first.digest, slots=(0,), reason="tried"))
    after = sampler.choose(Replace(step=0, digest=first.digest, slots=(1,), reason="tried"))
    assert isinstance(after, ServedBatch)
    second = sampler.state.batches[1]
    with pytest.raises(InvalidRequest, match="after which come those that it carries"):
        sampler.choose(Replace(step=1, digest=second.digest, slots=(1,), reason="tried"))
    other = sampler.choose(Replace(step=1, digest=second.digest, slots=(0,), reason="tried"))
    assert isinstance(other, ServedBatch)
    assert ids(other)[1:] == [ids(first)[0]]
    assert other.digest != second.digest
    for state in (logs_first(sampler), decisions_first(sampler)):
        assert state.digest() == sampler.state.digest()


@pytest.mark.parametrize("max_samples", [2, -1])
def test_a_group_that_is_carried_is_not_served_again_in_the_same_batch(max_samples: int) -> None:
    sampler = sealed("a", "b", max_samples=max_samples)
    for step in range(4):
        batch = shape(sampler, step, num_groups=0 if step else 2)
        sampler.do(Ack(step=step, batch_id=batch.batch_id))
        sampler.do(MarkCheckpointed(step=step))
    sampler.do(Resume(checkpointed_step=0, later="release"))
    first = ids(sampler.state.batches[0])
    batch = shape(sampler, 1, tuple((one, BOTH) for one in first), num_groups=2)
    assert sorted(ids(batch)) == sorted(first)
    for other in (logs_first(sampler), decisions_first(sampler), copied(sampler.state)):
        assert other.digest() == sampler.state.digest()


@pytest.mark.parametrize("seed", range(60))
def test_any_run_is_folded_to_the_same_and_what_may_be_carried_is_there(seed: int) -> None:
    """Whatever the order of the logs; and a copy goes on as the state does."""
    rng = np.random.default_rng(seed)
    sampler = Decider(max_samples=int(rng.choice([1, 2, -1])))
    done_before: set[object] = set()
    for number in range(40):
        state = sampler.state
        step = state.next_step
        match rng.choice(["seal", "shape", "shape", "ack", "save", "replay", "release", "replace"]):
            case "seal":
                more(sampler, *(f"{number}-{i}" for i in range(rng.integers(1, 4))))
            case "shape":
                before = state.batches.get(step - 1)
                carry = _some_of(before, rng) if before is not None else ()
                shape(sampler, step, carry, num_groups=int(rng.integers(0, 4)))
            case "ack":
                for batch in state.open_batches()[:2]:
                    sampler.do(Ack(step=batch.event.step, batch_id=batch.batch_id))
            case "save" if state.open_batches():
                sampler.do(MarkCheckpointed(step=state.open_batches()[0].event.step))
            case "replay" | "release" as later if step:
                saved = max(state.final_step, 0) if state.batches else None
                if saved is not None and saved < step:
                    sampler.do(Resume(checkpointed_step=saved, later=later))
            case "replace" if state.open_batches():
                _replace(sampler, state.open_batches()[-1])
            case _:
                pass
        done_before -= {ref for ref in done_before if sampler.state.is_done(ref)}  # type: ignore[arg-type]
        assert not done_before, "done stays done where resumes go back to what is final"
        done_before = {
            ref_of(one)
            for event in sampler.events
            if hasattr(event, "groups") and hasattr(event, "digest")
            for one in event.groups
            if sampler.state.is_done(ref_of(one))
        }
        newest = sampler.state.batches.get(sampler.state.next_step - 1)
        for ref in () if newest is None else newest.all_refs:
            assert ref not in sampler.state.ready
            assert not sampler.state.is_done(ref)
            assert sampler.state.sealed(ref)
    for other in (logs_first(sampler), decisions_first(sampler), copied(sampler.state)):
        assert other.digest() == sampler.state.digest()


def _some_of(batch: ServedBatch, rng: np.random.Generator) -> Carry:
    some = [one for one in ids(batch) if rng.random() < 0.5]
    return tuple((one, (bool(rng.random() < 0.5), bool(rng.random() < 0.5))) for one in some)


def _replace(sampler: Decider, batch: ServedBatch) -> None:
    later = sampler.state.batches.get(batch.event.step + 1)
    if later or batch.status or not batch.groups or not len(sampler.state.ready):
        return
    step = batch.event.step
    sampler.choose(Replace(step=step, digest=batch.digest, slots=(0,), reason="tried"))
