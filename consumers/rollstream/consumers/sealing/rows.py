"""From a plan to Parquet files and the one event that names them. Equal plans give equal bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

_FileKey = tuple[str, frozenset[tuple[str, ArraySignature]]]
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
    due: dict[_FileKey, list[DueGroup]] = {}
    incomplete: dict[_FileKey, list[SourceRun]] = {}
    for decision in plan.decisions:
        group = decision.group
        if group is not None:
            versions = {one["policy_version"] for one in shared_of(group.runs)}
            version = versions.pop() if len(versions) == 1 else ids.MIXED_POLICY
            due.setdefault((version, frozenset(group.signatures.items())), []).append(group)
        for run in decision.incomplete:
            for version, part in _by_version(run):
                key = (version, frozenset(signatures([Run(*part[:3])]).items()))
                incomplete.setdefault(key, []).append(part)
    sealed, kept = _Files(GROUPS, target, put), _Files(INCOMPLETE, target, put)
    groups: list[SealedGroup] = []
    parts: list[tuple[Columns, Provenance]] = []
    for (version, _), of_file in due.items():
        columns, offsets, entries = _rows(run for group in of_file for run in group.runs)
        described = _sealed_groups(of_file, version, len(sealed.files), columns)
        groups += described
        group_ids = [group.group_id for group in described for _ in range(group.rows)]
        provenance = Provenance(group_ids, target.address, target.epoch, offsets, entries)
        sealed.write(version, columns, provenance)
        parts.append((columns, provenance))
    for (version, _), runs in incomplete.items():
        columns, offsets, entries = _rows(runs)
        provenance = Provenance([""] * columns.rows, target.address, target.epoch, offsets, entries)
        kept.write(version, columns, provenance)
    return Flushed(
        epoch=target.epoch,
        nonce=target.nonce,
        now_ts=plan.now_us,
        watermark=plan.watermark,
        files=tuple(sealed.files),
        groups=tuple(groups),
        segments=_sealed_segments(parts),
        settled=_by_reason(s for decision in plan.decisions for s in decision.settled),
        touched=TouchedOffsets(
            offsets=np.array(list(plan.touched), np.int64),
            counts=np.array(list(plan.touched.values()), np.int32),
        ),
        incomplete=tuple(kept.files),
    )


def _rows(runs: Iterable[SourceRun]) -> tuple[Columns, NDArray[np.int64], NDArray[np.int32]]:
    """The rows of a file; and where each stands in the log: offsets and entries."""
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
    return gather(joined), np.array(offsets, np.int64), np.array(entries, np.int32)


class _Files:
    """Encodes the files of one kind, and names them."""

    def __init__(
        self, kind: str, target: FlushTarget, put: Callable[[str, Pieces], object]
    ) -> None:
        self.files: list[SealedFile] = []
        self._kind, self._target, self._put = kind, target, put
        self._versions: Counter[str] = Counter()

    def write(self, version: str, columns: Columns, provenance: Provenance) -> None:
        target, number = self._target, self._versions[version]
        self._versions[version] += 1
        data = encode_rows(columns, provenance, compression=target.compression)
        name = f"{target.name}-{number}" if number else target.name
        environment = target.address.environment
        path = rows_path(self._kind, environment, version, _TRAJECTORY, target.epoch, name)
        self.files.append(
            SealedFile(path=path, size=data.size, rows=columns.rows, checksum=data.checksum())
        )
        self._put(path, data)


def _sealed_groups(
    due: Sequence[DueGroup], version: str, file: int, columns: Columns
) -> list[SealedGroup]:
    scalars: Mapping[str, Any] = columns.scalars
    uids, lineages = scalars["rollout_uid"], scalars["lineage"]
    steps, epochs = scalars["weight_step"].tolist(), scalars["policy_epoch"].tolist()
    ends = accumulate((sum(run.stop - run.first for run in group.runs) for group in due), initial=0)
    bounds = list(pairwise(ends))
    digests = digest.row_digests(columns, [start for start, _ in bounds])
    sealed = []
    for group, (start, stop), rows_digest in zip(due, bounds, digests, strict=True):
        of_rows = steps[start:stop]
        step = min(of_rows)
        oldest = start + of_rows.index(step)
        sealed.append(
            SealedGroup(
                group_id=ids.group_id(group.key, set(uids[start:stop])),
                group_uid=group.key.group_uid,
                example_id=group.key.example_id,
                lineage=lineages[oldest],
                policy_version=version,
                policy_epoch=epochs[oldest],
                weight_step=step,
                segment_idx=_TRAJECTORY,
                split=group.split,
                seal_reason=group.reason,
                failed_members=group.failed_members,
                file=file,
                row_start=start,
                rows=stop - start,
                digest=rows_digest,
            )
        )
    return sealed


def _by_version(run: SourceRun) -> Iterator[tuple[str, SourceRun]]:
    """The run, cut where the policy version changes."""
    first = run.first
    for version, same in groupby(values_of((run,), "policy_version")):
        stop = first + sum(1 for _ in same)
        yield version, run._replace(first=first, stop=stop, entry=run.entry + first - run.first)
        first = stop


def _sealed_segments(parts: Sequence[tuple[Columns, Provenance]]) -> SealedSegments:
    def numbers(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        found: list[Any] = [columns.scalars[name] for columns, _ in parts]
        return np.concatenate([np.empty(0, dtype), *found])

    def texts(name: str) -> list[str]:
        return [text for columns, _ in parts for text in columns.scalars[name]]

    replicas, replica_idxs = _coded(texts("replica_id"))
    stop_reasons, stop_reason_idxs = _coded(texts("stop_reason"))
    return SealedSegments(
        offsets=np.concatenate([np.empty(0, np.int64), *(where.offsets for _, where in parts)]),
        entries=np.concatenate([np.empty(0, np.int32), *(where.entries for _, where in parts)]),
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
