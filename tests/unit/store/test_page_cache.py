"""Dropping cached pages changes nothing that a reader sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollstream.store import Blobs, LocalBlobs, MemoryBlobs
from rollstream.store.page_cache import drop_cached_pages


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_blob_stays_readable_without_its_pages_and_a_missing_one_is_no_error(
    kind: str, tmp_path: Path
) -> None:
    blobs: Blobs = MemoryBlobs() if kind == "memory" else LocalBlobs(tmp_path)
    blobs.create("groups/a", b"rows" * 5_000)
    drop_cached_pages(blobs, "groups/a")
    assert blobs.read("groups/a") == b"rows" * 5_000
    blobs.delete("groups/a")
    drop_cached_pages(blobs, "groups/a")
    assert blobs.info("groups/a") is None
