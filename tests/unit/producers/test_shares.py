"""How many groups a producer may have begun, against a model that looks at all that was granted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.admission import granted
from rollstream.producers import SeveralLineages
from rollstream.producers.admission.shares import Allowance, Granted, Limit
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.events import SharesGranted

ME = "me"


class Reader:
    """A producer's allowance, and the newest shares of each sampler, read by its clock."""

    def __init__(self, lineage: str | None = None) -> None:
        self.clock = ManualClock()
        self.newest: dict[str, Granted] = {}
        self.begun = 0
        self._allowance = Allowance("math", ME, lineage)

    def read(self, shares: SharesGranted) -> None:
        self.newest[shares.sampler] = Granted(shares, self.clock.monotonic_s())

    def limit(self) -> Limit:
        return self._allowance.limit(self.newest, self.begun, self.clock.monotonic_s())

    def taken(self, sampler: str, total: int, needed: int = 0) -> Granted:
        """The sampler's newest shares, with what the producer is given by them."""
        return self.newest[sampler]._replace(total=total, needed=needed)

    def groups(self) -> int | None:
        return self.limit().groups


def test_nothing_is_limited_where_no_sampler_of_the_lineage_ever_granted_any() -> None:
    reader = Reader(lineage="main")
    assert reader.groups() is None
    reader.read(granted(1, {ME: 3}, lineage="other"))
    assert reader.groups() is None
    reader.read(granted(1, {ME: 5}, sampler="b", lineage="main"))
    assert reader.groups() == 5
    reader.read(granted(2, {ME: 5}, sampler="b", lineage="other"))
    assert reader.groups() is None


def test_a_producer_of_the_default_lineage_is_held_by_no_other() -> None:
    reader = Reader(lineage="")
    reader.read(granted(1, {ME: 3}, lineage="main"))
    assert reader.groups() is None
    reader.read(granted(1, {ME: 5}, sampler="b", lineage=""))
    assert reader.groups() == 5


def test_a_producer_without_a_lineage_is_of_the_only_one_there_is() -> None:
    reader = Reader()
    reader.read(granted(1, {ME: 3}, lineage="main"))
    assert reader.groups() == 3
    reader.clock.advance(10)
    reader.read(granted(1, {ME: 4}, sampler="b", lineage="other"))
    named = r"'math' has .* 'main' and 'other'.* with: RolloutProducer\(lineage=…\)$"
    with pytest.raises(SeveralLineages, match=named):
        reader.groups()
    reader.clock.advance(20)
    assert reader.groups() == 4  # The other one ended.
    reader.clock.advance(10)
    assert reader.groups() == 4  # It ended last.
    reader.read(granted(2, {ME: 3}, lineage="main"))
    assert reader.groups() == 3


def test_a_producer_that_the_sampler_does_not_know_may_begin_nothing() -> None:
    reader = Reader()
    reader.read(granted(1, {"another": 7}))
    assert reader.groups() == 0
    reader.read(granted(2, {"another": 7, ME: 2}))
    assert reader.groups() == 2
    reader.read(granted(3, {"another": 7}))  # It was silent for too long.
    assert reader.groups() == 0


def test_of_several_samplers_the_smallest_total_holds_while_it_is_valid() -> None:
    reader = Reader()
    reader.read(granted(1, {ME: 2}, sampler="a", valid_s=10.0))
    reader.read(granted(1, {ME: 9}, sampler="b", valid_s=20.0))
    assert reader.limit() == Limit(2, reader.taken("a", 2), None, 10.0)
    reader.clock.advance(10.0)
    assert reader.limit() == Limit(9, reader.taken("b", 9), None, 20.0)


def test_shares_are_valid_from_when_they_were_read_whatever_other_clocks_say() -> None:
    """A reader may begin yesterday's, and an hour after everybody else."""
    reader = Reader()
    reader.clock.advance(3_600.0)
    reader.read(granted(1, {ME: 4}, valid_s=10.0))
    reader.clock.advance(9.9)
    assert reader.limit().away_s is None
    reader.clock.advance(0.1)
    assert reader.limit() == Limit(4, reader.taken("a", 4), 3_610.0, 4_210.0)


def test_the_last_samplers_total_stays_and_grows_once_each_idle_time() -> None:
    reader = Reader()
    reader.begun = 3
    reader.read(granted(1, {ME: 4}, valid_s=10.0, idle_s=600.0, idle_groups=5))
    reader.clock.advance(10.0)
    assert reader.groups() == 4
    reader.clock.advance(599.0)
    assert reader.groups() == 4
    reader.clock.advance(1.0)
    assert reader.groups() == 9
    reader.begun = 9
    reader.clock.advance(1_200.0)
    assert reader.groups() == 19
    reader.read(granted(2, {ME: 11}, valid_s=10.0))  # It is back.
    assert reader.groups() == 11


def test_a_sampler_that_leaves_names_nobody_and_its_total_stays() -> None:
    reader = Reader()
    reader.read(granted(1, {ME: 4}))
    assert reader.groups() == 4
    reader.read(granted(2, {}, valid_s=0.0, idle_groups=5))
    assert reader.limit() == Limit(4, reader.taken("a", 4), 0.0, 600.0)
    reader.clock.advance(600.0)
    assert reader.groups() == 9


def test_one_that_leaves_beside_another_that_lives_allows_and_limits_nothing() -> None:
    reader = Reader()
    reader.read(granted(1, {ME: 4}, sampler="a"))
    reader.read(granted(1, {ME: 6}, sampler="b"))
    assert reader.groups() == 4
    reader.read(granted(2, {}, sampler="a", valid_s=0.0, idle_groups=100, idle_s=1.0))
    assert reader.groups() == 6
    reader.clock.advance(20.0)
    assert reader.groups() == 6


