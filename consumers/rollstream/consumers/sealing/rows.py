"""From a plan to Parquet files and the one event that names them. Equal plans give equal bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from rollstream.consumers.assembling import DueGroup, Plan, Settlement
from rollstream.consumers.assembling.decisions import SourceRun, shared_of, values_of
from rollstream.schemas import digest, ids
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.events import (
    Flushed,
    SealedFile,
    SealedGroup,
    SealedSegments,
    Settlements,
    TouchedOffsets,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.gather import Run, gather, signatures
from rollstream.store import Pieces, Provenance, encode_rows
from rollstream.store.layout import GROUPS, INCOMPLETE, rows_path

_FileKey = tuple[str, tuple[tuple[str, ArraySignature], ...]]
"""What all rows of a file have in common: their policy version and the types of named arrays."""
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


def draft_flush(plan: Plan, target: FlushTarget, put: Callable[[str, Pieces], object]) -> Flushed:
    """Hands each file of a flush, path and bytes, to ``put`` as soon as it is encoded, and returns
    the event that names them. One file a policy version; but rows whose named arrays have other
    dtypes, trailing shapes or names are in a file of their own."""
    by_file: dict[_FileKey, list[DueGroup]] = {}
    for decision in plan.decisions:
        group = decision.group
        if group is not None:
            versions = {one["policy_version"] for one, _ in shared_of(group.runs)}
            version = versions.pop() if len(versions) == 1 else ids.MIXED_POLICY
            by_file.setdefault(_file_key(version, group.signatures), []).append(group)
    writer = _Writer(GROUPS, target, put)
    groups: list[SealedGroup] = []
    parts: list[_Rows] = []
    for (version, _), due in by_file.items():
        rows = _Rows.of([run for group in due for run in group.runs])
        sizes = [sum(run.stop - run.first for run in group.runs) for group in due]
        starts = [0, *accumulate(sizes[:-1])]
        digests = digest.row_digests(rows.columns, starts)
        sealed = _sealed_groups(due, version, len(writer.files), starts, sizes, rows, digests)
        writer.write(version, rows, [group.group_id for group in sealed for _ in range(group.rows)])
        groups += sealed
        parts.append(rows)
    return Flushed(
        epoch=target.epoch,
        nonce=target.nonce,
        now_ts=plan.now_us,
        watermark=plan.watermark,
        files=tuple(writer.files),
        groups=tuple(groups),
        segments=_sealed_segments(parts),
        settled=_by_reason(s for decision in plan.decisions for s in decision.settled),
        touched=TouchedOffsets(
            offsets=np.array(list(plan.touched), np.int64),
            counts=np.array(list(plan.touched.values()), np.int32),
        ),
        incomplete=_write_incomplete(plan, target, put),
    )


def _file_key(version: str, signatures: Mapping[str, ArraySignature]) -> _FileKey:
    return version, tuple(sorted(signatures.items()))


class _Rows(NamedTuple):
    """Rows of one file, and where each stands in the log: lists of offsets and of entries."""

    columns: Columns
    offsets: list[int]
    entries: list[int]

    @classmethod
    def of(cls, runs: Sequence[SourceRun]) -> _Rows:
        joined: list[Run] = []
        offsets: list[int] = []
        entries: list[int] = []
        for record, first, stop, offset, entry in runs:
            number = stop - first
            if joined and joined[-1].record is record and joined[-1].stop == first:
                joined[-1] = Run(record, joined[-1].first, stop)
            else:
                joined.append(Run(record, first, stop))
            offsets += [offset] * number
            entries += range(entry, entry + number)
        return cls(gather(joined), offsets, entries)


class _Writer:
    """Encodes the files of one kind, and names them."""

    def __init__(
        self, kind: str, target: FlushTarget, put: Callable[[str, Pieces], object]
    ) -> None:
        self.files: list[SealedFile] = []
        self._kind, self._target, self._put = kind, target, put
        self._names: Counter[str] = Counter()

    def write(self, version: str, rows: _Rows, group_ids: Sequence[str]) -> None:
        target, columns = self._target, rows.columns
        provenance = Provenance(
            group_ids,
            target.address,
            target.epoch,
            np.array(rows.offsets, np.int64),
            np.array(rows.entries, np.int32),
        )
        data = encode_rows(columns, provenance, compression=target.compression)
        used = self._names[version]
        self._names[version] += 1
        name = f"{target.name}-{used}" if used else target.name
        environment = target.address.environment
        path = rows_path(self._kind, environment, version, _TRAJECTORY, target.epoch, name)
        self.files.append(
            SealedFile(path=path, size=data.size, rows=columns.rows, checksum=data.checksum())
        )
        self._put(path, data)


def _sealed_groups(
    due: Sequence[DueGroup],
    version: str,
    file: int,
    starts: Sequence[int],
    sizes: Sequence[int],
    rows: _Rows,
    digests: Sequence[bytes],
) -> list[SealedGroup]:
    scalars: Mapping[str, Any] = rows.columns.scalars
    uids, lineages = scalars["rollout_uid"], scalars["lineage"]
    steps, epochs = scalars["weight_step"].tolist(), scalars["policy_epoch"].tolist()
    sealed = []
    for group, start, size, rows_digest in zip(due, starts, sizes, digests, strict=True):
        oldest = min(range(start, start + size), key=steps.__getitem__)
        sealed.append(
            SealedGroup(
                group_id=ids.group_id(group.key, set(uids[start : start + size])),
                group_uid=group.key.group_uid,
                example_id=group.key.example_id,
                lineage=lineages[oldest],
                policy_version=version,
                policy_epoch=epochs[oldest],
                weight_step=steps[oldest],
                segment_idx=_TRAJECTORY,
                split=group.split,
                seal_reason=group.reason,
                failed_members=group.failed_members,
                file=file,
                row_start=start,
                rows=size,
                digest=rows_digest,
            )
        )
    return sealed


def _write_incomplete(
    plan: Plan, target: FlushTarget, put: Callable[[str, Pieces], object]
) -> tuple[SealedFile, ...]:
    by_file: dict[_FileKey, list[SourceRun]] = {}
    for decision in plan.decisions:
        for run in decision.incomplete:
            for version, part in _by_version(run):
                key = _file_key(version, signatures([part.gathered]))
                by_file.setdefault(key, []).append(part)
    writer = _Writer(INCOMPLETE, target, put)
    for (version, _), runs in by_file.items():
        rows = _Rows.of(runs)
        writer.write(version, rows, [""] * rows.columns.rows)
    return tuple(writer.files)


def _by_version(run: SourceRun) -> Iterator[tuple[str, SourceRun]]:
    """The run, cut where the policy version changes."""
    first = run.first
    for version, same in groupby(values_of((run,), "policy_version")):
        stop = first + sum(1 for _ in same)
        yield version, run._replace(first=first, stop=stop, entry=run.entry + first - run.first)
        first = stop


def _sealed_segments(parts: Sequence[_Rows]) -> SealedSegments:
    def numbers(name: str, dtype: type[np.generic]) -> Any:
        columns: list[Any] = [rows.columns.scalars[name] for rows in parts]
        return np.concatenate(columns) if columns else np.empty(0, dtype)

    def texts(name: str) -> list[str]:
        return [text for rows in parts for text in rows.columns.scalars[name]]

    replicas, replica_idxs = _coded(texts("replica_id"))
    stop_reasons, stop_reason_idxs = _coded(texts("stop_reason"))
    return SealedSegments(
        offsets=np.array([offset for rows in parts for offset in rows.offsets], np.int64),
        entries=np.array([entry for rows in parts for entry in rows.entries], np.int32),
        uids=tuple(texts("rollout_uid")),
        segment_idxs=numbers("segment_idx", np.int32),
        weight_steps=numbers("weight_step", np.int64),
        policy_epochs=numbers("policy_epoch", np.int32),
        prompt_counts=numbers("prompt_count", np.int32),
        token_counts=numbers("token_count", np.int32),
        rewards=numbers("reward", np.float64),
        created_ts=numbers("created_ts", np.int64),
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
            entries=np.array([s.entry for s in listed], np.int32),
            uids=tuple(s.rollout_uid for s in listed),
            segment_idxs=np.array([s.segment_idx for s in listed], np.int32),
        )
        for reason, listed in by_reason.items()
    )
