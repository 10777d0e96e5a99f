"""What each producer has of what is open: evenly, those that wait first, and never twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.sampler.decide.admission.shares import HELD_S, TURN_US, Shares, filled
from rollstream.streams.folds.in_flight import LivingProducers, ProducerStanding

counts = st.integers(0, 50)


def shared(
    shares: Shares,
    *producers: tuple[str, int, int, int],
    free: int,
    ended: int = 0,
    turn: int = 0,
    now_s: float,
    spare: int = 0,
) -> dict[str, int]:
    """Producer to its total."""
    living = LivingProducers.of(ProducerStanding(*one) for one in producers)
    shares.share(living, free, ended, turn * TURN_US, now_s, spare)
    return dict(zip(shares.ids, shares.totals.tolist(), strict=True))


@given(
    st.lists(st.tuples(counts, counts, counts), min_size=1, max_size=12),
    st.integers(0, 200),
    st.integers(0, 1_000),
)
def test_all_that_is_open_is_shared_and_no_more(
    figures: list[tuple[int, int, int]], free: int, turn: int
) -> None:
    producers = [(f"p{at:02}", *one) for at, one in enumerate(figures)]
    totals = shared(Shares(), *producers, free=free, turn=turn, now_s=0.0)
    given_out = {name: totals[name] - begun for name, begun, _, _ in producers}
    assert min(given_out.values()) >= 0
    assert sum(given_out.values()) == free
    lacking = [name for name, _, _, waiting in producers if given_out[name] < waiting]
    if lacking:  # Then nobody has more than one that waits in vain, but for the remainder.
        assert max(given_out.values()) <= min(given_out[name] for name in lacking) + 1


@given(
    st.lists(st.tuples(counts, counts, counts), min_size=1, max_size=12),
    st.integers(0, 200),
    st.integers(0, 1_000),
    st.data(),
)
def test_what_a_request_lacks_is_needed_of_the_shares_whole_parts_to_those_who_wait(
    figures: list[tuple[int, int, int]], free: int, turn: int, data: st.DataObject
) -> None:
    lacking = data.draw(st.integers(0, free))  # As much is open at least.
    producers = [(f"p{at:02}", *one) for at, one in enumerate(figures)]
    shares = Shares()
    totals = shared(shares, *producers, free=free, turn=turn, now_s=0.0)
    shares.need(lacking, turn * TURN_US)
    if not lacking:
        assert not len(shares.needed)
        return
    needed = dict(zip(shares.ids, shares.needed.tolist(), strict=True))
    parts = {name: needed[name] - begun for name, begun, _, _ in producers}
    assert all(0 <= parts[name] <= totals[name] - begun for name, begun, _, _ in producers)
    asked = {name: min(totals[name] - begun, waits) for name, begun, _, waits in producers}
    assert sum(parts.values()) >= lacking
    assert sum(parts.values()) < lacking + max(1, *asked.values(), 1)
    if sum(asked.values()) >= lacking:
        assert all(part in (0, asked[name]) for name, part in parts.items())
    else:
        assert all(part >= asked[name] for name, part in parts.items())


@pytest.mark.proves("F5")
def test_what_is_needed_is_a_running_total_and_nothing_once_enough_is_begun() -> None:
    shares = Shares()
    shared(shares, ("a", 12, 3, 2), free=9, now_s=0.0)
    shares.need(4, 0)
    assert shares.needed.tolist() == [16]
    shared(shares, ("a", 14, 3, 2), free=9, now_s=0.2)  # Two partitions have still to report.
    shares.need(4, 0)
    assert shares.needed.tolist() == [16]
    shared(shares, ("a", 14, 5, 2), free=7, now_s=0.4)
    shares.need(2, 0)
    assert shares.needed.tolist() == [16]
    shared(shares, ("a", 16, 7, 2), free=5, now_s=0.6)
    shares.need(0, 0)
    assert shares.needed.tolist() == []


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=12), st.integers(0, 300))
def test_what_is_filled_is_level_and_within_its_limits(
    figures: list[tuple[int, int]], left: int
) -> None:
    have = np.array([low for low, _ in figures])
    most = have + np.array([more for _, more in figures])
    shares = filled(have, most, left, 0.5)
    assert ((have <= shares) & (shares <= most)).all()
    assert (shares - have).sum() == min(left, (most - have).sum())
    raised, could = shares[shares > have], shares[shares < most]
    assert not len(raised) or not len(could) or raised.max() <= could.min() + 1


@pytest.mark.proves("F5")
def test_nobody_is_left_without_for_ever_where_one_group_is_open_among_many() -> None:
    names = [f"p{at:02}" for at in range(20)]
    had = set[str]()
    for turn in range(60):
        totals = shared(Shares(), *((name, 0, 0, 1) for name in names), free=1, turn=turn, now_s=0)
        had.update(name for name, total in totals.items() if total)
    assert had == set(names)


@pytest.mark.proves("F5")
def test_samplers_that_began_at_different_times_give_a_scarce_share_to_the_same_producers() -> None:
    names = [f"p{at:02}" for at in range(20)]
    waiting = [(name, 0, 0, 1) for name in names]
    one, other = Shares(), Shares()
    shared(one, *waiting, free=3, turn=4, now_s=0.0)
    shared(other, *waiting, free=3, turn=7, now_s=0.0)
    late = HELD_S + 1
    assert shared(one, *waiting, free=3, turn=9, now_s=late) == shared(
        other, *waiting, free=3, turn=9, now_s=late
    )


def test_a_share_stays_its_producers_own_until_it_is_known_to_be_begun() -> None:
    shares = Shares()
    totals = shared(shares, ("a", 0, 0, 3), ("b", 0, 0, 3), free=6, now_s=0.0)
    assert totals == {"a": 3, "b": 3}
    # Both began all; of b nothing is reported yet.
    totals = shared(shares, ("a", 3, 3, 3), ("b", 0, 0, 3), free=3, now_s=1.0)
    assert totals == {"a": 3, "b": 3}
    totals = shared(shares, ("a", 3, 3, 3), ("b", 3, 3, 3), free=0, now_s=1.5)
    assert totals == {"a": 3, "b": 3}


def test_groups_that_other_partitions_have_still_to_report_are_not_granted_anew() -> None:
    shares = Shares()
    shared(shares, ("a", 0, 0, 8), free=8, now_s=0.0)
    # It began eight, of which one partition's sealer has reported its two.
    assert shared(shares, ("a", 8, 2, 8), free=6, now_s=0.1) == {"a": 8}
    assert shared(shares, ("a", 8, 5, 8), free=3, now_s=0.5) == {"a": 8}
    assert shared(shares, ("a", 8, 8, 8), free=0, now_s=0.9) == {"a": 8}
    assert shared(shares, ("a", 8, 3, 8), free=5, ended=5, now_s=1.0) == {"a": 13}


def test_groups_that_end_before_they_are_reported_hold_no_capacity() -> None:
    shares = Shares()
    shared(shares, ("a", 0, 0, 8), free=8, now_s=0.0)
    assert shared(shares, ("a", 8, 2, 8), free=6, ended=6, now_s=0.1) == {"a": 14}


def test_what_no_sealer_ever_reports_as_open_holds_capacity_for_a_moment_only() -> None:
    shares = Shares()
    shared(shares, ("a", 0, 0, 8), free=8, now_s=0.0)
    assert shared(shares, ("a", 8, 2, 8), free=6, now_s=0.1) == {"a": 8}
    assert shared(shares, ("a", 8, 2, 8), free=6, now_s=2.0) == {"a": 14}


def test_what_a_producer_does_not_begin_goes_to_one_that_waits() -> None:
    shares = Shares()
    assert shared(shares, ("a", 0, 0, 0), ("b", 0, 0, 0), free=4, now_s=0.0) == {"a": 2, "b": 2}
    waiting = (("a", 0, 0, 0), ("b", 2, 2, 2))
    assert shared(shares, *waiting, free=2, now_s=1.0) == {"a": 2, "b": 2}
    assert shared(shares, *waiting, free=2, now_s=1.0 + HELD_S) == {"a": 0, "b": 4}


def test_what_is_spare_goes_to_one_that_waits_and_nobody_loses_a_share() -> None:
    shares = Shares()
    calm = [(f"p{at}", 0, 0, 0) for at in range(3)]
    totals = shared(shares, *calm, free=3, now_s=0.0, spare=1)
    assert sum(totals.values()) == 2
    waits = [(name, 0, 0, 0 if totals[name] else 1) for name, *_ in calm]
    later = shared(shares, *waits, free=3, now_s=HELD_S + 1, spare=1)
    assert later == dict.fromkeys(totals, 1)


def test_a_producer_that_comes_waits_for_no_turn_of_those_that_are_there() -> None:
    shares = Shares()
    shared(shares, ("a", 5, 5, 0), free=4, now_s=0.0)
    totals = shared(shares, ("a", 5, 5, 0), ("b", 0, 0, 2), free=7, now_s=1.0)
    assert totals["b"] >= 2
    assert totals["a"] + totals["b"] == 5 + 7
    assert shared(shares, ("b", 0, 0, 2), free=7, now_s=2.0) == {"b": 7}


@pytest.mark.proves("F5")
def test_those_that_need_several_at_one_time_get_them_one_after_the_other() -> None:
    names, shares, admitted = ("a", "b", "c"), Shares(), set[str]()
    for turn in range(40):
        waiting = [(name, 0, 0, 0 if name in admitted else 4) for name in names]
        totals = shared(shares, *waiting, free=6, turn=turn, now_s=turn * (HELD_S + 1))
        assert sum(totals.values()) == 6
        admitted.update(name for name, total in totals.items() if total >= 4)
    assert admitted == set(names)


@pytest.mark.proves("F5")
def test_one_that_needs_more_at_one_time_than_is_open_keeps_nobody_else_waiting() -> None:
    shares, had = Shares(), set[str]()
    for turn in range(12):
        # ``large`` never begins what it has; the others begin one, where they have it.
        waiting = [("large", 0, 0, 3), *((name, 0, 0, name not in had) for name in ("a", "b"))]
        totals = shared(shares, *waiting, free=1, turn=turn, now_s=turn * (HELD_S + 1))
        had.update(name for name in ("a", "b") if totals[name])
    assert had == {"a", "b"}


@pytest.mark.proves("F5")
def test_what_was_granted_and_is_no_longer_open_is_taken_back_where_nobody_began_it() -> None:
    shares = Shares()
    totals = shared(shares, ("a", 0, 0, 9), ("b", 0, 0, 9), free=18, now_s=0.0)
    assert totals == {"a": 9, "b": 9}
    less = (("a", 2, 2, 9), ("b", 1, 1, 9))
    assert shared(shares, *less, free=4, now_s=1.0) == {"a": 9, "b": 9}  # It may have begun it.
    assert shared(shares, *less, free=4, now_s=2.6) == {"a": 4, "b": 3}
