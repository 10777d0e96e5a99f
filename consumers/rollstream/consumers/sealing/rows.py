"""From a plan to Parquet files and the one event that names them. Equal plans give equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from rollstream.consumers.assembling import DueGroup, Plan, Settlement
from rollstream.schemas import digest, ids
from rollstream.schemas.codec import Segment
from rollstream.schemas.columns import Columns
from rollstream.schemas.events import Flushed, SealedFile, SealedGroup, SealedSegments, Settlements
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Bytes, Provenance, encode_rows
from rollstream.store.layout import GROUPS, INCOMPLETE, rows_path

_TRAJECTORY = 0  # Groups hold whole trajectories; their files are named by the first segment.


class FlushTarget(NamedTuple):
    """Which partition and claim a flush is written for, and how its files are written.

    Attributes:
        name: last part of the files' names; an epoch uses each once.
    """

    address: PartitionAddress
    epoch: int
    nonce: str
    name: str
    compression: str


def draft_flush(plan: Plan, target: FlushTarget, put: Callable[[str, Bytes], object]) -> Flushed:
    """Hands each file of a flush, path and bytes, to ``put`` as soon as it is encoded, and returns
    the event that names them. One file a policy version."""
    by_version: dict[str, list[DueGroup]] = {}
    for decision in plan.decisions:
        if decision.group is not None:
            by_version.setdefault(_version_of(decision.group), []).append(decision.group)
    files: list[SealedFile] = []
    groups: list[SealedGroup] = []
    parts: list[Columns] = []
    offsets: list[int] = []
    for version, due in by_version.items():
        columns = Columns.from_segments([segment for group in due for segment in group.segments])
        starts = list(accumulate((len(group.segments) for group in due[:-1]), initial=0))
        digests = digest.row_digests(columns, starts)
        sealed = [
            _sealed_group(group, version, len(files), start, rows_digest)
            for group, start, rows_digest in zip(due, starts, digests, strict=True)
        ]
        group_ids = [group.group_id for group in sealed for _ in range(group.rows)]
        rows = [offset for group in due for offset in group.offsets]
        files.append(_write(GROUPS, version, columns, group_ids, rows, target, put))
        groups += sealed
        parts.append(columns)
        offsets += rows
    return Flushed(
        epoch=target.epoch,
        nonce=target.nonce,
        now_ts=plan.now_us,
        watermark=plan.watermark,
        files=tuple(files),
        groups=tuple(groups),
        segments=_sealed_segments(parts, offsets),
        settled=_by_reason(s for decision in plan.decisions for s in decision.settled),
        incomplete=_write_incomplete(plan, target, put),
    )


def _version_of(group: DueGroup) -> str:
    versions = {segment.header.policy_version for segment in group.segments}
    return versions.pop() if len(versions) == 1 else ids.MIXED_POLICY


def _sealed_group(
    group: DueGroup, version: str, file: int, start: int, rows_digest: bytes
) -> SealedGroup:
    headers = [segment.header for segment in group.segments]
    oldest = min(headers, key=lambda header: header.weight_step)
    return SealedGroup(
        group_id=ids.group_id(group.key, {header.rollout_uid for header in headers}),
        group_uid=group.key.group_uid,
        example_id=group.key.example_id,
        lineage=oldest.lineage,
        policy_version=version,
        policy_epoch=oldest.policy_epoch,
        weight_step=oldest.weight_step,
        segment_idx=_TRAJECTORY,
        split=group.split,
        seal_reason=group.reason,
        failed_members=group.failed_members,
        file=file,
        row_start=start,
        rows=len(headers),
        digest=rows_digest,
    )


def _write_incomplete(
    plan: Plan, target: FlushTarget, put: Callable[[str, Bytes], object]
) -> tuple[SealedFile, ...]:
    by_version: dict[str, list[tuple[int, Segment]]] = {}
    for decision in plan.decisions:
        for offset, segment in decision.incomplete:
            by_version.setdefault(segment.header.policy_version, []).append((offset, segment))
    files = []
    for version, rows in by_version.items():
        columns = Columns.from_segments([segment for _, segment in rows])
        offsets = [offset for offset, _ in rows]
        files.append(_write(INCOMPLETE, version, columns, [""] * len(rows), offsets, target, put))
    return tuple(files)


def _write(
    kind: str,
    version: str,
    columns: Columns,
    group_ids: Sequence[str],
    offsets: Sequence[int],
    target: FlushTarget,
    put: Callable[[str, Bytes], object],
) -> SealedFile:
    sources = np.array(offsets, np.int64)
    provenance = Provenance(group_ids, target.address, target.epoch, sources)
    data = encode_rows(columns, provenance, compression=target.compression)
    path = rows_path(
        kind, target.address.environment, version, _TRAJECTORY, target.epoch, target.name
    )
    file = SealedFile(path=path, size=len(data), rows=columns.rows, checksum=digest.checksum(data))
    put(path, data)
    return file


def _sealed_segments(parts: Sequence[Columns], offsets: Sequence[int]) -> SealedSegments:
    def scalars(name: str) -> list[Any]:
        return [value for columns in parts for value in columns.scalars[name]]

    replicas, replica_idxs = _coded(scalars("replica_id"))
    stop_reasons, stop_reason_idxs = _coded(scalars("stop_reason"))
    rewards = [np.nan if reward is None else reward for reward in scalars("reward")]
    return SealedSegments(
        offsets=np.array(offsets, np.int64),
        uids=tuple(scalars("rollout_uid")),
        segment_idxs=np.array(scalars("segment_idx"), np.int32),
        weight_steps=np.array(scalars("weight_step"), np.int64),
        policy_epochs=np.array(scalars("policy_epoch"), np.int32),
        prompt_counts=np.array(scalars("prompt_count"), np.int32),
        token_counts=np.array(scalars("token_count"), np.int32),
        rewards=np.array(rewards, np.float64),
        created_ts=np.array(scalars("created_ts"), np.int64),
        replicas=replicas,
        replica_idxs=replica_idxs,
        stop_reasons=stop_reasons,
        stop_reason_idxs=stop_reason_idxs,
    )


def _coded(values: Sequence[str]) -> tuple[tuple[str, ...], Any]:
    """The distinct values in the order of their first use, and the index of each value in them."""
    indexes: dict[str, int] = {}
    idxs = [indexes.setdefault(value, len(indexes)) for value in values]
    return tuple(indexes), np.array(idxs, np.int32)


def _by_reason(settlements: Iterable[Settlement]) -> tuple[Settlements, ...]:
    by_reason: dict[str, list[Settlement]] = {}
    for settlement in settlements:
        by_reason.setdefault(settlement.reason, []).append(settlement)
    return tuple(
        Settlements(
            reason=str(reason),
            offsets=np.array([s.offset for s in listed], np.int64),
            uids=tuple(s.rollout_uid for s in listed),
            segment_idxs=np.array([s.segment_idx for s in listed], np.int32),
        )
        for reason, listed in by_reason.items()
    )
