"""Outcomes by example: counted as a plain counter counts them, in whatever order."""

from __future__ import annotations

import pickle
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from copy import copy
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from rollstream.folds.batches.served import Outcome
from rollstream.folds.group.example_counts import PARTS, RECENT_MAX, ExampleCounts
from rollstream.folds.group.known import Key

OUTCOMES = get_args(Outcome)
KINDS = (*OUTCOMES, "a reason", "another")
ended = st.tuples(
    st.sampled_from(KINDS),
    st.builds(Key, st.sampled_from(["math", "code"]), st.sampled_from(["a", "ä", "b\0c", ""])),
    st.integers(1, 300),
)
Found = list[tuple[str, Key, int]]


def counted(found: Iterable[tuple[str, Key, int]]) -> dict[str, dict[str, Counter[str]]]:
    """The model: kind to environment to example to count."""
    counts: defaultdict[str, dict[str, Counter[str]]] = defaultdict(dict)
    for kind, key, count in found:
        counts[kind].setdefault(key.environment, Counter())[key.example_id] += count
    return dict(counts)


def of(found: Found, known: tuple[str, ...] = OUTCOMES) -> ExampleCounts:
    counts = ExampleCounts(known)
    for kind, key, count in found:
        counts.add(kind, key, count)
    return counts


@given(found=st.lists(ended), seed=st.integers(0, 99))
def test_outcomes_are_counted_by_example(found: Found, seed: int) -> None:
    counts, other = of(found), of(random.Random(seed).sample(found, len(found)), ())
    assert other.sorted_items() == counts.sorted_items()
    totals = Counter[str]()
    for kind, _, count in found:
        totals[kind] += count
    assert counts.totals() == other.totals() == totals
    assert counts.by_kind() == other.by_kind() == counted(found)
    counts.count_as_one()
    counts.add("trained", Key("math", "a"))
    as_one = [(kind, Key(key.environment, ""), count) for kind, key, count in found]
    assert counts.by_kind() == counted([*as_one, ("trained", Key("math", ""), 1)])


def test_many_examples_are_counted_as_few_and_copies_change_apart() -> None:
    examples = 4 * PARTS * RECENT_MAX
    found = [(OUTCOMES[n % 7 % 3], Key("math", f"é-{n % examples}"), 1) for n in range(200_000)]
    counts = of(found[:-9])
    before = copy(counts)
    for kind, key, count in found[-9:]:
        counts.add(kind, key, count)
    assert before.by_kind() == counted(found[:-9])
    assert counts.by_kind() == counted(found)
    saved: ExampleCounts = pickle.loads(pickle.dumps(before))
    for one in (before, saved):
        one.add_all("math", [(key.example_id, (kind,)) for kind, key, _ in found[-9:]])
        assert one.sorted_items() == counts.sorted_items()
    assert counts.sorted_items() == of(found[::-1]).sorted_items()
    new = [("trained", Key("math", f"new-{n}"), 1) for n in range(100_000)]
    for kind, key, count in new:
        saved.add(kind, key, count)
    assert saved.by_kind() == counted([*found, *new])
