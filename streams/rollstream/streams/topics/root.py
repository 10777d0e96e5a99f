"""Which store's root a deployment has: recorded in its seal logs, compared with a process's own.

The id stands in partition 0 of every environment's seal log, as ``RootRecorded``; claims name it
from then on. A log is searched from its beginning, where `topics create` writes it, then from its
end backwards: a deployment that was there before it had an id names it only from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from itertools import chain
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, RootRecorded
from rollstream.schemas.ids import PartitionAddress, RootId
from rollstream.schemas.wire_schemas import PREFIX_BYTES
from rollstream.streams.broker import EARLIEST, Broker, LogReader, TopicPartition
from rollstream.streams.errors import RootMismatch, UnreadableLog
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.reading import event_in, prefixes_of
from rollstream.streams.reading import bounds_in_time, read_between, windows_back
from rollstream.streams.topics.check import Difference
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.lost import WHERE_TO_READ, Followed, is_empty

CREATOR = "rollstream topics create"  # Owner of the claim under which a root is recorded.
WHAT = "root"  # `Difference.what` of a root.
OWNER = "root's owner"  # That of a root of another deployment.
_NOBODY = Layout("", 0)
_HEAD_RECORDS = 64
_CREATE = "run `rollstream topics create`"
_REMEDY = (
    "correct store.root, or mount what should be there and start again; a new deployment takes a "
    f"kafka.namespace and a root of its own, then {_CREATE}"
)
_OWNER_REMEDY = (
    "correct store.root, kafka.namespace or kafka.generation. A new deployment takes a root of its "
    "own: two that write to one root destroy each other's files"
)
_LOST = (
    "the log is empty, and this root holds manifests of its flushes: the log was lost, or this is "
    f"another deployment's root. Restore the log, or correct store.root; {WHERE_TO_READ}"
)


class StoreRoot(NamedTuple):
    """A store's root as a process has it.

    Attributes:
        root: ``store.root``.
        identity: that the root holds.
        followed: what it holds besides.
    """

    root: str
    identity: RootId
    followed: Followed

    @property
    def root_id(self) -> str:
        """Empty: the root has none."""
        return self.identity.root_id

    def __str__(self) -> str:
        return f"{self.root} has the id {self.root_id}" if self.root_id else f"{self.root} has none"


class RecordedRoot(NamedTuple):
    """The root that a seal log names, at this offset; ``root`` is empty where only a claim does."""

    offset: int
    root_id: str
    root: str

    def __str__(self) -> str:
        made_for = f", recorded for {self.root}" if self.root else ""
        return f"{self.root_id} (offset {self.offset}{made_for})"


def root_log(layout: Layout, environment: str) -> TopicPartition:
    """The partition of an environment's seal log that names the root."""
    return layout.groups_log(PartitionAddress(environment, layout.generation, 0))


def recorded_root(broker: Broker, where: TopicPartition, deadline: Deadline) -> RecordedRoot | None:
    """The root that a seal log names; None: it names none. Claims nothing.

    Raises:
        BrokerUnavailable: not read in time.
    """
    with closing(broker.reader({where: EARLIEST})) as reader:
        first, end = bounds_in_time(reader, where, deadline)
        head = min(end, first + _HEAD_RECORDS)
        for begin, stop in chain([(first, head)], windows_back(first, end)):
            if found := _named_in(reader, where, begin, stop, deadline):
                return found
    return None


def root_differences(
    broker: Broker,
    layout: Layout,
    environments: Iterable[str],
    found: StoreRoot,
    deadline: Deadline,
) -> list[Difference]:
    """How a process's root differs from what each environment's seal log names, or whose it is;
    empty where it does not. The logs must exist.

    Raises:
        BrokerUnavailable: not read in time.
    """
    if other := owner_difference(layout, found):
        return [other]
    differences = []
    for environment in sorted(environments):
        where = root_log(layout, environment)
        recorded = recorded_root(broker, where, deadline)
        if recorded is None:
            lost = found.followed.has_manifests(environment, layout.generation)
            remedy = _LOST if lost and is_empty(broker, where, deadline) else _CREATE
            differences.append(Difference(str(where), WHAT, "", str(found), remedy))
        elif recorded.root_id != found.root_id:
            differences.append(Difference(str(where), WHAT, str(recorded), str(found), _REMEDY))
    return differences


def owner_difference(layout: Layout, found: StoreRoot) -> Difference | None:
    """Where another namespace or generation recorded the root as its own. None: none did, or a
    version that did not name its deployment. Pure."""
    owner = Layout(*found.identity[1:])
    if owner in (layout, _NOBODY):
        return None
    wanted, actual = _deployment(layout), _deployment(owner)
    return Difference(found.root, OWNER, wanted, actual, _OWNER_REMEDY)


def _deployment(layout: Layout) -> str:
    return f"namespace {layout.namespace}, generation {layout.generation}"


def require_root(
    broker: Broker,
    layout: Layout,
    environments: Iterable[str],
    found: StoreRoot,
    deadline: Deadline,
) -> None:
    """Returns when the root is the deployment's.

    Raises:
        RootMismatch: with the first difference and what to do about it. BrokerUnavailable: as
        ``root_differences``.
    """
    for difference in root_differences(broker, layout, environments, found, deadline):
        raise RootMismatch(str(difference))


def _named_in(
    reader: LogReader, where: TopicPartition, start: int, stop: int, deadline: Deadline
) -> RecordedRoot | None:
    """What the records of [start, stop) name: the event itself where it is there, else a claim."""
    fence = Fence()
    by_claim = None
    for record in read_between(reader, where, start, stop, deadline):
        if record.value[:PREFIX_BYTES] not in prefixes_of("claimed", "root_recorded"):
            continue
        try:
            event = event_in(record)
        except UnreadableLog:
            continue  # Whoever is to fold the log finds it; it names the root all the same.
        if event is None or not fence.admits(record.offset, event):
            continue
        if isinstance(event, RootRecorded):
            return RecordedRoot(record.offset, event.root_id, event.root)
        if isinstance(event, Claimed) and event.root_id:
            by_claim = RecordedRoot(record.offset, event.root_id, "")
    return by_claim
