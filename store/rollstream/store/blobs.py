"""Bytes under paths: the interface that local disk, memory and object stores implement.

Paths are relative to the store's root, with ``/`` between names. One contract suite tests every
implementation (``tests/contract/store/test_blobs_contract.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

Bytes = bytes | bytearray | memoryview


class BlobInfo(NamedTuple):
    """One blob: where and how large, in bytes."""

    path: str
    size: int


class Blobs(Protocol):
    """Immutable blobs. Thread-safe."""

    def create(self, path: str, data: Bytes) -> None:
        """Creates the blob whole or not at all; durable when it returns (local disk: synced, the
        folder too).

        Raises:
            BlobExists: something is there already; it is left as it is. StoreFull, StoreError.
        """

    def replace(self, path: str, data: Bytes) -> None:
        """Like ``create``, but what is there gives way; a reader sees the old or the new."""

    def read(self, path: str) -> bytes:
        """The whole blob. Raises BlobMissing."""

    def info(self, path: str) -> BlobInfo | None:
        """None where nothing lies there."""

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose path begins with ``prefix``, in the order of paths."""

    def delete(self, path: str) -> None:
        """Deletes; nothing there is no error."""

    def local_path(self, path: str) -> Path | None:
        """Where the blob lies as a local file (to map it into memory); None where it does not."""
