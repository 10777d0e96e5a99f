"""The history checker itself: it finds nothing in a sound history, and what a broken one has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.history import problems_of
from harness.seal_events import settlements
from harness.sealing import SealWorld
from rollstream.schemas.events import Flushed, SealedGroupColumns, Settlements
from rollstream.streams.owned.follow import ConfirmedEvent

UIDS = "abcd"
Change = Callable[[list[Flushed]], list[Flushed]]


class RewrittenWorld(SealWorld):
    """A world whose history ``change`` rewrites before it is read; sealers and the audit do not
    see it."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.change: Change = list

    def confirmed_events(self) -> list[ConfirmedEvent]:
        confirmed = super().confirmed_events()
        flushes = [item for item in confirmed if isinstance(item.event, Flushed)]
        changed = self.change([item.event for item in flushes if isinstance(item.event, Flushed)])
        others = [item for item in confirmed if item not in flushes]
        places = [*flushes, *[flushes[-1]] * len(changed)]
        return others + [at._replace(event=e) for at, e in zip(places, changed, strict=False)]


def found(change: Change = list) -> list[str]:
    """What the checker finds in a history of two flushes, each of which sealed a pair."""
    world = RewrittenWorld(partitions=1, max_flush_rollouts=2)
    sealer = world.sealer()
    for uid in UIDS:
        world.publish(uid, example_id=f"ex-{uid in 'ab'}")
    world.run(sealer)
    assert len(world.flushes()) == 2
    assert world.settled() == {}
    world.change = change
    return problems_of(world, UIDS)


def test_nothing_is_found_in_a_sound_history() -> None:
    assert found() == []


def renamed(event: Flushed, old: str, new: str) -> Flushed:
    uids = tuple(new if uid == old else uid for uid in event.segments.uids)
    return replace(event, segments=replace(event.segments, uids=uids))


def settling(event: Flushed, *parts: Settlements) -> Flushed:
    return replace(event, settled=(*event.settled, *parts))


def only_settling(event: Flushed, reason: str) -> Flushed:
    """All that it sealed is settled for the reason instead."""
    refs = list(zip(event.segments.offsets.tolist(), [0, 0], strict=True))
    return settling(
        replace(
            event,
            files=(),
            groups=SealedGroupColumns.of(()),
            segments=replace(event.segments, **no_segments(event)),
        ),
        settlements(reason, refs, uids=event.segments.uids),
    )


def no_segments(event: Flushed) -> dict[str, Any]:
    part = event.segments
    columns = ("offsets", "entries", "segment_idxs")
    return {"uids": (), **{name: getattr(part, name)[:0] for name in columns}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda flushes: flushes[:1], ["offset=2, entry=0) never ended", "d was published and is"]),
        (lambda flushes: [*flushes, flushes[0]], ["ended 2 times", "of a was sealed or settled 2"]),
        (
            lambda flushes: [
                settling(flushes[0], settlements("expired", [0], uids=["a"])),
                flushes[1],
            ],
            ["offset=0, entry=0) ended 2 times", "segment 0 of a was sealed or settled 2 times"],
        ),
        (
            lambda flushes: [
                flushes[0],
                settling(flushes[1], settlements("expired", [9], uids=["a"])),
            ],
            ["offset=9, entry=0) ended and was never", "of a was sealed or settled 2 times"],
        ),
        (
            lambda flushes: [renamed(flushes[0], "a", "z"), flushes[1]],
            ["ended as Named(uid='z', segment_idx=0)", "a was published and is nowhere"],
        ),
        (
            lambda flushes: [flushes[0], only_settling(flushes[1], "duplicate")],
            ["segment 0 of c ended only as a duplicate", "segment 0 of d ended only"],
        ),
        (
            lambda flushes: [flushes[0], replace(flushes[1], files=flushes[0].files)],
            ["rows, not 2"],
        ),
    ],
    ids=[
        "not-ended",
        "flush-twice",
        "sealed-and-settled",
        "settled-again-elsewhere",
        "as-another",
        "only-duplicates",
        "rows-of-another",
    ],
)
def test_each_broken_history_is_found(change: Change, told: list[str]) -> None:
    problems = found(change)
    for part in told:
        assert any(part in problem for problem in problems), problems


def test_entries_that_are_pending_are_found_where_nothing_may_be() -> None:
    world = SealWorld(partitions=1)
    world.publish("a")
    world.run(world.sealer())
    assert problems_of(world, "a", drained=False) == []
    assert "a was published and is nowhere" in problems_of(world, "a")
    assert "1 are still pending" in problems_of(world, "a")
