"""The core of both producers, without I/O: builds entries and what tells of their failures.

Time and names come in, entries go out; ``RolloutProducer`` and ``AsyncRolloutProducer`` send them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rollstream.producers.admission.standing import Standing
from rollstream.producers.errors import RolloutTooLarge
from rollstream.producers.rollouts.arguments import AppendedArguments, RolloutArguments
from rollstream.producers.rollouts.together import segments_together
from rollstream.producers.rollouts.validate import (
    UNSTAMPED,
    GroupAddress,
    Segment,
    common_of,
    own_of,
    segment,
)
from rollstream.runtime.clock import Clock
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.fields import REQUIRED_ARRAYS, row_fields
from rollstream.schemas.ids import READS_ITS_SHARE, step_rollout_uid
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import PLAIN, STEP_KINDS, Entry, EntryKind, Failure, Producer
from rollstream.streams.topics.layout import RECORD_BYTES_MAX, BadName, Layout

if TYPE_CHECKING:
    from rollstream.producers.engine.waits import Wait

# Kafka counts the batch around a record too: 61 bytes of batch, at most 21 of record.
ROLLOUT_BYTES_MAX = RECORD_BYTES_MAX - 1024
REASON_CHARS_MAX = 500
# A rollout of more is encoded only to learn its size: what its size leaves out takes less than the
# difference.
_MEASURED_BYTES = ROLLOUT_BYTES_MAX - 256 * 1024
_CONTROL_BYTES = 128  # Of a control event, about.
_UID, _SEGMENT_IDX = map(PLAIN.index, ("rollout_uid", "segment_idx"))
_TRAJECTORY_UID = "trajectory_uid"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_kind = attrgetter("kind")
_OF_SEGMENTS = RolloutArguments.__annotations__.keys() - AppendedArguments.__annotations__.keys()
_OF_UID = (EntryKind.SEGMENT, *STEP_KINDS)
_TELLING = (EntryKind.DISPATCHED.value, EntryKind.ALIVE.value)

Address = tuple[str, int]
"""A partition: topic and number."""


class Outgoing:
    """One entry on its way into a log.

    Attributes:
        entry: None once it is in a record that the writer took; payloads are held once.
        size: about how many bytes it takes in a record, not fewer.
        key: decides on its partition.
        address: that partition, once it is gathered.
        answered: whether it is known what became of it.
        group_uid: empty where it is about no group that was named.
        segment_idx: of a segment; None where the entry is of another kind.
        rollout_uid: of the rollout that it is about; empty where it is about a group, or says that
            the producer lives.
        trajectory_uid: of a step, or of a trajectory's end: as its caller names the trajectory;
            empty where that is ``rollout_uid``.
        said: what a step says of its policy; None: the entry has the whole policy.
        left: whether it is in a record that left this producer, so that it may be in the log.
        wait: the call that waits until it is in the log; None: nobody does.
        withdrawn: whether it is not sent any more.
        number: counts the entries of a producer from 1, in the order of the calls; 0: it was not
            gathered.
    """

    trajectory_uid = ""
    said: tuple[Any, ...] | None = None
    wait: Wait | None = None
    answered = left = withdrawn = False
    number = 0

    def __init__(self, topic: str, entry: Entry, size: int, rollout_uid: str) -> None:
        self.topic = topic
        self.entry: Entry | None = entry
        self.size = size
        self.rollout_uid = rollout_uid
        example_id: str
        example_id, self.group_uid = entry.plain[:2]
        self.key = self.group_uid or example_id
        of_one = entry.kind in _OF_UID  # A segment that its uid and index name.
        self.segment_idx: int | None = entry.plain[_SEGMENT_IDX] if of_one else None
        self.address: Address = topic, -1

    @property
    def named(self) -> str:
        """The rollout, as the caller names it."""
        return self.trajectory_uid or self.rollout_uid


@dataclass(eq=False, kw_only=True)
class Outbox:
    """Builds entries, and errors that name those that failed.

    Args:
        broker: its name, for messages.
        layout: names the topics.
        uid_prefix: no other producer has it; uids are made from it.
        clock: stamps ``created_ts``; the other arguments are those of ``RolloutProducer``.

    Attributes:
        producer_id: names this producer, in its life.
        standings: how the producer stands with each environment that it asked for admission.
    """

    broker: str
    environment: str
    replica_id: str
    worker_id: str
    lineage: str | None
    layout: Layout
    uid_prefix: str
    clock: Clock
    standings: dict[str, Standing] = field(default_factory=dict)
    _topics: dict[str, str] = field(default_factory=dict)
    _environments: dict[str, str] = field(default_factory=dict)  # Of these topics.

    def __post_init__(self) -> None:
        self.producer_id = self.uid_prefix + READS_ITS_SHARE
        self._uids = itertools.count(1)  # Threads may share it: ``next`` is atomic.
        names = {"lineage": self.lineage or "", "replica_id": self.replica_id}
        self._stamped: Mapping[str, Any] = {
            **UNSTAMPED,
            **names,
            "environment": self.environment,
        }
        self._of_control: Mapping[str, Any] = {
            **{name: one.default for name, one in row_fields().items() if not one.extra},
            **names,
            **dict.fromkeys(REQUIRED_ARRAYS, b""),
        }

    def new_uid(self) -> str:
        """A uid that no other producer makes."""
        return f"{self.uid_prefix}-{next(self._uids):x}"

    def stamped(self, address: GroupAddress) -> Mapping[str, Any]:
        """What a rollout of this group has where nothing is given, for ``segment``."""
        return {**self._stamped, **address._asdict()}

    def segment(
        self, given: Mapping[str, Any], stamped: Mapping[str, Any] | None = None
    ) -> Segment:
        """One segment from ``RolloutArguments``: checked, stamped and copied."""
        common = common_of(given, stamped or self._stamped, self.clock.now_us())
        return segment(common, own_of(common.whole), self.new_uid)

    def together(self, given: Mapping[str, Any], stamped: Mapping[str, Any]) -> list[Segment]:
        """The segments of several members of a group (``ManyArguments``)."""
        return segments_together(given, stamped, self.clock.now_us(), self.new_uid)

    def appended(
        self, given: Mapping[str, Any], stamped: Mapping[str, Any] | None = None
    ) -> Segment:
        """A whole rollout (``AppendedArguments``) that makes the group that it names one larger."""
        for name in _OF_SEGMENTS & given.keys():
            raise TypeError(f"{name!r} is not given: one whole rollout is appended")
        environment, entry, size = self.segment(given, stamped)
        if not entry.fields["group_uid"]:
            remedy = "name the group that is to be one member larger, or publish()"
            raise InvalidRollout("group_uid", "", remedy)
        return environment, entry._replace(kind=EntryKind.APPENDED), size

    def rollout(self, of: Segment) -> Outgoing:
        """The segment on its way; ``RolloutTooLarge`` where no record can hold it."""
        environment, entry, size = of
        outgoing = Outgoing(self.topic(environment), entry, size, entry.plain[_UID])
        if size > _MEASURED_BYTES:
            outgoing.size = size = len(self.encode([outgoing], partitions=1))
            if size > ROLLOUT_BYTES_MAX:
                what = f"rollout {entry.extras.get(_TRAJECTORY_UID, outgoing.rollout_uid)}"
                remedy = "publish it as several segments, or leave out token_arrays and attachments"
                raise RolloutTooLarge(what, size, ROLLOUT_BYTES_MAX, remedy)
        return outgoing

    def dispatched(self, address: GroupAddress) -> Outgoing:
        """The control event that a group was begun."""
        return self._control(address, EntryKind.DISPATCHED)

    def alive(self, environment: str) -> Outgoing:
        """That this producer has groups open, or waits; of no group."""
        address = GroupAddress(environment, self.producer_id, "", 0, "train")
        return self._control(address, EntryKind.ALIVE)

    def failed(
        self, address: GroupAddress, reason: str, count: int, rollout_uid: str = ""
    ) -> Outgoing:
        """The control event that members of a group, or one trajectory, will never come.

        One that is about no trajectory has a uid of its own: sent twice, it counts once.
        """
        shown = reason[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()
        return self._control(address, EntryKind.FAILED, Failure(count, shown), rollout_uid)

    def ended(self, address: GroupAddress, uid: str, segments: int) -> Outgoing:
        """The control event that a trajectory of steps, of this uid, has ended with so many
        segments, 0: with those that are before it in the log."""
        own = {"segment_idx": segments, _TRAJECTORY_UID: uid}
        of = step_rollout_uid(address.group_uid, uid)
        ended = self._control(address, EntryKind.ENDED, uid=of, own=own)
        ended.trajectory_uid = uid
        return ended

    def encode(self, outgoing: Sequence[Outgoing], partitions: int) -> bytes:
        """The record of these entries, all of one partition of a topic of ``partitions``."""
        environment = self._environments[outgoing[0].topic]
        entries = [one.entry for one in outgoing if one.entry is not None]
        standing = self.standings.get(environment)
        return encode_entries(
            entries,
            environment=environment,
            worker_id=self.worker_id,
            partitions=partitions,
            producer=None if standing is None else _told(entries, standing),
        )

    def standing(self, environment: str) -> Standing:
        """How this producer stands with an environment."""
        standing = self.standings.get(environment)
        if standing is None:  # Of threads that ask at once, all get the same.
            standing = self.standings.setdefault(environment, Standing(self.producer_id))
        return standing

    def topic(self, environment: str) -> str:
        """The ingest log of an environment; ``InvalidRollout`` where none can have that name."""
        topic = self._topics.get(environment)
        if topic is None:
            try:
                topic = self.layout.rollouts(environment)
            except BadName as bad:
                raise InvalidRollout("environment", environment, bad.remedy, bad.finding) from None
            self._environments[topic] = environment
            self._topics[environment] = topic
        return topic

    def environment_of(self, topic: str) -> str:
        """The environment of a topic that was made here."""
        return self._environments[topic]

    def _control(
        self,
        address: GroupAddress,
        kind: EntryKind,
        failure: Failure | None = None,
        uid: str = "",
        own: Mapping[str, Any] = _NOTHING,
    ) -> Outgoing:
        fields = {**self._of_control, **own, **address._asdict()}
        fields["rollout_uid"] = uid or (self.new_uid() if failure else "")
        fields["created_ts"] = self.clock.now_us()
        topic = self.topic(address.environment)
        return Outgoing(topic, Entry.of(fields, kind, failure), _CONTROL_BYTES, uid)


def _told(entries: Sequence[Entry], standing: Standing) -> Producer | None:
    """What a record with these says of its producer: where groups begin, or it lives."""
    if not any(map(_kind, entries)):  # Segments alone.
        return None
    return standing.says() if any(entry.kind in _TELLING for entry in entries) else None
