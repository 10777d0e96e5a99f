"""Random tokens. No other file asks for unseeded randomness."""

from __future__ import annotations

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
