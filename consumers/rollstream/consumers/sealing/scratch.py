"""Payloads that have no room in memory, in temporary files."""

from __future__ import annotations

import errno
import os
import tempfile
from mmap import ACCESS_READ, mmap
from weakref import ref

from rollstream.consumers.beside.backoff import Backoff
from rollstream.runtime.clock import Clock
from rollstream.schemas.ingest.record import IngestRecord

FILE_BYTES = 64 * 1024 * 1024  # Four of the largest records; each file takes a descriptor.
IN_MEMORY = "payloads stay in memory, above sealers.memory_bytes"
_Moved = list["ref[IngestRecord]"]


class Scratch:
    """Moves payloads to files in ``TMPDIR`` that have no name, so that they end with the process.

    Views of a file keep it. Once the last one is gone, its space is free. Few records that wait for
    long keep no large files: they are moved on, to the file that is being written. So the files
    have about twice the bytes of the records. If no file can be written, payloads stay in memory,
    and the log says so.
    """

    def __init__(self, clock: Clock) -> None:
        self._backoff = Backoff(clock)
        self._file: _File | None = None
        self._moved: _Moved = []  # What is in that file.
        self._full: list[_Moved] = []  # The same of files that are full and may be in use.

    def trouble(self) -> str:
        """Why no file takes payloads, for long, in words; empty: files do, or none was needed."""
        if not self._backoff.is_trouble():
            return ""
        return (
            f"{self._backoff.why}; this is so since {self._backoff.since}: make room in TMPDIR "
            f"({tempfile.tempdir}), or start the sealer with another TMPDIR"
        )

    def take(self, record: IngestRecord) -> bool:
        """Moves the payload of a record; False where it stays in memory."""
        if self._backoff.active():
            return False
        try:
            if self._begin_file_for(record):
                self._move_on()
            self._move(record)
        except OSError as error:
            self._backoff.record_failure(IN_MEMORY, error)
            return False
        self._backoff.reset()
        return True

    def close(self) -> None:
        """Nothing is moved any more; what was can still be read. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._full.append(self._moved)
            self._file, self._moved = None, []

    def _begin_file_for(self, record: IngestRecord) -> bool:
        """Whether the record needed a new file. All of it is in one."""
        if self._file is not None and self._file.left >= record.size:
            return False
        self.close()
        self._file = _File(max(FILE_BYTES, record.size))
        return True

    def _move(self, record: IngestRecord) -> None:
        assert self._file is not None, "it was begun"
        self._moved.append(ref(record))  # First: where a part of it cannot be moved, others were.
        record.move_payload(self._file.put)

    def _move_on(self) -> None:
        """Moves on what is left in files of which less than half is, the oldest first. It fills
        half a file at most, so that taking a record never lasts for long."""
        room, full, self._full = FILE_BYTES // 2, self._full, []
        for index, moved in enumerate(full):
            left = [record for record in (one() for one in moved) if record is not None]
            size = sum(record.size for record in left)
            if size <= room and 2 * size < FILE_BYTES:
                try:
                    for record in left:
                        self._begin_file_for(record)
                        self._move(record)
                except OSError:
                    self._full += full[index:]
                    raise
                room -= size
            else:
                self._full.append([ref(record) for record in left])


class _File:
    """One file, written once from its beginning to its end. It takes as much of the disk as was
    written.

    Attributes:
        left: bytes that it still takes.
    """

    def __init__(self, size: int) -> None:
        self.left = size
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
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
