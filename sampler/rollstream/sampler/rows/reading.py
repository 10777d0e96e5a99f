"""Reads groups of row files, side by side where the store is behind a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple, TypeVar

from rollstream.folds.group.known import KnownGroup
from rollstream.store import Blobs
from rollstream.store.file_rows import FileRows, GroupColumns, StoredGroup
from rollstream.store.group_file import GroupFile

_T = TypeVar("_T")
_R = TypeVar("_R")


class Wanted(NamedTuple):
    """Groups of one file, in the order of rows, that are to be read.

    Attributes:
        names: of fields, and of named arrays.
        file: its layout, if that was kept.
        whole: whether all of the file is wanted.
    """

    groups: Sequence[KnownGroup]
    names: tuple[Sequence[str], Sequence[str]]
    file: GroupFile | None
    whole: bool


class Read(NamedTuple):
    """What was read of a file; ``rows`` are all of it, where it was read as a whole."""

    file: GroupFile
    rows: FileRows | None
    groups: Sequence[GroupColumns]


class Reading:
    """Keeps nothing. May be shared between threads."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def read(self, wanted: Collection[Wanted]) -> Iterator[Read]:
        """Yields what was read of each file, in order.

        Raises:
            BlobMissing, CorruptFile: rows are not those that were sealed.
        """
        return self.for_each(self._read, wanted)

    def for_each(self, call: Callable[[_T], _R], of: Collection[_T]) -> Iterator[_R]:
        """Yields what the call, which asks the store, returns for each, in order."""
        alone = self._blobs.requests_at_once == 1 or len(of) <= 1
        return map(call, of) if alone else self._threads.map(call, of)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._blobs.requests_at_once, "rollstream-read")

    def _read(self, wanted: Wanted) -> Read:
        sealed, groups = wanted.groups[0].file, [stored(group) for group in wanted.groups]
        file, whole = wanted.file, wanted.whole
        if file is None:
            file = GroupFile(self._blobs, sealed.path, sealed.size, whole=whole)
        rows = file.read_whole(sealed.checksum, *wanted.names) if whole else None
        read = file.read(groups, *wanted.names) if rows is None else rows.groups(groups)
        file.drop_whole()
        return Read(file, rows, read)


def stored(group: KnownGroup) -> StoredGroup:
    """Where its rows are."""
    return StoredGroup(group.group.row_start, group.group.rows, group.group.digest)
