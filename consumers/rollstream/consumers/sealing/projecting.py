"""Manifests that are missing: a predecessor was killed between its event and the manifest."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, project
from rollstream.store.layout import manifest_path
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import BrokerUnavailable

_SLICE_S = 0.5


def project_missing(
    broker: Broker,
    blobs: Blobs,
    environment: str,
    generation: int,
    where: TopicPartition,
    flushes: Sequence[int],
    deadline: Deadline,
) -> list[int]:
    """Projects those of ``flushes`` (offsets of events that count, rising) without a manifest.

    An owner projects one flush before it appends the next, and a new owner first of all calls this;
    so those that are missing are the newest, and the search ends at the first that is there.

    Raises:
        BrokerUnavailable: an event could not be read in time. StoreError.
    """
    address = PartitionAddress(environment, generation, where.partition)
    missing: list[int] = []
    for offset in reversed(flushes):
        if blobs.info(manifest_path(address, offset)) is not None:
            break
        missing.append(offset)
    for offset in reversed(missing):
        event = _read(broker, where, offset, deadline)
        project(blobs, address, offset, event)
    return missing


def _read(broker: Broker, where: TopicPartition, offset: int, deadline: Deadline) -> Flushed:
    reader = broker.reader({where: offset})
    try:
        while not deadline.passed():
            for record in reader.poll(1, deadline.slice_s(_SLICE_S)):
                assert record.offset == offset, (record.offset, offset)
                return codec.decode_as(Flushed, record.value)
            deadline.log_waiting(lambda: f"{where} at {offset} to be read")
    finally:
        reader.close()
    raise BrokerUnavailable(f"{where}: offset {offset} not read within {deadline.timeout_s} s")
