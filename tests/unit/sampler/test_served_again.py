"""Groups that may be served several times: what ends them, and what a release gives back."""

from __future__ import annotations

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.sampler.deciding.trainer import Ack, MarkCheckpointed, Purge, Resume
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler import state
from rollstream.streams.folds.sampler.uses import GroupUses


def sealed(sampler: Decider, *examples: str) -> None:
    sampler.seal(*(GroupSpec(example_id=example) for example in examples))


def ready(sampler: Decider) -> list[str]:
    refs = sampler.state.ready.refs()
    return sorted(sampler.sealed_group(ref).example_id for ref in refs)


def acked(sampler: Decider, step: int, num_groups: int, skipped: tuple[int, ...] = ()) -> None:
    batch_id = sampler.serve(step, num_groups).batch_id
    sampler.do(Ack(step=step, batch_id=batch_id, skipped=skipped))


def test_nothing_is_kept_of_a_group_that_ended_and_that_no_batch_has() -> None:
    uses, ref = GroupUses(), GroupRef(*LOGS[1], 0, 0)
    uses.begin(ref)
    uses.give_back(ref, acked=False)
    uses.end(ref)
    assert uses.sorted_items() == []


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
