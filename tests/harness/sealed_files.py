"""Sealed files for tests: rows in Parquet, and the events and manifests that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.groups import every_offset, sealed_segments
from harness.rollouts import make_columns
from rollstream.schemas.columns import Columns
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import Flushed, SealedFile, SealedGroup, SealedGroupColumns
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.entry import Entry
from rollstream.store import Blobs, Provenance, encode_rows, project
from rollstream.store.layout import GROUPS, rows_path


def provenance(rows: int, *, group_size: int = 8, first_offset: int = 0) -> Provenance:
    """Rows in groups of ``group_size``, two of them in each record, from offsets that follow one
    another."""
    return Provenance(
        group_ids=[f"group-{first_offset + i // group_size}" for i in range(rows)],
        address=PartitionAddress("math", 1, 0),
        epoch=7,
        offsets=first_offset + np.arange(rows) // 2,
        entries=(np.arange(rows) % 2).astype(np.int32),
    )


def flushed(path: str, columns: Columns, size: int, sum_of_bytes: str) -> Flushed:
    """The event of one flush with one file, all rows of which are one group; each is the only entry
    of its record."""
    first: dict[str, Any] = {name: values[0] for name, values in columns.scalars.items()}
    (digest,) = row_digests(columns, [0])
    group = SealedGroup(
        group_id="group-0",
        group_uid=first["group_uid"],
        example_id=first["example_id"],
        lineage=first["lineage"],
        policy_version=first["policy_version"],
        policy_epoch=int(first["policy_epoch"]),
        weight_step=int(min(columns.scalars["weight_step"])),
        segment_idx=int(first["segment_idx"]),
        split=first["split"],
        seal_reason="full",
        failed_members=0,
        file=0,
        row_start=0,
        rows=columns.rows,
        digest=digest,
    )
    file = SealedFile(path=path, size=size, rows=columns.rows, checksum=sum_of_bytes)
    return Flushed(
        epoch=7,
        nonce="nonce",
        now_ts=1_700_000_000_000_000,
        watermark=columns.rows,
        files=(file,),
        groups=SealedGroupColumns.of([group]),
        segments=sealed_segments(columns),
        settled=(),
        touched=every_offset(columns),
        incomplete=(),
    )


def seal(
    blobs: Blobs,
    entries: Sequence[Entry],
    *,
    environment: str = "math",
    name: str = "a",
    offset: int = 9,
    compression: str = "none",
) -> str:
    """Writes the rows as one group, and its manifest; the file's path."""
    columns = make_columns(entries, environment=environment)
    version = columns.scalars["policy_version"][0]
    path = rows_path(GROUPS, environment, version, 0, 7, name)
    data = encode_rows(columns, provenance(columns.rows), compression=compression)
    blobs.create(path, data)
    event = flushed(path, columns, data.size, data.checksum())
    project(blobs, PartitionAddress(environment, 1, 0), offset, event)
    return path
