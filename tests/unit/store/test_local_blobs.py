"""What only a disk can do to blobs: run full, lose power, be left by a killed process."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from rollstream.store import BlobExists, LocalBlobs, StoreError, StoreFull
from rollstream.store.local import STAGING


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "deep" / "root")


class Disk:
    """Records, in order, what is synced and what gets its name."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._fsync, self._link = os.fsync, os.link
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "link", self.link)

    def fsync(self, file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        self.events.append(f"folder {path.name}" if is_folder else "bytes")
        self._fsync(file)

    def link(self, source: Path, target: Path) -> None:
        self.events.append("name")
        self._link(source, target)


def test_create_syncs_bytes_before_the_name_and_folders_before_it_returns(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    blobs.create("a/b/c", b"x")
    named = disk.events.index("name")
    assert disk.events.index("bytes") < named
    assert {"folder a", "folder root", "folder deep"} <= set(disk.events)
    assert disk.events[-1] == "folder b"
    assert named < len(disk.events) - 1


def test_folder_that_another_process_made_is_synced_all_the_same(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (blobs.root / "a" / "b").mkdir(parents=True)
    disk = Disk(monkeypatch)
    blobs.create("a/b/c", b"x")
    assert {"folder b", "folder a", "folder root"} <= set(disk.events)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_typed_and_leaves_nothing(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    written: list[int] = []
    real_write = os.write

    def write(file: int, data: memoryview) -> int:
        if written:
            raise OSError(number, os.strerror(number))
        written.append(real_write(file, data[:3]))
        return written[0]

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreFull, match=r"a/b .*free some or move the root"):
        blobs.create("a/b", b"more than three bytes")
    monkeypatch.undo()
    assert list(blobs.list("")) == []
    assert list((blobs.root / STAGING).iterdir()) == []
    blobs.create("a/b", b"later")
    assert blobs.read("a/b") == b"later"


def test_limit_of_the_operating_system_is_a_full_store(blobs: LocalBlobs) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(StoreFull, match="a/b"):
            blobs.create("a/b", b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(blobs.list("")) == []
    assert list((blobs.root / STAGING).iterdir()) == []


def test_short_writes_are_continued(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real_write(file, data[:2]))
    blobs.create("a", b"seven..")
    assert blobs.read("a") == b"seven.."


def test_what_a_killed_process_left_is_never_listed(blobs: LocalBlobs) -> None:
    staging = blobs.root / STAGING
    staging.mkdir(parents=True)
    (staging / "half").write_bytes(b"ha")
    blobs.create("a", b"")
    assert [blob.path for blob in blobs.list("")] == ["a"]
    assert [path.name for path in staging.iterdir()] == ["half"]


def test_refused_create_leaves_no_staged_file(blobs: LocalBlobs) -> None:
    blobs.create("a", b"1")
    with pytest.raises(BlobExists):
        blobs.create("a", b"2")
    assert list((blobs.root / STAGING).iterdir()) == []


def test_blob_where_a_folder_is_wanted_is_a_store_error(blobs: LocalBlobs) -> None:
    blobs.create("a", b"")
    with pytest.raises(StoreError, match="a/b"):
        blobs.create("a/b", b"")
