"""Bytes of blobs without a copy: those of a local file are mapped."""

from __future__ import annotations

import mmap
import os

from rollstream.store.blobs import Blobs

_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14; Python 3.13 names it.


def mapped(blobs: Blobs, path: str) -> memoryview:
    """The blob's bytes. They stay mapped for as long as a view of them lives, and the blob may be
    deleted meanwhile.

    Raises:
        BlobMissing: there is no such blob. StoreError.
    """
    data = _map(blobs, path)
    return memoryview(blobs.read(path) if data is None else data)


def mapped_whole(blobs: Blobs, path: str) -> memoryview:
    """The same, once all of them are in memory: for who reads all at once. Bytes that the disk
    cannot read are an error here; else they are the end of the process that touches them.

    Raises:
        BlobMissing: there is no such blob. StoreError.
    """
    data = _map(blobs, path)
    if data is not None:
        try:
            data.madvise(_POPULATE_READ)
        except OSError:  # The store says why; or the system cannot populate, and it copies.
            data = None
    return memoryview(blobs.read(path) if data is None else data)


def _map(blobs: Blobs, path: str) -> mmap.mmap | None:
    local = blobs.local_path(path)
    if local is None:
        return None
    try:
        handle = os.open(local, os.O_RDONLY)
        try:
            return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)
    except (OSError, ValueError):  # Missing, a folder, or empty: the store raises its own error.
        return None
