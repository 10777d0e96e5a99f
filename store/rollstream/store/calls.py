"""A store around another one, whose calls all go through one method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rollstream.store.blobs import LISTED_AT_ONCE, BlobInfo, Blobs, Bytes, Pieces

T = TypeVar("T")


class CalledBlobs:
    """Another store, each of whose calls a subclass makes in ``_call``. Methods: see ``Blobs``."""

    def __init__(self, inner: Blobs) -> None:
        self._inner = inner

    @property
    def requests_at_once(self) -> int:
        return self._inner.requests_at_once

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self._call("create", path, lambda: self._inner.create(path, data))

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        self._call("replace", path, lambda: self._inner.replace(path, data))

    def read(self, path: str) -> bytes:
        return self._call("read", path, lambda: self._inner.read(path))

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._call("read_ranges", path, lambda: self._inner.read_ranges(path, spans))

    def info(self, path: str) -> BlobInfo | None:
        return self._call("info", path, lambda: self._inner.info(path))

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        # As many at once as a store answers with: its caller's work is not the store's time.
        blobs = self._inner.list(prefix, after=after, limit=limit)
        while found := self._call("list", prefix, lambda: [*islice(blobs, LISTED_AT_ONCE)]):
            yield from found
            if len(found) < LISTED_AT_ONCE:
                return

    def delete(self, path: str) -> None:
        self._call("delete", path, lambda: self._inner.delete(path))

    def delete_staged(self, before_us: int) -> int:
        return self._call("delete_staged", "", lambda: self._inner.delete_staged(before_us))

    def local_path(self, path: str) -> Path | None:
        return self._inner.local_path(path)

    def address(self, path: str) -> str:
        return self._inner.address(path)

    def _call(self, name: str, path: str, run: Callable[[], T]) -> T:
        """Returns what ``run`` returns, and raises what it raises.

        Args:
            name: of the method.
            path: of the blob, or the prefix of a list.
        """
        raise NotImplementedError
