"""From a batch to a maker, and from what it made to examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.batches import batch_of
from harness.groups import GroupSpec
from rollstream.sampler import (
    Batch,
    GrpoBatchMaker,
    InvalidRequest,
    MadeBatch,
    PoolBatch,
    StableMixtureBatchMaker,
    TrainingBatch,
    examples_of,
    make_batch,
    rollouts_of,
)


def turns(*uids: str) -> list[dict[str, Any]]:
    """Segments: those of one uid are of one trajectory, each under newer weights."""
    return [
        {
            "rollout_uid": uid,
            "segment_idx": uids[:n].count(uid),
            "weight_step": n,
            "policy_version": f"v{n}",
        }
        for n, uid in enumerate(uids)
    ]


def a_batch() -> Batch:
    """A group of two trajectories, one of two turns, and one of two that was carried."""
    groups = [
        GroupSpec(rewards=(1.0, 0.25, 0.5), extras=turns("a", "b", "b"), example_id="x"),
        GroupSpec(rewards=(0.0, 4.0), weight_step=3, prompt=1, output=4, example_id="y"),
    ]
    return replace(batch_of(groups), carried_groups=1, used=np.array([False, False, True, False]))


@pytest.mark.proves("D1", "A17")
def test_a_maker_knows_the_trajectories_of_a_batch() -> None:
    rollouts = rollouts_of(a_batch())
    assert [one[:11] for one in rollouts] == [
        (0, 0, "math", "x", 0, "v0", 1.0, 5, False, False, 0),
        (1, 0, "math", "x", 2, "v2", 0.75, 10, False, False, 0),
        (2, 1, "math", "y", 3, "step-3", 0.0, 5, True, True, 0),
        (3, 1, "math", "y", 3, "step-3", 4.0, 5, False, True, 0),
    ]
    assert [one.output_tokens for one in rollouts] == [3, 6, 4, 4]
    components = [one.reward_components for one in rollouts]
    assert components == [{"format": n} for n in (0.5, 0.375, 0.0, 2.0)]
    assert rollouts_of(batch_of()) == []
    (rollout,) = rollouts_of(batch_of([GroupSpec(rewards=(1.0,))]))
    assert (rollout.used, rollout.carried) == (False, False)
    for value in rollout[:13]:
        assert type(value) in {int, str, float, bool}


@pytest.mark.proves("D1", "A17", "D4")
def test_what_is_trained_on_becomes_examples_in_its_order_all_turns_of_a_trajectory() -> None:
    batch = a_batch()
    made = make_batch(GrpoBatchMaker(seed=1), batch, 10)
    assert sorted(made.trajectories.tolist()) == [0, 1, 3]
    examples = examples_of(batch, made)
    advantages = {0: 0.25, 1: -0.25, 3: 4.0}
    rows = {0: [0], 1: [1, 2], 3: [4]}
    expected = [row for one in made.trajectories.tolist() for row in rows[one]]
    assert examples.rows.tolist() == expected
    for example, trajectory in zip(examples, examples.trajectories.tolist(), strict=True):
        assert set(example.advantage[example.loss_mask]) == {np.float32(advantages[trajectory])}
    nothing = MadeBatch.of(rollouts_of(batch), np.zeros(4), trained=())
    assert len(examples_of(batch, nothing)) == 0


@pytest.mark.proves("F20")
@pytest.mark.parametrize(
    ("maker", "size", "message"),
    [
        (GrpoBatchMaker, 4, r"maker is <class .*; GrpoBatchMaker\(…\) makes one"),
        ("grpo", 4, "maker is 'grpo'; give a BatchMaker's object$"),
        (GrpoBatchMaker(), 0, "batch_size is 0; give 1 or more"),
        (GrpoBatchMaker(), "4", "batch_size is '4'; give a whole number"),
    ],
)
def test_what_is_no_maker_and_no_size_is_refused(maker: Any, size: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_batch(maker, a_batch(), size)


@pytest.mark.proves("F20")
def test_a_mixture_is_of_makers_and_of_no_classes() -> None:
    makers: Any = {"math": GrpoBatchMaker}
    with pytest.raises(InvalidRequest, match="the maker for math is <class"):
        StableMixtureBatchMaker(makers, {"math": 1.0})


def test_a_maker_and_what_it_made_are_shown_in_a_line() -> None:
    maker, batch = GrpoBatchMaker(seed=1), a_batch()
    assert repr(maker) == "GrpoBatchMaker(version=1, seed=1, advantage='rloo', reservoir_size=256)"
    made = make_batch(maker, batch, 2)
    assert repr(made) == "MadeBatch(trained 2, kept 1, filtered 0)"
    training = TrainingBatch(batch=batch, made=made, examples=examples_of(batch, made), metadata={})
    pool = PoolBatch(
        prompt_uid="p",
        batch=batch,
        off_policy=np.ones(5, np.bool_),
        importance_weights=np.ones(5, np.float32),
    )
    assert repr(training).startswith(f"TrainingBatch({made!r}, Examples(")
    assert repr(pool) == f"PoolBatch('p', off policy 5, {batch!r})"
    assert "\n" not in repr(training) + repr(pool)
