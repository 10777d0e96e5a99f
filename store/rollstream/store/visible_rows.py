"""Opens the visible rows as a pyarrow data set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from rollstream.runtime.config.store import StoreConfig
from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.fields import SCHEMA
from rollstream.schemas.wire_schemas import WireSchema, shipped
from rollstream.store.arrow import rows_schema, token_array_field
from rollstream.store.blobs import Blobs
from rollstream.store.dataset import open_rows
from rollstream.store.errors import BlobMissing
from rollstream.store.layout import GROUPS
from rollstream.store.local import LocalBlobs
from rollstream.store.open import open_store
from rollstream.store.rollups import visible_files


def open_dataset(root: str | Path | StoreConfig) -> pads.Dataset:
    """Returns the rows of all files that are part of the data, as a pyarrow data set.

    Args:
        root: the store's root, as for ``open_store``.

    Returns:
        The files' columns, and ``environment``, ``policy_version`` (of the group) and ``segment``
            from their paths. It has no rows if nothing was sealed yet. A named array is null in the
            rows of files without it. If files differ in its dtype or trailing shape,
            ``token_array`` refuses it; if one holds lists and another bytes, it has no column here,
            so read such files by their paths. A field that an older version of Rollstream did not
            have is null in its files, which stands for the field's default. A field that was
            removed since has a column if a file has it.

    Raises:
        BlobMissing: nothing is below that root, or a file is missing.
        UnsupportedRoot, StoreError: as for ``open_store``.
        CorruptFile, NewerFile: a file or manifest cannot be read.
    """
    blobs = open_store(root)
    filesystem, base = _filesystem(blobs)
    partitions = pa.schema(
        [("environment", pa.string()), ("policy_version", pa.string()), ("segment", pa.int32())]
    )
    files = visible_files(blobs)
    carried, versions = set[tuple[str, ArraySignature]](), set[WireSchema]()
    for path in files:  # No footer stays in memory.
        file = open_rows(blobs, path)
        carried.update(file.token_arrays.items())
        versions.add(file.version)
    rows = _rows_schema(versions)
    schema = pa.unify_schemas([rows, pa.schema(_fields(carried)), partitions])
    if not files:
        return pads.dataset(schema.empty_table())
    return pads.dataset(
        [f"{base}/{path}" for path in files],
        schema=schema,
        format="parquet",
        filesystem=filesystem,
        partitioning=pads.partitioning(partitions, flavor="hive"),
        partition_base_dir=f"{base}/{GROUPS}",
    )


def _filesystem(blobs: Blobs) -> tuple[FileSystem, str]:
    """Opens the root's files, and where there the root is."""
    is_folder = isinstance(blobs, LocalBlobs) and blobs.root.is_dir()
    if not is_folder and next(blobs.list("", limit=1), None) is None:
        raise BlobMissing(
            f"{blobs.address('')} holds nothing: nothing was ever written under that root; name "
            "the store.root of the sealers' configuration, or wait until they have written a first "
            "file"
        )
    if isinstance(blobs, LocalBlobs):
        return LocalFileSystem(), str(blobs.root)
    from rollstream.store.objects import ObjectBlobs  # noqa: PLC0415 - as in ``open``

    assert isinstance(blobs, ObjectBlobs)
    return PyFileSystem(FSSpecHandler(blobs.fsspec())), blobs.root.partition("://")[2]


def _rows_schema(versions: Collection[WireSchema]) -> pa.Schema:
    """The columns of rows of these versions and of the newest; those that one of them lacks may be
    null."""
    used = {*versions, shipped().newest(SCHEMA)}
    schemas = [rows_schema((), v) for v in sorted(used, key=lambda v: v.version, reverse=True)]
    fields = {field.name: field for schema in reversed(schemas) for field in schema}
    return pa.schema(
        [
            field if all(name in schema.names for schema in schemas) else field.with_nullable(True)
            for name, field in fields.items()
        ]
    )


def _fields(carried: Iterable[tuple[str, ArraySignature]]) -> Iterator[pa.Field]:
    by_name: dict[str, list[pa.Field]] = {}
    for name, signature in sorted(carried):
        by_name.setdefault(name, []).append(token_array_field(name, signature))
    for first, *others in by_name.values():
        if all(other.type == first.type for other in others):
            yield first.remove_metadata() if others else first
