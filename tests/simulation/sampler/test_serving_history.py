"""The counting of served groups itself: nothing in a sound history, and what a broken one has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.decider import Decider
from harness.groups import GroupSpec
from harness.serving_history import groups_of, serving_problems
from rollstream.schemas.events import BatchServed, Dropped, SamplerEvent
from rollstream.streams.folds.refs import ref_of

Change = Callable[[list[SamplerEvent]], list[SamplerEvent]]


def history(change: Change = list, *, forgotten: int = 0) -> list[str]:
    """What is found where 9 groups were sealed, 6 served in 3 batches, and 1 dropped.

    Args:
        change: of the decision log, after the decisions were made.
        forgotten: how many of the groups that wait the reader's state does not know.
    """
    decider = Decider(capacity_groups=8)
    decider.seal(*(GroupSpec(example_id=f"ex-{i}") for i in range(9)))
    decider.evict()
    for step in range(3):
        decider.serve(step)
    for ref in decider.state.ready.refs()[:forgotten]:
        decider.state.ready.discard([ref])
    sealed = [ref for flush in decider.sealed for ref in groups_of(*flush)]
    return serving_problems(change(decider.events), sealed, decider.state)


def batches(events: list[SamplerEvent]) -> list[BatchServed]:
    return [event for event in events if isinstance(event, BatchServed)]


def test_nothing_is_found_in_a_sound_history() -> None:
    assert history() == []


def served_again(events: list[SamplerEvent]) -> list[SamplerEvent]:
    return [*events, replace(batches(events)[0], step=7)]


def served_within_a_batch(events: list[SamplerEvent]) -> list[SamplerEvent]:
    first = batches(events)[0]
    twice = replace(first, groups=(first.groups[0], first.groups[0]))
    return [twice if event is first else event for event in events]


def step_again(events: list[SamplerEvent]) -> list[SamplerEvent]:
    return [*events, batches(events)[0]]


def not_served(events: list[SamplerEvent]) -> list[SamplerEvent]:
    return [event for event in events if event is not batches(events)[1]]


def dropped_again(events: list[SamplerEvent]) -> list[SamplerEvent]:
    return [*events, next(event for event in events if isinstance(event, Dropped))]


def dropped_though_served(events: list[SamplerEvent]) -> list[SamplerEvent]:
    group = ref_of(batches(events)[0].groups[0]).event_ref()
    return [*events, Dropped(epoch=0, nonce="nonce", now_ts=0, reason="evicted", groups=(group,))]


def never_sealed(events: list[SamplerEvent]) -> list[SamplerEvent]:
    first = batches(events)[0]
    strange = replace(first, groups=(first.groups[0]._replace(offset=99), first.groups[1]))
    return [strange if event is first else event for event in events]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (served_again, ["was served for steps 0 and 7"] * 2),
        (
            served_within_a_batch,
            ["was served for steps 0 and 0", "is neither served nor dropped, and does not wait"],
        ),
        (step_again, ["step 0 was served twice", *["was served for steps 0 and 0"] * 2]),
        (not_served, ["is neither served nor dropped, and does not wait"] * 2),
        (dropped_again, ["was dropped twice"]),
        (dropped_though_served, ["was dropped and is in the batch of 0"]),
        (
            never_sealed,
            ["was served and never sealed", "is neither served nor dropped, and does not wait"],
        ),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_each_broken_history_is_found(change: Change, told: list[str]) -> None:
    found = history(change)
    assert len(found) == len(told), found
    assert all(part in problem for part, problem in zip(told, found, strict=True)), found


def test_a_reader_that_forgot_a_group_is_found() -> None:
    (problem,) = history(forgotten=1)
    assert "is neither served nor dropped, and does not wait" in problem
