"""Which events of an owned log count."""

from __future__ import annotations

import pytest

from harness.retiring import requested, retired
from harness.seal_events import flushed
from rollstream.schemas.events import Claimed, Event
from rollstream.streams.owned.fence import CurrentClaim, Fence


def claim(nonce: str) -> Claimed:
    return Claimed(owner=f"owner of {nonce}", nonce=nonce)


def admitted(*events: Event) -> list[bool]:
    fence = Fence()
    return [fence.admits(offset, event) for offset, event in enumerate(events)]


@pytest.mark.proves("I3")
def test_only_events_of_the_newest_claim_count() -> None:
    old, new = flushed(0, "a", [0], 1), flushed(2, "b", [0], 1)
    assert admitted(claim("a"), old, claim("b"), old, new, old, new) == [
        True,
        True,
        True,
        False,
        True,
        False,
        True,
    ]


def test_an_epoch_alone_or_a_nonce_alone_is_not_enough() -> None:
    wrong = [flushed(0, "b", [0], 1), flushed(1, "a", [0], 1)]
    assert admitted(claim("a"), *wrong) == [True, False, False]


def test_a_claim_that_lands_twice_is_in_effect_under_its_second_offset() -> None:
    assert admitted(claim("a"), claim("a"), flushed(0, "a", [0], 1), flushed(1, "a", [0], 1)) == [
        True,
        True,
        False,
        True,
    ]


def test_before_the_first_claim_nothing_counts() -> None:
    assert admitted(flushed(0, "a", [0], 1), claim("a")) == [False, True]


def test_the_fence_names_the_claim_in_effect() -> None:
    fence = Fence()
    assert fence.current_claim is None
    fence.admits(7, claim("a"))
    assert fence.current_claim == CurrentClaim(7, "a")


def test_anybody_may_ask_and_only_the_owner_answers() -> None:
    asked, answered = requested(), retired(1, "a")
    assert admitted(asked, claim("a"), asked, answered, claim("b"), answered) == [
        True,
        True,
        True,
        True,
        True,
        False,
    ]
