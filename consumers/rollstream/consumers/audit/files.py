"""Whether a file, or a manifest, is what its event says."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.schemas.digest import checksum, row_digests
from rollstream.schemas.events import Flushed, SealedFile, SealedGroup
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs, CorruptFile, read_rows
from rollstream.store.layout import manifest_path
from rollstream.store.manifests import Manifest, encode_manifest


def file_problem(blobs: Blobs, file: SealedFile) -> str | None:
    """What is wrong with the file, in words; None where it is as its event says."""
    try:
        data = blobs.read(file.path)
    except BlobMissing:
        return f"{file.path} is missing"
    if len(data) != file.size:
        return f"{file.path} has {len(data)} bytes, not {file.size}"
    found = checksum(data)
    if found != file.checksum:
        return f"{file.path} has checksum {found}, not {file.checksum}"
    try:
        rows = pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows
    except pa.ArrowInvalid as error:
        return f"{file.path} is no Parquet file: {error}"
    if rows != file.rows:
        return f"{file.path} has {rows} rows, not {file.rows}"
    return None


def digest_problems(blobs: Blobs, file: SealedFile, groups: list[SealedGroup]) -> list[str]:
    """Groups of the file whose decoded rows have another digest than their event says."""
    try:
        rows = read_rows(blobs, file.path)
    except (BlobMissing, CorruptFile) as error:
        return [str(error)]
    digests = row_digests(rows, [group.row_start for group in groups])
    return [
        f"{file.path}: rows of group {group.group_id} have digest {found.hex()}, "
        f"not {group.digest.hex()}"
        for group, found in zip(groups, digests, strict=True)
        if found != group.digest
    ]


def manifest_problem(
    blobs: Blobs, address: PartitionAddress, offset: int, event: Flushed
) -> str | None:
    """What is wrong with the manifest of an event; an empty string where it is missing."""
    path = manifest_path(address, offset)
    try:
        data = blobs.read(path)
    except BlobMissing:
        return ""
    wanted = encode_manifest(Manifest(address, offset, event))
    return None if data == wanted else f"{path} says something else than the seal log"
