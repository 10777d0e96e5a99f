"""A store whose calls are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rollstream.runtime.clock import Clock
from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.timings import Timings
from rollstream.store.blobs import LISTED_AT_ONCE, BlobInfo, Blobs, Bytes, Pieces
from rollstream.store.errors import BlobExists, BlobMissing

T = TypeVar("T")


class TimedBlobs:
    """Another store, each of whose calls is timed, and counted where it fails. That a blob exists,
    or is missing, is no failure."""

    def __init__(self, inner: Blobs, timings: Timings, clock: Clock) -> None:
        self._inner = inner
        self._timings = timings
        self._clock = clock

    @property
    def requests_at_once(self) -> int:
        return self._inner.requests_at_once

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self._timed("create", lambda: self._inner.create(path, data))

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        self._timed("replace", lambda: self._inner.replace(path, data))

    def read(self, path: str) -> bytes:
        return self._timed("read", lambda: self._inner.read(path))

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._timed("read_ranges", lambda: self._inner.read_ranges(path, spans))

    def info(self, path: str) -> BlobInfo | None:
        return self._timed("info", lambda: self._inner.info(path))

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        # As many at once as a store answers with: its caller's work is not the store's time.
        blobs = self._inner.list(prefix, after=after, limit=limit)
        while found := self._timed("list", lambda: [*islice(blobs, LISTED_AT_ONCE)]):
            yield from found
            if len(found) < LISTED_AT_ONCE:
                return

    def delete(self, path: str) -> None:
        self._timed("delete", lambda: self._inner.delete(path))

    def delete_staged(self, before_us: int) -> int:
        return self._timed("delete_staged", lambda: self._inner.delete_staged(before_us))

    def local_path(self, path: str) -> Path | None:
        return self._inner.local_path(path)

    def address(self, path: str) -> str:
        return self._inner.address(path)

    def _timed(self, call: str, run: Callable[[], T]) -> T:
        begun_s, failed = self._clock.monotonic_s(), 1
        try:
            result = run()
            failed = 0
            return result
        except (BlobExists, BlobMissing):
            failed = 0
            raise
        finally:
            self._timings.count(catalogue.STORE_FAILURES, call, times=failed)
            took_s = self._clock.monotonic_s() - begun_s
            self._timings.observe(catalogue.STORE_CALL, took_s, call)
