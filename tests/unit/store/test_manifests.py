"""A seal event as JSON: the same bytes each time, the same event when read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.events import GOLDEN, same
from harness.rollouts import make_columns, members
from harness.sealed_files import flushed, seal
from rollstream.schemas.codec import decode_as, encode
from rollstream.schemas.events import Flushed, SealedFile, Settlements
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import (
    CorruptFile,
    LocalBlobs,
    MemoryBlobs,
    NewerFile,
    UnsupportedRoot,
    list_manifests,
    open_dataset,
    open_store,
    project,
    read_manifest,
    visible_files,
)
from rollstream.store.layout import manifest_path
from rollstream.store.manifests import Manifest, encode_manifest

ADDRESS = PartitionAddress("math", 1, 3)


@pytest.fixture
def event() -> Flushed:
    plain = flushed("groups/x.parquet", make_columns(members(2, reward=None)), 10, "ab")
    settled = Settlements(
        reason="duplicate",
        offsets=np.array([5, 2**40]),
        entries=np.array([0, 499], np.int32),
        uids=("a", 'q"\n'),
        segment_idxs=np.array([0, 1], np.int32),
    )
    incomplete = SealedFile(path="incomplete/y.parquet", size=3, rows=1, checksum="cd")
    return replace(plain, settled=(settled,), incomplete=(incomplete,))


@pytest.mark.proves("A10")
def test_manifest_holds_the_whole_event(event: Flushed) -> None:
    manifest = Manifest(ADDRESS, 99, event)
    found = read_manifest(encode_manifest(manifest))
    assert found[:2] == (ADDRESS, 99)
    assert encode(found.event) == encode(event)
    assert np.isnan(found.event.segments.rewards).all()


@pytest.mark.proves("A10")
def test_manifest_is_json_that_any_reader_opens(event: Flushed) -> None:
    blobs = MemoryBlobs()
    size = project(blobs, ADDRESS, 99, event)
    data = blobs.read(manifest_path(ADDRESS, 99))
    assert len(data) == size
    content = json.loads(data)
    assert content["event"]["files"][0]["path"] == "groups/x.parquet"
    assert content["event"]["groups"][0]["group_id"] == "group-0"
    assert content["event"]["segments"]["rewards"] == [None, None]
    assert content["event"]["settled"][0]["offsets"] == [5, 2**40]


@pytest.mark.proves("F19")
def test_manifest_of_an_older_event_and_of_a_newer_one_are_the_same_bytes() -> None:
    """A sealer may end between an event and its manifest; the next one, newer, projects it."""
    older, newer = (
        decode_as(Flushed, (GOLDEN / f"flushed.v{of}.bin").read_bytes()) for of in (2, 3)
    )
    shipped = (GOLDEN / "manifest.v2.json").read_bytes()
    assert encode_manifest(Manifest(ADDRESS, 99, older)) == shipped
    assert encode_manifest(Manifest(ADDRESS, 99, newer)) == shipped
    assert same(read_manifest(shipped), Manifest(ADDRESS, 99, newer))


def test_projecting_again_changes_nothing(event: Flushed) -> None:
    blobs = MemoryBlobs()
    size = project(blobs, ADDRESS, 99, event)
    before = blobs.read(manifest_path(ADDRESS, 99))
    assert project(blobs, ADDRESS, 99, event) == size == len(before)
    assert blobs.read(manifest_path(ADDRESS, 99)) == before


def test_other_bytes_at_the_path_are_corrupt(event: Flushed) -> None:
    blobs = MemoryBlobs()
    blobs.create(manifest_path(ADDRESS, 99), b"{}")
    with pytest.raises(CorruptFile, match=r"\.json exists and holds other bytes"):
        project(blobs, ADDRESS, 99, event)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"schema": "flushed.v1"}', b"\xff"])
def test_bytes_that_are_no_manifest_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="no manifest"):
        read_manifest(data)


def test_manifest_of_a_later_schema_names_it(event: Flushed) -> None:
    data = encode_manifest(Manifest(ADDRESS, 0, event)).replace(b"flushed.v2", b"flushed.v9")
    with pytest.raises(NewerFile, match=r"flushed\.v9"):
        read_manifest(data)


@pytest.mark.proves("F19")
def test_manifest_of_an_older_sealer_is_read_with_defaults_and_stays_as_it_is(
    event: Flushed,
) -> None:
    """It lacks a field that was added since, and has one that was removed."""
    manifest = Manifest(ADDRESS, 99, event)
    content = json.loads(encode_manifest(manifest))
    assert content["event"].pop("root_id") == ""
    content["event"]["retired"] = "by an older one"
    older = json.dumps(content).encode()
    assert encode_manifest(read_manifest(older)) == encode_manifest(manifest)
    blobs = MemoryBlobs()
    blobs.create(manifest_path(ADDRESS, 99), older)
    assert project(blobs, ADDRESS, 99, event) == len(older)
    assert blobs.read(manifest_path(ADDRESS, 99)) == older
    with pytest.raises(CorruptFile):
        project(blobs, ADDRESS, 99, replace(event, watermark=event.watermark + 1))


def test_manifest_is_listed_in_the_order_of_the_log(event: Flushed) -> None:
    blobs = MemoryBlobs()
    for offset in (100, 9, 20):
        project(blobs, ADDRESS, offset, event)
    assert [manifest.offset for manifest in list_manifests(blobs)] == [9, 20, 100]


def test_corrupt_manifest_in_a_list_is_named() -> None:
    blobs = MemoryBlobs()
    blobs.create(manifest_path(ADDRESS, 4), b"torn")
    with pytest.raises(
        CorruptFile, match=r"0004\.json: no manifest: .* restore the file from a copy"
    ):
        list(list_manifests(blobs))


@pytest.mark.proves("A10")
def test_files_are_visible_once_a_manifest_names_them(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.create("groups/environment=math/policy_version=a/segment=0/1-x.parquet", b"orphan")
    assert visible_files(blobs) == []
    path = seal(blobs, members(2))
    assert visible_files(blobs) == [path]


@pytest.mark.parametrize(
    "root", ["ftp://bucket/run", "s3:///run", "s3://B/run", "file://host/data", "file:data"]
)
def test_root_that_is_of_no_store_names_the_remedy(root: str) -> None:
    with pytest.raises(UnsupportedRoot, match="file:///an/absolute/folder"):
        open_store(root)


def test_root_may_have_characters_that_urls_escape(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/a%20b").create("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
    assert open_dataset(tmp_path / "a b").count_rows() == 0
