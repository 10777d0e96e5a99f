"""Blobs in memory: the twin of every other store, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from rollstream.store.blobs import BlobInfo, Bytes
from rollstream.store.errors import BlobExists, BlobMissing, StoreError


class MemoryBlobs:
    """Blobs that live as long as the object. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes] = {}

    def create(self, path: str, data: Bytes) -> None:
        """See ``Blobs.create``."""
        _check(path)
        with self._lock:
            if path in self._blobs:
                raise BlobExists(f"{path} exists; it was left as it is")
            self._blobs[path] = bytes(data)

    def replace(self, path: str, data: Bytes) -> None:
        """See ``Blobs.replace``."""
        _check(path)
        with self._lock:
            self._blobs[path] = bytes(data)

    def read(self, path: str) -> bytes:
        """See ``Blobs.read``."""
        with self._lock:
            if path not in self._blobs:
                raise BlobMissing(f"nothing lies under {path}")
            return self._blobs[path]

    def info(self, path: str) -> BlobInfo | None:
        """See ``Blobs.info``."""
        with self._lock:
            data = self._blobs.get(path)
        return None if data is None else BlobInfo(path, len(data))

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """See ``Blobs.list``."""
        with self._lock:
            found = sorted(
                BlobInfo(path, len(data))
                for path, data in self._blobs.items()
                if path.startswith(prefix)
            )
        return iter(found)

    def delete(self, path: str) -> None:
        """See ``Blobs.delete``."""
        with self._lock:
            self._blobs.pop(path, None)

    def local_path(self, path: str) -> Path | None:
        """None: nothing here lies on a disk."""
        return None


def _check(path: str) -> None:
    if any(name == "" or name.startswith(".") for name in path.split("/")):
        raise StoreError(
            f"{path!r} is no path of a blob; use names without a leading dot, joined by '/'"
        )
