"""Reads groups of row files, side by side where the store is behind a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple, TypeVar

from rollstream.folds.group.known import KnownGroup
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.store import Blobs, StoreError
from rollstream.store.errors import StoreHangs
from rollstream.store.file_rows import FileRows, GroupColumns, StoredGroup
from rollstream.store.group_file import GroupFile
from rollstream.store.in_time import in_time
from rollstream.store.layout import ROOT_ID

AGAIN_S = 0.1  # After a call that hung, for the end of that call.
FILES_AT_ONCE = 16  # Of a mounted store: handing each to another thread costs 100 us.
READS = "read row files"
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
    """Keeps nothing. May be shared between threads.

    Args:
        timeout_s: a mounted store that reads no file to its end for so long hangs.
    """

    def __init__(self, blobs: Blobs, timeout_s: float) -> None:
        self._blobs = blobs
        self._timeout_s = timeout_s
        self._is_mounted = blobs.local_path(ROOT_ID) is not None  # Others have own time-outs.
        self._hangs = False  # By the newest call.

    def read(self, wanted: Collection[Wanted]) -> Iterator[Read]:
        """Yields what was read of each file, in order.

        Raises:
            BlobMissing, CorruptFile: rows are not those that were sealed. StoreHangs.
        """
        return self.for_each(self._read, wanted)

    def for_each(self, call: Callable[[_T], _R], of: Collection[_T]) -> Iterator[_R]:
        """Yields what the call, which asks the store, returns for each, in order."""
        if self._is_mounted:
            return self._in_time(call, of)
        alone = self._blobs.requests_at_once == 1 or len(of) <= 1
        return map(call, of) if alone else self._threads.map(call, of)

    def _in_time(self, call: Callable[[_T], _R], of: Collection[_T]) -> Iterator[_R]:
        """Makes the calls in a thread, which is left behind if the store hangs. While it hangs,
        others that read in turn wait for ``AGAIN_S`` each."""
        left = iter(of)
        while part := list(islice(left, FILES_AT_ONCE)):
            yield from self._part_in_time(call, part)

    def _part_in_time(self, call: Callable[[_T], _R], part: Sequence[_T]) -> Iterator[_R]:
        clock, root, found = SystemClock(), self._blobs.address(""), list[_R]()
        is_wanted = True

        def read() -> None:
            for one in part:
                if is_wanted:
                    found.append(call(one))

        wait = partial(in_time, root=root, name=READS, beside=f"{READS} of {id(self)}")
        try:
            if self._hangs:
                wait(lambda: None, deadline=Deadline(AGAIN_S, clock))
            self._hangs = False
            wait(read, deadline=Deadline(self._timeout_s, clock), went_on=lambda: len(found))
        except StoreHangs:
            self._hangs, is_wanted = True, False
            raise
        except StoreError:
            yield from found
            raise
        yield from found

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
