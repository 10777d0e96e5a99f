"""Finds out that a seal log was lost or cut back, before anything is settled anew."""

from __future__ import annotations

from contextlib import closing

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs
from rollstream.store.errors import CorruptFile, NewerFile
from rollstream.store.layout import manifest_path, manifests_prefix, offset_in
from rollstream.store.manifests import Manifest, encode_manifest, load_manifest
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.errors import LogLost, NewerEvent
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import bounds_in_time, read_between


def require_log_of_manifests(
    broker: Broker,
    blobs: Blobs,
    where: TopicPartition,
    address: PartitionAddress,
    deadline: Deadline,
) -> None:
    """Returns where the seal log holds the very flush of the newest manifest: each is written after
    its event was confirmed, and the log only grows, so it then holds those before too. How long the
    log is says nothing: anybody who appends to one that was cut back makes it longer.

    Raises:
        LogLost: it does not. CorruptLog: that record is none. StoreError, BrokerUnavailable.
    """
    offsets = (offset_in(blob.path) for blob in blobs.list(manifests_prefix(address)))
    newest = max((offset for offset in offsets if offset is not None), default=None)
    if newest is None:
        return
    with closing(broker.reader({where: EARLIEST})) as reader:
        first, end = bounds_in_time(reader, where, deadline)  # After the manifests.
        stretch = (newest, newest + 1) if first <= newest < end else (end, end)
        records = list(read_between(reader, where, *stretch, deadline))
    try:
        events = [event_in(record) for record in records]
    except NewerEvent:
        return  # The claim comes upon it, too, before it writes, and says who wrote it.
    match events:
        case [Flushed() as event] if _may_be_of(blobs, Manifest(address, newest, event)):
            return
    raise LogLost(
        f"{where}, which ends at {end}, does not hold the flush at {newest}, of which the store's "
        "root holds the manifest: the log was lost or cut back. Nothing is settled anew: restore "
        "the log, or correct store.root, or begin a new kafka.generation"
    )


def _may_be_of(blobs: Blobs, manifest: Manifest) -> bool:
    """Whether the root holds this manifest, or one there that cannot be read: what is damaged says
    nothing of the log."""
    path = manifest_path(manifest.address, manifest.offset)
    try:
        held = load_manifest(blobs, path)
    except (CorruptFile, NewerFile):
        return True
    return encode_manifest(held) == encode_manifest(manifest)
