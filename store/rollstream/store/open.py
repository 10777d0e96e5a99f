"""Opens a store's root as blobs."""

from __future__ import annotations

from pathlib import Path

from rollstream.runtime.addresses import local_folder
from rollstream.store.blobs import Blobs
from rollstream.store.errors import StoreError
from rollstream.store.local import LocalBlobs


class UnsupportedRoot(StoreError, ValueError):
    """The root is not a local folder, the only kind that this version supports."""


def open_store(root_url: str) -> Blobs:
    """Opens the store below a root. Nothing is created before the first write.

    Args:
        root_url: ``file:///an/absolute/folder``.

    Raises:
        UnsupportedRoot: another scheme, or no absolute path.
        StoreError: the folder cannot be read.
    """
    return LocalBlobs(local_root(root_url))


def local_root(root: str | Path) -> Path:
    """The folder that a root is; ``UnsupportedRoot`` where it is none of this machine."""
    try:
        return local_folder(str(root))
    except ValueError as error:
        raise UnsupportedRoot(f"store.root: {error}") from None
