"""Payloads that have no room in memory, in temporary files."""

from __future__ import annotations

import errno
import os
from mmap import ACCESS_READ, mmap
from tempfile import TemporaryFile

from rollstream.consumers.sealing.backoff import Backoff
from rollstream.runtime.clock import Clock
from rollstream.schemas.ingest.record import IngestRecord

FILE_BYTES = 64 * 1024 * 1024  # Four of the largest records; each file takes a descriptor.


class Scratch:
    """Moves payloads to files in ``TMPDIR`` that have no name, so that they end with the process.

    Views of a file keep it. Once the last one is gone, its space is free. If no file can be
    written, payloads stay in memory, and the log says so.
    """

    def __init__(self, clock: Clock) -> None:
        self._backoff = Backoff(clock)
        self._file: _File | None = None

    def take(self, record: IngestRecord) -> bool:
        """Moves the payload of a record; False where it stays in memory."""
        if self._backoff.active():
            return False
        try:
            record.move_payload(self._put)
        except OSError as error:
            self._backoff.record_failure("payloads stay in memory, above memory_bytes", error)
            return False
        self._backoff.reset()
        return True

    def close(self) -> None:
        """Nothing is moved any more; what was can still be read. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, data: bytes | memoryview) -> memoryview:
        if self._file is None or self._file.left < len(data):
            self.close()
            self._file = _File(max(FILE_BYTES, len(data)))
        return self._file.put(data)


class _File:
    """One file, written once from its beginning to its end. It takes as much of the disk as was
    written.

    Attributes:
        left: bytes that it still takes.
    """

    def __init__(self, size: int) -> None:
        self.left = size
        self._file = TemporaryFile()  # noqa: SIM115
        self._file.truncate(size)
        self._mapped = memoryview(mmap(self._file.fileno(), size, access=ACCESS_READ))

    def put(self, data: bytes | memoryview) -> memoryview:
        # Through the file: a full disk is an error, and kills a process that writes to its mapping.
        start, size = len(self._mapped) - self.left, len(data)
        if os.pwrite(self._file.fileno(), data, start) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= size
        return self._mapped[start : start + size]

    def close(self) -> None:
        self._file.close()
