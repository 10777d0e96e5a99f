"""Compares files with the events that name them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.schemas.digest import checksum, row_digests
from rollstream.schemas.events import SealedFile, SealedGroup
from rollstream.store import BlobMissing, Blobs, CorruptFile, read_rows


def file_problems(blobs: Blobs, file: SealedFile, groups: Sequence[SealedGroup]) -> list[str]:
    """What differs between the file and its event, in words: the first difference of the file as a
    whole, else each of ``groups`` whose decoded rows have another digest than the event says."""
    path = file.path
    try:
        data = blobs.read(path)
    except BlobMissing:
        return [f"{path} is missing"]
    if len(data) != file.size:
        return [f"{path} has {len(data)} bytes, not {file.size}"]
    actual = checksum(data)
    if actual != file.checksum:
        return [f"{path} has checksum {actual}, not {file.checksum}"]
    try:
        rows = pq.read_metadata(pa.BufferReader(data)).num_rows
    except pa.ArrowInvalid as error:
        return [f"{path} is no Parquet file: {error}"]
    if rows != file.rows:
        return [f"{path} has {rows} rows, not {file.rows}"]
    if not groups:
        return []
    try:
        digests = row_digests(read_rows(blobs, path), [group.row_start for group in groups])
    except (BlobMissing, CorruptFile) as error:
        return [str(error)]
    return [
        f"{path}: rows of group {group.group_id} have digest {digest.hex()}, "
        f"not {group.digest.hex()}"
        for group, digest in zip(groups, digests, strict=True)
        if digest != group.digest
    ]
