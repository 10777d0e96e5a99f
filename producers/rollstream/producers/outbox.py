"""The core of both producers, without I/O: builds entries and collects failed deliveries.

Time and names come in, entries go out; ``RolloutProducer`` and ``AsyncRolloutProducer`` send them.
"""

from __future__ import annotations

import itertools
from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Any

from rollstream.producers.errors import DeliveryFailed, RolloutTooLarge
from rollstream.producers.validate import GroupAddress, segment_fields
from rollstream.runtime.clock import Clock
from rollstream.schemas.errors import InvalidRollout, RollstreamError
from rollstream.schemas.fields import row_fields
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry, EntryKind, Failure
from rollstream.streams.topics.layout import RECORD_BYTES_MAX, BadName, Layout

# Kafka counts the batch around a record too: 61 bytes of batch, at most 21 of record.
ROLLOUT_BYTES_MAX = RECORD_BYTES_MAX - 1024
REASON_CHARS_MAX = 500
# A rollout of more is encoded only to learn its size: what ``_size`` leaves out takes less than the
# difference.
_MEASURED_BYTES = ROLLOUT_BYTES_MAX - 256 * 1024
_NAMES_BYTES = 128  # Of an entry's names and numbers, about.
_COMPONENT_BYTES = 32  # Of a named number, about.


Address = tuple[str, int]
"""A partition: topic and number."""


class Outgoing:
    """One entry on its way into a log.

    Attributes:
        entry: None once it is in a record that the writer took; payloads are held once.
        size: about how many bytes it takes in a record, not fewer.
        key: decides on its partition.
        address: that partition, once it is gathered.
        rollout_uid: of the rollout that it is about; empty where it is about a group.
        answer: of an awaited publish; its result is what kept the entry out of the log, if anything
            did.
    """

    __slots__ = ("address", "answer", "entry", "group_uid", "key", "rollout_uid", "size", "topic")

    def __init__(self, topic: str, entry: Entry, size: int, rollout_uid: str) -> None:
        self.topic = topic
        self.entry: Entry | None = entry
        self.size = size
        self.rollout_uid = rollout_uid
        self.group_uid: str = entry.fields["group_uid"]
        self.key: bytes = entry.key.encode()
        self.address: Address = topic, -1
        self.answer: Future[RollstreamError | None] | None = None

    @property
    def left(self) -> bool:
        """Whether it left this producer, so that it may be in the log."""
        return self.entry is None


