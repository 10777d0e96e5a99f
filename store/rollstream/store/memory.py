"""Blobs in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollstream.store.blobs import BlobInfo, Bytes, Pieces, ends_before, names_of
from rollstream.store.errors import BlobExists, BlobMissing


class MemoryBlobs:
    """Keeps blobs as long as the object lives, for tests; see ``Blobs`` for the methods.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes] = {}

    def create(self, path: str, data: Bytes | Pieces) -> None:
        names_of(path)
        with self._lock:
            if path in self._blobs:
                raise BlobExists(f"{path} exists; it was left as it is")
            self._blobs[path] = bytes(data)

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        names_of(path)
        with self._lock:
            self._blobs[path] = bytes(data)

    def read(self, path: str) -> bytes:
        with self._lock:
            if path not in self._blobs:
                raise BlobMissing(f"there is no blob {path}")
            return self._blobs[path]

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        data = memoryview(self.read(path))
        for _, stop in spans:
            if stop > len(data):
                raise ends_before(path, stop)
        return [data[start:stop] for start, stop in spans]

    def info(self, path: str) -> BlobInfo | None:
        with self._lock:
            data = self._blobs.get(path)
        return None if data is None else BlobInfo(path, len(data))

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        with self._lock:
            found = sorted(
                BlobInfo(path, len(data))
                for path, data in self._blobs.items()
                if path.startswith(prefix) and path > after
            )
        return iter(found[:limit])

    def delete(self, path: str) -> None:
        with self._lock:
            self._blobs.pop(path, None)

    def delete_staged(self, before_us: int) -> int:
        return 0

    @property
    def requests_at_once(self) -> int:
        return 1

    def local_path(self, path: str) -> Path | None:
        return None

    def address(self, path: str) -> str:
        return f"memory://{path}"
