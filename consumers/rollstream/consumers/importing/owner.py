"""The owner's part of an import: reads what is staged, and finds what was ever sealed of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from rollstream.consumers.assembling import Assembler, DueGroup
from rollstream.consumers.assembling.decisions import values_of
from rollstream.consumers.beside.backoff import described
from rollstream.consumers.beside.context import OwnerContext
from rollstream.consumers.importing.staged import COMPRESSIONS, decode_staged
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.digest import checksum
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress, group_id
from rollstream.store import CorruptFile
from rollstream.store.layout import staged_in
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.folds.seal import OpenRequest
from rollstream.streams.owned.follow import Follower
from rollstream.streams.partitioning import partition_of


class StagedGroups(NamedTuple):
    """What a request asks for.

    Attributes:
        groups: each with its id and the bytes of its records.
        sealed: ids of those that were ever sealed, whatever became of their files.
        refused: why nothing can be imported; empty: it can.
    """

    groups: Sequence[tuple[str, DueGroup, int]] = ()
    sealed: Collection[str] = ()
    refused: str = ""

    def decide(self, assembler: Assembler) -> str:
        """Has the assembler seal those that are new; what was skipped, in words."""
        new = [(due, size) for name, due, size in self.groups if name not in self.sealed]
        taken = sum(assembler.add_imported(due, size) for due, size in new)
        skipped = {
            "sealed before": len(self.groups) - len(new),
            "with a rollout that is in another group, or waits for one": len(new) - taken,
        }
        return "; ".join(f"skipped {n:,}, {why}" for why, n in skipped.items() if n)


def read_staged(
    context: OwnerContext,
    address: PartitionAddress,
    where: TopicPartition,
    offset: int,
    request: OpenRequest,
    deadline: Deadline,
) -> StagedGroups:
    """Reads the staged file of the request at this offset of the seal log ``where``, and the log
    from its beginning: beyond the dedupe horizon no fold knows what was sealed.

    Args:
        deadline: for each answer of the broker, however long the log is.

    Raises:
        BrokerUnavailable: the log was not read.
    """
    try:
        groups = list(_groups(context, address, offset, request))
        return _compared(context, where, offset, groups, deadline)
    except BrokerUnavailable:
        raise
    except Exception as error:  # noqa: BLE001, anybody may ask for anything, and no sealer ends
        text, _ = described(error)
        return StagedGroups(refused=f"{request.event.staged!r} cannot be imported: {text}")


def _compared(
    context: OwnerContext,
    where: TopicPartition,
    offset: int,
    groups: Sequence[tuple[str, DueGroup, int]],
    deadline: Deadline,
) -> StagedGroups:
    """Finds what the log has of the groups of the request at this offset."""
    wanted = {name for name, _, _ in groups}
    sealed: set[str] = set()
    done: set[str] = set()  # By a predecessor, for this request.
    deadline.restart()
    with closing(Follower(context.broker, {where: 0})) as follower:
        for one in follower.read_to_end(deadline, ends_within_s=context.ask_s):
            deadline.restart()
            if isinstance(one.event, Flushed):
                found = wanted.intersection(group.group_id for group in one.event.groups)
                (done if one.event.request == offset else sealed).update(found)
    return StagedGroups([one for one in groups if one[0] not in done], sealed)


def _groups(
    context: OwnerContext, address: PartitionAddress, offset: int, request: OpenRequest
) -> Iterator[tuple[str, DueGroup, int]]:
    event, row = request.event, 0
    name = staged_in(address, event.staged)
    if name is None:
        raise CorruptFile(f"it is no file that was staged for {address}; stage the groups again")
    if event.compression not in ("", *COMPRESSIONS):
        raise CorruptFile(f"compression {event.compression!r} is none of {COMPRESSIONS}")
    data = context.blobs.read(event.staged)
    if name[1] != checksum(data):
        raise CorruptFile("it is damaged; stage the groups again")
    for group in decode_staged(data):
        due = group.due(row, offset, request.asked_us, event.compression)
        row += len(due.rows)
        key, uids = due.key, set(values_of(due.rows, "rollout_uid"))
        partition = partition_of(
            (key.group_uid or key.example_id).encode(), context.config.partitions
        )
        if (key.environment, partition) != (address.environment, address.partition):
            raise CorruptFile(f"group {group.id} is not of {address}; stage the groups again")
        if group_id(key, uids) != group.id:
            raise CorruptFile(f"group {group.id} has another id; stage the groups again")
        yield group.id, due, group.size
