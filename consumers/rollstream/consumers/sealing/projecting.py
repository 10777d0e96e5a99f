"""Manifests that are missing: a predecessor was killed after its event and before the manifest."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.consumers.sealing.context import SealerContext
from rollstream.schemas import codec
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import project
from rollstream.store.layout import manifest_path
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerUnavailable

_SLICE_S = 0.5


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
    for offset in reversed(missing):
        project(context.blobs, address, offset, _read(context, address, offset))


def _read(context: SealerContext, address: PartitionAddress, offset: int) -> Flushed:
    where = TopicPartition(context.layout.groups(address.environment), address.partition)
    deadline = context.deadline()
    reader = context.broker.reader({where: offset})
    try:
        while not deadline.passed():
            for record in reader.poll(1, deadline.slice_s(_SLICE_S)):
                assert record.offset == offset, (record.offset, offset)
                return codec.decode_as(Flushed, record.value)
            deadline.log_waiting(lambda: f"{where} at {offset} to be read")
    finally:
        reader.close()
    raise BrokerUnavailable(f"{where}: offset {offset} not read within {deadline.timeout_s} s")
