"""The core of both producers, without I/O: builds records and collects failed deliveries.

Time and names come in, records go out; ``RolloutProducer`` and ``AsyncRolloutProducer`` send them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollstream.producers.errors import DeliveryFailed, RolloutTooLarge
from rollstream.producers.validate import GroupAddress, segment_fields
from rollstream.runtime.clock import Clock
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import encode, encode_rollout
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.events import Dispatched, Failed
from rollstream.schemas.wire_schemas import packed_dtype
from rollstream.streams.broker import Delivery
from rollstream.streams.errors import BrokerError
from rollstream.streams.topics.layout import RECORD_BYTES_MAX, BadName, Layout

# Kafka counts the batch around a record too: 61 bytes of batch, at most 21 of record.
ROLLOUT_BYTES_MAX = RECORD_BYTES_MAX - 1024
REASON_CHARS_MAX = 500
_ORIGIN = (
    *("environment", "example_id", "group_uid", "group_size"),
    *("replica_id", "worker_id", "created_ts"),
)


class Subject(NamedTuple):
    """What a record is about; ``rollout_uid`` is empty where it is about a group.

    It is all that is kept of a record on its way, so that payloads are held once, by the writer.
    """

    rollout_uid: str
    group_uid: str


class Outgoing(NamedTuple):
    """One record to be appended."""

    topic: str
    key: bytes
    value: bytes
    subject: Subject


class Outbox:
    """Builds records and collects failed deliveries.

    Args:
        broker: its name, for messages.
        layout: names the topics.
        uid_prefix: no other producer has it; uids are made from it.
        clock: stamps ``created_ts``; the other arguments are those of ``RolloutProducer``.
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
        self._layout = layout
        self._uid_prefix = uid_prefix
        self._uids = itertools.count(1)  # Threads may share it: ``next`` is atomic.
        self._clock = clock
        self._topics: dict[str, str] = {}
        self.undelivered: list[tuple[Subject, BrokerError]] = []
        self._stamped: Mapping[str, Any] = {
            **_wire_defaults(),
            "environment": environment,
            "rollout_uid": "",
            "lineage": lineage,
            "replica_id": replica_id,
            "worker_id": worker_id,
        }

    def new_uid(self) -> str:
        """A uid that no other producer makes."""
        return f"{self._uid_prefix}-{next(self._uids):x}"

    def stamped(self, address: GroupAddress) -> Mapping[str, Any]:
        """The fields of a rollout of this group for which nothing is given, for ``fields``."""
        return {**self._stamped, **address._asdict()}

    def fields(
        self, given: Mapping[str, Any], stamped: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """One segment's fields from ``RolloutArguments``: checked and stamped, not yet encoded."""
        fields = segment_fields(given, stamped or self._stamped)
        if not fields["rollout_uid"]:
            fields["rollout_uid"] = self.new_uid()
        fields["created_ts"] = self._clock.now_us()
        return fields

    def rollout(self, fields: Mapping[str, Any]) -> Outgoing:
        """The record of one segment, from checked fields."""
        uid, group_uid = fields["rollout_uid"], fields["group_uid"]
        try:
            value = encode_rollout(fields)
            key = (group_uid or fields["example_id"]).encode()
        except UnicodeEncodeError as error:
            raise _no_utf8(error) from error
        size = len(value) + len(key)
        if size > ROLLOUT_BYTES_MAX:
            remedy = "publish it as several segments, or leave out token_arrays and attachments"
            raise RolloutTooLarge(f"rollout {uid}", size, ROLLOUT_BYTES_MAX, remedy)
        environment = fields["environment"]
        topic = self._topics.get(environment) or self._topic(environment)
        return Outgoing(topic, key, value, Subject(uid, group_uid))

    def dispatched(self, address: GroupAddress) -> Outgoing:
        """The control event that a group was begun."""
        return self._control(Dispatched(**self._origin(address)), rollout_uid="")

    def failed(
        self, address: GroupAddress, reason: str, count: int, rollout_uid: str = ""
    ) -> Outgoing:
        """The control event that members of a group, or one trajectory, will never come."""
        shown = reason[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()
        failed = Failed(**self._origin(address), count=count, rollout_uid=rollout_uid, reason=shown)
        return self._control(failed, rollout_uid)

    def record_failure(self, subject: Subject, delivery: Delivery) -> None:
        """Keeps a failed delivery for ``raise_failures``; called for every delivery report."""
        if delivery.error is not None:
            self.undelivered.append((subject, delivery.error))

    def raise_failures(self, outstanding: int = 0, *, nothing_queued: bool = False) -> None:
        """Raises the failed deliveries since the last call as one ``DeliveryFailed``, if any; the
        arguments are its attributes."""
        if self.undelivered:
            failed, self.undelivered = self.undelivered, []
            raise self.failure(failed, outstanding, nothing_queued=nothing_queued)

    def failure(
        self,
        failed: Sequence[tuple[Subject, BrokerError]],
        outstanding: int = 0,
        *,
        nothing_queued: bool = False,
    ) -> DeliveryFailed:
        """These failures as one error."""
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

    def _origin(self, address: GroupAddress) -> dict[str, Any]:
        """What control events of a group have in common: which one, by whom, when."""
        stamped = {**self.stamped(address), "created_ts": self._clock.now_us()}
        return {name: stamped[name] for name in _ORIGIN}

    def _control(self, event: Dispatched | Failed, rollout_uid: str) -> Outgoing:
        try:
            value = encode(event)
            key = (event.group_uid or event.example_id).encode()
        except UnicodeEncodeError as error:
            raise _no_utf8(error) from error
        topic = self._topic(event.environment)
        return Outgoing(topic, key, value, Subject(rollout_uid, event.group_uid))

    def _topic(self, environment: str) -> str:
        try:
            return self._topics.setdefault(environment, self._layout.rollouts(environment))
        except BadName as wrong:
            raise InvalidRollout(f"environment {wrong}") from None


def _no_utf8(error: UnicodeEncodeError) -> InvalidRollout:
    return InvalidRollout(f"{error.object!r} cannot be written as UTF-8: {error}")


def _wire_defaults() -> dict[str, Any]:
    """The ``rollout`` schema's defaults, packed; None for a field that must be given."""
    fields = wire_schemas.newest("rollout").fields
    defaults = {field["name"]: field.get("default") for field in fields}
    empty = [f["name"] for f in fields if packed_dtype(f["type"]) and f["default"] == ""]
    return {**defaults, **dict.fromkeys(empty, b"")}
