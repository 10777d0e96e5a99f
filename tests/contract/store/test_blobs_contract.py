"""What ``Blobs`` promises, held to every implementation."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pytest

from harness.stores import KINDS, opened
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.metrics.timings import Timings
from rollstream.store import (
    BlobExists,
    BlobInfo,
    BlobMissing,
    Blobs,
    Bytes,
    CorruptFile,
    LocalBlobs,
    Pieces,
    StoreError,
    create_or_compare,
)
from rollstream.store.bounded import bounded
from rollstream.store.timed import TimedBlobs

NEVER_S = 600.0


@pytest.fixture(params=[*KINDS, "timed", "bounded"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "timed":
        return TimedBlobs(LocalBlobs(tmp_path), Timings(), SystemClock())
    if request.param == "bounded":
        return bounded(LocalBlobs(tmp_path), NEVER_S, SystemClock())
    return opened(request, tmp_path)


def paths(blobs: Blobs, prefix: str) -> list[str]:
    return [blob.path for blob in blobs.list(prefix)]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"bytes", bytearray(b"array"), memoryview(b"a view")),
        *(Pieces(()), Pieces((b"two", memoryview(b"pieces")))),
    ],
)
def test_create_then_read_gives_the_same_bytes(blobs: Blobs, data: Bytes | Pieces) -> None:
    blobs.create("groups/environment=math/1-a.parquet", data)
    assert blobs.read("groups/environment=math/1-a.parquet") == bytes(data)
    assert blobs.info("groups/environment=math/1-a.parquet") == BlobInfo(
        "groups/environment=math/1-a.parquet", len(bytes(data))
    )


def test_create_over_something_leaves_it_as_it_is(blobs: Blobs) -> None:
    blobs.create("a/b", b"first")
    with pytest.raises(BlobExists, match="a/b"):
        blobs.create("a/b", b"second")
    assert blobs.read("a/b") == b"first"


def test_pieces_are_compared_with_what_is_there_by_their_bytes(blobs: Blobs) -> None:
    create_or_compare(blobs, "a/b", b"twopieces")
    create_or_compare(blobs, "a/b", Pieces((b"two", b"pieces")))
    with pytest.raises(CorruptFile, match="a/b exists and holds other bytes"):
        create_or_compare(blobs, "a/b", Pieces((b"two", b"others")))


def test_creates_that_race_have_one_winner(blobs: Blobs) -> None:
    barrier = Barrier(4)
    won: list[bytes] = []

    def create(data: bytes) -> None:
        barrier.wait(60)
        try:
            blobs.create("a/b", data)
        except BlobExists:
            return
        won.append(data)

    threads = [Thread(target=create, args=(bytes([i]) * 100_000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert won == [blobs.read("a/b")]


def test_replace_makes_or_overwrites(blobs: Blobs) -> None:
    blobs.replace("a", b"one")
    blobs.replace("a", b"two")
    assert blobs.read("a") == b"two"


def test_read_of_nothing_is_a_typed_error(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing, match="no/where"):
        blobs.read("no/where")
    assert blobs.info("no/where") is None


def test_folder_is_no_blob(blobs: Blobs) -> None:
    blobs.create("a/b", b"")
    assert blobs.info("a") is None
    with pytest.raises(BlobMissing):
        blobs.read("a")


def test_delete_is_idempotent(blobs: Blobs) -> None:
    blobs.create("a/b", b"")
    blobs.delete("a/b")
    blobs.delete("a/b")
    blobs.delete("never/was")
    assert blobs.info("a/b") is None
    blobs.create("a/b", b"again")


def test_list_is_sorted_by_path_and_cut_by_prefix_anywhere_in_a_name(blobs: Blobs) -> None:
    for path in ("a/b/2", "a/b/10", "a/b-c", "ab", "b/x", "a/bc/d"):
        blobs.create(path, path.encode())
    everything = ["a/b-c", "a/b/10", "a/b/2", "a/bc/d", "ab", "b/x"]
    assert paths(blobs, "") == everything
    assert paths(blobs, "a/") == everything[:4]
    assert paths(blobs, "a/b") == everything[:4]
    assert paths(blobs, "a/b/") == ["a/b/10", "a/b/2"]
    assert paths(blobs, "a/b/1") == ["a/b/10"]
    assert paths(blobs, "a/b/10") == ["a/b/10"]
    assert paths(blobs, "nothing/here") == []
    assert list(blobs.list("b/")) == [BlobInfo("b/x", 3)]


LISTED = ["a/b-c", "a/b/10", "a/b/2", "a/bc/d", "ab", "b/x"]


@pytest.mark.parametrize("prefix", ["", "a/", "a/b", "a/b/", "a/b/1", "b/x", "c"])
@pytest.mark.parametrize("after", ["", "a", "a/b", "a/b/", "a/b/10", "a/b/11", "a/bc", "b/x", "z"])
def test_list_begins_after_a_path_and_ends_at_a_limit(
    blobs: Blobs, prefix: str, after: str
) -> None:
    for path in LISTED:
        blobs.create(path, b"")
    expected = [path for path in LISTED if path.startswith(prefix) and path > after]
    assert [blob.path for blob in blobs.list(prefix, after=after)] == expected
    assert [blob.path for blob in blobs.list(prefix, after=after, limit=2)] == expected[:2]
    assert [*blobs.list(prefix, after=after, limit=0)] == []


def test_every_blob_has_an_address_of_its_own_for_other_programs(blobs: Blobs) -> None:
    blobs.create("a/b", b"x")
    assert blobs.address("a/b").endswith("a/b")
    assert blobs.address("a/b") != blobs.address("a/c")


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "../a", "a/./b", ".hidden", "a/.tmp/b"])
def test_path_that_could_leave_the_root_or_be_hidden_is_refused(blobs: Blobs, path: str) -> None:
    with pytest.raises(StoreError, match="no path of a blob"):
        blobs.create(path, b"")


def test_names_with_every_sign_that_layout_makes_stay_themselves(blobs: Blobs) -> None:
    path = "groups/environment=a%2Fb%25 c/policy_version=step+1@,x/segment=0/7-n.parquet"
    blobs.create(path, b"x")
    assert paths(blobs, "groups/") == [path]


def test_local_path_holds_the_bytes_where_there_is_one(blobs: Blobs) -> None:
    blobs.create("a/b", b"mapped")
    local = blobs.local_path("a/b")
    assert local is None or local.read_bytes() == b"mapped"


def test_ranges_are_those_bytes_in_the_order_that_they_were_asked_for(blobs: Blobs) -> None:
    data = bytes(range(256)) * 64
    blobs.create("a/b", data)
    spans = [(100, 200), (200, 5_000), (0, 3), (7, 7), (16_000, 16_384)]
    assert [bytes(part) for part in blobs.read_ranges("a/b", spans)] == [
        data[start:stop] for start, stop in spans
    ]
    assert blobs.read_ranges("a/b", []) == []
    with pytest.raises(CorruptFile, match="a/b ends before byte 16385"):
        blobs.read_ranges("a/b", [(0, 3), (16_000, 16_385)])
    with pytest.raises(BlobMissing):
        blobs.read_ranges("a/c", spans)
