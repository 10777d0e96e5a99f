"""From a plan to Parquet files and the one event that names them. Equal plans give equal bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise, repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollstream.consumers.assembling import DueGroup, Plan, Settlement
from rollstream.consumers.assembling.decisions import (
    Failed,
    Row,
    RowsKind,
    UnreadRange,
    Unsealed,
    file_of_group,
    file_of_row,
)
from rollstream.schemas import digest, ids
from rollstream.schemas.columns import Columns
from rollstream.schemas.events import (
    FailedMembers,
    Flushed,
    SealedFile,
    SealedGroup,
    SealedGroupColumns,
    SealedSegments,
    Settlements,
    TouchedOffsets,
    UnreadRanges,
    UnsealedGroups,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.ingest.gather import gather
from rollstream.store import FileGroup, Pieces, Provenance, encode_rows
from rollstream.store.layout import GROUPS, INCOMPLETE, rows_path

_T = TypeVar("_T")
_Sorted = defaultdict[RowsKind, defaultdict[str, list[_T]]]
"""By what all rows of a file have in common, then the policy version."""
FAILED_REASONS_MAX = 64  # Of one event; producers choose them, and each may differ.
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
    root_id: str


def draft_flush(plan: Plan, target: FlushTarget, put: Callable[[str, Pieces], object]) -> Flushed:
    """Hands each file of a flush, path and bytes, to ``put`` as soon as it is encoded, and returns
    the event that names them. One file a policy version; but rows whose named arrays have other
    dtypes, trailing shapes or names are in a file of their own."""
    due: _Sorted[DueGroup] = defaultdict(lambda: defaultdict(list))
    incomplete: _Sorted[Row] = defaultdict(lambda: defaultdict(list))
    for decision in plan.decisions:
        if decision.group is not None:
            kind, version = file_of_group(decision.group)
            due[kind][version].append(decision.group)
        for row in decision.incomplete:
            kind, version = file_of_row(row)
            incomplete[kind][version].append(row)
    sealed, kept = _Files(GROUPS, target, put), _Files(INCOMPLETE, target, put)
    groups: list[SealedGroup] = []
    parts = []
    for kind, of_files in due.items():
        part = _sealed_rows(list(chain(*(group.rows for group in chain(*of_files.values())))))
        described = _sealed_groups(of_files, len(sealed.files), part.columns)
        group_ids = [group.group_id for group in described for _ in range(group.rows)]
        left = (FileGroup(group.rows, group.digest) for group in described)
        parted = [list(islice(left, len(of_file))) for of_file in of_files.values()]
        counts = [sum(group.rows for group in of_file) for of_file in parted]
        sealed.write(of_files, counts, part, group_ids, parted, kind.compression)
        groups += described
        parts.append(part)
    for of_rows in incomplete.values():
        part = _gathered(chain(*of_rows.values()))
        none = [""] * part.columns.rows
        kept.write(of_rows, map(len, of_rows.values()), part, none, repeat(()))
    return Flushed(
        epoch=target.epoch,
        nonce=target.nonce,
        root_id=target.root_id,
        now_ts=plan.now_us,
        watermark=plan.watermark,
        files=tuple(sealed.files),
        groups=SealedGroupColumns.of(groups),
        segments=_sealed_segments(parts),
        settled=_by_reason(s for decision in plan.decisions for s in decision.settled),
        touched=TouchedOffsets(
            offsets=np.array(list(plan.touched), np.int64),
            counts=np.array(list(plan.touched.values()), np.int32),
        ),
        incomplete=tuple(kept.files),
        unread=_unread(decision.unread for decision in plan.decisions),
        unsealed=_unsealed(decision.unsealed for decision in plan.decisions),
        newest_policy=() if plan.newest is None else (plan.newest,),
        failed=_failed(chain.from_iterable(decision.failed for decision in plan.decisions)),
        request=max((one.group.request for one in plan.decisions if one.group), default=-1),
    )


class _Gathered(NamedTuple):
    """The rows of some files, and where each stands in the log."""

    columns: Columns
    offsets: NDArray[np.int64]
    entries: NDArray[np.int32]


def _gathered(rows: Iterable[Row]) -> _Gathered:
    records, indexes, offsets, entries = zip(*rows, strict=True)
    columns = gather(records, indexes)
    return _Gathered(columns, np.array(offsets, np.int64), np.array(entries, np.int32))


def _sealed_rows(rows: Sequence[Row]) -> _Gathered:
    """The rows of groups. A step that ends its trajectory without a reward, and awaits no score,
    has earned 0: a sealed trajectory waits for a score if its last row has no reward."""
    part = _gathered(rows)
    scalars: Mapping[str, Any] = part.columns.scalars
    missing = np.isnan(scalars["reward"])
    if not missing.any():
        return part
    lasts = np.append(np.asarray(scalars["segment_idx"])[1:] == 0, True)
    earned_0 = [
        row
        for row in np.flatnonzero(missing & lasts).tolist()
        if rows[row][0].kinds[rows[row][1]] == EntryKind.STEP
    ]
    rewards = np.array(scalars["reward"])
    rewards[earned_0] = 0.0
    return part._replace(columns=replace(part.columns, scalars={**scalars, "reward": rewards}))


class _Files:
    """Encodes the files of one kind, and names them."""

    def __init__(
        self, kind: str, target: FlushTarget, put: Callable[[str, Pieces], object]
    ) -> None:
        self.files: list[SealedFile] = []
        self._kind, self._target, self._put = kind, target, put
        self._versions: Counter[str] = Counter()

    def write(
        self,
        versions: Iterable[str],
        counts: Iterable[int],
        rows: _Gathered,
        group_ids: Sequence[str],
        groups: Iterable[Sequence[FileGroup]],
        compression: str = "",
    ) -> None:
        """A file a version, each with so many of the rows, which are these groups."""
        target = self._target
        bounds = pairwise(accumulate(counts, initial=0))
        for version, (start, stop), of_file in zip(versions, bounds, groups, strict=False):
            of = slice(start, stop)
            where = (target.address, target.epoch, rows.offsets[of], rows.entries[of])
            data = encode_rows(
                rows.columns.part(start, stop),
                Provenance(group_ids[of], *where),
                groups=of_file,
                compression=compression or target.compression,
            )
            path = self._path(version)
            self.files.append(
                SealedFile(path=path, size=data.size, rows=stop - start, checksum=data.checksum())
            )
            self._put(path, data)

    def _path(self, version: str) -> str:
        target, number = self._target, self._versions[version]
        self._versions[version] += 1
        name = f"{target.name}-{number}" if number else target.name
        environment = target.address.environment
        return rows_path(self._kind, environment, version, _TRAJECTORY, target.epoch, name)


def _sealed_groups(
    due: Mapping[str, Sequence[DueGroup]], file: int, columns: Columns
) -> list[SealedGroup]:
    """Those of some files, by their policy versions; ``file`` is the number of the first."""
    scalars: Mapping[str, Any] = columns.scalars
    uids, lineages = scalars["rollout_uid"], scalars["lineage"]
    steps, epochs = scalars["weight_step"].tolist(), scalars["policy_epoch"].tolist()
    ends = accumulate((len(group.rows) for group in chain(*due.values())), initial=0)
    bounds = list(pairwise(ends))
    rows = zip(bounds, digest.row_digests(columns, [start for start, _ in bounds]), strict=True)
    sealed = []
    for number, (version, of_file) in enumerate(due.items(), file):
        first = -1
        for group, ((start, stop), rows_digest) in zip(of_file, rows, strict=False):
            first = start if first < 0 else first
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
                    file=number,
                    row_start=start - first,
                    rows=stop - start,
                    digest=rows_digest,
                )
            )
    return sealed


def _sealed_segments(parts: Sequence[_Gathered]) -> SealedSegments:
    def numbers(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        found: list[Any] = [part.columns.scalars[name] for part in parts]
        return np.concatenate([np.empty(0, dtype), *found])

    def texts(name: str) -> list[str]:
        return [text for part in parts for text in part.columns.scalars[name]]

    replicas, replica_idxs = _coded(texts("replica_id"))
    stop_reasons, stop_reason_idxs = _coded(texts("stop_reason"))
    return SealedSegments(
        offsets=np.concatenate([np.empty(0, np.int64), *(part.offsets for part in parts)]),
        entries=np.concatenate([np.empty(0, np.int32), *(part.entries for part in parts)]),
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


def _coded(values: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """The distinct values in the order of their first use, and the index of each value in them."""
    distinct = tuple(dict.fromkeys(values))
    numbers = {value: number for number, value in enumerate(distinct)}
    return distinct, np.fromiter(map(numbers.__getitem__, values), np.int32, len(values))


def _grouped(pairs: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    """The second of each pair, by the first."""
    found = defaultdict(list)
    for name, one in pairs:
        found[str(name)].append(one)
    return found


def _by_reason(settlements: Iterable[Settlement]) -> tuple[Settlements, ...]:
    return tuple(
        Settlements(
            reason=reason,
            offsets=np.array([s.offset for s in listed], np.int64),
            entries=np.array([s.entry for s in listed], np.int32),
            uids=tuple(s.rollout_uid for s in listed),
            segment_idxs=np.array([s.segment_idx for s in listed], np.int32),
        )
        for reason, listed in _grouped((s.reason, s) for s in settlements).items()
    )


def _unread(ranges: Iterable[UnreadRange | None]) -> tuple[UnreadRanges, ...]:
    return tuple(
        UnreadRanges(
            reason=reason,
            firsts=np.array([one.first for one in listed], np.int64),
            stops=np.array([one.stop for one in listed], np.int64),
        )
        for reason, listed in _grouped((one.reason, one) for one in ranges if one).items()
    )


def _unsealed(groups: Iterable[Unsealed | None]) -> tuple[UnsealedGroups, ...]:
    return tuple(
        UnsealedGroups(reason=reason, example_ids=tuple(listed))
        for reason, listed in _grouped(filter(None, groups)).items()
    )


def _failed(members: Iterable[Failed]) -> tuple[FailedMembers, ...]:
    by_reason: defaultdict[str, list[Failed]] = defaultdict(list)
    for one in members:
        is_named = one.reason in by_reason or len(by_reason) < FAILED_REASONS_MAX
        by_reason[one.reason if is_named else ""].append(one)
    return tuple(
        FailedMembers(
            reason=reason,
            group_uids=tuple(one.group_uid for one in listed),
            members=np.array([one.members for one in listed], np.int32),
        )
        for reason, listed in by_reason.items()
    )
