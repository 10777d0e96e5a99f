"""A partition's flushes with the files that are not retired, from the store alone, and the plan for
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from rollstream.consumers.retention.limits import OverLimits, RetentionLimits, StoredGroups
from rollstream.consumers.retention.plan import (
    REMEMBERED_MAX,
    Decisions,
    FlushFiles,
    HeldFlush,
    RetentionPlan,
    files_of_flush,
    plan_retention,
)
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs
from rollstream.store.layout import manifest_path, manifests_prefix, offset_in
from rollstream.store.manifests import load_manifest
from rollstream.store.retired import retired_of
from rollstream.streams.errors import BrokerUnavailable

Known = HeldFlush | StoredGroups


@dataclass(slots=True)
class KnownFlushes:
    """What plans know of flushes by offset, so that their manifests are not opened again.

    Attributes:
        held: those that were held back when they were looked at.
        stored: those whose groups were counted, up to ``REMEMBERED_MAX``.
    """

    held: dict[int, HeldFlush] = field(default_factory=dict)
    stored: dict[int, StoredGroups] = field(default_factory=dict)


def plan_partition(
    blobs: Blobs,
    address: PartitionAddress,
    samplers: Mapping[str, Decisions],
    limits: RetentionLimits,
    log_now_us: int,
    known: KnownFlushes,
    deadline: Deadline,
    time_left: Callable[[], bool] = lambda: True,
) -> RetentionPlan:
    """``plan_retention`` by the limits of this partition. If time is over before all groups were
    counted, those that were count: less is retired, and never more.

    Raises:
        CorruptFile, NewerFile, BrokerUnavailable: as ``unretired_flushes``.
    """
    has_caps = limits[1:] != (None, None)
    counted = not has_caps or _count(blobs, address, known.stored, deadline, time_left)
    over = OverLimits.of(limits, log_now_us, known.stored.values())

    def known_at(offset: int) -> Known | None:
        stored = known.stored.get(offset)
        if stored and not any(over.has(stored.sealed_ts, version) for version, _ in stored.groups):
            return stored
        held = known.held.get(offset)
        if held is not None and not held.is_held(address, samplers):
            del known.held[offset]
            return None
        return held

    flushes = unretired_flushes(blobs, address, deadline, known_at)
    plan = plan_retention(address, flushes, samplers, over, known.held, time_left)
    for file in plan.files:
        known.stored.pop(file.offset, None)  # What is left of the flush is counted anew.
    return replace(plan, finished=plan.finished and counted)


def _count(
    blobs: Blobs,
    address: PartitionAddress,
    stored: dict[int, StoredGroups],
    deadline: Deadline,
    time_left: Callable[[], bool],
) -> bool:
    """Counts groups of the oldest flushes; returns whether there was time for all."""
    for flush in unretired_flushes(blobs, address, deadline, stored.get):
        if isinstance(flush, FlushFiles):
            if len(stored) >= REMEMBERED_MAX:
                break
            stored[flush.offset] = flush.stored_groups()
            if not time_left():
                return False
    return True


def manifests_from(
    blobs: Blobs, address: PartitionAddress, first: int, deadline: Deadline
) -> Iterator[tuple[int, Flushed]]:
    """Flushes of a partition with their offsets, rising, from ``first`` on.

    Raises:
        CorruptFile, NewerFile: a manifest that cannot be read. BrokerUnavailable: not all were read
        by the deadline.
    """
    for offset in _offsets_from(blobs, address, first):
        _check_time(deadline)
        yield offset, load_manifest(blobs, manifest_path(address, offset)).event


def unretired_flushes(
    blobs: Blobs,
    address: PartitionAddress,
    deadline: Deadline,
    known_at: Callable[[int], Known | None],
) -> Iterator[FlushFiles | Known]:
    """Flushes of a partition that have files which are not retired, by rising offset. Opens the
    manifests of these, one at a time, and none of flushes all of whose files are retired.

    Args:
        known_at: returns instead what is known of the flush at an offset; its manifest is not
            opened.

    Raises:
        CorruptFile, NewerFile: a manifest that cannot be read, or which files are retired.
        BrokerUnavailable: as ``manifests_from``.
    """
    retired = retired_of(blobs, address)
    for offset, files in groupby(retired.kept, key=lambda file: file.offset):
        _check_time(deadline)
        if (known := known_at(offset)) is not None:
            yield known
            continue
        kept = {file.path for file in files}
        event = load_manifest(blobs, manifest_path(address, offset)).event
        gone = {file.path for file in (*event.files, *event.incomplete)} - kept
        yield files_of_flush(offset, event, gone)
    for offset in _offsets_from(blobs, address, retired.below):
        _check_time(deadline)
        if (known := known_at(offset)) is None:
            event = load_manifest(blobs, manifest_path(address, offset)).event
            yield files_of_flush(offset, event)
        else:
            yield known


def _check_time(deadline: Deadline) -> None:
    if deadline.passed():
        raise BrokerUnavailable(
            f"the manifests were not read within {deadline.timeout_s} s; allow more time"
        )


def _offsets_from(blobs: Blobs, address: PartitionAddress, first: int) -> Iterator[int]:
    """Of manifests, rising."""
    after = manifest_path(address, first - 1) if first > 0 else ""
    for blob in blobs.list(manifests_prefix(address), after=after):
        offset = offset_in(blob.path)
        if offset is not None and offset >= first:
            yield offset
