"""Leaves the system's page cache to what is still to be read."""

from __future__ import annotations

import os

from rollstream.store.blobs import Blobs


def drop_cached_pages(blobs: Blobs, path: str) -> None:
    """Says that a blob's pages are not needed soon; it stays readable, then from the disk.

    Without it a data set that is read once pushes everything else out of memory, and a virtual
    machine takes fresh pages from its host for each file that it writes. Nothing happens where the
    blob is no local file, is still mapped, or the system knows no such advice (posix_fadvise(2)).
    """
    local = blobs.local_path(path)
    if local is None or not hasattr(os, "posix_fadvise"):
        return
    try:
        handle = os.open(local, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    except OSError:
        return  # Gone already, or a file system without such advice: nobody needs it.
