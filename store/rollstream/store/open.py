"""Opens a store's root as blobs, or as a pyarrow data set of the visible rows."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem

from rollstream.store.arrow import rows_schema
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, StoreError
from rollstream.store.layout import GROUPS
from rollstream.store.local import LocalBlobs
from rollstream.store.manifests import visible_files


class UnsupportedRoot(StoreError, ValueError):
    """The root is not a local folder, the only kind that this version supports."""


def open_store(root_url: str) -> Blobs:
    """The blobs below a root. Nothing is created before the first write.

    Args:
        root_url: ``file:///an/absolute/folder``.

    Raises:
        UnsupportedRoot: another scheme, or no absolute path. StoreError: the folder cannot be read.
    """
    return LocalBlobs(_local_folder(root_url))


def open_dataset(root: str | Path) -> pads.Dataset:
    """The rows of the files that manifests name, as a pyarrow data set.

    Args:
        root: the store's root, as a folder or as ``file:///…``.

    Returns:
        The files' columns, and ``environment``, ``policy_version`` (of the group) and ``segment``
        from their paths. It has no rows where nothing was sealed yet.

    Raises:
        BlobMissing: there is no such folder. UnsupportedRoot, CorruptFile.
    """
    folder = _local_folder(root) if "://" in str(root) else Path(root).absolute()
    if not folder.is_dir():
        raise BlobMissing(
            f"{folder} is no folder: nothing was ever written under that root; name the store.root "
            "of the sealers' configuration, or wait until they have written a first file"
        )
    partitions = pa.schema(
        [("environment", pa.string()), ("policy_version", pa.string()), ("segment", pa.int32())]
    )
    schema = pa.unify_schemas([rows_schema(), partitions])
    paths = [str(folder / path) for path in visible_files(LocalBlobs(folder))]
    if not paths:
        return pads.dataset(schema.empty_table())
    return pads.dataset(
        paths,
        schema=schema,
        format="parquet",
        filesystem=LocalFileSystem(),
        partitioning=pads.partitioning(partitions, flavor="hive"),
        partition_base_dir=str(folder / GROUPS),
    )


def _local_folder(root: str | Path) -> Path:
    url = urlsplit(str(root))
    path = Path(unquote(url.path))
    if url.scheme != "file" or url.netloc not in ("", "localhost") or not path.is_absolute():
        raise UnsupportedRoot(
            f"store.root is {str(root)!r}; only local folders are supported: write it as "
            "file:///an/absolute/folder"
        )
    return path
