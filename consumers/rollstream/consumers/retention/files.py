"""What becomes of retired files: the blob that readers leave them out by, then their deletion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress

from rollstream.consumers.retention.flushes import flushes_between
from rollstream.folds.state import SamplerState
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs, create_or_compare
from rollstream.store.layout import retired_path
from rollstream.store.retired import (
    RetiredFiles,
    encode_retired,
    load_retired,
    retired_offsets,
)
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import CorruptLog
from rollstream.streams.reading import read_between

READ_S = 30.0  # For one event: the jobs of other partitions wait for the same thread.


def project_retired(
    blobs: Blobs,
    broker: Broker,
    where: TopicPartition,
    address: PartitionAddress,
    offset: int,
    deadline: Deadline,
) -> None:
    """Writes the blob of the ``Retired`` event at ``offset`` of a seal log, which was confirmed,
    and of those before it that lack theirs. Repeating it changes nothing.

    An owner does so before it retires anything else, and a new owner first of all; so what may lack
    is that of the newest event.

    Args:
        offset: -1: there is none.

    Raises:
        BrokerUnavailable: an event was not read within ``READ_S``. StoreError: a blob was not
        written, or a manifest or blob cannot be read.
    """
    written = retired_offsets(blobs, address)
    if not written or written[-1] < offset:
        missing: list[tuple[int, Retired]] = []
        with closing(broker.reader({where: 0})) as reader:
            while offset >= 0 and offset not in written:
                reader.seek(where, offset)
                within = Deadline(deadline.slice_s(READ_S), deadline.clock)
                records = list(read_between(reader, where, offset, offset + 1, within))
                if not records:
                    raise CorruptLog(f"{where}: there is no record at {offset}")
                missing.append((offset, codec.decode_as(Retired, records[0].value)))
                offset = missing[-1][1].previous
        retired = RetiredFiles(address)
        if offset >= 0:
            retired = load_retired(blobs, retired_path(address, offset))
        for at, event in reversed(missing):
            newest = max(file.offset for file in event.files)
            flushes = flushes_between(blobs, address, retired.below, newest, deadline)
            retired = retired.after(at, event, flushes)
            create_or_compare(blobs, retired_path(address, at), encode_retired(retired))


def retired_blobs(blobs: Blobs, address: PartitionAddress) -> Iterator[RetiredFiles]:
    """Yields what is retired of a partition after each event whose blob is there, the newest last.

    Raises:
        CorruptFile: a blob that cannot be read.
    """
    for offset in retired_offsets(blobs, address):
        with suppress(BlobMissing):  # All of its files are deleted.
            yield load_retired(blobs, retired_path(address, offset))


def deletable(
    blobs: Blobs, address: PartitionAddress, samplers: Mapping[str, SamplerState]
) -> list[RetiredFiles]:
    """Of what was retired: that whose files no sampler can need any more, and so never will.

    Each has recorded a cursor behind the event, so that it chooses none of these groups later, or
    its run is over; and none has an open batch with a group of such a flush, nor a batch that
    the next step may carry one from.

    Raises:
        CorruptFile: a blob that cannot be read.
    """
    found: list[RetiredFiles] = []
    open_flushes = {
        ref.offset
        for state in samplers.values()
        for ref in state.open_groups()
        if ref.log == address
    }
    for retired in retired_blobs(blobs, address):
        at = retired.offset
        if not all(state.over or state.recorded(address) > at for state in samplers.values()):
            break  # Cursors behind a later one are behind this one too.
        if open_flushes.isdisjoint(file.offset for file in retired.newest):
            found.append(retired)
    return found


def delete_retired(blobs: Blobs, found: Sequence[RetiredFiles]) -> None:
    """Deletes the files, then the blobs that named them, but for the newest, by which readers leave
    out what is retired. Repeating it, also beside another owner, changes nothing."""
    for retired in found:
        for file in retired.newest:
            blobs.delete(file.path)
        newer = retired_offsets(blobs, retired.address)
        if newer and newer[-1] > retired.offset:
            blobs.delete(retired_path(retired.address, retired.offset))