class Outbox:
    """Builds entries and collects failed deliveries.

    Args:
        broker: its name, for messages.
        layout: names the topics.
        uid_prefix: no other producer has it; uids are made from it.
        clock: stamps ``created_ts``; the other arguments are those of ``RolloutProducer``.

    Attributes:
        undelivered: failed deliveries that ``raise_failures`` has to tell of.
    """

    def __init__(
        self,
        *,
        broker: str,
        environment: str,
        replica_id: str,
        worker_id: str,
        lineage: str,
        layout: Layout,
        uid_prefix: str,
        clock: Clock,
    ) -> None:
        self.broker = broker
        self.environment = environment
        self._worker_id = worker_id
        self._layout = layout
        self._uid_prefix = uid_prefix
        self._uids = itertools.count(1)  # Threads may share it: ``next`` is atomic.
        self._clock = clock
        self._topics: dict[str, str] = {}
        self.undelivered: list[tuple[Outgoing, RollstreamError]] = []
        given = {"environment": environment, "lineage": lineage, "replica_id": replica_id}
        self._stamped: Mapping[str, Any] = {**_defaults(), **given, "rollout_uid": ""}

    def new_uid(self) -> str:
        """A uid that no other producer makes."""
        return f"{self._uid_prefix}-{next(self._uids):x}"

    def stamped(self, address: GroupAddress) -> Mapping[str, Any]:
        """The fields of a rollout of this group for which nothing is given, for ``fields``."""
        return {**self._stamped, **address._asdict()}

    def fields(
        self, given: Mapping[str, Any], stamped: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """One segment's fields from ``RolloutArguments``: checked, stamped and copied."""
        fields = segment_fields(given, stamped or self._stamped)
        if not fields["rollout_uid"]:
            fields["rollout_uid"] = self.new_uid()
        fields["created_ts"] = self._clock.now_us()
        return fields

    def rollout(self, fields: Mapping[str, Any]) -> Outgoing:
        """The entry of one segment, from checked fields."""
        uid: str = fields["rollout_uid"]
        environment: str = fields["environment"]
        topic = self._topics.get(environment) or self.topic(environment)
        outgoing = Outgoing(topic, Entry(fields), _size(fields), uid)
        if outgoing.size > _MEASURED_BYTES:
            outgoing.size = size = len(self.encode([outgoing], partitions=1))
            if size > ROLLOUT_BYTES_MAX:
                remedy = "publish it as several segments, or leave out token_arrays and attachments"
                raise RolloutTooLarge(f"rollout {uid}", size, ROLLOUT_BYTES_MAX, remedy)
        return outgoing

    def dispatched(self, address: GroupAddress) -> Outgoing:
        """The control event that a group was begun."""
        return self._control(address, EntryKind.DISPATCHED, None, "", "")

    def failed(
        self, address: GroupAddress, reason: str, count: int, rollout_uid: str = ""
    ) -> Outgoing:
        """The control event that members of a group, or one trajectory, will never come.

        One that is about no trajectory has a uid of its own: sent twice, it counts once.
        """
        shown = reason[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()
        failure = Failure(count, shown)
        uid = rollout_uid or self.new_uid()
        return self._control(address, EntryKind.FAILED, failure, uid, rollout_uid)

    def encode(self, outgoing: Sequence[Outgoing], partitions: int) -> bytes:
        """The record of these entries, all of one partition of a topic of ``partitions``."""
        entries = [one.entry for one in outgoing if one.entry is not None]
        return encode_entries(
            entries,
            environment=entries[0].fields["environment"],
            worker_id=self._worker_id,
            partitions=partitions,
        )

    def topic(self, environment: str) -> str:
        """The ingest log of an environment; ``InvalidRollout`` where none can have that name."""
        try:
            return self._topics.setdefault(environment, self._layout.rollouts(environment))
        except BadName as wrong:
            raise InvalidRollout(f"environment {wrong}") from None

    def raise_failures(self, outstanding: int = 0, *, nothing_queued: bool = False) -> None:
        """Raises the failed deliveries since the last call as one ``failure``, if any."""
        if self.undelivered:
            failed, self.undelivered = self.undelivered, []
            raise self.failure(failed, outstanding, nothing_queued=nothing_queued)

    def failure(
        self,
        failed: Sequence[tuple[Outgoing, RollstreamError]],
        outstanding: int = 0,
        *,
        nothing_queued: bool = False,
    ) -> DeliveryFailed:
        """These failures as one error; the other arguments are its attributes."""
        uids = dict.fromkeys(about.rollout_uid for about, _ in failed if about.rollout_uid)
        groups = dict.fromkeys(about.group_uid for about, _ in failed if not about.rollout_uid)
        return DeliveryFailed(
            list(uids),
            list(groups),
            self.broker,
            str(failed[0][1]),
            outstanding=outstanding,
            nothing_queued=nothing_queued,
        )

    def _control(
        self,
        address: GroupAddress,
        kind: EntryKind,
        failure: Failure | None,
        uid: str,
        about_rollout: str,
    ) -> Outgoing:
        fields = {
            **self.stamped(address),
            "rollout_uid": uid,
            "policy_version": "",
            "created_ts": self._clock.now_us(),
        }
        topic = self.topic(address.environment)
        return Outgoing(topic, Entry(fields, kind, failure), _size(fields), about_rollout)


def _size(fields: Mapping[str, Any]) -> int:
    """About how many bytes of a record they take; fewer only where a name is long, and each such
    name has a bound."""
    size = _NAMES_BYTES + len(fields["prompt_tokens"]) + len(fields["output_tokens"])
    size += len(fields["logprobs"] or b"") + len(fields["loss_mask"] or b"")
    size += _text_size(fields["metadata"])
    if len(fields) > _PLAIN_FIELDS:
        for name in fields.keys() & _EXTRAS:
            value = fields[name]
            if name == "token_arrays":
                size += sum(_text_size(key) + len(array.data) for key, array in value.items())
            elif name == "attachments":
                size += sum(_text_size(key) + len(data) for key, data in value.items())
            elif name == "rewards":
                size += sum(_text_size(key) + _COMPONENT_BYTES for key in value)
            elif isinstance(value, str):
                size += _text_size(value)
            elif isinstance(value, bytes):
                size += len(value)
    return size


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


def _defaults() -> dict[str, Any]:
    """What a segment has where nothing is given: every field but the extras.

    None for a field that must be given; arrays packed.
    """
    plain = {
        field.name: None if field.required else field.default
        for field in row_fields().values()
        if not field.extra
    }
    return {**plain, "prompt_tokens": b"", "output_tokens": b""}


_PLAIN_FIELDS = len(_defaults())
_EXTRAS = frozenset(field.name for field in row_fields().values() if field.extra)
