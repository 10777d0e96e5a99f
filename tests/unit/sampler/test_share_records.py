"""Which producers' shares are written, and when."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.sampler.decide.admission.records import (
    AGAIN_MAX,
    AGAIN_S,
    FORGOTTEN_S,
    RECORDS_MAX,
    SETTLED_S,
    ShareRecords,
)
from rollstream.sampler.decide.admission.shares import Shares

Figures = Mapping[str, tuple[int, int, int]]
"""By producer: what it may have begun, what it has begun, and what it waits for."""


class World:
    """The records of one environment, what a reader of all makes of them, and the time."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self.records = ShareRecords(known)
        self.read = dict(known or {})
        self.seconds = 0.0

    def look(self, **figures: tuple[int, int, int]) -> str:
        """The names of the producers whose records are written."""
        return self.need({}, **figures)

    def need(self, needed: Mapping[str, int], **figures: tuple[int, int, int]) -> str:
        """``look`` with what requests need of each."""
        return " ".join(self.write(figures, needed))

    def write(self, figures: Figures, needed: Mapping[str, int]) -> list[str]:
        shares = Shares()
        shares.ids = tuple(sorted(figures))
        columns = np.array([figures[name] for name in shares.ids], np.int64).reshape(-1, 3)
        shares.totals, shares.begun, shares.waiting = columns.T
        if needed:
            shares.needed = np.array([needed[name] for name in shares.ids], np.int64)
        written = self.records.changes(shares, self.seconds)
        for one in written:
            if one.total is None:
                del self.read[one.producer_id]
            else:
                self.read[one.producer_id] = one.total
        return [one.producer_id for one in written]


@pytest.mark.proves("F5")
def test_a_share_is_written_when_it_is_another() -> None:
    world = World()
    assert world.look(a=(4, 0, 1), b=(4, 0, 0)) == "a b"
    assert world.look(a=(4, 1, 0), b=(4, 0, 0)) == ""
    assert world.look(a=(4, 1, 0), b=(3, 0, 0)) == "b"


@pytest.mark.proves("F5")
def test_one_who_waits_or_soon_would_is_told_at_once_and_others_later() -> None:
    world = World()
    world.look(waits=(4, 0, 0), short=(4, 0, 0), calm=(4, 0, 0))
    more = {"waits": (6, 4, 2), "short": (6, 3, 0), "calm": (6, 1, 0)}
    assert world.look(**more) == "waits short"
    assert world.look(**more) == ""
    world.seconds = SETTLED_S
    assert world.look(**more).split()[0] == "calm"


@pytest.mark.proves("F5")
def test_what_a_request_needs_is_written_and_what_it_needs_no_more() -> None:
    world = World()
    world.look(a=(4, 0, 1))
    assert world.need({"a": 4}, a=(4, 0, 1)) == "a"
    assert world.need({"a": 0}, a=(4, 0, 1)) == ""
    world.seconds = SETTLED_S
    assert world.need({"a": 0}, a=(4, 0, 1)) == "a"


@pytest.mark.proves("F5")
def test_the_record_of_one_who_is_gone_is_removed_at_once_if_something_is_left_of_it() -> None:
    world = World()
    world.look(rich=(4, 1, 0), spent=(4, 4, 0), stays=(4, 4, 0))
    assert world.look(stays=(4, 4, 0)) == "rich"
    world.seconds = FORGOTTEN_S - 1
    world.look(stays=(4, 4, 0))
    assert "spent" in world.read
    world.seconds = FORGOTTEN_S
    world.look(stays=(4, 4, 0))
    assert world.read == {"stays": 4}


@pytest.mark.proves("F5")
def test_one_who_comes_back_before_that_costs_no_record_but_its_own() -> None:
    world = World()
    world.look(a=(4, 4, 0))
    world.look()
    world.seconds = FORGOTTEN_S / 2
    assert world.look(a=(5, 4, 1)) == "a"
    assert world.read == {"a": 5}


@pytest.mark.proves("F5")
def test_every_share_is_written_again_some_at_a_time_the_oldest_first() -> None:
    world = World()
    fleet = {f"p{number:03}": (4, 0, 0) for number in range(3 * AGAIN_MAX)}
    world.look(**fleet)
    assert world.look(**fleet) == ""
    again = list[str]()
    for turn in range(3):
        world.seconds = AGAIN_S + turn
        written = world.look(**fleet).split()
        assert len(written) == AGAIN_MAX
        again += written
    assert sorted(again) == sorted(fleet)
    assert world.look(**fleet) == ""


@pytest.mark.proves("F5")
def test_of_many_changes_those_come_first_for_which_somebody_waits() -> None:
    world = World()
    fleet = {f"p{number:05}": (1, 0, 0) for number in range(3 * RECORDS_MAX)}
    waits = {f"w{number}": (1, 0, 1) for number in range(3)}
    written = world.look(**fleet, **waits).split()
    assert len(written) == RECORDS_MAX
    assert written[:3] == sorted(waits)
    for _ in range(3):
        world.look(**fleet, **waits)
    assert len(world.read) == len(fleet) + len(waits)


@pytest.mark.proves("F5")
@given(
    looks=st.lists(
        st.dictionaries(st.sampled_from("abcde"), st.tuples(*[st.integers(0, 5)] * 3)), max_size=12
    ),
    known=st.dictionaries(st.sampled_from("abxy"), st.integers(0, 5)),
    gaps_s=st.sampled_from((0.25, 5.0, 20.0)),
)
def test_what_readers_know_becomes_what_is_shared(
    looks: list[dict[str, tuple[int, int, int]]], known: dict[str, int], gaps_s: float
) -> None:
    world = World(known)
    for figures in looks:
        world.seconds += gaps_s
        world.write(figures, {})
        for name, (total, _, waiting) in figures.items():
            read = world.read.get(name, 0)
            assert read <= total, "nobody may begin more than is shared"
            assert not waiting or read == total, "nobody waits for what is not said"
    last = looks[-1] if looks else {}
    for _ in range(3):
        world.seconds += max(FORGOTTEN_S, SETTLED_S)
        world.write(last, {})
    assert world.read == {name: total for name, (total, _, _) in last.items()}
