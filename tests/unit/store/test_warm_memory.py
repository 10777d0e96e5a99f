"""keep_memory_warm sets the thresholds that the C library accepts, and no others."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rollstream.store.warm_memory import keep_memory_warm

MIB = 1 << 20
TRIM, MMAP = -1, -3  # malloc.h


class Libc:
    """A C library that takes a threshold for maps up to ``mmap_max``; it records what it took."""

    def __init__(self, mmap_max: int) -> None:
        self.mmap_max = mmap_max
        self.taken: dict[int, int] = {}

    def mallopt(self, parameter: int, value: int) -> int:
        if parameter == MMAP and value > self.mmap_max:
            return 0
        self.taken[parameter] = value
        return 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    pool, thresholds = pa.default_memory_pool(), gc.get_threshold()
    yield
    pa.set_memory_pool(pool)
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    ("libc", "taken"),
    [
        (Libc(1 << 31), {MMAP: 1024 * MIB, TRIM: 256 * MIB}),
        (Libc(32 * MIB), {MMAP: 32 * MIB, TRIM: 256 * MIB}),
        (Libc(MIB // 2), {}),  # Setting the other alone would fix the threshold at its default.
        (object(), {}),
    ],
    ids=["any value", "the limit of 64 bits", "the limit of 32 bits", "no mallopt"],
)
def test_thresholds_are_the_largest_that_the_c_library_accepts(
    monkeypatch: pytest.MonkeyPatch, libc: Any, taken: dict[int, int]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    keep_memory_warm()
    assert getattr(libc, "taken", {}) == taken
    assert pa.default_memory_pool().backend_name == "system"
