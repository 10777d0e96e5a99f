"""Finds out that a seal log was lost or cut back, before anything is settled anew."""

from __future__ import annotations

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs
from rollstream.store.errors import CorruptFile, NewerFile
from rollstream.store.layout import manifest_path
from rollstream.store.manifests import Manifest, encode_manifest, load_manifest
from rollstream.store.rollups import newest_offset
from rollstream.streams.broker import LogReader, TopicPartition
from rollstream.streams.errors import LogLost, NewerEvent
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import bounds_in_time, read_between

NewestManifest = tuple[int, Manifest | None]
"""The newest flush of a partition that the store's root holds: the offset of its event in the seal
log, and its manifest; None: that cannot be read, so it says nothing of the event."""


def newest_manifest(blobs: Blobs, address: PartitionAddress) -> NewestManifest | None:
    """Returns the newest manifest of a partition; None: there is none. Asks the store alone.

    Raises:
        StoreError: it did not answer.
    """
    newest = newest_offset(blobs, address)
    if newest is None:
        return None
    try:
        return newest, load_manifest(blobs, manifest_path(address, newest))
    except (CorruptFile, NewerFile):
        return newest, None


def require_log_of(
    newest: NewestManifest | None, reader: LogReader, where: TopicPartition, deadline: Deadline
) -> None:
    """Returns if the seal log holds the very flush of the newest manifest: each is written after
    its event was confirmed, and the log only grows, so it then holds those before too. How long the
    log is says nothing: anybody who appends to one that was cut back makes it longer.

    Args:
        newest: read before; None: any log may be it.
        reader: its position in the log is changed.

    Raises:
        LogLost: it does not. CorruptLog: that record is none. BrokerUnavailable.
    """
    if newest is None:
        return
    offset, manifest = newest
    first, end = bounds_in_time(reader, where, deadline)
    stretch = (offset, offset + 1) if first <= offset < end else (end, end)
    records = list(read_between(reader, where, *stretch, deadline))
    try:
        events = [event_in(record) for record in records]
    except NewerEvent:
        return  # The claim comes upon it, too, before it writes, and says who wrote it.
    match events:
        case [Flushed() as event] if manifest is None or encode_manifest(
            manifest
        ) == encode_manifest(manifest._replace(event=event)):
            return
    raise LogLost(
        f"{where}, which ends at {end}, does not hold the flush at {offset}, of which the store's "
        "root holds the manifest: the log was lost or cut back. Nothing is settled anew: restore "
        "the log, or correct store.root, or begin a new kafka.generation"
    )
