"""What an ack makes of a batch and its groups."""

from __future__ import annotations

from typing import Any

import pytest

from harness.decider import Decider
from harness.groups import GroupSpec
from rollstream.folds.batches.row_outcomes import RowOutcome
from rollstream.folds.batches.served import ServedBatch
from rollstream.sampler import InvalidRequest, RequestDiffers
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.queries.looks import AskBatches, AskStats
from rollstream.sampler.decide.trainer.commands import Ack, AckStatus, MarkCheckpointed, Resume


def specs(count: int) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}") for i in range(count)]


def test_acks_are_said_once_and_name_the_batch() -> None:
    sampler = Decider()
    sampler.seal(*specs(4))
    batch = sampler.serve(0)
    ack = Ack(step=0, batch_id=batch.event.batch_id)
    sampler.do(ack)
    events = len(sampler.events)
    sampler.do(ack)
    assert len(sampler.events) == events
    with pytest.raises(RequestDiffers, match="acked as 'trained'"):
        sampler.do(Ack(step=0, batch_id=batch.event.batch_id, status="failed"))
    with pytest.raises(RequestDiffers, match="other"):
        sampler.do(Ack(step=0, batch_id="other"))


@pytest.mark.proves("A16")
def test_groups_that_an_ack_names_as_skipped_do_not_count_as_trained() -> None:
    sampler = Decider()
    sampler.seal(*specs(4))
    batch = sampler.serve(0, 3)
    ack = Ack(step=0, batch_id=batch.batch_id, skipped=(2, 0))
    sampler.do(ack)
    events = len(sampler.events)
    sampler.do(Ack(step=0, batch_id=batch.batch_id, skipped=(0, 2)))
    assert len(sampler.events) == events, "the same ack, in another order"
    with pytest.raises(RequestDiffers, match=r"without slots \[0, 2\] and is now .* without \[\]"):
        sampler.do(Ack(step=0, batch_id=batch.batch_id))
    (summary,) = sampler.do(AskBatches(last=1))
    assert (summary.status, summary.skipped) == ("trained", (0, 2))
    sampler.do(MarkCheckpointed(step=0))
    progress, examples = sampler.progress(), sampler.examples(batch)
    assert progress.skipped == {"math": {examples[0]: 1, examples[2]: 1}}
    assert progress.trained == {"math": {examples[1]: 1}}
    assert sampler.do(AskStats()).outcomes == {"skipped": 2, "trained": 1}


def shaped(sampler: Decider, step: int, groups: int) -> ServedBatch:
    shape = NextShapedBatch(
        step=step, settings="{}", num_groups=groups, min_groups=groups, carried=()
    )
    batch = sampler.choose(shape)
    assert isinstance(batch, ServedBatch), batch
    return batch


T, F, K = (bytes([one]) for one in (RowOutcome.TRAINED, RowOutcome.FILTERED, RowOutcome.KEPT))


@pytest.mark.proves("D2")
def test_groups_that_what_shapes_a_batch_left_out_count_as_filtered_and_may_be_all() -> None:
    sampler = Decider(max_samples=2)
    sampler.seal(*specs(5))
    first, second = shaped(sampler, 0, 3), shaped(sampler, 1, 2)
    ack = Ack(step=0, batch_id=first.batch_id, outcomes=(T * 2, F * 2, F + T))
    sampler.do(ack)
    sampler.do(ack)
    with pytest.raises(RequestDiffers, match=r"without slots \[1\] and is now .* \[0\]"):
        sampler.do(Ack(step=0, batch_id=first.batch_id, outcomes=(F * 2, T * 2, T * 2)))
    sampler.do(Ack(step=1, batch_id=second.batch_id, outcomes=(F * 2, F * 2)))
    assert sampler.state.unacked(2)[0].total() == 0, "their capacity is free at once"
    newest, *_ = sampler.do(AskBatches(last=1))
    assert (newest.skipped, newest.filtered) == ((), (0, 1))
    sampler.do(MarkCheckpointed(step=1))
    assert sampler.do(AskStats()).outcomes == {"filtered": 3, "trained": 2}


@pytest.mark.parametrize(
    ("ack", "told"),
    [
        ({"outcomes": (T * 2,)}, "outcomes are of 1 groups, and the batch has 2"),
        ({"outcomes": (T * 2, T * 3)}, "has 3 values; it was served with 2 trajectories"),
        ({"outcomes": (T * 2, F * 2), "skipped": (0,)}, "leave skipped out"),
        ({"outcomes": (T * 2, F * 2), "status": "failed"}, "failed, so nothing of it"),
    ],
)
def test_outcomes_that_cannot_be_are_refused(ack: dict[str, Any], told: str) -> None:
    sampler = Decider()
    sampler.seal(*specs(2))
    batch = shaped(sampler, 0, 2)
    with pytest.raises(InvalidRequest, match=told):
        sampler.do(Ack(step=0, batch_id=batch.batch_id, **ack))


def test_outcomes_of_a_batch_that_was_not_shaped_are_refused() -> None:
    sampler = Decider()
    sampler.seal(*specs(1))
    batch = sampler.serve(0, 1)
    with pytest.raises(InvalidRequest, match="served by next_batch; leave them out"):
        sampler.do(Ack(step=0, batch_id=batch.batch_id, outcomes=(T * 2,)))


@pytest.mark.proves("F3")
def test_a_batch_that_is_replayed_is_acked_anew() -> None:
    sampler = Decider()
    sampler.seal(*specs(2))
    batch = sampler.serve(0)
    sampler.do(Ack(step=0, batch_id=batch.batch_id, skipped=(1,)))
    sampler.do(Resume(checkpointed_step=None))
    sampler.do(Ack(step=0, batch_id=batch.batch_id))
    sampler.do(MarkCheckpointed(step=0))
    assert sampler.do(AskStats()).outcomes == {"trained": 2}


@pytest.mark.parametrize(
    ("skipped", "status", "told"),
    [
        ((3,), "trained", r"\[3\] are not distinct slots of a batch of 3"),
        ((1, 1), "trained", r"\[1, 1\] are not distinct slots"),
        ((0, 1, 2), "trained", r"where nothing was, ack\(batch, status='failed'\)"),
        ((1,), "failed", "failed, so nothing of it"),
    ],
)
def test_an_ack_with_slots_that_cannot_be_is_refused(
    skipped: tuple[int, ...], status: AckStatus, told: str
) -> None:
    sampler = Decider()
    sampler.seal(*specs(3))
    batch = sampler.serve(0, 3)
    with pytest.raises(InvalidRequest, match=told):
        sampler.do(Ack(step=0, batch_id=batch.batch_id, status=status, skipped=skipped))
