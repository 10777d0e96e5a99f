"""The trainer's side of the policy: one step of GRPO a batch, with Adam."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.demo.gradient import choices_of, group_advantages, loss_and_gradient
from examples.demo.policy import Policy

# Adam's own constants (arXiv:1412.6980). The second one forgets faster than the usual 0.999:
# gradients shrink by orders of magnitude within the few hundred steps that the demo takes.
_MOMENTUM = 0.9
_SQUARES = 0.99
_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """How far a step goes; chosen over seeds, with batches up to 15 policy versions old.

    Attributes:
        learning_rate: Adam's.
        clip: the ratio may leave 1 by so much before a token stops pulling.
        entropy_bonus: keeps the policy trying answers; without it some seeds settle for the
            part of a point that the scorer gives to an answer which contains the right one.
        max_gradient_norm: longer gradients are shortened to it.
    """

    learning_rate: float = 4e-3
    clip: float = 0.2
    entropy_bonus: float = 0.15
    max_gradient_norm: float = 0.3


class Learner:
    """Owns the newest weights: ``update`` turns weights ``step`` into weights ``step + 1``.

    Attributes:
        policy: changed in place; take ``policy.to_bytes()`` to hand it on.
        step: updates done.
    """

    def __init__(self, policy: Policy, settings: LearnerSettings | None = None) -> None:
        self.policy = policy
        self.step = 0
        self._settings = settings or LearnerSettings()
        self._mean = np.zeros_like(policy.weights)
        self._square = np.zeros_like(policy.weights)

    def update(
        self,
        *,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        prompt_lengths: NDArray[np.int32],
        loss_mask: NDArray[np.bool_],
        logprobs: NDArray[np.float32],
        rewards: NDArray[np.float32],
        group_index: NDArray[np.int32],
    ) -> dict[str, float]:
        """One optimizer step on a ragged batch; the arguments are a batch's own fields.

        Args:
            tokens: prompt and output of each rollout, int32 [total].
            offsets: where each rollout begins, int64 [n + 1].
            prompt_lengths: int32 [n].
            loss_mask: True on the output tokens to train on, bool [total].
            logprobs: as drawn, 0 on prompts, float32 [total].
            rewards: float32 [n].
            group_index: which group a rollout belongs to, int32 [n].

        Returns:
            Figures to log: ``reward``, ``loss``, ``entropy``, ``clipped``, ``ratio``,
            ``divergence``, ``gradient_norm``.

        Raises:
            BatchDoesNotFit, PromptDoesNotFit: the batch is not this policy's. Nothing changed.
        """
        choices = choices_of(
            tokens=tokens,
            offsets=offsets,
            prompt_lengths=prompt_lengths,
            loss_mask=loss_mask,
            logprobs=logprobs,
            advantages=group_advantages(rewards, group_index),
        )
        loss, gradient = loss_and_gradient(
            self.policy,
            choices,
            clip=self._settings.clip,
            entropy_bonus=self._settings.entropy_bonus,
        )
        norm = float(np.linalg.norm(gradient))
        if norm > self._settings.max_gradient_norm:
            gradient *= np.float32(self._settings.max_gradient_norm / norm)
        self._descend(gradient)
        return {
            "reward": float(rewards.mean()),
            "loss": loss.value,
            "entropy": loss.entropy,
            "clipped": loss.clipped,
            "ratio": loss.ratio,
            "divergence": loss.divergence,
            "gradient_norm": norm,
        }

    def _descend(self, gradient: NDArray[np.float32]) -> None:
        self.step += 1
        self._mean += np.float32(1 - _MOMENTUM) * (gradient - self._mean)
        self._square += np.float32(1 - _SQUARES) * (gradient**2 - self._square)
        size = np.float32(self._settings.learning_rate / (1 - _MOMENTUM**self.step))
        scale = np.sqrt(self._square / np.float32(1 - _SQUARES**self.step))
        self.policy.weights -= size * self._mean / (scale + np.float32(_EPSILON))
