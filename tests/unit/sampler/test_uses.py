"""What became of groups in batches, by the events of a decision log alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollstream.folds.batches.life import BatchLife, FinalTo
from rollstream.sampler.history.uses import UseHistory
from rollstream.schemas.events import (
    Acked,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Dropped,
    DroppedGroup,
    Replaced,
    Resumed,
)

OWNED: dict[str, Any] = {"epoch": 0, "nonce": "n", "now_ts": 0, "trainer_epoch": 1}


def chosen(index: int, mask: tuple[bool, ...] | None = None) -> ChosenGroup:
    return ChosenGroup(
        environment="math",
        generation=1,
        partition=0,
        offset=5,
        index=index,
        group_id=f"g{index}",
        digest=b"",
        row_mask=None if mask is None else np.array(mask),
    )


def served(step: int, *groups: ChosenGroup) -> BatchServed:
    return BatchServed(
        **OWNED,
        step=step,
        batch_id=f"b{step}",
        seed=0,
        request="{}",
        policy_step=0,
        cursor=(),
        groups=groups,
        digest=b"",
    )


def replaced(step: int, slot: int, group: ChosenGroup) -> Replaced:
    return Replaced(
        **OWNED,
        step=step,
        batch_id=f"b{step}-r1",
        reason="why",
        slots=np.array([slot]),
        groups=(group,),
        cursor=(),
        digest=b"",
    )


def history(*events: Any) -> UseHistory:
    fold = UseHistory(lambda ref, step: True)
    for offset, event in enumerate(events):
        fold.apply(offset, event)
    return fold


def ack(step: int, status: str = "trained", *skipped: int) -> Acked:
    return Acked(**OWNED, step=step, batch_id=f"b{step}", status=status, skipped=skipped)


def checkpoint(step: int) -> Checkpointed:
    return Checkpointed(**OWNED, step=step)


def resume(saved: int | None, later: str) -> Resumed:
    first = 0 if saved is None else saved + 1
    return Resumed(**OWNED, checkpointed_step=saved, later=later, first_step=first, policy_epoch=1)


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ([], ["served", "served"]),
        ([ack(0)], ["served", "served"]),
        ([checkpoint(0)], ["trained", "trained"]),
        ([ack(0, "failed"), checkpoint(0)], ["failed", "failed"]),
        ([ack(0, "trained", 1), checkpoint(0)], ["trained", "skipped"]),
        ([ack(0, "trained", 1), resume(None, "replay"), checkpoint(0)], ["trained", "trained"]),
        ([ack(0), resume(None, "release")], ["released", "released"]),
        ([ack(0), resume(0, "release")], ["trained", "trained"]),
        ([replaced(0, 1, chosen(2)), checkpoint(0)], ["filtered", "trained", "trained"]),
        (
            [resume(None, "release"), served(0, chosen(1)), ack(0, "failed"), checkpoint(0)],
            ["released", "released", "failed"],
        ),
    ],
)
def test_a_use_ends_as_acks_checkpoints_and_resumes_say(
    events: list[Any], states: list[str]
) -> None:
    fold = history(served(0, chosen(0), chosen(1)), *events)
    assert [use.state for use in fold.uses] == states
    assert all(use.replaced == (use.state == "filtered") for use in fold.uses)


def test_groups_that_gave_way_come_first_in_the_order_in_which_they_did() -> None:
    replacements = [replaced(0, 1, chosen(2)), replaced(0, 0, chosen(3)), replaced(0, 1, chosen(4))]
    uses = history(served(0, chosen(0), chosen(1)), *replacements, served(1, chosen(5))).uses
    assert [use.group.index_in_flush for use in uses if use.replaced] == [1, 0, 2]
    assert [use.replaced for use in uses] == [True, True, True, False, False, False]
    assert [(use.step, use.slot) for use in uses[3:]] == [(0, 0), (0, 1), (1, 0)]


def test_rows_that_a_batch_leaves_out_are_told_from_those_that_it_has() -> None:
    (use,) = history(served(0, chosen(0, (True, False))), checkpoint(0)).uses
    alone = [use.of_rows([row]) for row in (0, 1)]
    assert [one and one.state for one in alone] == ["trained", "left_out"]
    assert use.of_rows([0, 1]) == use
    (whole,) = history(served(0, chosen(0)), checkpoint(0)).uses
    assert whole.of_rows([1]) == whole


@pytest.mark.proves("F12")
def test_what_was_given_back_or_replaced_is_the_group_with_the_rows_that_a_batch_left_out() -> None:
    masked = served(0, chosen(0, (True, False)))
    for last, state in (
        (resume(None, "release"), "released"),
        (replaced(0, 0, chosen(2)), "filtered"),
    ):
        use = history(masked, last).uses[0]
        alone = [use.of_rows([row]) for row in (0, 1)]
        assert [one and one.state for one in alone] == [state, state]


def test_only_what_matters_is_kept() -> None:
    fold = UseHistory(lambda ref, step: ref.index_in_flush == 1)
    fold.apply(0, served(0, chosen(0), chosen(1)))
    group = DroppedGroup(environment="math", generation=1, partition=0, offset=5, index=1)
    other = DroppedGroup(environment="math", generation=1, partition=0, offset=6, index=0)
    dropped = {name: value for name, value in OWNED.items() if name != "trainer_epoch"}
    fold.apply(1, Dropped(**dropped, reason="stale", groups=(group, other), detail="old"))
    assert [use.slot for use in fold.uses] == [1]
    assert [(drop.reason, drop.detail) for drop in fold.drops.values()] == [("stale", "old")]


def test_a_batch_becomes_what_the_events_say_and_one_that_is_gone_changes_no_more() -> None:
    life, told = BatchLife(), list[str]()
    events: list[Any] = [
        *(served(0, chosen(0)), served(1, chosen(1)), served(2)),
        *(ack(0), ack(2, "failed"), checkpoint(0), ack(0)),
        *(replaced(1, 0, chosen(3)), resume(None, "replay"), ack(2), resume(0, "release")),
        *(ack(1), served(1), checkpoint(1)),
    ]
    for offset, event in enumerate(events):
        for change in life.apply(offset, event, finals_kept=1):
            if isinstance(change, FinalTo):
                told.append(f"to {change.step}")
            else:
                told.append(f"{change.batch.event.step} {change.state}")
    assert told == [
        *("0 served", "1 served", "2 served", "0 acked", "2 acked", "0 final", "to 0", "0 acked"),
        *("1 replaced", "to -1", "0 replayed", "1 replayed", "2 replayed", "2 acked"),
        *("to 0", "1 released", "2 released", "1 served", "1 final", "0 forgotten", "to 1"),
    ]
    assert (life.next_step, life.final_to, [*life.batches]) == (2, 1, [1])
