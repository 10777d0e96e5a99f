"""Bytes under paths: the interface that a local disk, memory and object stores implement.

Paths are relative to the store's root, with ``/`` between names. One contract suite tests every
implementation (``tests/contract/store/test_blobs_contract.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import xxhash

from rollstream.store.errors import BlobExists, BlobMissing, CorruptFile, StoreError

LISTED_AT_ONCE = 1000  # Names of one request, as S3 has it.
Bytes = bytes | bytearray | memoryview
"""Whatever holds bytes in one piece."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A blob's bytes in several buffers, one after the other, so that large arrays reach the disk
    without being joined.

    Attributes:
        buffers: bytes, or flat views of what nobody changes.
    """

    buffers: tuple[Bytes, ...]

    @property
    def size(self) -> int:
        """Bytes in all buffers."""
        return sum(map(len, self.buffers))

    def checksum(self) -> str:
        """xxh3-128 of the bytes, hexadecimal (``digest.checksum``)."""
        state = xxhash.xxh3_128()
        for buffer in self.buffers:
            state.update(buffer)
        return state.hexdigest()

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)


class BlobInfo(NamedTuple):
    """A blob's path and its size in bytes."""

    path: str
    size: int


class Blobs(Protocol):
    """Immutable blobs under paths. Thread-safe."""

    @property
    def requests_at_once(self) -> int:
        """From how many threads a caller with much to do calls best: one where nothing waits for a
        network."""

    def create(self, path: str, data: Bytes | Pieces) -> None:
        """Creates the blob whole or not at all. It is durable once this returns (on a local disk:
        the file and its folders are synced).

        Raises:
            BlobExists: the path has a blob already, which stays as it is.
            StoreFull: no space is left.
            StoreError: the store failed otherwise.
        """

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        """Like ``create``, but replaces a blob that exists; readers see the old or the new one."""

    def read(self, path: str) -> bytes:
        """Returns the blob's bytes.

        Raises:
            BlobMissing: there is no such blob.
        """

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Returns the bytes from ``[0]`` to ``[1]`` of each span, which lies within the blob. Those
        of spans that are as near to one another as the store says are read at once.

        Raises:
            BlobMissing: there is no such blob.
            CorruptFile: it ends before a span does.
        """

    def info(self, path: str) -> BlobInfo | None:
        """Returns the blob's size; None: there is no such blob."""

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        """Yields the blobs whose path begins with ``prefix``, in the order of paths.

        Args:
            after: only those whose path comes after this one.
            limit: how many at most; None: all.
        """

    def delete(self, path: str) -> None:
        """Deletes the blob. Does nothing if there is none."""

    def delete_staged(self, before_us: int) -> int:
        """Deletes what killed writers left unfinished and last wrote before that time, microseconds
        since 1970. Returns how many files these were. No blob is one of them."""

    def local_path(self, path: str) -> Path | None:
        """Returns the blob's local file; None: it has none."""

    def address(self, path: str) -> str:
        """Returns what other programs open the blob by: the name of a file, or
        ``s3://bucket/key``."""


def size_of(blobs: Blobs, path: str) -> int:
    """Returns the blob's size. Raises BlobMissing."""
    info = blobs.info(path)
    if info is None:
        raise BlobMissing(f"there is no blob {path}")
    return info.size


def create_or_compare(blobs: Blobs, path: str, data: Bytes | Pieces) -> None:
    """Creates the blob. One that exists already must have the same bytes. Repeating it changes
    nothing.

    Raises:
        CorruptFile: the path has a blob with other bytes.
        StoreFull, StoreError: it could not be written.
    """
    try:
        blobs.create(path, data)
    except BlobExists:
        if blobs.read(path) != bytes(data):
            raise CorruptFile(
                f"{path} exists and holds other bytes than are to be written. It is damaged, or "
                "another run's. Leave the file where it is. `rollstream topics check` says whether "
                "store.root is this deployment's; if it is, restore the file from a copy"
            ) from None


def ends_before(path: str, stop: int) -> CorruptFile:
    """The error of a blob that is shorter than it was."""
    return CorruptFile(f"{path} ends before byte {stop}; restore the file from a copy")


def names_of(path: str) -> list[str]:
    """The names in a blob's path.

    Raises:
        StoreError: a name is empty or begins with a dot.
    """
    names = path.split("/")
    if any(name == "" or name.startswith(".") for name in names):
        raise StoreError(
            f"{path!r} is no path of a blob; use names without a leading dot, joined by '/'"
        )
    return names
