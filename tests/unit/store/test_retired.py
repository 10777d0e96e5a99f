"""What readers leave out, and how much they open for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import examples
from harness.failing_blobs import PassingBlobs
from harness.retiring import retired
from harness.rollouts import make_columns, members
from harness.sealed_files import flushed
from rollstream.schemas.digest import checksum
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import CorruptFile, MemoryBlobs, NewerFile, RollUps, project, visible_files
from rollstream.store.layout import retired_path
from rollstream.store.retired import (
    NamedFile,
    RetiredFiles,
    encode_retired,
    read_retired,
    retired_of,
)
from rollstream.store.rollups import ROLLED_TOGETHER

ADDRESS = PartitionAddress("math", 1, 3)
EVENT = flushed("groups/x.parquet", make_columns(members(1)), 10, "ab")


class CountingBlobs(PassingBlobs):
    """Counts the blobs that are opened."""

    opened = 0

    def read(self, path: str) -> bytes:
        self.opened += 1
        return super().read(path)


def path_of(number: int) -> str:
    return f"groups/{number:05d}.parquet"


def event_of(number: int) -> Flushed:
    """Flush n is at offset 2 n, and writes file n and one of incomplete groups."""
    file = replace(EVENT.files[0], path=path_of(number))
    return replace(EVENT, files=(file,), incomplete=(replace(file, path=f"incomplete/{number}"),))


def retire(before: RetiredFiles, offset: int, numbers: Iterable[int], flushes: int) -> RetiredFiles:
    """The files of these flushes, and of their incomplete groups."""
    files = [(2 * n, name) for n in numbers for name in (path_of(n), f"incomplete/{n}")]
    newest = max(at for at, _ in files)
    named = ((2 * n, event_of(n)) for n in range(flushes) if before.below <= 2 * n <= newest)
    return before.after(offset, retired(0, "n", files), named)


@given(st.lists(st.sets(st.integers(0, 30), min_size=1), max_size=6), st.integers(31, 40))
@settings(max_examples=examples(60))
def test_readers_leave_out_what_was_retired_and_nothing_else(
    rounds: list[set[int]], flushes: int
) -> None:
    blobs = MemoryBlobs()
    for number in range(flushes):
        project(blobs, ADDRESS, 2 * number, event_of(number))
    now, gone = RetiredFiles(ADDRESS), set[int]()
    for offset, numbers in enumerate(rounds, 100):
        if not numbers - gone:
            continue
        now = retire(now, offset, numbers - gone, flushes)
        gone |= numbers
        blobs.create(retired_path(ADDRESS, offset), encode_retired(now))
        assert read_retired(encode_retired(now)) == now
    left = [path_of(number) for number in range(flushes) if number not in gone]
    assert sorted(visible_files(blobs)) == left
    found = retired_of(blobs, ADDRESS)
    for number in range(flushes):
        for name in (path_of(number), f"incomplete/{number}"):
            assert found.has(NamedFile(2 * number, name)) == (number in gone)


def test_what_is_opened_is_bounded_by_what_is_left_not_by_what_was() -> None:
    blobs = CountingBlobs(MemoryBlobs())
    rollups, count = RollUps(blobs, ADDRESS), 10 * ROLLED_TOGETHER
    for number in range(count):
        size = project(blobs, ADDRESS, 2 * number, event_of(number))
        rollups.add(2 * number, event_of(number), size)
    left = count - 3
    now = retire(RetiredFiles(ADDRESS), 5_000, range(left), count)
    blobs.create(retired_path(ADDRESS, 5_000), encode_retired(now))
    blobs.opened = 0
    assert visible_files(blobs) == [path_of(number) for number in range(left, count)]
    assert blobs.opened == 2, "the newest roll-up, and what is retired"


def test_the_newest_blob_counts_whichever_is_written_last() -> None:
    blobs = MemoryBlobs()
    for number in range(3):
        project(blobs, ADDRESS, 2 * number, event_of(number))
    first = retire(RetiredFiles(ADDRESS), 100, [0], 3)
    second = retire(first, 101, [1], 3)
    for one in (second, first):  # As where a zombie wakes up.
        blobs.create(retired_path(ADDRESS, one.offset), encode_retired(one))
    assert visible_files(blobs) == [path_of(2)]


def test_a_blob_that_is_superseded_while_it_is_looked_for_is_looked_for_again() -> None:
    first = retire(RetiredFiles(ADDRESS), 100, [0], 3)
    second = retire(first, 101, [1], 3)

    class Superseding(PassingBlobs):
        def read(self, path: str) -> bytes:
            old = retired_path(ADDRESS, 100)
            if path == old and self.inner.info(old) is not None:
                self.inner.create(retired_path(ADDRESS, 101), encode_retired(second))
                self.inner.delete(old)
            return super().read(path)

    def blobs() -> Superseding:
        made = MemoryBlobs()
        for number in range(3):
            project(made, ADDRESS, 2 * number, event_of(number))
        made.create(retired_path(ADDRESS, 100), encode_retired(first))
        return Superseding(made)

    assert retired_of(blobs(), ADDRESS) == second
    assert visible_files(blobs()) == [path_of(2)]


def test_a_damaged_blob_is_an_error_that_names_it_and_not_what_it_hid() -> None:
    blobs = MemoryBlobs()
    project(blobs, ADDRESS, 0, event_of(0))
    blobs.create(retired_path(ADDRESS, 100), b"torn")
    with pytest.raises(CorruptFile, match=r"retired/.*100\.json.*delete it"):
        visible_files(blobs)


def test_a_blob_of_a_later_version_is_no_damaged_one() -> None:
    blobs = MemoryBlobs()
    project(blobs, ADDRESS, 0, event_of(0))
    body = b'{"schema":"retired.v2","left":[]}'
    newer = b"%s\n%s\n" % (checksum(body).encode(), body)
    blobs.create(retired_path(ADDRESS, 100), newer)
    with pytest.raises(NewerFile, match=r"retired/.*100\.json.*retired\.v2.*upgrade"):
        visible_files(blobs)
