"""The one place that asks for randomness."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Entropy(Protocol):
    """Names that nobody else will use."""

    def token(self, size_bytes: int = 12) -> str:
        """``2 * size_bytes`` hexadecimal digits."""


class SystemEntropy:
    """The operating system's."""

    def token(self, size_bytes: int = 12) -> str:
        return secrets.token_hex(size_bytes)


class SeededEntropy:
    """The same tokens for the same seed; for tests and simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size_bytes: int = 12) -> str:
        return self._random.randbytes(size_bytes).hex()
