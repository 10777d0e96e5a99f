"""The memory that batches are made in. Pure.

Fresh memory takes three times as long to fill as memory that was filled before, so an actor, whose
batches Ray copies into shared memory at once, makes the next one in the same memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Scratch:
    """Reuses one array a name, as large as the largest that was asked for.

    What ``take`` returns is valid until the same name is taken again.
    """

    def __init__(self) -> None:
        self._memory: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array [size] with arbitrary contents."""
        needed = size * np.dtype(dtype).itemsize
        memory = self._memory.get(name)
        if memory is None or len(memory) < needed:
            memory = self._memory[name] = np.empty(needed, np.uint8)
        return memory[:needed].view(dtype)


class Fresh:
    """New memory at each call: the batch may be kept."""

    def take(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array [size] with arbitrary contents."""
        return np.empty(size, dtype)
