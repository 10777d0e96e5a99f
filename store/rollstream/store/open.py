"""Opens a store's root as blobs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from rollstream.runtime.addresses import Bucket, root_of
from rollstream.runtime.config.store import StoreConfig
from rollstream.store.blobs import Blobs
from rollstream.store.errors import StoreError
from rollstream.store.local import LocalBlobs


class UnsupportedRoot(StoreError, ValueError):
    """The root is neither a local folder nor a place in an object store that is supported."""


def open_store(root: str | Path | StoreConfig) -> Blobs:
    """Opens the store below a root. Nothing is created before the first write.

    Args:
        root: a folder, ``file:///an/absolute/folder``, ``s3://bucket/prefix``,
            ``gs://bucket/prefix``, or the section ``store`` of a configuration, which also says
            where the object store is. Without it endpoint and region come from the environment.

    Raises:
        UnsupportedRoot: another scheme, or no absolute path.
        StoreError: the folder cannot be read, no credentials were found, or an extra is missing.
    """
    settings = root if isinstance(root, StoreConfig) else None
    name = settings.root if settings is not None else str(root)
    try:
        where = root_of(name) if urlsplit(name).scheme else Path(name).absolute()
    except ValueError as error:
        raise UnsupportedRoot(f"store.root: {error}") from None
    if not isinstance(where, Bucket):
        return LocalBlobs(where)
    # Only who has such a root needs what it loads.
    from rollstream.store.objects import ObjectBlobs  # noqa: PLC0415

    if settings is None:
        return ObjectBlobs(where)
    return ObjectBlobs(
        where,
        endpoint=settings.endpoint,
        region=settings.region,
        timeout_s=settings.timeout_s,
    )
