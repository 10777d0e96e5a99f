"""Many manifests in one blob: readers open few, and see the same files as without."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from harness.failing_blobs import CountingBlobs, PassingBlobs
from harness.rollouts import make_columns, members
from harness.sealed_files import flushed
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import (
    Blobs,
    Bytes,
    CorruptFile,
    MemoryBlobs,
    Pieces,
    RollUps,
    StoreFull,
    list_manifests,
    project,
    visible_files,
)
from rollstream.store.blobs import size_of
from rollstream.store.layout import manifest_path, offset_in
from rollstream.store.rollups import (
    ROLLED_TOGETHER,
    RollUp,
    VisibleFile,
    encode_rollup,
    named_files,
    newest_offset,
    read_rollup,
)

ADDRESS = PartitionAddress("math", 1, 3)
EVENT = flushed("groups/x.parquet", make_columns(members(1)), 10, "ab")


class RefusingBlobs(PassingBlobs):
    """No roll-up can be written while it is ``full``."""

    full = True

    def create(self, path: str, data: Bytes | Pieces) -> None:
        if self.full and path.startswith("rollups/"):
            raise StoreFull("no space is left")
        super().create(path, data)


def event_of(number: int) -> Flushed:
    file = replace(EVENT.files[0], path=f"groups/{number}.parquet")
    return replace(EVENT, files=(file,))


class Partition:
    """Flush n is at offset 2 n of its seal log, and writes file n."""

    def __init__(self, address: PartitionAddress = ADDRESS, blobs: Blobs | None = None) -> None:
        self.address = address
        self.blobs = blobs or MemoryBlobs()
        self.rollups = RollUps(self.blobs, address)
        self.flushes = 0

    def flush(self, count: int, *, owner: RollUps | None = None) -> None:
        for number in range(self.flushes, self.flushes + count):
            size = project(self.blobs, self.address, 2 * number, event_of(number))
            (owner or self.rollups).add(2 * number, event_of(number), size)
        self.flushes += count

    def names_of_rollups(self) -> list[str]:
        return [blob.path.rpartition("/")[2] for blob in self.blobs.list("rollups/")]


def files(count: int) -> list[str]:
    return [f"groups/{number}.parquet" for number in range(count)]


@pytest.mark.proves("A10")
@pytest.mark.parametrize("flushes", [1, 63, 64, 65, 200, 64 * 64 + 64 + 5])
def test_visible_files_are_those_of_all_manifests_and_few_blobs_are_opened(flushes: int) -> None:
    partition = Partition()
    partition.flush(flushes)
    counting = CountingBlobs(partition.blobs)
    assert visible_files(counting) == files(flushes)
    whole, rest = divmod(flushes, ROLLED_TOGETHER)
    assert counting.opened == sum(divmod(whole, ROLLED_TOGETHER)) + rest


def test_partitions_are_rolled_up_each_by_itself() -> None:
    blobs = MemoryBlobs()
    for environment, number in (("math", 0), ("math", 1), ("a b/c", 0)):
        Partition(PartitionAddress(environment, 1, number), blobs).flush(ROLLED_TOGETHER)
    counting = CountingBlobs(blobs)
    assert visible_files(counting) == 3 * files(ROLLED_TOGETHER)
    assert counting.opened == 3


@pytest.mark.parametrize("flushes", [3, ROLLED_TOGETHER])
def test_a_visible_file_is_named_with_its_flush(flushes: int) -> None:
    blobs = MemoryBlobs()
    addresses = [PartitionAddress("a b/c", 1, 0), PartitionAddress("math", 2, 1)]
    for address in addresses:
        Partition(address, blobs).flush(flushes)
    expected = [
        VisibleFile(address, 2 * number, path)
        for address in addresses
        for number, path in enumerate(files(flushes))
    ]
    assert sorted(named_files(blobs)) == sorted(expected)


def test_a_successor_goes_on_where_its_predecessors_stopped() -> None:
    alone, shared = Partition(), Partition()
    alone.flush(300)
    for count in (40, 10, 70, 180):  # The first two end before they rolled anything up.
        shared.flush(count, owner=RollUps(shared.blobs, ADDRESS))
    written = shared.names_of_rollups()
    assert written == alone.names_of_rollups()[: len(written)]
    assert len(written) == 4
    assert visible_files(shared.blobs) == files(300)


def test_a_successor_lists_what_no_rollup_holds_and_not_the_whole_partition() -> None:
    partition = Partition()
    partition.flush(2 * 64 * 64 + 64)
    counting = CountingBlobs(partition.blobs)
    partition.flush(ROLLED_TOGETHER, owner=RollUps(counting, ADDRESS))
    # Two of level 2, one of level 1 since, and the manifests behind it.
    assert counting.listed == {"rollups": 3, "manifests": ROLLED_TOGETHER}


@pytest.mark.parametrize("behind", [0, 3])
def test_the_newest_manifest_is_found_without_listing_the_whole_partition(behind: int) -> None:
    partition = Partition()
    assert newest_offset(partition.blobs, ADDRESS) is None
    partition.flush(2 * 64 * 64 + 64 + behind)
    newest = max(manifest.offset for manifest in list_manifests(partition.blobs))
    counting = CountingBlobs(partition.blobs)
    assert newest_offset(counting, ADDRESS) == newest
    assert counting.listed == {"rollups": 3, "manifests": behind or 64}


def test_the_newest_manifest_is_found_where_retention_deleted_what_a_rollup_holds() -> None:
    partition = Partition()
    partition.flush(64)
    kept, *deleted = [blob.path for blob in partition.blobs.list("manifests/")]
    for path in deleted:
        partition.blobs.delete(path)
    assert newest_offset(partition.blobs, ADDRESS) == offset_in(kept)
    partition.blobs.delete(kept)
    assert newest_offset(partition.blobs, ADDRESS) is None


def test_a_zombie_beside_its_successor_writes_the_same() -> None:
    partition = Partition()
    partition.flush(ROLLED_TOGETHER - 1)
    zombie, successor = partition.rollups, RollUps(partition.blobs, ADDRESS)
    last = ROLLED_TOGETHER - 1
    partition.flush(1, owner=successor)
    size = size_of(partition.blobs, manifest_path(ADDRESS, 2 * last))
    zombie.add(2 * last, event_of(last), size)
    before = {blob.path: partition.blobs.read(blob.path) for blob in partition.blobs.list("")}
    partition.flush(2 * ROLLED_TOGETHER, owner=successor)
    assert len(partition.names_of_rollups()) == 3
    assert all(partition.blobs.read(path) == data for path, data in before.items())
    assert visible_files(partition.blobs) == files(3 * ROLLED_TOGETHER)


def test_what_could_not_be_rolled_up_is_later() -> None:
    refusing = RefusingBlobs(MemoryBlobs())
    partition = Partition(blobs=refusing)
    partition.flush(ROLLED_TOGETHER - 1)
    with pytest.raises(StoreFull):
        partition.flush(1)
    partition.flushes += 1
    refusing.full = False
    partition.flush(ROLLED_TOGETHER)
    assert len(partition.names_of_rollups()) == 2
    assert visible_files(partition.blobs) == files(2 * ROLLED_TOGETHER)


def test_a_damaged_rollup_is_passed_over() -> None:
    partition = Partition()
    partition.flush(64 * 64)
    random = Random(1)
    for blob in list(partition.blobs.list("rollups/")):
        data = bytearray(partition.blobs.read(blob.path))
        data[random.randrange(len(data) - 1)] ^= 1
        partition.blobs.replace(blob.path, data)
        assert visible_files(partition.blobs) == files(64 * 64)


@pytest.mark.parametrize("name", ["x.json", "1-2.json", "9-00-01.json", "notes"])
def test_what_is_no_rollup_is_passed_over(name: str) -> None:
    partition = Partition()
    partition.flush(ROLLED_TOGETHER)
    folder = next(partition.blobs.list("rollups/")).path.rpartition("/")[0]
    partition.blobs.create(f"{folder}/{name}", b"anything")
    assert visible_files(partition.blobs) == files(ROLLED_TOGETHER)
    partition.flush(ROLLED_TOGETHER, owner=RollUps(partition.blobs, ADDRESS))
    assert visible_files(partition.blobs) == files(2 * ROLLED_TOGETHER)


@pytest.mark.proves("I3")
def test_a_rollup_makes_no_file_visible_without_its_manifest() -> None:
    partition = Partition()
    partition.flush(ROLLED_TOGETHER)
    partition.blobs.delete(manifest_path(ADDRESS, 0))
    assert visible_files(partition.blobs) == files(ROLLED_TOGETHER)[1:]


def test_a_manifest_of_another_size_is_opened() -> None:
    partition = Partition()
    partition.flush(ROLLED_TOGETHER)
    other = MemoryBlobs()
    two = replace(EVENT, files=(*event_of(0).files, *event_of(700).files))
    project(other, ADDRESS, 0, two)
    data = other.read(manifest_path(ADDRESS, 0))
    partition.blobs.replace(manifest_path(ADDRESS, 0), data)
    assert visible_files(partition.blobs)[:3] == [*files(1), "groups/700.parquet", *files(2)[1:]]


def test_a_rollup_is_read_as_it_was_written() -> None:
    partition = Partition()
    partition.flush(ROLLED_TOGETHER)
    (blob,) = partition.blobs.list("rollups/")
    data = partition.blobs.read(blob.path)
    rollup = read_rollup(data)
    assert [manifest.files for manifest in rollup.manifests] == [(f,) for f in files(64)]
    assert encode_rollup(RollUp(*rollup)) == data


@pytest.mark.parametrize("data", [b"", b"\n", b"{}", b"ab\n{}\n", b"\xff"])
def test_bytes_that_are_no_rollup_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="no roll-up"):
        read_rollup(data)
