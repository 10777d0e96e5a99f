"""Finds out that a seal log was lost or cut back, before anything is settled anew."""

from __future__ import annotations

from contextlib import closing

from rollstream.consumers.sealing.context import SealerContext
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.layout import manifests_prefix, offset_in
from rollstream.streams.broker import EARLIEST
from rollstream.streams.errors import LogLost
from rollstream.streams.reading import bounds_in_time


def require_log_of_manifests(context: SealerContext, address: PartitionAddress) -> None:
    """Returns where the seal log holds the flush of the newest manifest: each is written after its
    event was confirmed, so none is ever ahead of the log.

    Raises:
        LogLost: it does not. StoreError, BrokerUnavailable.
    """
    where = context.layout.groups_log(address)
    offsets = (offset_in(blob.path) for blob in context.blobs.list(manifests_prefix(address)))
    newest = max((offset for offset in offsets if offset is not None), default=-1)
    with closing(context.broker.reader({where: EARLIEST})) as reader:
        _, end = bounds_in_time(reader, where, context.deadline())  # After the manifests.
    if newest >= end:
        raise LogLost(
            f"{where} ends at {end}, but the store's root holds the manifest of a flush at "
            f"{newest}: the log was lost or cut back. Nothing is settled anew: restore the log, or "
            "correct store.root, or begin a new kafka.generation"
        )
