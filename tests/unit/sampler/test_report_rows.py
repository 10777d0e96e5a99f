"""The counters of the report add up, whatever is counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.sampler.history.report_rows import (
    BELOW_ZERO,
    ROWS_MAX,
    Cell,
    Outcome,
    ReportCounters,
    ReportRow,
    bounds_of,
    bucket_of,
)

OUTCOMES = st.sampled_from(
    [
        *(Outcome("trained"), Outcome("served"), Outcome("waiting"), Outcome("eval")),
        *(Outcome("dropped", "stale"), Outcome("dropped", "capacity")),
        *(Outcome("unsealed", "failed"), Outcome("unsealed", "stale")),
        Outcome("unfinished", "truncated"),
    ]
)
CELLS = st.builds(
    Cell,
    st.sampled_from(["code", "math"]),
    st.integers(0, 5_000),
    st.one_of(st.none(), st.integers(0, 12)),
    st.one_of(st.none(), st.integers(-1, 6)),
    OUTCOMES,
)


@given(st.integers(0, 1 << 40))
def test_a_number_is_within_the_bounds_of_its_bucket(number: int) -> None:
    first, last = bounds_of(bucket_of(number))
    assert first <= number <= last
    assert number == 0 or last < 2 * first


def test_a_lag_from_the_future_has_a_bucket_of_its_own() -> None:
    assert bucket_of(-7) == BELOW_ZERO


def size(row: ReportRow) -> int:
    ended = sum(sum(of.values()) for of in (row.dropped, row.unsealed, row.unfinished))
    return row.trained + row.served + row.waiting + row.eval + ended


@given(st.lists(st.tuples(CELLS, st.integers(1, 3))), st.one_of(st.none(), st.integers(1, 70)))
def test_every_table_adds_up_to_the_totals(
    counted: list[tuple[Cell, int]], steps: int | None
) -> None:
    counters = ReportCounters()
    expected = Counter[Outcome]()
    for cell, count in counted:
        counters.add(cell, count)
        expected[cell.outcome] += count
    assert counters.totals() == ReportRow.of(expected)
    by_steps = counters.by_steps(steps)
    for table in (
        counters.by_environment().values(),
        counters.by_length().values(),
        counters.by_lag().values(),
        by_steps.values(),
    ):
        assert sum(size(row) for row in table) == expected.total()
    if steps is None:
        assert len(by_steps) <= ROWS_MAX
    for first, last in by_steps:
        assert steps in (None, last - first + 1)


@given(st.lists(CELLS), st.integers(0, 5_000), st.integers(1, 5_000))
def test_only_the_steps_and_the_environment_that_were_asked_for_count(
    cells: list[Cell], first: int, more: int
) -> None:
    counters = ReportCounters(first=first, stop=first + more, environment="math")
    for cell in cells:
        counters.add(cell)
    wanted = [c for c in cells if c.environment == "math" and first <= c.step < first + more]
    assert size(counters.totals()) == len(wanted)


def test_more_cells_than_are_kept_are_counted_all_the_same() -> None:
    counters = ReportCounters()
    for step in range(20_000):
        counters.add(Cell("math", step, 3, 0, Outcome("trained")))
    assert counters.totals().trained == 20_000
    assert [row.trained for row in counters.by_steps(5_000).values()] == [5_000] * 4


@pytest.mark.parametrize(
    ("row", "share"),
    [
        (ReportRow(waiting=3), None),
        (ReportRow(trained=1, dropped={"stale": 2, "capacity": 1}), 0.75),
        (ReportRow(trained=1, unsealed={"failed": 9}), 0.0),
    ],
)
def test_the_share_is_of_those_whose_end_is_known(row: ReportRow, share: float | None) -> None:
    assert row.dropped_share == share