def test_one_that_takes_no_part_is_as_if_it_had_never_granted_any() -> None:
    reader = Reader()
    reader.read(granted(1, {ME: 4}, lineage="main"))
    reader.read(granted(1, {ME: 6}, sampler="b", lineage="other"))
    reader.read(granted(2, {ME: 1}, lineage="main", valid_s=-1.0))
    assert reader.groups() == 6  # The only lineage that is left.
    reader.read(granted(2, {}, sampler="b", lineage="other", valid_s=-1.0))
    assert reader.limit() == Limit(None)
    reader.read(granted(3, {ME: 7}, lineage="main"))
    assert reader.groups() == 7


def test_a_producer_beyond_its_last_total_goes_on_from_what_it_has_begun() -> None:
    """It was not known any more; else it would wait until the idle groups caught up with it."""
    reader = Reader()
    reader.begun = 1_000
    reader.read(granted(1, {}, valid_s=10.0, idle_s=600.0, idle_groups=5))
    reader.clock.advance(610.0)
    assert reader.groups() == 1_005


def test_shares_that_give_no_idle_time_are_no_error() -> None:
    reader = Reader()
    reader.read(granted(1, {ME: 1}, valid_s=0.0, idle_s=0.0))
    reader.clock.advance(2.0)
    assert reader.groups() == 3


@pytest.mark.proves("F5")
def test_nobody_who_waits_is_held_by_one_who_does_not() -> None:
    reader = Reader()
    reader.read(granted(1, {ME: 4}, sampler="idle", valid_s=60.0))
    reader.read(granted(1, {"x": 9, ME: 12}, {"x": 8, ME: 6}, sampler="waits", valid_s=20.0))
    assert reader.limit() == Limit(6, reader.taken("waits", 12, 6), None, 20.0)
    reader.read(granted(1, {ME: 5}, sampler="idle", valid_s=60.0))
    assert reader.groups() == 6
    reader.read(granted(1, {ME: 7}, sampler="idle", valid_s=60.0))
    assert reader.groups() == 7  # More than is needed.
    reader.read(granted(1, {ME: 4}, sampler="idle", valid_s=60.0))
    reader.clock.advance(20.0)
    assert reader.groups() == 4  # What needed more has run out.
    reader.read(granted(2, {ME: 12}, {ME: 6}, sampler="waits", valid_s=0.0))
    assert reader.groups() == 4  # It left.
    reader.read(granted(3, {"x": 9}, {"x": 8}, sampler="waits"))
    assert reader.groups() == 0  # And came back, and does not know this producer.
    reader.read(granted(4, {ME: 12}, sampler="waits"))
    assert reader.groups() == 4  # Its request waits no longer.


class Model:
    """Says the same from the list of all that was ever read, slowly."""

    def __init__(self) -> None:
        self.read: list[tuple[float, SharesGranted]] = []

    def needed(self, now_s: float) -> int:
        """The most that any sampler's newest shares need of the producer."""
        newest = {shares.sampler: (read_s, shares) for read_s, shares in self.read}
        return max(
            (
                dict(zip(shares.producer_ids, shares.needed.tolist(), strict=False)).get(ME, 0)
                for read_s, shares in newest.values()
                if read_s + shares.valid_s > now_s
            ),
            default=0,
        )

    def totals(self) -> dict[str, tuple[float, int]]:
        """When each sampler's shares end, and the producer's total."""
        found: dict[str, tuple[float, int]] = {}
        for read_s, shares in self.read:
            totals = dict(zip(shares.producer_ids, shares.totals.tolist(), strict=True))
            if shares.valid_s < 0:
                found.pop(shares.sampler, None)
                continue
            stays = (
                found[shares.sampler][1] if shares.sampler in found and not shares.valid_s else 0
            )
            found[shares.sampler] = read_s + shares.valid_s, totals.get(ME, stays)
        return found

    def groups(self, now_s: float) -> int | None:
        totals = self.totals()
        valid = [total for ends_s, total in totals.values() if ends_s > now_s]
        if not totals or valid:
            return max(min(valid), self.needed(now_s)) if valid else None
        last_s = max(ends_s for ends_s, _ in totals.values())
        periods = 0
        while last_s + (periods + 1) * 8.0 <= now_s:
            periods += 1
        return min(total for ends_s, total in totals.values() if ends_s == last_s) + 3 * periods


reads = st.builds(
    lambda sampler, total, needed, valid_s: granted(
        1,
        {} if total is None else {"other": 50, ME: total},
        {} if total is None or needed is None else {"other": 60, ME: needed},
        sampler=sampler,
        valid_s=valid_s,
        idle_s=8.0,
        idle_groups=3,
    ),
    st.sampled_from("abc"),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.sampled_from([-1.0, 0.0, 1.0, 4.0]),
)
moves = st.sampled_from([0.0, 0.5, 1.0, 3.0, 8.0, 20.0])


@given(st.lists(st.tuples(moves, st.none() | reads)))
def test_the_limit_is_that_of_the_model(steps: list[tuple[float, SharesGranted | None]]) -> None:
    reader, model = Reader(), Model()
    for move_s, shares in steps:
        reader.clock.advance(move_s)
        if shares is not None:
            reader.read(shares)
            model.read.append((reader.clock.monotonic_s(), shares))
        now_s = reader.clock.monotonic_s()
        limit = reader.limit()
        assert limit.groups == model.groups(now_s)
        if limit.groups is not None:  # Time alone changes nothing before it says so.
            assert limit.changes_s > now_s
            assert model.groups(limit.changes_s - 0.25) == limit.groups
