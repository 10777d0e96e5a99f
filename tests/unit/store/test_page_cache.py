"""Advice about the page cache changes nothing that a reader sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollstream.store import Blobs, LocalBlobs, MemoryBlobs
from rollstream.store.page_cache import let_go


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_was_let_go_can_be_read_again_and_what_is_gone_is_no_error(
    kind: str, tmp_path: Path
) -> None:
    blobs: Blobs = MemoryBlobs() if kind == "memory" else LocalBlobs(tmp_path)
    blobs.create("groups/a", b"rows" * 5_000)
    let_go(blobs, "groups/a")
    assert blobs.read("groups/a") == b"rows" * 5_000
    blobs.delete("groups/a")
    let_go(blobs, "groups/a")
    assert blobs.info("groups/a") is None
