"""Bytes of blobs that are mapped where they can be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollstream.store import BlobMissing, Blobs, LocalBlobs, MemoryBlobs
from rollstream.store.mapped import mapped, mapped_whole

Reader = Callable[[Blobs, str], memoryview]


@pytest.fixture(params=["memory", "disk"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else LocalBlobs(tmp_path)


@pytest.mark.parametrize("read", [mapped, mapped_whole])
@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4_000])
def test_the_bytes_are_those_of_the_blob_also_once_it_is_deleted(
    read: Reader, data: bytes, blobs: Blobs
) -> None:
    blobs.create("groups/a", data)
    found = read(blobs, "groups/a")
    blobs.delete("groups/a")
    assert bytes(found) == data
    assert found.readonly


@pytest.mark.parametrize("read", [mapped, mapped_whole])
def test_what_is_not_there_or_is_a_folder_is_missing(read: Reader, blobs: Blobs) -> None:
    blobs.create("groups/a", b"x")
    for path in ("groups/b", "groups"):
        with pytest.raises(BlobMissing):
            read(blobs, path)
