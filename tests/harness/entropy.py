"""Randomness that is the same in every run."""

from __future__ import annotations

import random


class SeededEntropy:
    """The same tokens for the same seed; for tests and simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size_bytes: int = 12) -> str:
        return self._random.randbytes(size_bytes).hex()
