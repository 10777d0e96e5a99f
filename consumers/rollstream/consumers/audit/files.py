"""Compares files and roll-ups with the events that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.schemas.digest import checksum, row_digests
from rollstream.schemas.events import SealedFile, SealedGroup
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs, CorruptFile, read_rows
from rollstream.store.layout import rollups_prefix
from rollstream.store.rollups import read_rollup


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


def rollup_problems(
    blobs: Blobs, address: PartitionAddress, flushes: Mapping[int, Sequence[str]], read_to: int
) -> Iterator[str]:
    """Roll-ups of a partition that are damaged, or say of a flush below ``read_to`` other files
    than ``flushes``, by offset."""
    remedy = "delete it; manifests say what it should"
    for blob in blobs.list(rollups_prefix(address)):
        try:
            rollup = read_rollup(blobs.read(blob.path))
        except BlobMissing:
            continue
        except CorruptFile as error:
            yield f"{blob.path}: {error}; {remedy}"
            continue
        for manifest in rollup.manifests:
            offset = manifest.offset
            files = flushes.get(offset, ())
            if rollup.address != address or (offset < read_to and manifest.files != tuple(files)):
                yield f"{blob.path} differs from the seal log, at flush {offset}; {remedy}"
                break
