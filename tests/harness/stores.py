"""Every kind of store, for contract suites."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest

from harness.s3_server import S3Server, s3_server
from rollstream.store import Blobs, LocalBlobs, MemoryBlobs, open_store

KINDS = ("local", "memory", "s3")


def scratch_store() -> Blobs:
    """An empty store in memory; with ``STORE=s3`` in the environment, one on an S3 server, so that
    contract suites and worlds can be run over it."""
    if os.environ.get("STORE") != "s3":
        return MemoryBlobs()
    return open_store(_server().store(uuid4().hex))


@cache
def _server() -> S3Server:
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
    server = stack.enter_context(s3_server(Path(folder) / "data"))
    os.environ.update(server.variables)
    return server


def opened(request: pytest.FixtureRequest, folder: Path) -> Blobs:
    """An empty store of the kind that the fixture's parameter names."""
    if request.param == "local":
        return LocalBlobs(folder / "root")
    if request.param == "memory":
        return MemoryBlobs()
    server: S3Server = request.getfixturevalue("s3")
    return open_store(server.store(uuid4().hex))
