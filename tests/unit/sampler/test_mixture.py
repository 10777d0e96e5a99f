"""Stable shares of environments, whatever each has."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.makers import made_by
from rollstream.sampler import (
    InvalidRequest,
    MadeBatch,
    MixedBatch,
    RlooBatchMaker,
    Rollout,
    StableMixtureBatchMaker,
)


def rollouts(**counts: int) -> list[Rollout]:
    """So many of each environment, a group each."""
    names = [name for name, count in counts.items() for _ in range(count)]
    return [Rollout(n, n, name, "a", 0, "v", 1.0, 10) for n, name in enumerate(names)]


def mixture(**shares: float) -> StableMixtureBatchMaker:
    return StableMixtureBatchMaker({name: RlooBatchMaker() for name in shares}, shares)


def counts(there: list[Rollout], made: MadeBatch) -> dict[str, int]:
    """How many of each environment are trained on."""
    assert isinstance(made, MixedBatch)
    names = [there[index].environment for index in made.trajectories.tolist()]
    assert {name: len(part.trajectories) for name, part in made.parts.items()} == {
        name: names.count(name) for name in made.parts
    }
    return {name: names.count(name) for name in made.parts}


@pytest.mark.proves("D3")
@given(
    weights=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    size=st.integers(1, 40),
    first=st.just(0) | st.integers(0, 2**40),
)
def test_over_any_steps_shares_stay_within_one_of_exact(
    weights: list[int], size: int, first: int
) -> None:
    assume(min(weights) * size >= sum(weights))
    names = [f"e{n}" for n in range(len(weights))]
    maker = mixture(**dict(zip(names, map(float, weights), strict=True)))
    there = rollouts(**dict.fromkeys(names, size))
    total = dict.fromkeys(names, 0)
    for step in range(first, first + 8):
        made = made_by(maker, there, size, step)
        found = counts(there, made)
        assert sum(found.values()) == size
        total = {name: total[name] + found[name] for name in names}
        for name, weight in zip(names, weights, strict=True):
            exact = Fraction(weight, sum(weights)) * size * (step + 1 - first)
            # From step 0 within one; and so between any two steps within two.
            assert abs(total[name] - exact) < (1 if first == 0 else 2)


@pytest.mark.proves("D3")
def test_shares_as_they_are_written_come_out_exactly() -> None:
    maker = mixture(math=0.7, code=0.2, chat=0.1)
    there = rollouts(math=20, code=20, chat=20)
    found = [counts(there, made_by(maker, there, 16, step)) for step in range(5)]
    assert sum(one["math"] for one in found) == 56
    assert sum(one["code"] for one in found) == 16
    assert sum(one["chat"] for one in found) == 8
    assert all(one["math"] in {11, 12} for one in found)


@pytest.mark.proves("D3")
def test_others_fill_what_an_environment_lacks_and_its_share_is_there_again_afterwards() -> None:
    maker = mixture(math=0.5, code=0.25, chat=0.25)
    dry = rollouts(math=1, code=3, chat=20)
    made = made_by(maker, dry, 8, 0)
    assert counts(dry, made) == {"chat": 4, "code": 3, "math": 1}
    metadata = maker.get_batch_metadata(made)
    assert [metadata[f"{name}/lacking"] for name in ("chat", "code", "math")] == [0, 0, 3]
    assert metadata["chat/trained"] == 4
    assert metadata["trained"] == 8
    assert metadata["kept"] == metadata["chat/kept"] == 16
    full = rollouts(math=20, code=20, chat=20)
    again = made_by(maker, full, 8, 1)
    assert counts(full, again) == {"chat": 2, "code": 2, "math": 4}


def test_a_step_is_smaller_where_nobody_has_more() -> None:
    maker = mixture(math=0.5, code=0.5)
    there = rollouts(math=1, code=2)
    assert counts(there, made_by(maker, there, 8)) == {"code": 2, "math": 1}
    assert counts([], made_by(maker, [], 8)) == {"code": 0, "math": 0}


def test_environments_take_turns() -> None:
    maker = mixture(math=0.75, code=0.25)
    there = rollouts(math=9, code=3)
    trained = made_by(maker, there, 8).trajectories.tolist()
    names = [there[index].environment for index in trained]
    assert names[:4].count("code") == names[4:].count("code") == 1


def test_settings_are_those_of_every_maker_and_the_shares() -> None:
    assert mixture(math=0.7, code=0.3).settings == {
        "maker": "stable_mixture",
        "version": 1,
        "shares": {"code": "3/10", "math": "7/10"},
        "makers": {name: RlooBatchMaker().settings for name in ("code", "math")},
    }


@pytest.mark.parametrize(
    ("makers", "shares", "message"),
    [
        (["math"], {"code": 1.0}, r"makers are for \['math'\] and shares for \['code'\]"),
        (["math", "code"], {"math": 1.0, "code": 0.0}, "gives code 0.0; give a number above 0"),
        (["math"], {"math": -1.0}, "gives no shares"),
        ([], {}, "gives no shares"),
    ],
)
def test_a_mixture_that_could_not_be_is_refused(
    makers: list[str], shares: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        StableMixtureBatchMaker({name: RlooBatchMaker() for name in makers}, shares)


def test_an_environment_without_a_maker_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"'chat' has no maker; makers are for \['math'\]"):
        made_by(mixture(math=1.0), rollouts(chat=1), 8)


def test_a_share_of_less_than_one_trajectory_a_step_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"gives code, whose share is 0\.1, .* at least 10"):
        made_by(mixture(math=0.9, code=0.1), [], 9)
    assert counts([], made_by(mixture(math=0.9, code=0.1), [], 10)) == {"code": 0, "math": 0}
