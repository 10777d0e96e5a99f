"""Memory that batches are made in again and again. Pure.

Touching fresh memory costs three times what filling it does, so whoever copies a batch away at once
(an actor, into shared memory) makes the next one in the same place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Scratch:
    """One array a name, as large as the largest that was asked for.

    What ``take`` returns is valid until the same name is taken again.
    """

    def __init__(self) -> None:
        self._memory: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array [size] whose contents mean nothing."""
        needed = size * np.dtype(dtype).itemsize
        memory = self._memory.get(name)
        if memory is None or len(memory) < needed:
            memory = self._memory[name] = np.empty(needed, np.uint8)
        return memory[:needed].view(dtype)


class Fresh:
    """New memory each time: the batch may be kept."""

    def take(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array [size] whose contents mean nothing."""
        return np.empty(size, dtype)
