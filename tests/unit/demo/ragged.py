"""Batches as a sampler hands them over, made from what a policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from examples.demo.learner import Learner
from examples.demo.policy import Completion, Policy
from examples.demo.tokens import encode

PROMPTS = tuple(encode(text) for text in ("divisor 12, 8", "divisor 7, 28", "bits 255", "bits 6"))


@dataclass(frozen=True)
class RaggedBatch:
    """The fields of a batch that a learner reads, as ``Batch`` names them."""

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    group_index: NDArray[np.int32]


@dataclass(frozen=True)
class Rollout:
    """One answer, its reward and its group."""

    prompt: NDArray[np.int32]
    completion: Completion
    reward: float
    group: int


def ragged(rollouts: Sequence[Rollout]) -> RaggedBatch:
    tokens: list[NDArray[np.int32]] = []
    masks: list[NDArray[np.bool_]] = []
    logprobs: list[NDArray[np.float32]] = []
    for rollout in rollouts:
        prompt, ids = rollout.prompt, rollout.completion.ids
        tokens += [prompt, ids]
        masks += [np.zeros(prompt.size, np.bool_), np.ones(ids.size, np.bool_)]
        logprobs += [np.zeros(prompt.size, np.float32), rollout.completion.logprobs]
    lengths = [rollout.prompt.size + rollout.completion.ids.size for rollout in rollouts]
    return RaggedBatch(
        tokens=np.concatenate(tokens),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompt_lengths=np.array([rollout.prompt.size for rollout in rollouts], np.int32),
        loss_mask=np.concatenate(masks),
        logprobs=np.concatenate(logprobs),
        rewards=np.array([rollout.reward for rollout in rollouts], np.float32),
        group_index=np.array([rollout.group for rollout in rollouts], np.int32),
    )


def ragged_batch(policy: Policy, seed: int, group_size: int = 8) -> RaggedBatch:
    """Answers to ``PROMPTS`` with rewards drawn at random."""
    rng = np.random.default_rng(seed)
    return ragged(
        [
            Rollout(prompt, completion, float(rng.random()), group)
            for group, (prompt, completions) in enumerate(
                zip(PROMPTS, policy.sample(PROMPTS, group_size, rng), strict=True)
            )
            for completion in completions
        ]
    )


def update(learner: Learner, batch: RaggedBatch) -> dict[str, float]:
    return learner.update(**{name: getattr(batch, name) for name in asdict(batch)})
