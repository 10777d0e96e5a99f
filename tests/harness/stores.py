"""Every kind of store, for contract suites."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from harness.s3_server import S3Server
from rollstream.store import Blobs, LocalBlobs, MemoryBlobs, open_store

KINDS = ("local", "memory", "s3")


def opened(request: pytest.FixtureRequest, folder: Path) -> Blobs:
    """An empty store of the kind that the fixture's parameter names."""
    if request.param == "local":
        return LocalBlobs(folder / "root")
    if request.param == "memory":
        return MemoryBlobs()
    server: S3Server = request.getfixturevalue("s3")
    return open_store(server.store(uuid4().hex))
