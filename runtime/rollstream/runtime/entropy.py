"""Random tokens. No other file asks for unseeded randomness."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Entropy(Protocol):
    """The interface of a source of unique names."""

    def token(self, size_bytes: int = 12) -> str:
        """``2 * size_bytes`` hexadecimal digits."""


class SystemEntropy:
    """Tokens from the operating system's randomness."""

    def token(self, size_bytes: int = 12) -> str:
        return secrets.token_hex(size_bytes)


class SeededEntropy:
    """The same tokens for the same seed; for tests and simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size_bytes: int = 12) -> str:
        return self._random.randbytes(size_bytes).hex()
