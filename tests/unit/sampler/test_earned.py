"""What rollouts earned: figures that exist for any finite rewards."""

from __future__ import annotations

import sys
import warnings
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from harness.groups import GroupSpec, flush_of
from rollstream.folds.group.earned import mean_of, returns_of, spread_of
from rollstream.folds.group.scored import Given
from rollstream.folds.state import SamplerState
from rollstream.schemas.choosing import Choosing, ServedEnvironment
from rollstream.schemas.events import RolloutScore, Scored
from rollstream.schemas.ids import PartitionAddress

MOST = sys.float_info.max
LOG = PartitionAddress("math", 1, 0)
pytestmark = pytest.mark.proves("A18")
finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("values", "mean", "spread"),
    [
        ([MOST] * 7, MOST, 0.0),
        ([-MOST] * 49, -MOST, 0.0),
        ([MOST, -MOST], 0.0, MOST),
        ([MOST, MOST, -MOST], MOST / 3, MOST * (8**0.5 / 3)),
        ([1e200, 0.0], 5e199, 5e199),
        ([-MOST, 1.0, 0.0, 0.0], -MOST / 4, MOST * (3**0.5 / 4)),
        ([5e-324, 0.0], 0.0, 0.0),
        ([0.1, 0.1, 0.1], 0.1, 0.0),
        ([0.0, 0.0], 0.0, 0.0),
    ],
)
def test_mean_and_spread_of_the_largest_rewards(
    values: list[float], mean: float, spread: float
) -> None:
    assert mean_of(values) == pytest.approx(mean)
    assert spread_of(values) == pytest.approx(spread)


@given(st.lists(finite, min_size=1, max_size=20))
def test_the_mean_is_between_the_values_and_the_spread_no_more_than_the_largest(
    values: list[float],
) -> None:
    assert min(values) <= mean_of(values) <= max(values)
    assert 0 <= spread_of(values) <= max(map(abs, values))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_ordinary_rewards_have_the_mean_and_spread_that_they_always_had(
    values: list[float],
) -> None:
    assert mean_of(values) == pytest.approx(fmean(values), rel=1e-9, abs=1e-9)
    assert spread_of(values) == pytest.approx(pstdev(values), rel=1e-6, abs=1e-6)


def test_segments_that_earned_beyond_the_largest_float_have_a_finite_sum() -> None:
    earned = np.array([MOST, MOST, -MOST, -MOST, 0.5, 0.25])
    begins = np.array([True, False, True, False, True, False])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_array_equal(returns_of(earned, begins), [MOST, -MOST, 0.75])
        (lost,) = returns_of(np.repeat([MOST, -MOST], 16), np.arange(32) == 0)
    assert np.isfinite(lost)


@pytest.mark.parametrize("extreme", [1e200, MOST, -MOST])
@pytest.mark.parametrize("late", [False, True])
def test_one_extreme_reward_loses_no_group(extreme: float, late: bool) -> None:
    environments = (ServedEnvironment(name="math"),)
    state = SamplerState("t", Choosing(environments=environments, min_mean_reward=0.25), [LOG])
    published = None if late else extreme
    specs = [GroupSpec(rewards=of) for of in ((1.0, 0.0), (published, extreme), (0.5, 0.5))]
    flushed = flush_of(specs, name="f", partition=0, now_ts=10)
    state.apply_groups(LOG, 0, flushed, 10)
    if late:
        scores = (RolloutScore(flushed.segments.uids[2], extreme, {}, ()),)
        event = Scored(scorer="s", attempt="", group_id="", scored_ts=0, scores=scores)
        state.apply_scores(LOG, 0, Given(event, 11))
    assert [ref.index_in_flush for ref in state.ready.refs()] == [0, 1, 2]
    filtered = [state.ready.packed.unpack(ref).index_in_flush for ref in state.ready.filtered()]
    assert filtered == ([1] if extreme < 0 else [])
