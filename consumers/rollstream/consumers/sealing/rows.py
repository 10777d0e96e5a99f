"""From a plan to Parquet files and the one event that names them. Equal plans give equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollstream.consumers.assembling import DueGroup, Plan, Settlement
from rollstream.schemas import digest, ids
from rollstream.schemas.codec import Segment
from rollstream.schemas.columns import Columns
from rollstream.schemas.events import Flushed, SealedFile, SealedGroup, SealedSegments, Settlements
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.store import Bytes, Provenance, encode_rows
from rollstream.store.layout import GROUPS, INCOMPLETE, rows_path

_TRAJECTORY = 0  # Groups hold whole trajectories: they lie where their first segments would.


class FlushTarget(NamedTuple):
    """Whose rows these are, and how files are written.

    Attributes:
        name: last part of the files' names; used once an epoch.
    """

    address: PartitionAddress
    epoch: int
    nonce: str
    name: str
    compression: str


class Draft(NamedTuple):
    """A file that is to be created."""

    path: str
    data: Bytes


class _File(NamedTuple):
    sealed: SealedFile
    columns: Columns


def draft_flush(plan: Plan, target: FlushTarget, put: Callable[[Draft], object]) -> Flushed:
    """Hands each file of a flush to ``put``, as soon as it is encoded, and returns the event that
    names them. One file a policy version."""
    by_version: dict[str, list[DueGroup]] = {}
    for decision in plan.decisions:
        if decision.group is not None:
            by_version.setdefault(_version_of(decision.group), []).append(decision.group)
    files: list[_File] = []
    groups: list[SealedGroup] = []
    for version, due in by_version.items():
        files.append(_groups_file(version, due, target, len(files), groups, put))
    incomplete = _incomplete_files(plan, target, put)
    return Flushed(
        epoch=target.epoch,
        nonce=target.nonce,
        now_ts=plan.now_us,
        watermark=plan.watermark,
        files=tuple(file.sealed for file in files),
        groups=tuple(groups),
        segments=_sealed_segments(
            files, [o for due in by_version.values() for g in due for o in g.offsets]
        ),
        settled=_settled(s for decision in plan.decisions for s in decision.settled),
        incomplete=tuple(file.sealed for file in incomplete),
    )


def _version_of(group: DueGroup) -> str:
    versions = {segment.header.policy_version for segment in group.segments}
    return versions.pop() if len(versions) == 1 else ids.MIXED_POLICY


def _groups_file(
    version: str,
    due: Sequence[DueGroup],
    target: FlushTarget,
    index: int,
    groups: list[SealedGroup],
    put: Callable[[Draft], object],
) -> _File:
    segments = [segment for group in due for segment in group.segments]
    offsets = [offset for group in due for offset in group.offsets]
    starts = [0]
    for group in due[:-1]:
        starts.append(starts[-1] + len(group.segments))
    columns = Columns.from_segments(segments)
    digests = digest.row_digests(columns, starts)
    group_ids: list[str] = []
    for group, start, rows_digest in zip(due, starts, digests, strict=True):
        sealed = _sealed_group(group, version, index, start, rows_digest)
        groups.append(sealed)
        group_ids += [sealed.group_id] * sealed.rows
    return _encoded(GROUPS, version, columns, group_ids, offsets, target, put)


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
        weight_step=oldest.weight_step if oldest.weight_step >= 0 else UNKNOWN_STEP,
        segment_idx=_TRAJECTORY,
        split=group.split,
        seal_reason=group.reason,
        failed_members=group.failed_members,
        file=file,
        row_start=start,
        rows=len(headers),
        digest=rows_digest,
    )


def _incomplete_files(
    plan: Plan, target: FlushTarget, put: Callable[[Draft], object]
) -> list[_File]:
    by_version: dict[str, list[tuple[int, Segment]]] = {}
    for decision in plan.decisions:
        for offset, segment in decision.incomplete:
            by_version.setdefault(segment.header.policy_version, []).append((offset, segment))
    return [
        _encoded(
            INCOMPLETE,
            version,
            Columns.from_segments([segment for _, segment in rows]),
            [""] * len(rows),
            [offset for offset, _ in rows],
            target,
            put,
        )
        for version, rows in by_version.items()
    ]


def _encoded(
    kind: str,
    version: str,
    columns: Columns,
    group_ids: Sequence[str],
    offsets: Sequence[int],
    target: FlushTarget,
    put: Callable[[Draft], object],
) -> _File:
    provenance = Provenance(
        group_ids=group_ids,
        generation=target.address.generation,
        partition=target.address.partition,
        epoch=target.epoch,
        offsets=np.array(offsets, np.int64),
    )
    data = encode_rows(columns, provenance, compression=target.compression)
    environment = target.address.environment
    path = rows_path(kind, environment, version, _TRAJECTORY, target.epoch, target.name)
    checksum = digest.checksum(data)
    sealed = SealedFile(path=path, size=len(data), rows=columns.rows, checksum=checksum)
    put(Draft(path, data))
    return _File(sealed, columns)


def _sealed_segments(files: Sequence[_File], offsets: Sequence[int]) -> SealedSegments:
    def scalars(name: str) -> list[Any]:
        return [value for file in files for value in file.columns.scalars[name]]

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


def _coded(words: Sequence[str]) -> tuple[tuple[str, ...], Any]:
    """Distinct words in the order of their first use, and which of them each one is."""
    indexes: dict[str, int] = {}
    idxs = [indexes.setdefault(word, len(indexes)) for word in words]
    return tuple(indexes), np.array(idxs, np.int32)


def _settled(settlements: Iterable[Settlement]) -> tuple[Settlements, ...]:
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
