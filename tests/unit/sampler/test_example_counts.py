"""Outcomes by example: counted as a plain counter counts them, in whatever order."""

from __future__ import annotations

import random
from collections import Counter
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from rollstream.folds.batches.served import ExampleCounts, Outcome
from rollstream.folds.group.known import Key

OUTCOMES = get_args(Outcome)
ended = st.tuples(
    st.sampled_from(OUTCOMES),
    st.builds(Key, st.sampled_from(["math", "code"]), st.sampled_from("abc")),
    st.integers(1, 300),
)


@given(found=st.lists(ended), asked=st.sets(st.sampled_from(OUTCOMES)), seed=st.integers(0, 99))
def test_outcomes_are_counted_by_example(
    found: list[tuple[Outcome, Key, int]], asked: set[Outcome], seed: int
) -> None:
    each = [(outcome, key) for outcome, key, times in found for _ in range(times)]
    counts, other = ExampleCounts(), ExampleCounts()
    for outcome, key in each:
        counts.add(outcome, key)
    for outcome, key in random.Random(seed).sample(each, len(each)):
        other.add(outcome, key)
    assert other.sorted_items() == counts.sorted_items()
    assert counts.totals() == other.totals() == Counter(outcome for outcome, _ in each)
    wanted: dict[str, Counter[str]] = {}
    for outcome, key in each:
        if outcome in asked:
            wanted.setdefault(key.environment, Counter())[key.example_id] += 1
    assert counts.by_environment(*asked) == wanted
