"""The loss of GRPO over a ragged batch, and its gradient by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.demo.errors import BatchDoesNotFit
from examples.demo.policy import (
    MAX_ANSWER_TOKENS,
    Activations,
    Contexts,
    Policy,
    no_answer_yet,
    prompt_features,
    views,
    write_token,
)
from examples.demo.tokens import ANSWER_SIZE


@dataclass(frozen=True)
class Choices:
    """The m tokens of a batch that are trained on, each with what the policy saw before it.

    Attributes:
        contexts: what was seen.
        tokens: what was chosen, int32 [m].
        behaviour: the log-probability under which it was drawn, float32 [m].
        advantages: of the rollout that it belongs to, float32 [m].
    """

    contexts: Contexts
    tokens: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    advantages: NDArray[np.float32]


@dataclass(frozen=True)
class Loss:
    """The value, and what is worth watching beside it.

    Attributes:
        value: what the gradient descends.
        entropy: mean over the tokens, nats.
        clipped: share of tokens whose ratio no longer pulls.
        ratio: mean of new over behaviour probability.
        divergence: an estimate of KL(behaviour, new), nats a token.
    """

    value: float
    entropy: float
    clipped: float
    ratio: float
    divergence: float


def group_advantages(
    rewards: NDArray[np.float32], group_index: NDArray[np.int32]
) -> NDArray[np.float32]:
    """Rewards less their group's mean, over their group's standard deviation.

    A group whose rewards are all equal gets zeros, as it teaches nothing (GRPO, arXiv:2402.03300).

    Args:
        rewards: float32 [n].
        group_index: int32 [n]; any numbers, in any order.
    """
    _, group, counts = np.unique(group_index, return_inverse=True, return_counts=True)
    centred = rewards - (np.bincount(group, rewards) / counts)[group]
    deviation = np.sqrt(np.bincount(group, centred**2) / counts)[group]
    return (centred / (deviation + 1e-4)).astype(np.float32)


def choices_of(
    *,
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    prompt_lengths: NDArray[np.int32],
    loss_mask: NDArray[np.bool_],
    logprobs: NDArray[np.float32],
    advantages: NDArray[np.float32],
) -> Choices:
    """Lays a ragged batch out as one row a trained token.

    Args:
        tokens: prompts and outputs, int32 [total].
        offsets: where a rollout begins, int64 [n + 1].
        prompt_lengths: int32 [n].
        loss_mask: bool [total]; True only on output tokens.
        logprobs: float32 [total], as recorded when they were drawn; NaN: not recorded.
        advantages: float32 [n].

    Raises:
        BatchDoesNotFit: no token to train on, an output beyond what the policy writes, or a
            trained token inside a prompt.
        PromptDoesNotFit: see :func:`prompt_features`.
    """
    lengths = np.diff(offsets)
    rollout = np.repeat(np.arange(lengths.size), lengths)
    output_starts = offsets[:-1] + prompt_lengths
    positions = np.arange(tokens.size) - output_starts[rollout]
    in_output = positions >= 0
    _refuse_foreign(tokens, positions, in_output, loss_mask)
    chosen = np.flatnonzero(loss_mask)
    position, prompt_of = positions[chosen], rollout[chosen]
    written = no_answer_yet(chosen.size)
    for earlier in range(MAX_ANSWER_TOKENS - 1):
        later = np.flatnonzero(position > earlier)
        write_token(written, later, earlier, tokens[output_starts[prompt_of[later]] + earlier])
    prompts = prompt_features(tokens[~in_output], prompt_lengths.astype(np.int64))
    return Choices(
        contexts=Contexts(prompts, prompt_of, written, position),
        tokens=tokens[chosen],
        behaviour=logprobs[chosen],
        advantages=advantages[prompt_of],
    )


def loss_and_gradient(
    policy: Policy, choices: Choices, *, clip: float, entropy_bonus: float
) -> tuple[Loss, NDArray[np.float32]]:
    """The clipped surrogate of PPO less an entropy bonus, mean over tokens, and its gradient.

    The ratio is taken against the recorded behaviour log-probabilities, so rollouts of older
    policies count by how likely they still are (arXiv:1707.06347, equation 7). A token without one
    (NaN) counts as sampled by ``policy``.

    Returns:
        The loss, and d loss / d weights in the order of ``Policy.weights``, float32.
    """
    activations = policy.forward(choices.contexts)
    log_probs = activations.log_probs
    probs: NDArray[np.float32] = np.exp(log_probs)
    rows = np.arange(choices.tokens.size)
    count = np.float32(choices.tokens.size)

    change = log_probs[rows, choices.tokens] - choices.behaviour
    change[np.isnan(change)] = 0.0  # Nobody knows who sampled these: they count as our own.
    ratio: NDArray[np.float32] = np.exp(change)
    gain = ratio * choices.advantages
    bounded = np.clip(ratio, 1 - clip, 1 + clip) * choices.advantages
    pulls = gain <= bounded
    entropy: NDArray[np.float32] = -(probs * log_probs).sum(axis=1)
    value = -np.minimum(gain, bounded).mean() - entropy_bonus * entropy.mean()

    weight: NDArray[np.float32] = -gain * pulls / count
    d_logits: NDArray[np.float32] = -probs * weight[:, None]
    d_logits[rows, choices.tokens] += weight
    d_logits += np.float32(entropy_bonus) / count * probs * (log_probs + entropy[:, None])
    loss = Loss(
        value=float(value),
        entropy=float(entropy.mean()),
        clipped=float(1 - pulls.mean()),
        ratio=float(ratio.mean()),
        divergence=float((ratio - 1 - change).mean()),
    )
    return loss, _backward(policy, choices.contexts, activations, d_logits)


def _backward(
    policy: Policy,
    contexts: Contexts,
    activations: Activations,
    d_logits: NDArray[np.float32],
) -> NDArray[np.float32]:
    params = policy.params
    gradient = np.zeros_like(policy.weights)
    parts = views(gradient)
    parts["readout"][...] = activations.second.T @ d_logits
    parts["readout_bias"][...] = d_logits.sum(axis=0)
    d_second: NDArray[np.float32] = (d_logits @ params["readout"].T) * (activations.second > 0)
    parts["mixing"][...] = activations.first.T @ d_second
    parts["mixing_bias"][...] = d_second.sum(axis=0)
    d_first: NDArray[np.float32] = (d_second @ params["mixing"].T) * (activations.first > 0)
    parts["written_embedding"][...] = contexts.written.T @ d_first
    for position in range(MAX_ANSWER_TOKENS):
        parts["position_embedding"][position] = d_first[contexts.position == position].sum(axis=0)
    parts["prompt_embedding"][...] = contexts.prompts.T @ _sum_by_prompt(contexts, d_first)
    return gradient


def _sum_by_prompt(contexts: Contexts, d_first: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums the rows of each prompt; rows of one prompt stand together in a ragged batch."""
    sums = np.zeros((contexts.prompts.shape[0], d_first.shape[1]), np.float32)
    begins = np.flatnonzero(np.diff(contexts.prompt_of, prepend=-1))
    sums[contexts.prompt_of[begins]] = np.add.reduceat(d_first, begins, axis=0)
    return sums


def _refuse_foreign(
    tokens: NDArray[np.int32],
    positions: NDArray[np.int64],
    in_output: NDArray[np.bool_],
    loss_mask: NDArray[np.bool_],
) -> None:
    remedy = "give the learner only what the demo's policy wrote"
    if not loss_mask.any():
        raise BatchDoesNotFit(f"none of {tokens.size} tokens is to be trained on: {remedy}")
    if (loss_mask & ~in_output).any():
        raise BatchDoesNotFit(
            f"{int((loss_mask & ~in_output).sum())} trained tokens stand in a prompt: {remedy}"
        )
    longest = int(positions.max()) + 1
    if longest > MAX_ANSWER_TOKENS:
        raise BatchDoesNotFit(
            f"an answer has {longest} tokens, the policy writes {MAX_ANSWER_TOKENS}: {remedy}"
        )
    written = tokens[in_output]
    if int(written.min()) < 0 or int(written.max()) >= ANSWER_SIZE:
        raise BatchDoesNotFit(
            f"answers hold tokens from {int(written.min())} to {int(written.max())}, the policy "
            f"writes those below {ANSWER_SIZE}: {remedy}"
        )
