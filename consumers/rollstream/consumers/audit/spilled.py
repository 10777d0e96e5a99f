"""Rows of numbers by bucket, in temporary files where they are many."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from struct import Struct
from typing import IO

import numpy as np
from numpy.typing import NDArray

BUCKETS = 64  # One is in memory at a time: of 100 million rows of 24 bytes, 37 MiB.
BUFFER_BYTES_MAX = 64 * 1024  # Of one bucket in memory; beyond it the bucket goes to a file.


class SpilledRows:
    """Any number of rows, in ``BUCKETS`` buckets.

    Args:
        row: how the numbers of a row are written; of 8 bytes each.
    """

    def __init__(self, row: str) -> None:
        self._row = Struct(row)
        self._buffers = [bytearray() for _ in range(BUCKETS)]
        self._files: dict[int, IO[bytes]] = {}
        self._stack = ExitStack()

    def add(self, bucket: int, *numbers: int) -> None:
        """Adds a row."""
        buffer = self._buffers[bucket]
        buffer += self._row.pack(*numbers)
        if len(buffer) >= BUFFER_BYTES_MAX:
            if bucket not in self._files:
                file = tempfile.TemporaryFile()  # noqa: SIM115
                self._files[bucket] = self._stack.enter_context(file)
            self._files[bucket].write(buffer)
            buffer.clear()

    def rows(self, bucket: int) -> NDArray[np.int64]:
        """int64 [n, numbers]: those of a bucket, as they were added."""
        data = bytes(self._buffers[bucket])
        if bucket in self._files:
            self._files[bucket].seek(0)
            data = self._files[bucket].read() + data
        return np.frombuffer(data, np.int64).reshape(-1, self._row.size // 8)

    def close(self) -> None:
        """Idempotent; no row is there any more."""
        self._stack.close()
