"""Sealed files for tests: rows in Parquet, and the events and manifests that name them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollstream.schemas.codec import Segment
from rollstream.schemas.columns import Columns
from rollstream.schemas.digest import checksum, row_digests
from rollstream.schemas.events import Flushed, SealedFile, SealedGroup, SealedSegments
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, Provenance, encode_rows, project
from rollstream.store.layout import GROUPS, rows_path


def provenance(rows: int, *, group_size: int = 8, first_offset: int = 0) -> Provenance:
    """Rows in groups of ``group_size``, from offsets that follow one another."""
    return Provenance(
        group_ids=[f"group-{first_offset + i // group_size}" for i in range(rows)],
        address=PartitionAddress("math", 1, 0),
        epoch=7,
        offsets=np.arange(first_offset, first_offset + rows),
    )


def flushed(path: str, segments: Sequence[Segment], size: int, sum_of_bytes: str) -> Flushed:
    """The event of one flush with one file, all rows of which are one group."""
    headers = [segment.header for segment in segments]
    rows = len(segments)
    (digest,) = row_digests(Columns.from_segments(segments), [0])
    group = SealedGroup(
        group_id="group-0",
        group_uid=headers[0].group_uid,
        example_id=headers[0].example_id,
        lineage=headers[0].lineage,
        policy_version=headers[0].policy_version,
        policy_epoch=headers[0].policy_epoch,
        weight_step=min(header.weight_step for header in headers),
        segment_idx=headers[0].segment_idx,
        split=headers[0].split,
        seal_reason="full",
        failed_members=0,
        file=0,
        row_start=0,
        rows=rows,
        digest=digest,
    )
    sealed = SealedSegments(
        offsets=np.arange(rows, dtype=np.int64),
        uids=tuple(header.rollout_uid for header in headers),
        segment_idxs=np.array([header.segment_idx for header in headers], np.int32),
        weight_steps=np.array([header.weight_step for header in headers], np.int64),
        policy_epochs=np.array([header.policy_epoch for header in headers], np.int32),
        prompt_counts=np.array([header.prompt_count for header in headers], np.int32),
        token_counts=np.array([header.token_count for header in headers], np.int32),
        rewards=np.array(
            [np.nan if header.reward is None else header.reward for header in headers], np.float64
        ),
        created_ts=np.array([header.created_ts for header in headers], np.int64),
        replicas=("replica-0",),
        replica_idxs=np.zeros(rows, np.int32),
        stop_reasons=("stop",),
        stop_reason_idxs=np.zeros(rows, np.int32),
    )
    file = SealedFile(path=path, size=size, rows=rows, checksum=sum_of_bytes)
    return Flushed(
        epoch=7,
        nonce="nonce",
        now_ts=1_700_000_000_000_000,
        watermark=rows,
        files=(file,),
        groups=(group,),
        segments=sealed,
        settled=(),
        incomplete=(),
    )


def seal(blobs: Blobs, segments: Sequence[Segment], *, name: str = "a", offset: int = 9) -> str:
    """Writes the rows as one group, and its manifest; the file's path."""
    header = segments[0].header
    path = rows_path(GROUPS, header.environment, header.policy_version, 0, 7, name)
    data = encode_rows(Columns.from_segments(segments), provenance(len(segments)))
    blobs.create(path, data)
    event = flushed(path, segments, len(data), checksum(data))
    project(blobs, PartitionAddress(header.environment, 1, 0), offset, event)
    return path
