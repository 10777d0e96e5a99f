"""The memory that a batch is made in: one buffer for all its arrays. Pure.

Fresh memory takes three times as long to fill as memory that was filled before, so an actor, whose
batches Ray copies into shared memory at once, makes the next one in the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # Of each array, in bytes: a cache line, and what Ray gives a buffer.


class ArrayLayout(NamedTuple):
    """Where an array lies in a buffer; ``start`` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int


def laid_out(
    wanted: Mapping[str, tuple[str, tuple[int, ...]]],
) -> tuple[dict[str, ArrayLayout], int]:
    """A place for each array, given as dtype and shape, and the bytes that all need together."""
    layout, size = {}, 0
    for name, (dtype, shape) in wanted.items():
        layout[name] = ArrayLayout(dtype, shape, size)
        needed = np.dtype(dtype).itemsize * math.prod(shape)
        size += -(-needed // ALIGNMENT) * ALIGNMENT
    return layout, size


def views(buffer: NDArray[np.uint8], layout: Mapping[str, ArrayLayout]) -> dict[str, NDArray[Any]]:
    """The arrays of a buffer, by name; nothing is copied."""
    return {
        name: np.ndarray(shape, dtype, buffer, start)
        for name, (dtype, shape, start) in layout.items()
    }


class Scratch:
    """Reuses its memory, as large as the largest that was asked for.

    What ``take`` returns is valid until it is called again.
    """

    def __init__(self) -> None:
        self._memory = _aligned(0)

    def take(self, size: int) -> NDArray[np.uint8]:
        """A buffer [size] with arbitrary contents."""
        if len(self._memory) < size:
            self._memory = _aligned(size)
        return self._memory[:size]


class Fresh:
    """New memory at each call: the batch may be kept."""

    def take(self, size: int) -> NDArray[np.uint8]:
        """A buffer [size] with arbitrary contents."""
        return _aligned(size)


def _aligned(size: int) -> NDArray[np.uint8]:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size]
