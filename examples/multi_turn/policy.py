"""A softmax policy that decides by the last token of its context: by where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.multi_turn.lake import ACTIONS, FIELDS, FIRST_ACTION


class Policy:
    """Its weights, float64 [fields, actions], are logits."""

    def __init__(self, weights: NDArray[np.float64] | None = None) -> None:
        self.weights = np.zeros((FIELDS, ACTIONS)) if weights is None else weights

    def log_probs(self) -> NDArray[np.float64]:
        """Of each action in each field, [fields, actions]."""
        normalisers: NDArray[np.float64] = np.logaddexp.reduce(self.weights, axis=1, keepdims=True)
        return self.weights - normalisers

    def sample(
        self, contexts: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A token for each context, int64 [n], and the log-probability that it was drawn with."""
        log_probs = self.log_probs()[[context[-1] for context in contexts]]
        # The largest of logits with Gumbel noise is a draw from their softmax.
        actions = (log_probs + rng.gumbel(size=log_probs.shape)).argmax(axis=1)
        drawn = np.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0]
        return actions + FIRST_ACTION, drawn

    def save(self, path: Path) -> Path:
        np.save(path, self.weights)
        return path

    @classmethod
    def load(cls, path: str) -> Policy:
        return cls(np.load(path))
