"""A partition's flushes with the files that are not retired, from the store alone, and the plan for
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, takewhile

from rollstream.consumers.retention.known import KnownFlushes
from rollstream.consumers.retention.limits import OverLimits, RetentionLimits
from rollstream.consumers.retention.plan import (
    Decisions,
    FlushFiles,
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
from rollstream.store.retired import NamedFile, retired_of
from rollstream.streams.errors import BrokerUnavailable

KNOWN_MAX = 1 << 19  # Flushes of a partition, of about 50 bytes each.


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

    Args:
        known: what plans know of flushes, so that each manifest is opened once. Younger
            flushes than the oldest ``KNOWN_MAX`` are not looked at.
        time_left: asked after each manifest, so that each plan gets further than the one before.

    Raises:
        CorruptFile, NewerFile, BrokerUnavailable: as ``unretired_flushes``.
    """
    finished = True

    def flushes() -> Iterator[FlushFiles]:
        nonlocal finished
        for flush in unretired_flushes(blobs, address, deadline, known):
            is_new = flush.offset not in known
            if is_new and len(known) >= KNOWN_MAX:
                return
            if is_new:
                known.add(flush)
            yield flush
            if is_new and not time_left():
                finished = False
                return

    counts: Counter[str] = Counter()
    if limits[1:] != (None, None):
        for flush in flushes():
            counts.update(flush.count_groups())
    over = OverLimits.of(limits, log_now_us, counts)
    plan = plan_retention(address, flushes(), samplers, over)
    for file in plan.files:
        known.forget(file.offset)  # What is left of the flush is looked at anew.
    return replace(plan, finished=finished)


def flushes_between(
    blobs: Blobs, address: PartitionAddress, first: int, last: int, deadline: Deadline
) -> Iterator[tuple[int, Flushed]]:
    """Flushes of a partition with their offsets, rising, from ``first`` to ``last``.

    Raises:
        CorruptFile, NewerFile: a manifest that cannot be read. BrokerUnavailable: not all were read
        by the deadline.
    """
    for offset in takewhile(last.__ge__, _offsets_from(blobs, address, first)):
        _check_time(deadline)
        yield offset, load_manifest(blobs, manifest_path(address, offset)).event


def unretired_flushes(
    blobs: Blobs,
    address: PartitionAddress,
    deadline: Deadline,
    known: KnownFlushes,
) -> Iterator[FlushFiles]:
    """Flushes of a partition that have files which are not retired, by rising offset. Opens the
    manifests of these, one at a time, but for those that are known, by offset. Opens none of
    flushes all of whose files are retired.

    Raises:
        CorruptFile, NewerFile: a manifest that cannot be read, or which files are retired.
        BrokerUnavailable: as ``flushes_between``.
    """
    retired = retired_of(blobs, address)
    kept = {*retired.kept}
    older = dict.fromkeys(file.offset for file in retired.kept)
    for offset in chain(older, _offsets_from(blobs, address, retired.below)):
        _check_time(deadline)
        if (found := known.get(offset)) is not None:
            yield found
            continue
        flush = files_of_flush(offset, load_manifest(blobs, manifest_path(address, offset)).event)
        if offset < retired.below:
            left = (one for one in flush.files if NamedFile(offset, one.path) in kept)
            flush = flush._replace(files=tuple(left))
        yield flush


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
