"""A training step: the gradient of RLOO (arXiv:2402.14740) by trajectory, and plain ascent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.multi_turn.lake import ACTIONS, FIRST_ACTION
from examples.multi_turn.policy import Policy
from rollstream.sampler import Examples, PoolBatch

# Four actions and few fields, so a step may be large.
LEARNING_RATE = 4.0
RATIO_MAX = 2.0


def learn(policy: Policy, fetched: PoolBatch) -> Policy:
    """The policy one step later."""
    # Each turn's context begins with the turn before, so a walk is one sequence.
    examples = Examples.of(fetched.batch, "rloo", merge_turns=True)
    # A worker samples all turns of a trajectory with one policy, so its rows weigh the same.
    change = gradient(policy, examples, fetched.importance_weights[examples.rows])
    return Policy(policy.weights + LEARNING_RATE * change / fetched.batch.num_trajectories)


def gradient(
    policy: Policy, examples: Examples, importance_weights: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Of the sum over sampled tokens of ``weight * advantage * log prob``, as the weights change.

    ``weight`` is the example's importance weight, times how much likelier the policy is to draw the
    token now than when it was sampled (at most ``RATIO_MAX``, and without a gradient of its own).
    """
    counted = np.flatnonzero(examples.loss_mask)
    # An answer is one token, and the one before it is what the agent saw last.
    fields = examples.tokens[counted - 1]
    actions = examples.tokens[counted] - FIRST_ACTION
    log_probs = policy.log_probs()
    ratio = np.exp(log_probs[fields, actions] - examples.generator_log_probs[counted])
    pull = np.minimum(ratio, RATIO_MAX) * examples.advantages[counted]
    pull *= np.repeat(importance_weights, examples.lengths)[counted]
    found = np.zeros_like(policy.weights)
    np.add.at(found, fields, pull[:, None] * (np.eye(ACTIONS)[actions] - np.exp(log_probs[fields])))
    return found
