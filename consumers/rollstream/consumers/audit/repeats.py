"""Finds what comes twice among any number of names, in bounded memory."""

from __future__ import annotations

import struct
import tempfile
from contextlib import ExitStack
from typing import IO, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

BUCKETS = 64  # Each is compared by itself: 100 million names are 37 MiB a bucket.
BUFFER_BYTES_MAX = 64 * 1024  # Of one bucket in memory; beyond it the bucket goes to a file.
_ROW = struct.Struct("<QQq")  # A hash of 128 bits, and the number of the place.


class Repeats:
    """Keeps a hash of each name, in temporary files where they are many; two names are taken for
    one where their 128 bits are equal."""

    def __init__(self) -> None:
        self._buffers = [bytearray() for _ in range(BUCKETS)]
        self._files: dict[int, IO[bytes]] = {}
        self._stack = ExitStack()

    def add(self, name: str, place: int) -> None:
        """A name, and where it stands."""
        digest = xxhash.xxh3_128_intdigest(name.encode())
        low = digest & (1 << 64) - 1
        bucket = low % BUCKETS
        buffer = self._buffers[bucket]
        buffer += _ROW.pack(low, digest >> 64, place)
        if len(buffer) >= BUFFER_BYTES_MAX:
            if bucket not in self._files:
                file = tempfile.TemporaryFile()  # noqa: SIM115
                self._files[bucket] = self._stack.enter_context(file)
            self._files[bucket].write(buffer)
            buffer.clear()

    def find(self) -> list[tuple[int, int]]:
        """The places of each name that comes again: the one before, and its own."""
        found: list[tuple[int, int]] = []
        for bucket in range(BUCKETS):
            rows = self._rows(bucket)
            rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
            again = np.flatnonzero((rows[1:, :2] == rows[:-1, :2]).all(axis=1))
            found += zip(rows[again, 2].tolist(), rows[again + 1, 2].tolist(), strict=True)
        return sorted(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _rows(self, bucket: int) -> NDArray[np.int64]:
        data = bytes(self._buffers[bucket])
        if bucket in self._files:
            self._files[bucket].seek(0)
            data = self._files[bucket].read() + data
        return np.frombuffer(data, np.int64).reshape(-1, 3)
