"""The loss that the demo's learner descends, and its gradient by hand."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.demo.errors import BatchDoesNotFit
from examples.demo.gradient import (
    Choices,
    choices_of,
    group_advantages,
    loss_and_gradient,
)
from examples.demo.policy import SHAPES, Policy, views
from unit.demo.ragged import PROMPTS, RaggedBatch, ragged_batch

CLIP = 0.2
ENTROPY_BONUS = 0.15


def off_policy_choices(batch: RaggedBatch) -> Choices:
    choices = choices_of(
        tokens=batch.tokens,
        offsets=batch.offsets,
        prompt_lengths=batch.prompt_lengths,
        loss_mask=batch.loss_mask,
        logprobs=batch.logprobs,
        advantages=group_advantages(batch.rewards, batch.group_index),
    )
    # Some ratios on either side of the clip, some inside it.
    rng = np.random.default_rng(5)
    shift = rng.uniform(-0.6, 0.6, choices.behaviour.size).astype(np.float32)
    return Choices(choices.contexts, choices.tokens, choices.behaviour + shift, choices.advantages)


def double_precision(policy: Policy) -> Policy:
    # The network computes in whatever precision its weights have; finite differences need double.
    return Policy(cast("NDArray[np.float32]", policy.weights.astype(np.float64)))


@pytest.mark.parametrize("name", SHAPES)
def test_gradient_equals_finite_differences(name: str) -> None:
    start = Policy.initial(3)
    rng = np.random.default_rng(4)
    start.weights += rng.standard_normal(start.weights.size).astype(np.float32) * 0.05
    policy = double_precision(start)
    choices = off_policy_choices(ragged_batch(start, seed=2))
    loss, gradient = loss_and_gradient(policy, choices, clip=CLIP, entropy_bonus=ENTROPY_BONUS)
    assert 0 < loss.clipped < 1

    of_part = views(gradient)[name].ravel()
    part = policy.params[name].reshape(-1)
    largest = np.argsort(-np.abs(of_part))[:8]
    for index in largest:
        before = part[index]
        sides = []
        for step in (1e-6, -1e-6):
            part[index] = before + step
            moved, _ = loss_and_gradient(policy, choices, clip=CLIP, entropy_bonus=ENTROPY_BONUS)
            sides.append(moved.value)
        part[index] = before
        slope = (sides[0] - sides[1]) / 2e-6
        assert of_part[index] == pytest.approx(slope, rel=1e-3, abs=1e-8)
    assert np.abs(of_part[largest]).max() > 0


def test_log_probs_that_the_learner_recomputes_are_those_recorded_when_sampling() -> None:
    policy = Policy.initial(1)
    batch = ragged_batch(policy, seed=8)
    choices = choices_of(
        tokens=batch.tokens,
        offsets=batch.offsets,
        prompt_lengths=batch.prompt_lengths,
        loss_mask=batch.loss_mask,
        logprobs=batch.logprobs,
        advantages=batch.rewards,
    )
    log_probs = policy.forward(choices.contexts).log_probs
    recomputed = log_probs[np.arange(choices.tokens.size), choices.tokens]
    np.testing.assert_allclose(recomputed, choices.behaviour, atol=1e-5)
    assert choices.behaviour.max() < 0


def test_a_token_masked_out_pulls_nothing_yet_is_seen_by_the_later_ones() -> None:
    policy = Policy.initial(1)
    batch = ragged_batch(policy, seed=8)
    first_outputs = batch.offsets[:-1] + batch.prompt_lengths
    kept = batch.loss_mask.copy()
    kept[first_outputs] = False
    full, part = (
        choices_of(
            tokens=batch.tokens,
            offsets=batch.offsets,
            prompt_lengths=batch.prompt_lengths,
            loss_mask=mask,
            logprobs=batch.logprobs,
            advantages=batch.rewards,
        )
        for mask in (batch.loss_mask, kept)
    )
    later = full.contexts.position > 0
    np.testing.assert_array_equal(part.tokens, full.tokens[later])
    np.testing.assert_array_equal(part.contexts.written, full.contexts.written[later])


def test_advantages_are_normalised_within_each_group_in_any_order() -> None:
    rewards = np.array([1, 5, 0, 7, 1, 7, 0, 7], np.float32)
    groups = np.array([4, 9, 4, 2, 4, 2, 4, 9], np.int32)
    advantages = group_advantages(rewards, groups)
    np.testing.assert_allclose(advantages[groups == 4], [1, -1, 1, -1], atol=1e-3)
    np.testing.assert_allclose(advantages[groups == 9], [-1, 1], atol=1e-3)
    np.testing.assert_array_equal(advantages[groups == 2], [0, 0])


def test_group_of_equal_rewards_moves_the_policy_only_by_the_entropy_bonus() -> None:
    policy = Policy.initial(1)
    batch = ragged_batch(policy, seed=8)
    equal = np.full_like(batch.rewards, 0.5)
    choices = choices_of(
        tokens=batch.tokens,
        offsets=batch.offsets,
        prompt_lengths=batch.prompt_lengths,
        loss_mask=batch.loss_mask,
        logprobs=batch.logprobs,
        advantages=group_advantages(equal, batch.group_index),
    )
    _, gradient = loss_and_gradient(policy, choices, clip=CLIP, entropy_bonus=0)
    assert not gradient.any()


def test_tokens_without_logprobs_count_as_sampled_by_the_policy_itself() -> None:
    policy = Policy.initial(1)
    batch = ragged_batch(policy, seed=8)
    choices = off_policy_choices(batch)
    missing = choices.behaviour.copy()
    missing[::2] = np.nan
    own = policy.forward(choices.contexts).log_probs[np.arange(missing.size), choices.tokens]
    filled = np.where(np.isnan(missing), own, missing)
    results = [
        loss_and_gradient(
            policy,
            Choices(choices.contexts, choices.tokens, behaviour, choices.advantages),
            clip=CLIP,
            entropy_bonus=ENTROPY_BONUS,
        )
        for behaviour in (missing, filled)
    ]
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("defect", ["nothing", "prompt", "long", "foreign"])
def test_batch_that_this_policy_did_not_write_is_refused(defect: str) -> None:
    batch = ragged_batch(Policy.initial(1), seed=8)
    tokens, mask = batch.tokens.copy(), batch.loss_mask.copy()
    prompt_lengths = batch.prompt_lengths.copy()
    if defect == "nothing":
        mask[:] = False
    elif defect == "prompt":
        mask[0] = True
    elif defect == "long":
        assert PROMPTS[0].size > 1
        mask[: prompt_lengths[0]] = False
        prompt_lengths[0] = 0
    else:
        tokens[prompt_lengths[0]] = 11
    with pytest.raises(BatchDoesNotFit, match="what the demo's policy wrote"):
        choices_of(
            tokens=tokens,
            offsets=batch.offsets,
            prompt_lengths=prompt_lengths,
            loss_mask=mask,
            logprobs=batch.logprobs,
            advantages=batch.rewards,
        )
