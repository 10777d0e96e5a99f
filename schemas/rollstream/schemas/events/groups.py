"""The seal log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events.owned import OwnedEvent
from rollstream.schemas.events.sealed_group_columns import SealedGroupColumns

NOT_INGESTED = -1  # Instead of an offset in the ingest log, of rows that came otherwise.


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """A Parquet file that a flush wrote."""

    path: str
    size: int
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSegments:
    """Columns over the segments of all groups, in the order of groups, then rows. What was imported
    has the offset ``NOT_INGESTED``."""

    offsets: NDArray[np.int64]
    entries: NDArray[np.int32]
    uids: tuple[str, ...]
    segment_idxs: NDArray[np.int32]
    weight_steps: NDArray[np.int64]
    policy_epochs: NDArray[np.int32]
    prompt_counts: NDArray[np.int32]
    token_counts: NDArray[np.int32]
    rewards: NDArray[np.float64]
    created_ts: NDArray[np.int64]
    replicas: tuple[str, ...]
    replica_idxs: NDArray[np.int32]
    stop_reasons: tuple[str, ...]
    stop_reason_idxs: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlements:
    """Entries that end without a readable group, for one reason."""

    reason: str
    offsets: NDArray[np.int64]
    entries: NDArray[np.int32]
    uids: tuple[str, ...]
    segment_idxs: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedOffsets:
    """How many entries each source offset has of which the flush settles any; offsets rise."""

    offsets: NDArray[np.int64]
    counts: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadRanges:
    """Ranges [first, stop) of offsets that nobody read, settled as a whole for one reason; each
    offset counts as one entry."""

    reason: str
    firsts: NDArray[np.int64]
    stops: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedGroups:
    """Dispatched groups that ended and were not sealed, for one reason; an example id a group."""

    reason: str
    example_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMembers:
    """How many members of some groups will never come, for a reason that their producer gave;
    empty: for others than those that the event has."""

    reason: str
    group_uids: tuple[str, ...]
    members: NDArray[np.int32]


class ProducerInFlight(NamedTuple):
    """One producer, as the source partition has it: the most groups that it said it had begun, how
    many that it dispatched here are not decided, and how many more it waits to begin."""

    producer_id: str
    begun: int
    open: int
    waiting: int
    last_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestPolicy:
    """What a flush compared groups with: a sampler's newest policy, as it was known then, the
    sampler's limit, and the branches whose groups are settled. ``offset`` is that of the policy in
    the decision log."""

    sampler: str
    offset: int
    lineage: str
    policy_epoch: int
    step: int
    max_policy_lag: int
    branch_epochs: NDArray[np.int32]
    branch_steps: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed(OwnedEvent):
    """What one flush settled, in one record. The flush is committed once this is confirmed."""

    now_ts: int
    watermark: int
    files: tuple[SealedFile, ...]
    groups: SealedGroupColumns
    segments: SealedSegments
    settled: tuple[Settlements, ...]
    touched: TouchedOffsets
    incomplete: tuple[SealedFile, ...]
    root_id: str = ""
    unread: tuple[UnreadRanges, ...] = ()
    unsealed: tuple[UnsealedGroups, ...] = ()
    in_flight: tuple[ProducerInFlight, ...] = ()
    newest_policy: tuple[NewestPolicy, ...] = ()
    failed: tuple[FailedMembers, ...] = ()
    request: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsBegun(OwnedEvent):
    """Groups that were dispatched and are not decided. One ends with the event that settles the
    entry that dispatched it, source offset << 16 | entry."""

    now_ts: int
    example_ids: tuple[str, ...]
    entries: NDArray[np.int64]
    ages_s: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight(OwnedEvent):
    """What producers have begun and is not decided, between two flushes. A producer keeps its
    figures until an event, this or a ``Flushed``, names it again; where this is ``complete``, as a
    new owner's first one is, those that it does not name have no open groups here."""

    now_ts: int
    producers: tuple[ProducerInFlight, ...]
    complete: bool = False


class Continuation(NamedTuple):
    """A segment of the rollout ``uid`` that waits for the segment before it, which is of the
    rollout ``continues``, since a log time in microseconds."""

    uid: str
    segment_idx: int
    continues: str
    example_id: str
    group_uid: str
    since_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationsWaiting(OwnedEvent):
    """How many trajectories wait for a rollout that they continue, and the first of them. It holds
    until the owner's next one, or the next claim."""

    now_ts: int
    count: int
    examples: tuple[Continuation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecorded(OwnedEvent):
    """Which store's root the deployment has; in partition 0 of every seal log, once."""

    root_id: str
    root: str


class RequestKind(StrEnum):
    """What the owner of a partition may be asked for."""

    RETAIN = "retain"
    FLUSH = "flush"
    FLUSH_FORCED = "flush_forced"
    RETRY = "retry"  # Reads a partition again that was put aside.
    IMPORT = "import"  # Seals groups that are staged.


FLUSH_KINDS = frozenset((RequestKind.FLUSH, RequestKind.FLUSH_FORCED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """Somebody asks the owner of the partition for something; it names no claim. The answer is a
    ``Retired`` that names the request, whatever its ``kind``."""

    kind: str
    older_than_us: int
    requested_by: str
    requested_ts: int
    keep_groups: int = -1
    keep_groups_per_policy: int = -1
    staged: str = ""
    compression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredFile:
    """A file that the flush at ``offset`` named."""

    offset: int
    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired(OwnedEvent):
    """Files that no reader is to use any more; deleted once no sampler can need them."""

    now_ts: int
    previous: int
    request: int
    more: bool
    files: tuple[RetiredFile, ...]
    detail: str
    refused: bool = False
