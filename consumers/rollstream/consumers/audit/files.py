"""Compares files and manifests with the events that name them."""

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
    """The first difference between the file and its event, in words; None without any."""
    try:
        data = blobs.read(file.path)
    except BlobMissing:
        return f"{file.path} is missing"
    if len(data) != file.size:
        return f"{file.path} has {len(data)} bytes, not {file.size}"
    actual = checksum(data)
    if actual != file.checksum:
        return f"{file.path} has checksum {actual}, not {file.checksum}"
    try:
        rows = pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows
    except pa.ArrowInvalid as error:
        return f"{file.path} is no Parquet file: {error}"
    if rows != file.rows:
        return f"{file.path} has {rows} rows, not {file.rows}"
    return None


def digest_problems(blobs: Blobs, file: SealedFile, groups: list[SealedGroup]) -> list[str]:
    """One problem, in words, for each group whose decoded rows have another digest than its event
    says, or a single one where the file cannot be read."""
    try:
        rows = read_rows(blobs, file.path)
    except (BlobMissing, CorruptFile) as error:
        return [str(error)]
    digests = row_digests(rows, [group.row_start for group in groups])
    return [
        f"{file.path}: rows of group {group.group_id} have digest {actual.hex()}, "
        f"not {group.digest.hex()}"
        for group, actual in zip(groups, digests, strict=True)
        if actual != group.digest
    ]


def manifest_problems(
    blobs: Blobs, address: PartitionAddress, offset: int, event: Flushed
) -> list[str]:
    """Empty where the manifest equals its event, else the problem, in words; ``BlobMissing`` where
    there is none."""
    path = manifest_path(address, offset)
    same = blobs.read(path) == encode_manifest(Manifest(address, offset, event))
    return [] if same else [f"{path} differs from its event in the seal log"]
