"""Faults of a disk: it is full, loses power, loses a mount, or has files of a killed process."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rollstream.runtime.entropy import SystemEntropy
from rollstream.store import (
    BlobExists,
    BlobMissing,
    LocalBlobs,
    Pieces,
    StoreError,
    StoreFull,
    create_root_id,
    read_root_id,
)
from rollstream.store.blobs import BlobInfo
from rollstream.store.local import STAGING


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "deep" / "root")


class Disk:
    """Records the order of syncs and links."""

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


@contextmanager
def root_is_away(root: Path, *, leaves_a_mount_point: bool) -> Iterator[None]:
    """A lost mount: another folder at the root if it was mounted there, none if at a parent."""
    away = root.with_name("away")
    root.rename(away)
    if leaves_a_mount_point:
        root.mkdir()
    yield
    if leaves_a_mount_point:
        assert list(root.iterdir()) == [], "something was written to the disk below"
        root.rmdir()
    assert not root.exists(), "the root was made anew"
    away.rename(root)


def came_back_as(root: Path, other: Path) -> None:
    """Another folder stands where the root stood: other numbers of device and inode."""
    root.rename(root.with_name("before"))
    other.rename(root)


def write(blobs: LocalBlobs, how: str, path: str, data: bytes) -> None:
    (blobs.create if how == "create" else blobs.replace)(path, data)


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


def test_folder_that_another_process_made_is_synced_too(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (blobs.root / "a" / "b").mkdir(parents=True)
    disk = Disk(monkeypatch)
    blobs.create("a/b/c", b"x")
    assert {"folder b", "folder a", "folder root"} <= set(disk.events)


def test_an_existing_name_is_synced_before_it_is_reported(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.create("a/b/c", b"x")
    disk = Disk(monkeypatch)
    with pytest.raises(BlobExists):
        blobs.create("a/b/c", b"x")
    assert disk.events[-1] == "folder b"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_typed_and_leaves_nothing(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def sync(file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", sync)
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


def test_pieces_are_written_one_after_the_other(blobs: LocalBlobs) -> None:
    large = np.arange(100_000, dtype=np.int32)
    pieces = (b"", b"se", memoryview(b"ven"), large.view(np.uint8).data, bytearray(b".."), b"")
    blobs.create("a", Pieces(pieces))
    assert blobs.read("a") == b"seven" + large.tobytes() + b".."


@pytest.mark.parametrize("listed_max", [1, 2, 7, 100])
def test_a_list_is_in_the_order_of_paths_however_few_names_are_read_at_once(
    blobs: LocalBlobs, listed_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a", "a-b", "a.json", "ab", "b")
    paths = [f"{one}/{other}.x" for one in names for other in names] + ["a.json.x", "a-", "c"]
    for path in paths:
        blobs.create(path, b"12")
    monkeypatch.setattr("rollstream.store.local.LISTED_MAX", listed_max)
    for prefix in ("", "a", "a/", "a/a", "a.json/a-", "c", "none", "none/"):
        expected = sorted(BlobInfo(path, 2) for path in paths if path.startswith(prefix))
        assert list(blobs.list(prefix)) == expected
    listed = blobs.list("b/")
    assert next(listed).path == "b/a-b.x"
    for path in paths:
        blobs.delete(path)
    assert list(listed) == []


def test_the_memory_of_a_list_does_not_grow_with_the_folder(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollstream.store.local.LISTED_MAX", 64)
    folder = blobs.root / "manifests"
    folder.mkdir(parents=True)
    peaks = []
    for count in (500, 4000):
        for number in range(count):
            (folder / f"{number:020d}.json").touch()
        tracemalloc.start()
        assert sum(1 for _ in blobs.list("manifests/")) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_files_that_a_killed_process_left_are_never_listed(blobs: LocalBlobs) -> None:
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


LOST = r"not the folder that it was.*was a mount lost\?"


@pytest.mark.parametrize("leaves_a_mount_point", [False, True])
@pytest.mark.parametrize("how", ["create", "replace"])
@pytest.mark.parametrize("path", ["a/b/2", "new/2"])
def test_writes_are_refused_while_the_root_is_away_and_work_once_it_is_back(
    blobs: LocalBlobs, leaves_a_mount_point: bool, how: str, path: str
) -> None:
    blobs.create("a/b/1", b"1")
    with root_is_away(blobs.root, leaves_a_mount_point=leaves_a_mount_point):
        for _ in range(2):
            with pytest.raises(StoreError, match=LOST):
                write(blobs, how, path, b"2")
    write(blobs, how, path, b"2")
    assert (blobs.read("a/b/1"), blobs.read(path)) == (b"1", b"2")


@pytest.mark.parametrize("how", ["create", "replace"])
@pytest.mark.parametrize("path", ["a/b/2", "new/2"])
@pytest.mark.parametrize("id_is", ["created", "read"])
def test_root_that_comes_back_as_another_device_is_known_by_its_id(
    blobs: LocalBlobs, how: str, path: str, id_is: str
) -> None:
    create_root_id(blobs, SystemEntropy(), "rollstream", 1)
    if id_is == "read":
        blobs = LocalBlobs(blobs.root)
        read_root_id(blobs)
    blobs.create("a/b/1", b"1")
    came_back_as(blobs.root, shutil.copytree(blobs.root, blobs.root.with_name("copy")))
    write(blobs, how, path, b"2")
    assert (blobs.read("a/b/1"), blobs.read(path)) == (b"1", b"2")
    with (
        root_is_away(blobs.root, leaves_a_mount_point=True),
        pytest.raises(StoreError, match=LOST),
    ):
        write(blobs, how, "a/b/3", b"3")
    write(blobs, how, "a/b/3", b"3")


def test_another_root_with_an_id_of_its_own_is_refused(blobs: LocalBlobs) -> None:
    create_root_id(blobs, SystemEntropy(), "rollstream", 1)
    other = LocalBlobs(blobs.root.with_name("other"))
    create_root_id(other, SystemEntropy(), "rollstream", 1)
    came_back_as(blobs.root, other.root)
    with pytest.raises(StoreError, match=LOST):
        blobs.create("a", b"")
    assert [blob.path for blob in blobs.list("")] == ["root_id.json"]


@pytest.mark.parametrize("leaves_a_mount_point", [False, True])
def test_root_that_existed_at_the_start_and_is_lost_before_the_first_write_is_refused(
    tmp_path: Path, leaves_a_mount_point: bool
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    blobs = LocalBlobs(root)
    with (
        root_is_away(root, leaves_a_mount_point=leaves_a_mount_point),
        pytest.raises(StoreError, match=LOST),
    ):
        blobs.create("a", b"")
    blobs.create("a", b"")


@pytest.mark.parametrize("how", ["create", "replace"])
@pytest.mark.parametrize("known", [True, False], ids=["known folder", "new folder"])
@pytest.mark.parametrize("leaves_a_mount_point", [False, True])
def test_root_lost_while_bytes_are_synced_gives_no_blob_a_name(
    blobs: LocalBlobs,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    known: bool,
    leaves_a_mount_point: bool,
) -> None:
    blobs.create("a/1", b"1")
    away = blobs.root.with_name("away")
    real_fsync = os.fsync

    def fsync(file: int) -> None:
        real_fsync(file)
        monkeypatch.undo()
        blobs.root.rename(away)
        if leaves_a_mount_point:
            blobs.root.mkdir()

    path = "a/2" if known else "b/2"
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match=LOST):
        write(blobs, how, path, b"2")
    assert blobs.root.exists() == leaves_a_mount_point
    if leaves_a_mount_point:
        blobs.root.rmdir()  # It is empty.
    away.rename(blobs.root)
    write(blobs, how, path, b"2")
    assert blobs.read(path) == b"2"


def test_reads_and_deletes_make_no_root(blobs: LocalBlobs) -> None:
    assert list(blobs.list("")) == []
    assert blobs.info("a") is None
    blobs.delete("a")
    with pytest.raises(BlobMissing):
        blobs.read("a")
    assert not blobs.root.parent.exists()


@pytest.mark.parametrize("removed", ["a", "a/b"])
@pytest.mark.parametrize("how", ["create", "replace"])
def test_folder_removed_under_a_running_process_is_made_and_synced_again_by_the_next_attempt(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch, removed: str, how: str
) -> None:
    blobs.create("a/b/1", b"1")
    shutil.rmtree(blobs.root / removed)
    with pytest.raises(StoreError, match=r"a/b/2.*the next attempt makes"):
        write(blobs, how, "a/b/2", b"2")
    disk = Disk(monkeypatch)
    write(blobs, how, "a/b/2", b"2")
    assert blobs.read("a/b/2") == b"2"
    assert {"folder b", "folder a", "folder root"} <= set(disk.events)


def test_parent_that_was_made_again_is_synced_again(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.create("a/b/1", b"1")
    shutil.rmtree(blobs.root / "a")
    disk = Disk(monkeypatch)
    blobs.create("a/c/1", b"1")
    assert {"folder c", "folder a", "folder root"} <= set(disk.events)


def test_what_killed_writers_left_is_deleted_once_it_is_old(blobs: LocalBlobs) -> None:
    assert blobs.delete_staged(1 << 60) == 0, "there is no folder yet"
    blobs.create("a/b", b"x")
    for name in ("old", "new"):
        (blobs.root / STAGING / name).write_bytes(b"ha")
    os.utime(blobs.root / STAGING / "old", (1.0, 1.0))
    assert [blobs.delete_staged(2_000_000), blobs.delete_staged(2_000_000)] == [1, 0]
    assert [path.name for path in (blobs.root / STAGING).iterdir()] == ["new"]
    assert blobs.read("a/b") == b"x"


def test_staging_folder_that_was_removed_is_made_again(blobs: LocalBlobs) -> None:
    blobs.create("a", b"1")
    (blobs.root / STAGING).rmdir()
    blobs.create("b", b"2")
    assert blobs.read("b") == b"2"


def test_root_that_cannot_be_read_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"root.*check the disk"):
        LocalBlobs(tmp_path / "file" / "root")
