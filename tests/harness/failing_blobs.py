"""Stores that fail, as wrappers of another store."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rollstream.store import BlobInfo, Blobs, Bytes, Pieces, StoreFull
from rollstream.store.calls import CalledBlobs

T = TypeVar("T")
HANGS_S = 120.0  # Nobody waits so long.


class PassingBlobs:
    """Forwards every call; subclasses override those that fail."""

    def __init__(self, inner: Blobs) -> None:
        self.inner = inner

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self.inner.create(path, data)

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        self.inner.replace(path, data)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self.inner.read_ranges(path, spans)

    def info(self, path: str) -> BlobInfo | None:
        return self.inner.info(path)

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        return self.inner.list(prefix, after=after, limit=limit)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def delete_staged(self, before_us: int) -> int:
        return self.inner.delete_staged(before_us)

    @property
    def requests_at_once(self) -> int:
        return self.inner.requests_at_once

    def local_path(self, path: str) -> Path | None:
        return self.inner.local_path(path)

    def address(self, path: str) -> str:
        return self.inner.address(path)


class CountingBlobs(PassingBlobs):
    """Counts the blobs that are opened, and the names that are listed.

    Attributes:
        listed: names, by the first folder of the prefix.
    """

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.opened = 0
        self.listed: Counter[str] = Counter()

    def read(self, path: str) -> bytes:
        self.opened += 1
        return super().read(path)

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        for one in super().list(prefix, after=after, limit=limit):
            self.listed[prefix.partition("/")[0]] += 1
            yield one


class FullBlobs(PassingBlobs):
    """A full disk while ``refusing``.

    Attributes:
        refusing: True at first; tests change it at any time.
        refused: number of creates that were refused.
    """

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.refusing = True
        self.refused = 0

    def create(self, path: str, data: Bytes | Pieces) -> None:
        if self.refusing:
            self.refused += 1
            raise StoreFull(f"{path}: the test's disk is full")
        self.inner.create(path, data)


class TornBlobs(PassingBlobs):
    """Every create reaches the store, but the first one of each path raises afterwards."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self._answered: set[str] = set()

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self.inner.create(path, data)
        if path not in self._answered:
            self._answered.add(path)
            raise StoreFull(f"{path}: the test lost the answer")


class OverwritingBlobs(PassingBlobs):
    """Creates over what exists, as an object store without conditional writes."""

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self.inner.replace(path, data)


class LaggingBlobs(PassingBlobs):
    """Lists show what was created only once something else was."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self._newest = ""

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self.inner.create(path, data)
        self._newest = path

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        found = (one for one in self.inner.list(prefix, after=after) if one.path != self._newest)
        return islice(found, limit)


class HangingBlobs(CalledBlobs):
    """A mount without its server once ``hangs`` is set, until ``free`` is.

    Attributes:
        only: calls of this path hang, and no others; empty: all do.
        begun: how many calls hung.
    """

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.hangs, self.free = threading.Event(), threading.Event()
        self.only = ""
        self.begun = 0

    def _call(self, name: str, path: str, run: Callable[[], T]) -> T:
        if self.hangs.is_set() and self.only in ("", path):
            self.begun += 1
            self.free.wait(HANGS_S)
        return run()
