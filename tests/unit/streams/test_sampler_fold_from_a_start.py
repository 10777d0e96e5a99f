"""A sampler's state where its seal logs are not read from their beginnings, as status folds it."""

from __future__ import annotations

from collections.abc import Iterable

from rollstream.folds.state import SamplerState
from rollstream.schemas.choosing import Choosing, ServedEnvironment
from rollstream.schemas.events import (
    BatchServed,
    ChosenGroup,
    Dropped,
    DroppedGroup,
    Resumed,
    SamplerEvent,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import DropReason

LOG = PartitionAddress("math", 1, 0)
CHOOSING = Choosing(environments=(ServedEnvironment(name="math"),))
START = 2  # Groups at the offsets 0 and 1 are before it.


def digest(events: Iterable[SamplerEvent], start: int) -> bytes:
    """Of the state after these events, where the seal log is applied from ``start`` on."""
    state = SamplerState("trainer-a", CHOOSING, [LOG])
    state.start_at(LOG, start)
    for offset, event in enumerate(events):
        state.apply(offset, 0, event)
    return state.digest()


def dropped(reason: DropReason) -> Dropped:
    group = DroppedGroup(**LOG._asdict(), offset=0, index=0)
    return Dropped(epoch=0, nonce="n", now_ts=0, reason=reason, groups=(group,))


def served(offset: int) -> BatchServed:
    """Step 0, of the group at this offset."""
    group = ChosenGroup(**LOG._asdict(), offset=offset, index=0, group_id="g", digest=b"")
    return BatchServed(
        epoch=0,
        nonce="n",
        now_ts=0,
        trainer_epoch=0,
        step=0,
        batch_id="b",
        seed=0,
        request="{}",
        policy_step=-1,
        cursor=(),
        groups=(group,),
        digest=b"d",
    )


RELEASED = Resumed(
    epoch=0,
    nonce="n",
    now_ts=0,
    trainer_epoch=1,
    checkpointed_step=None,
    later="release",
    first_step=0,
    policy_epoch=0,
)


def test_why_a_group_before_the_start_ended_is_not_kept() -> None:
    stale, capacity = [dropped(DropReason.STALE)], [dropped(DropReason.CAPACITY)]
    assert digest(stale, START) == digest(capacity, START)
    assert digest(stale, 0) != digest(capacity, 0), "of groups to come it is kept"


def test_whose_turn_was_before_the_start_is_not_kept() -> None:
    one: list[SamplerEvent] = [served(0), RELEASED, served(1)]
    two: list[SamplerEvent] = [served(1), RELEASED, served(1)]
    assert digest(one, START) == digest(two, START)
    assert digest(one, 0) != digest(two, 0), "of groups to come it is kept"
