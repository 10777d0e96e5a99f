"""Which trajectories ``GrpoBatchMaker`` and ``RlooBatchMaker`` choose, beside slow models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.makers import made_by, steps_of_rollouts
from rollstream.sampler import GrpoBatchMaker, InvalidRequest, RlooBatchMaker, Rollout
from rollstream.sampler.training.makers.reservoir import RESERVOIR_SIZE


def group(
    number: int,
    rewards: tuple[float, ...],
    *,
    start: int = 0,
    example: str = "a",
    step: int = 0,
    epoch: int = 0,
    used: tuple[int, ...] = (),
    carried: bool = False,
) -> list[Rollout]:
    """A group whose trajectories are numbered from ``start``."""
    return [
        Rollout(
            trajectory=start + index,
            group=number,
            environment="math",
            example_id=example,
            weight_step=step,
            policy_version=f"step-{step}",
            reward=reward,
            tokens=10,
            used=index in used,
            carried=carried,
            policy_epoch=epoch,
        )
        for index, reward in enumerate(rewards)
    ]


@pytest.mark.proves("D2")
def test_a_problem_is_trained_on_under_its_newest_weights() -> None:
    rollouts = [
        *group(0, (0, 1), step=3),
        *group(1, (0, 1), start=2, step=4),
        *group(2, (0, 1), start=4, step=3, example="b"),
        *group(3, (0, 1), start=6, step=-1, example="b"),
        *group(4, (0, 1), start=8, step=4),
    ]
    made = made_by(GrpoBatchMaker(), rollouts, 10)
    assert sorted(made.trajectories.tolist()) == [2, 3, 4, 5, 8, 9]
    assert made.filtered == {"older_policy": 4}
    assert made.filtered_groups.tolist() == [0, 3]


@pytest.mark.proves("D2")
def test_weights_of_a_later_epoch_are_newer_whatever_their_step() -> None:
    rollouts = [
        *group(0, (0, 1), step=8),
        *group(1, (0, 1), start=2, step=6, epoch=1),
        *group(2, (0, 1), start=4, step=3, example="b"),
        *group(3, (0, 1), start=6, step=3, epoch=1, example="b"),
        *group(4, (0, 1), start=8, step=-1, epoch=2, example="c"),
        *group(5, (0, 1), start=10, step=0, example="c"),
    ]
    made = made_by(GrpoBatchMaker(), rollouts, 12)
    assert made.filtered_groups.tolist() == [0, 2, 5], "not known, but of the later epoch"
    assert made.filtered == {"older_policy": 6}


@pytest.mark.proves("D2")
def test_of_one_epoch_and_step_no_version_is_newer() -> None:
    one, other = group(0, (0, 1), step=3), group(1, (0, 1), start=2, step=3)
    rollouts = [*one, *(rollout._replace(policy_version="step-3.e1") for rollout in other)]
    assert made_by(GrpoBatchMaker(), rollouts, 4).filtered == {}


@pytest.mark.proves("D2")
def test_what_tells_nothing_is_filtered_and_counted() -> None:
    rollouts = [
        *group(0, (1, 1, 1)),
        *group(1, (7,), start=3, example="b"),
        *group(2, (0, 1, 2), start=4, example="c"),
    ]
    made = made_by(GrpoBatchMaker(), rollouts, 10)
    assert dict(zip(made.trajectories.tolist(), made.advantages.tolist(), strict=True)) == {
        4: -1.5,
        6: 1.5,
    }
    assert made.filtered == {"all_equal": 4, "zero_advantage": 1}
    assert made.filtered_groups.tolist() == [0, 1]


@pytest.mark.proves("D2")
def test_advantages_are_of_the_whole_group_also_of_who_was_trained_on_before() -> None:
    rollouts = group(0, (3, 0, 0, 1), used=(0, 2), carried=True)
    made = made_by(GrpoBatchMaker(advantage="dr_grpo"), rollouts, 10)
    assert dict(zip(made.trajectories.tolist(), made.advantages.tolist(), strict=True)) == {
        1: -1,
        # 1 is the mean of 3, 0, 0, 1.
    }
    assert made.filtered == {"zero_advantage": 1}
    equal_rest = group(0, (3, 0, 0), used=(0,), carried=True)
    assert len(made_by(GrpoBatchMaker(), equal_rest, 10).trajectories) == 2


@pytest.mark.proves("D2")
def test_beyond_its_size_the_oldest_weights_leave_the_reservoir_first() -> None:
    rollouts = [
        *group(0, (0, 1), step=5, example="new"),
        *group(1, (0, 1), start=2, step=3, example="old", carried=True),
        *group(2, (0, 1), start=4, step=2, epoch=1, example="middle", carried=True),
    ]
    made = made_by(GrpoBatchMaker(reservoir_size=3), rollouts, 0)
    assert made.kept.tolist() == [4, 5, 0]
    assert made.filtered == {"reservoir_full": 3}
    assert made.filtered_groups.tolist() == [1]


def test_the_order_is_a_function_of_seed_and_step() -> None:
    rollouts = [r for n in range(8) for r in group(n, (0, 1), start=2 * n, example=str(n))]
    orders = [
        made_by(GrpoBatchMaker(seed=seed), rollouts, 16, step).trajectories.tolist()
        for seed, step in ((1, 3), (1, 4), (2, 3), (1, 3))
    ]
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(16)) for order in orders)
    # Recorded steps are made again by later versions: this order must never change.
    assert orders[0] == [4, 13, 6, 15, 8, 1, 9, 0, 12, 2, 3, 10, 11, 14, 7, 5]


@pytest.mark.proves("D2")
@given(
    steps=steps_of_rollouts(steps=1),
    marks=st.lists(st.sampled_from([False, False, True]), min_size=40, max_size=40),
    batch_size=st.integers(0, 12),
    reservoir_size=st.integers(0, 12),
)
def test_who_is_chosen_and_why_others_are_not_is_as_a_loop_says(
    steps: list[list[Rollout]], marks: list[bool], batch_size: int, reservoir_size: int
) -> None:
    rollouts = [r._replace(used=mark) for r, mark in zip(steps[0], marks, strict=False)]
    maker = GrpoBatchMaker(reservoir_size=reservoir_size)
    made = made_by(maker, rollouts, batch_size)
    candidates, reasons = naive(rollouts)
    trained, kept = made.trajectories.tolist(), made.kept.tolist()
    assert {*trained, *kept} <= set(candidates)
    assert len(trained) == min(batch_size, len(candidates))
    rest = [index for index in candidates if index not in trained]
    newest_first = sorted(rest, key=lambda index: [-one for one in age(rollouts[index])])
    assert sorted(kept) == sorted(newest_first[:reservoir_size])
    if full := len(rest) - len(kept):
        reasons["reservoir_full"] = full
    assert made.filtered == reasons
    positive = {index for index in candidates if rollouts[index].reward > mean(rollouts, index)}
    exact = batch_size * len(positive) / max(len(candidates), 1)
    if 2 <= batch_size < len(candidates):
        share = len(positive.intersection(trained))
        assert abs(share - exact) <= 0.5 or share in {1, batch_size - 1}
        if 0 < len(positive) < len(candidates):
            assert 0 < share < batch_size, "both signs are there"


def age(rollout: Rollout) -> tuple[int, ...]:
    """Greater is newer; a step that is not known is -1."""
    return rollout.policy_epoch, rollout.weight_step


def mean(rollouts: list[Rollout], index: int) -> float:
    mates = [r.reward for r in rollouts if r.group == rollouts[index].group]
    return sum(mates) / len(mates)


def naive(rollouts: list[Rollout]) -> tuple[list[int], Counter[str]]:
    """Which may be trained on, and how many others may not, by the reason."""
    candidates, reasons = [], Counter[str]()
    for rollout in rollouts:
        mates = [r for r in rollouts if r.group == rollout.group]
        problem = rollout.environment, rollout.example_id
        same = [r for r in rollouts if (r.environment, r.example_id) == problem]
        if rollout.used:
            continue
        if max(map(age, same)) > max(map(age, mates)):
            reasons["older_policy"] += 1
        elif len({r.reward for r in mates}) == 1:
            reasons["all_equal"] += 1
        elif rollout.reward * len(mates) == sum(r.reward for r in mates):
            reasons["zero_advantage"] += 1
        else:
            candidates.append(rollout.trajectory)
    return candidates, reasons


@pytest.mark.proves("D3")
def test_rloo_trains_on_everything_first_come_first_served() -> None:
    rollouts = [
        *group(0, (0, 1, 5), step=5),
        *group(1, (2, 2), start=3, step=3, used=(1,), carried=True),
        *group(2, (1, 0, 0), start=5, step=4, carried=True),
    ]
    made = made_by(RlooBatchMaker(reservoir_size=1), rollouts, 5)
    assert made.trajectories.tolist() == [3, 5, 6, 7, 0]
    assert made.advantages.tolist() == [0, 1, -0.5, -0.5, -3]
    assert made.kept.tolist() == [1]
    assert made.filtered == {"reservoir_full": 1}
    assert made.filtered_groups.tolist() == []


def test_metadata_says_what_was_made() -> None:
    rollouts = [*group(0, (1, 1, 1)), *group(1, (0, 1, 1), start=3, example="b")]
    maker = GrpoBatchMaker()
    assert maker.get_batch_metadata(made_by(maker, rollouts, 10)) == {
        "trained": 3,
        "kept": 0,
        "filtered_groups": 1,
        "filtered/all_equal": 3,
        "advantage/mean": 0,
        "advantage/std": pytest.approx(0.7071068),
        "advantage/min": -1,
        "advantage/max": 0.5,
    }
    nothing = made_by(maker, [], 10)
    assert maker.get_batch_metadata(nothing) == {"trained": 0, "kept": 0, "filtered_groups": 0}


def test_settings_tell_makers_apart() -> None:
    settings = GrpoBatchMaker(seed=5).settings
    assert settings == {
        "maker": "grpo",
        "version": 1,
        "seed": 5,
        "advantage": "rloo",
        "reservoir_size": RESERVOIR_SIZE,
    }
    assert RlooBatchMaker(reservoir_size=2).settings["reservoir_size"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"advantage": "gae"}, "advantage 'gae' is unknown"),
        ({"reservoir_size": -1}, "reservoir_size is -1; give 0 or more"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_a_maker_that_could_not_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        GrpoBatchMaker(**arguments)


def test_a_negative_batch_size_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="batch_size is -1; give 0 or more"):
        made_by(RlooBatchMaker(), [], -1)
