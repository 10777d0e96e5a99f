"""Manifests that are missing: a predecessor was killed after its event and before the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from rollstream.consumers.sealing.context import SealerContext
from rollstream.schemas import codec
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import project
from rollstream.store.layout import manifest_path
from rollstream.streams.reading import read_between


def project_missing(
    context: SealerContext, address: PartitionAddress, flushes: Sequence[int]
) -> None:
    """Writes the manifests that are missing of ``flushes`` (offsets of events that count, rising).

    An owner projects one flush before it appends the next, and a new owner first of all calls this;
    so those that are missing are the newest, and the search ends at the first that exists.

    Raises:
        BrokerUnavailable: an event could not be read in time. StoreError: a manifest was not
            written.
    """
    missing: list[int] = []
    for offset in reversed(flushes):
        if context.blobs.info(manifest_path(address, offset)) is not None:
            break
        missing.append(offset)
    if not missing:
        return
    where = context.layout.groups_log(address)
    with closing(context.broker.reader({where: missing[-1]})) as reader:
        for offset in reversed(missing):
            for record in read_between(reader, where, offset, offset + 1, context.deadline()):
                project(context.blobs, address, offset, codec.decode_as(Flushed, record.value))
