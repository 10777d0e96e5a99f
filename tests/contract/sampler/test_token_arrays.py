"""Named arrays in batches, whose groups have them or not, alike or not: every sampler."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from harness.groups import EVERY_COLUMN, GroupSpec, every_extra, routed_experts
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld
from rollstream.sampler import ArrayMissing, ArraysDiffer, Batch

WAIT_S = 30.0


def specs(count: int, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}", **fields) for i in range(count)]


@WITHOUT_RAY
@pytest.mark.proves("A24")
def test_all_that_a_loss_needs_is_in_the_batch_and_nothing_that_was_not_asked_for(
    world: SamplerWorld,
) -> None:
    extras: tuple[dict[str, Any], ...] = (every_extra(), {})
    world.writer("math").flush(GroupSpec(example_id="one", extras=extras, weight_steps=(3, 5)))
    world.writer("code").flush(GroupSpec(example_id="two", weight_step=4))
    world.configure(max_policy_lag=-1)  # Rollouts name weights of later steps than 0.
    sampler = world.open()
    plain = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    assert (plain.old_logprobs, plain.ref_logprobs, plain.metadata) == (None, None, None)
    assert (plain.token_rewards, plain.token_weight_steps) == (None, None)
    assert len(plain.token_arrays) == 0
    batch = sampler.next_batch(0, 2, timeout_s=WAIT_S, columns=EVERY_COLUMN)
    first = batch.example_ids.index("one")
    mixed, uniform = slice(first, first + 2), slice(2 - first, 4 - first)
    for one in (plain, batch):
        assert one.example_ids[mixed] + one.example_ids[uniform] == ("one", "one", "two", "two")
        assert one.policy_versions[mixed] == ("step-3", "step-5")
        assert one.policy_versions[uniform] == ("step-4", "step-4")
    start, end = batch.offsets[first : first + 2].tolist()
    rising = np.arange(3)
    for name, expected in (
        ("old_logprobs", -rising / 2),
        ("ref_logprobs", -rising / 4),
        ("token_rewards", rising / 8),
        ("token_weight_steps", rising // 2),
    ):
        array = batch.arrays()[name]
        np.testing.assert_array_equal(array[start + 2 : end], expected)
        assert len(array) == len(batch.tokens)
        other = array[batch.offsets[first + 1] + 2 : batch.offsets[first + 2]]
        assert (other == 5 if name == "token_weight_steps" else np.isnan(other)).all()


def test_every_rank_gets_the_same_answer_about_a_token_array(world: SamplerWorld) -> None:
    weights = {"token_arrays": {"weights": np.ones((3, 2), "<f4")}}
    world.writer("math").flush(*specs(1, extras=(routed_experts(),)))
    world.writer("code").flush(*specs(1, extras=(weights,)))
    sampler = world.open()

    def shares(*columns: str) -> list[Batch]:
        return [
            sampler.next_batch(0, 2, timeout_s=WAIT_S, dp_rank=rank, dp_size=2, columns=columns)
            for rank in (0, 1)
        ]

    math, code = sorted(
        shares("routed_experts", "weights"), key=lambda b: b.environments, reverse=True
    )
    assert (math.environments[0], code.environments[0]) == ("math", "code")
    assert math.token_arrays["routed_experts"].any()
    for batch in (math, code):
        experts, floats = (batch.token_arrays[n] for n in ("routed_experts", "weights"))
        assert (experts.dtype, experts.shape) == (np.dtype("u1"), (10, 2))
        assert (floats.dtype, floats.shape) == (np.dtype("<f4"), (10, 2))
    assert not code.token_arrays["routed_experts"].any()
    assert np.isnan(math.token_arrays["weights"].reshape(2, 5, 2)[:, 2:]).all()
    for batch in shares("weigths", "weights"):
        assert list(batch.token_arrays) == ["weights"]
        for asked in (batch, pickle.loads(pickle.dumps(batch))):
            with pytest.raises(ArrayMissing, match=r"'weigths'.*\['routed_experts', 'weights'\]"):
                asked.token_arrays["weigths"]


@WITHOUT_RAY
@pytest.mark.proves("F20")
def test_token_arrays_that_differ_between_groups_refuse_the_access_to_them_alone(
    world: SamplerWorld,
) -> None:
    world.writer("math").flush(*specs(1, extras=(routed_experts(top_k=2),)))
    world.writer("code").flush(*specs(1, extras=(routed_experts(top_k=8),)))
    sampler = world.open()
    for rank in (0, 1):
        share: dict[str, Any] = {"timeout_s": WAIT_S, "dp_rank": rank, "dp_size": 2}
        batch = sampler.next_batch(0, 2, columns=["routed_experts", "metadata"], **share)
        told = r"'routed_experts' .*\(2,\)\] in groups [01]; .*\(8,\)\] in groups [01]; read it"
        with pytest.raises(ArraysDiffer, match=told):
            batch.token_arrays["routed_experts"]
        assert len(batch) == len(batch.metadata or ()) == 2
        assert batch.arrays().keys() == sampler.next_batch(0, 2, **share).arrays().keys()
        copied = pickle.loads(pickle.dumps(batch))
        with pytest.raises(ArraysDiffer, match=told):
            copied.token_arrays["routed_experts"]
        experts = [r.token_arrays["routed_experts"].shape for r in batch.records(0)[:1]]
        assert experts in ([(3, 2)], [(3, 8)])
