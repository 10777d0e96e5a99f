"""Groups that may be served several times: what ends them, and what a release gives back."""

from __future__ import annotations

from typing import Any

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.folds import state
from rollstream.folds.life import uses
from rollstream.folds.life.uses import GroupUses
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.trainer.commands import Ack, MarkCheckpointed, Purge, Resume
from rollstream.sampler.errors import NotEnoughGroups
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.streams.folds.refs import GroupRef


def sealed(sampler: Decider, *examples: str) -> None:
    sampler.seal(*(GroupSpec(example_id=example) for example in examples))


def ready(sampler: Decider) -> list[str]:
    refs = sampler.state.ready.refs()
    return sorted(sampler.sealed_group(ref).example_id for ref in refs)


def acked(sampler: Decider, step: int, num_groups: int, skipped: tuple[int, ...] = ()) -> None:
    batch_id = sampler.serve(step, num_groups).batch_id
    sampler.do(Ack(step=step, batch_id=batch_id, skipped=skipped))


def test_nothing_is_kept_of_a_group_that_ended_and_that_no_batch_has() -> None:
    groups, ref = GroupUses(1), GroupRef(*LOGS[1], 0, 0)
    for change in (uses.BEGIN, uses.GIVE_BACK, uses.END):
        groups.change([ref], change)
    assert groups.sorted_items() == GroupUses(1).sorted_items()


@pytest.mark.proves("I5")
def test_a_retired_group_that_was_used_is_forgotten_in_any_order_of_the_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "FINAL_BATCHES_KEPT", 1)
    sampler = Decider(max_samples=2)
    sealed(sampler, "a")
    acked(sampler, 0, 1)
    sampler.do(MarkCheckpointed(step=0))
    sampler.retire(LOGS[1], 0)
    sampler.evict()
    sealed(sampler, "b", "c")
    for step in (1, 2):
        acked(sampler, step, 1)
        sampler.do(MarkCheckpointed(step=step))
    other = sampler.fresh()
    for offset, event in enumerate(sampler.events):
        other.apply(offset, 0, event)
    for flushed in sampler.sealed:
        other.apply_groups(*flushed)
    assert other.digest() == sampler.state.digest()


@pytest.mark.proves("I7")
@pytest.mark.parametrize("dropped_by", ["capacity", "purge"])
def test_a_drop_leaves_an_open_batch_its_groups_and_a_release_gives_them_back(
    dropped_by: str,
) -> None:
    sampler = Decider(max_samples=2, capacity_groups=2)
    sealed(sampler, "a", "b")
    acked(sampler, 0, 2)
    assert ready(sampler) == ["a", "b"]
    if dropped_by == "purge":
        sampler.do(Purge())
    else:
        sealed(sampler, "c", "d")
        sampler.evict()
    assert not {"a", "b"} & {*ready(sampler)}
    sampler.do(Resume(checkpointed_step=None, later="release"))
    assert {"a", "b"} <= {*ready(sampler)}


def test_what_was_dropped_is_served_no_more_once_its_batch_is_final() -> None:
    sampler = Decider(max_samples=2)
    sealed(sampler, "a", "b")
    acked(sampler, 0, 2)
    sampler.do(Purge())
    sampler.do(MarkCheckpointed(step=0))
    assert ready(sampler) == []


def test_a_group_that_the_ack_skips_is_served_no_more() -> None:
    sampler = Decider(max_samples=2)
    sealed(sampler, "a", "b")
    acked(sampler, 0, 2, skipped=(0,))
    (other,) = sampler.examples(sampler.state.batches[0])[1:]
    assert ready(sampler) == [other]
    sampler.do(MarkCheckpointed(step=0))
    assert ready(sampler) == [other]


def test_a_release_gives_a_skipped_group_back() -> None:
    sampler = Decider(max_samples=2)
    sealed(sampler, "a", "b")
    acked(sampler, 0, 2, skipped=(0,))
    sampler.do(Resume(checkpointed_step=None, later="release"))
    assert ready(sampler) == ["a", "b"]


def test_a_lower_limit_ends_what_was_used_as_often() -> None:
    before = Decider(max_samples=4)
    sealed(before, "a", "b")
    for step in range(2):
        acked(before, step, 2)
        before.do(MarkCheckpointed(step=step))
    after = Decider(max_samples=2)
    after.events, after.sealed = before.events, before.sealed
    for flushed in after.sealed:
        after.state.apply_groups(*flushed)
    for offset, event in enumerate(after.events):
        after.state.apply(offset, 0, event)
    assert isinstance(after.choose(NextBatch(step=2, num_groups=1)), NotEnoughGroups)
    sealed(after, "c")
    assert after.examples(after.serve(2, 1)) == ["c"]
    assert ready(after) == []


@pytest.mark.parametrize(
    "fields",
    [{"rewards": (None, 1.0)}, {"lineage": "other"}, {"weight_step": UNKNOWN_STEP}],
    ids=["reward", "lineage", "weight_step"],
)
def test_groups_that_cannot_be_served_push_out_none_that_can(fields: dict[str, Any]) -> None:
    sampler = Decider(capacity_groups=2, max_policy_lag=4)
    sealed(sampler, "a", "b")
    sampler.seal(*(GroupSpec(example_id=f"w{i}", **fields) for i in range(2)))
    sampler.evict()
    assert ready(sampler) == ["a", "b"]
