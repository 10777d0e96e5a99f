"""A partition's flushes with the files that are not retired, from the store alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from rollstream.consumers.retention.plan import FlushFiles, HeldFlush, files_of_flush
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs
from rollstream.store.layout import manifest_path, manifests_prefix, offset_in
from rollstream.store.manifests import load_manifest
from rollstream.store.retired import retired_of
from rollstream.streams.errors import BrokerUnavailable

StillHeld = Callable[[int], HeldFlush | None]


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
    still_held: StillHeld = lambda offset: None,
) -> Iterator[FlushFiles | HeldFlush]:
    """Flushes of a partition that have files which are not retired, by rising offset. Opens the
    manifests of these, one at a time, and none of flushes all of whose files are retired.

    Args:
        still_held: of the flush at an offset, where it is known; its manifest is not opened.

    Raises:
        CorruptFile, NewerFile: a manifest that cannot be read, or which files are retired.
        BrokerUnavailable: as ``manifests_from``.
    """
    retired = retired_of(blobs, address)
    for offset, files in groupby(retired.kept, key=lambda file: file.offset):
        _check_time(deadline)
        if held := still_held(offset):
            yield held
            continue
        kept = {file.path for file in files}
        event = load_manifest(blobs, manifest_path(address, offset)).event
        gone = {file.path for file in (*event.files, *event.incomplete)} - kept
        yield files_of_flush(offset, event, gone)
    for offset in _offsets_from(blobs, address, retired.below):
        _check_time(deadline)
        yield still_held(offset) or files_of_flush(
            offset, load_manifest(blobs, manifest_path(address, offset)).event
        )


def _check_time(deadline: Deadline) -> None:
    if deadline.passed():
        raise BrokerUnavailable(
            f"the manifests were not read within {deadline.timeout_s} s; allow more time"
        )


def _offsets_from(blobs: Blobs, address: PartitionAddress, first: int) -> Iterator[int]:
    """Of manifests, rising."""
    for blob in blobs.list(manifests_prefix(address)):
        offset = offset_in(blob.path)
        if offset is not None and offset >= first:
            yield offset
