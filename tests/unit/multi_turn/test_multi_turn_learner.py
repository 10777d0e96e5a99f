"""The multi-turn example's training step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.multi_turn.lake import ACTIONS, FIELDS, FIRST_ACTION
from examples.multi_turn.learner import RATIO_MAX, gradient, learn
from examples.multi_turn.policy import Policy
from harness.batches import batch_of
from harness.groups import GroupSpec, every_extra
from rollstream.sampler import Batch, Examples, PoolBatch

DIFFERENCE = 1e-6
# Fields that were stood on, and the action in each but the last; the walks end after the last one.
WALKS = ([0, 4, 8], [1, 1]), ([0, 1], [2]), ([0, 0, 1, 5], [0, 2, 1])
RETURNS = (1.0, 0.0, 0.0)


def a_batch(policy: Policy, log_probs_added: float = 0.0) -> Batch:
    """The walks as steps, each with the whole context before it."""
    log_probs = policy.log_probs()
    extras, rewards = [], []
    for uid, ((fields, actions), earned) in enumerate(zip(WALKS, RETURNS, strict=True)):
        context = [fields[0]]
        for idx, action in enumerate(actions):
            sampled = log_probs[fields[idx], action] + log_probs_added
            extras.append(
                {
                    **every_extra(1),
                    "rollout_uid": f"r{uid}",
                    "segment_idx": idx,
                    "prompt_tokens": np.array(context, np.int32),
                    "output_tokens": np.array([FIRST_ACTION + action], np.int32),
                    "logprobs": np.array([sampled], "<f4"),
                    "loss_mask": None,
                }
            )
            rewards.append(earned if idx == len(actions) - 1 else 0.0)
            context += [FIRST_ACTION + action, fields[idx + 1]]
    return batch_of([GroupSpec(rewards=tuple(rewards), extras=extras)])


def a_policy() -> Policy:
    return Policy(np.random.default_rng(0).normal(size=(FIELDS, ACTIONS)))


def differences(
    weights: NDArray[np.float64], advantages: list[float], each: list[float]
) -> NDArray[np.float64]:
    """Of the sum over all actions of ``each * advantage * log prob``, by finite differences."""

    def total(moved: NDArray[np.float64]) -> float:
        log_probs = Policy(moved).log_probs()
        return sum(
            each[uid] * advantages[uid] * float(log_probs[field, action])
            for uid, (fields, actions) in enumerate(WALKS)
            for field, action in zip(fields, actions, strict=False)
        )

    found = np.zeros_like(weights)
    for at in np.ndindex(weights.shape):
        step = np.zeros_like(weights)
        step[at] = DIFFERENCE
        found[at] = (total(weights + step) - total(weights - step)) / (2 * DIFFERENCE)
    return found


def test_the_gradient_is_that_of_weighted_log_probs_under_truncated_ratios() -> None:
    policy = a_policy()
    advantages, importance = [1.0, -0.5, -0.5], [1.0, 0.5, 0.25]
    for added, ratio in ((0.0, 1.0), (0.5, np.exp(-0.5)), (-5.0, RATIO_MAX)):
        examples = Examples.of(a_batch(policy, added), "rloo", merge_turns=True)
        assert len(examples) == len(WALKS), "a walk is one sequence"
        found = gradient(policy, examples, np.array(importance, np.float32))
        expected = differences(policy.weights, advantages, [ratio * w for w in importance])
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_step_makes_the_way_to_the_goal_likelier_and_less_so_by_weight() -> None:
    policy = a_policy()
    batch = a_batch(policy)

    def gain(weight: float) -> float:
        fetched = PoolBatch(
            prompt_uid="p",
            batch=batch,
            off_policy=np.full(len(batch), weight < 1),
            importance_weights=np.full(len(batch), weight, np.float32),
        )
        better = learn(policy, fetched).log_probs() - policy.log_probs()
        return float(better[[0, 4], [1, 1]].sum())

    assert gain(1.0) > gain(0.1) > 0


def test_actions_are_drawn_as_likely_as_the_policy_says() -> None:
    policy = a_policy()
    draws = 20_000
    tokens, log_probs = policy.sample([[3, 17, 6]] * draws, np.random.default_rng(1))
    expected = np.exp(policy.log_probs()[6])
    np.testing.assert_allclose(
        np.bincount(tokens - FIRST_ACTION, minlength=ACTIONS) / draws, expected, atol=0.02
    )
    np.testing.assert_allclose(np.exp(log_probs), expected[tokens - FIRST_ACTION])
