"""Files that nothing needs any more, beside retired row files: what described those files, and what
killed processes left.

A file that is found stays unneeded. So a sealer that is killed between two deletes leaves the other
files to the next search.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, MutableSet, Sequence
from contextlib import closing
from typing import Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from rollstream.consumers.retention.files import retired_blobs
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs
from rollstream.store.layout import (
    GROUPS,
    INCOMPLETE,
    batch_in,
    batches_prefix,
    manifest_path,
    manifests_prefix,
    offset_in,
    rollup_in,
    rollups_prefix,
    rows_prefix,
    rows_writer_in,
    staged_in,
    staged_prefix,
)
from rollstream.store.manifests import load_manifest
from rollstream.store.retired import (
    NamedFile,
    RetiredFiles,
    retired_of,
)
from rollstream.store.rollups import named_files, newest_offset
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable, OffsetLost, UnreadableLog
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

_log = logging.getLogger("rollstream.sealer")


class HeldBatches(Protocol):
    """The batches that a sampler may be asked for, by step (``SamplerState``)."""

    @property
    def batches(self) -> Mapping[int, object]: ...


UNNAMED_S = 60.0  # For all logs that are asked which files they name.
STAGED_AGE_S = 86_400.0  # No write takes so long: what is older is of a writer that was killed.


def unneeded_manifests(blobs: Blobs, address: PartitionAddress) -> list[str]:
    """Returns the roll-ups and manifests of flushes all of whose files are retired and deleted, by
    rising offset.

    The newest manifest of a partition always stays. It shows that its seal log is whole, and that
    no older manifest has to be written again.
    """
    manifests = [
        offset
        for blob in blobs.list(manifests_prefix(address))
        if (offset := offset_in(blob.path)) is not None
    ]
    retired = [*retired_blobs(blobs, address)]
    if not manifests or not retired:
        return []
    newest = retired[-1]
    needed = {file.offset for file in newest.kept}
    needed |= {
        file.offset for one in retired for file in one.newest if blobs.info(file.path) is not None
    }
    stop = min(newest.below, manifests[-1])
    rollups = [
        blob.path
        for blob in blobs.list(rollups_prefix(address))
        if (found := rollup_in(blob.path)) is not None and found[2] < stop
    ]
    unneeded = [offset for offset in manifests if offset < stop and offset not in needed]
    return [*rollups, *(manifest_path(address, offset) for offset in unneeded)]


def unneeded_batches(blobs: Blobs, samplers: Mapping[str, HeldBatches]) -> list[str]:
    """Returns the batch files of steps that no sampler holds any more, all of whose groups are in
    retired files, by rising step.

    They are the oldest steps of a sampler, up to the first that is needed. So the files that are
    left say truly which steps a rewind has undone, after every single delete.
    """
    retired: dict[PartitionAddress, RetiredFiles] = {}
    found: list[str] = []
    for name, state in sorted(samplers.items()):
        named = [
            (step, epoch, blob.path)
            for blob in blobs.list(batches_prefix(name))
            if (batch := batch_in(blob.path)) is not None
            for epoch, step in (batch,)
        ]
        newest = max(((epoch, step) for step, epoch, _ in named), default=None)
        held_from = min(state.batches, default=0)
        for step, epoch, path in sorted(named):
            if step >= held_from or (epoch, step) == newest:
                break
            is_retired = _is_retired(blobs, path, retired)
            if is_retired is False:
                break
            if is_retired:
                found.append(path)
    return found


def orphans(
    broker: Broker,
    layout: Layout,
    blobs: Blobs,
    addresses: Sequence[PartitionAddress],
    deadline: Deadline,
    answer_s: float,
    known: MutableSet[int],
) -> list[str]:
    """Returns the row files of an environment that no flush names and none will.

    A claim of the partition that is newer than the file's has written a manifest. So all flushes of
    the older claim that count stand in the seal log, and whoever still writes for that claim is
    fenced. What readers' lists do not name is looked up in the log: a manifest may be lost.

    Args:
        addresses: of all partitions of the environment.
        deadline, answer_s: as ``unnamed_by_log``.
        known: takes hashes of files that were found to be named, which are not looked up again.
    """
    # The newest claims are looked up first: all that older ones named stands in the lists then.
    epochs = {address: _newest_epoch(blobs, address) for address in addresses}
    # Hashes take a twentieth of the memory of paths. Of two paths with the same one, an orphan
    # stays.
    named = np.unique(np.fromiter(map(hash, _named_paths(blobs, addresses)), np.int64))
    unnamed, seen = list[str](), set[int]()
    for path in _closed_files(blobs, epochs):
        if (hashed := hash(path)) in known:
            seen.add(hashed)
        elif not _has(named, hashed):
            unnamed.append(path)
    known &= seen
    return unnamed_by_log(broker, layout, unnamed, deadline, answer_s, known)


def abandoned_groups(blobs: Blobs, address: PartitionAddress, before_us: int) -> set[str]:
    """Returns the files of groups that were staged for the partition before that time."""
    listed = [blob.path for blob in blobs.list(staged_prefix(address))]
    return {one for one in listed if (found := staged_in(address, one)) and found[0] < before_us}


def unnamed_by_log(
    broker: Broker,
    layout: Layout,
    paths: Collection[str],
    deadline: Deadline,
    answer_s: float,
    known: MutableSet[int],
) -> list[str]:
    """Returns those of the row files that no event names. Of a seal log that cannot be read, none;
    nor once ``UNNAMED_S`` have passed: other jobs wait.

    Args:
        answer_s: how long a log's leader may take to answer.
        known: takes hashes of files that events name, so that the next call gets further.
    """
    within = Deadline(deadline.slice_s(UNNAMED_S), deadline.clock)
    by_address: defaultdict[PartitionAddress, dict[str, int]] = defaultdict(dict)
    for path in paths:
        writer = rows_writer_in(path)
        if writer is not None:
            by_address[writer.address][path] = writer.epoch
    found: list[str] = []
    for address, files in by_address.items():
        if within.passed():
            break
        where, newest = layout.groups_log(address), max(files.values())
        try:
            with closing(Follower(broker, {where: min(files.values())})) as follower:
                for confirmed in follower.read_to_end(within, ends_within_s=answer_s):
                    event = confirmed.event
                    # Events of a claim stand behind it, and before the next one.
                    if isinstance(event, Claimed) and confirmed.offset > newest:
                        break
                    if isinstance(event, Flushed):
                        named = {file.path for file in (*event.files, *event.incomplete)}
                        known |= {hash(path) for path in named & files.keys()}
            found += (path for path in files if hash(path) not in known)
        except (BrokerUnavailable, OffsetLost, UnreadableLog) as error:
            _log.warning("%s: orphans stay, since its seal log is not read: %s", address, error)
    return sorted(found)


def _named_paths(blobs: Blobs, addresses: Sequence[PartitionAddress]) -> Iterator[str]:
    """The row files that readers' lists name, and retired ones. These are named by no such list,
    and deleted by steps of their own."""
    for named in named_files(blobs):
        yield named.path
    for address in addresses:
        for one in retired_blobs(blobs, address):
            yield from (file.path for file in (*one.kept, *one.newest))


def _has(sorted_hashes: NDArray[np.int64], wanted: int) -> bool:
    at = int(np.searchsorted(sorted_hashes, wanted))
    return at < len(sorted_hashes) and int(sorted_hashes[at]) == wanted


def _closed_files(blobs: Blobs, epochs: Mapping[PartitionAddress, int]) -> Iterator[str]:
    """The row files of claims older than these, by partition. The partitions are of one
    environment."""
    (environment,) = {address.environment for address in epochs}
    for kind in (GROUPS, INCOMPLETE):
        for blob in blobs.list(rows_prefix(kind, environment)):
            writer = rows_writer_in(blob.path)
            if writer is not None and writer.epoch < epochs.get(writer.address, 0):
                yield blob.path


def _newest_epoch(blobs: Blobs, address: PartitionAddress) -> int:
    """Of the newest manifest; 0: there is none."""
    offset = newest_offset(blobs, address)
    return 0 if offset is None else load_manifest(blobs, manifest_path(address, offset)).event.epoch


def _is_retired(
    blobs: Blobs, path: str, retired: dict[PartitionAddress, RetiredFiles]
) -> bool | None:
    """Whether all groups of a batch are in retired files; None: the file is damaged, or gone."""
    try:
        content = orjson.loads(blobs.read(path))
        groups = [
            (
                PartitionAddress(group["environment"], group["generation"], group["partition"]),
                group["offset"],
                group.get("path"),
            )
            for group in [*content["groups"], *content.get("carried", ())]
        ]
    except (BlobMissing, ValueError, KeyError, TypeError):
        return None
    for address, offset, file in groups:
        if address not in retired:
            retired[address] = retired_of(blobs, address)
        if not _has_group(retired[address], offset, file):
            return False
    return True


def _has_group(retired: RetiredFiles, offset: int, path: str | None) -> bool:
    """Whether the file of a group is retired; of a group without a path all files of its flush."""
    if path is not None:
        return retired.has(NamedFile(offset, path))
    return offset < retired.below and all(file.offset != offset for file in retired.kept)
