"""The last turns of keys are those of a plain mapping, however many came lately."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.folds.ready import last_turns
from rollstream.folds.ready.last_turns import LastTurns
from rollstream.folds.saved_state import copied

KEYS = st.integers(0, 30).map(lambda key: (key * 0x9E3779B97F4A7C15) % 2**64)


@given(st.lists(st.tuples(KEYS, st.integers(1, 2**32 - 1))), st.integers(0, 8))
def test_keys_have_the_greatest_turn_that_they_were_served_in(
    served: list[tuple[int, int]], recent_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(last_turns, "RECENT_MAX", recent_max)
        found, expected = LastTurns(), dict[int, int]()
        for key, turn in served:
            assert found.get(key) == expected.get(key, 0)
            found.serve([(key, turn)])
            expected[key] = max(turn, expected.get(key, 0))
            assert found.get(key) == expected[key]
        before = copied(found)
        assert list(found) == sorted(expected.items())
        assert all(found.get(key) == turn for key, turn in expected.items())
        found.serve([(2**64 - 1, 7)])
        assert list(copy.copy(before)) == sorted(expected.items())
