"""What both producers are shells over: arguments to records, and the account of what went wrong.

It does no I/O: time and names come in, records go out; the shells send them.
"""

from __future__ import annotations

import itertools
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rollstream.producers.errors import DeliveryFailed, RolloutTooLarge
from rollstream.producers.validate import segment_fields
from rollstream.runtime.clock import Clock
from rollstream.schemas.codec import encode, encode_rollout
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.events import Dispatched, Failed
from rollstream.streams.broker import Delivery
from rollstream.streams.errors import BrokerError
from rollstream.streams.topics.layout import RECORD_BYTES_MAX, Layout

# Kafka counts the batch around a record too: 61 bytes of batch, at most 21 of record.
ROLLOUT_BYTES_MAX = RECORD_BYTES_MAX - 1024
REASON_CHARS_MAX = 500


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


class Send(Protocol):
    """How a shell sends: at once."""

    def __call__(self, record: Outgoing, *, tell: bool = True) -> None:
        """Queues it. ``tell``: raises first what failed before, and then queues nothing."""


Deliver = Callable[[Outgoing], Awaitable[None]]  # How the other shell does: the broker has it then.
IN_DOUBT = (DeliveryFailed, CancelledError)  # With these, ``Deliver`` may have queued the record.


class Outbox:
    """Makes records and keeps the account of those that failed.

    Args:
        broker: its name, for messages.
        environment: where a call names none; empty: every call must.
        replica_id: the env replica.
        worker_id: this process.
        lineage: of the policies that sample here.
        layout: names the topics.
        uid_prefix: no other producer has it; uids are made from it.
        clock: stamps ``created_ts``.
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
        self._replica_id = replica_id
        self._worker_id = worker_id
        self._layout = layout
        self._uid_prefix = uid_prefix
        self._uids = itertools.count(1)  # Threads may share it: ``next`` is atomic.
        self._clock = clock
        self._topics: dict[str, str] = {}
        self._undelivered: list[tuple[Subject, BrokerError]] = []
        self._stamped: Mapping[str, Any] = {
            "environment": environment,
            "example_id": None,
            "group_uid": "",
            "group_size": 0,
            "rollout_uid": "",
            "segment_idx": 0,
            "is_last_segment": True,
            "continuation_of": "",
            "prefix_hash": "",
            "lineage": lineage,
            "policy_version": None,
            "policy_epoch": 0,
            "weight_step": -1,
            "replica_id": replica_id,
            "worker_id": worker_id,
            "created_ts": 0,
            "prompt_count": 0,
            "token_count": 0,
            "reward": None,
            "split": "train",
            "stop_reason": "stop",
            "prompt_tokens": b"",
            "output_tokens": b"",
            "logprobs": None,
            "loss_mask": None,
            "rewards": {},
            "metadata": "{}",
            "extras": None,
        }

    def new_uid(self) -> str:
        """A uid that nobody else makes."""
        return f"{self._uid_prefix}-{next(self._uids):x}"

    def rollout(self, given: Mapping[str, Any]) -> Outgoing:
        """The record of one segment (``RolloutArguments``)."""
        return self.segment(self.fields(given))

    def fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """One segment's fields, checked and stamped, not yet encoded."""
        fields = segment_fields(given, self._stamped)
        if not fields["rollout_uid"]:
            fields["rollout_uid"] = self.new_uid()
        fields["created_ts"] = self._clock.now_us()
        return fields

    def segment(self, fields: Mapping[str, Any]) -> Outgoing:
        """The record of checked fields."""
        try:
            value = encode_rollout(fields)
            key = (fields["group_uid"] or fields["example_id"]).encode()
        except UnicodeEncodeError as error:
            raise InvalidRollout(f"{error.object!r} cannot be written as UTF-8: {error}") from error
        if len(value) + len(key) > ROLLOUT_BYTES_MAX:
            raise RolloutTooLarge(
                f"rollout {fields['rollout_uid']}",
                len(value) + len(key),
                ROLLOUT_BYTES_MAX,
                "publish it as several segments, or leave out token_arrays and attachments",
            )
        topic = self._topic(fields["environment"])
        return Outgoing(topic, key, value, Subject(fields["rollout_uid"], fields["group_uid"]))

    def dispatched(
        self, environment: str, example_id: str, group_uid: str, group_size: int
    ) -> Outgoing:
        """The word that a group was begun."""
        event = Dispatched(
            environment=environment,
            example_id=example_id,
            group_uid=group_uid,
            group_size=group_size,
            replica_id=self._replica_id,
            worker_id=self._worker_id,
            created_ts=self._clock.now_us(),
        )
        value = _encode(event)  # First: it says what cannot be written, the key too.
        return Outgoing(self._topic(environment), group_uid.encode(), value, Subject("", group_uid))

    def failed(
        self,
        environment: str,
        example_id: str,
        group_uid: str,
        group_size: int,
        *,
        count: int,
        reason: str,
        rollout_uid: str = "",
    ) -> Outgoing:
        """The word that members of a group, or one trajectory, will never come."""
        event = Failed(
            environment=environment,
            example_id=example_id,
            group_uid=group_uid,
            group_size=group_size,
            count=count,
            rollout_uid=rollout_uid,
            reason=reason[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode(),
            replica_id=self._replica_id,
            worker_id=self._worker_id,
            created_ts=self._clock.now_us(),
        )
        value = _encode(event)  # First: it says what cannot be written, the key too.
        key = (group_uid or example_id).encode()
        return Outgoing(self._topic(environment), key, value, Subject(rollout_uid, group_uid))

    def note(self, subject: Subject, delivery: Delivery) -> None:
        """Takes down what became of a record; nothing to take down where it arrived."""
        if delivery.error is not None:
            self._undelivered.append((subject, delivery.error))

    def take_failures(self, outstanding: int) -> DeliveryFailed | None:
        """What failed since it was asked last, as one error that names what a flush left too."""
        if not self._undelivered:
            return None
        failed, self._undelivered = self._undelivered, []
        return self.failure(failed, outstanding)

    def failure(
        self, failed: Sequence[tuple[Subject, BrokerError]], outstanding: int = 0
    ) -> DeliveryFailed:
        """These failures as one error."""
        uids = dict.fromkeys(subject.rollout_uid for subject, _ in failed if subject.rollout_uid)
        groups = dict.fromkeys(
            subject.group_uid for subject, _ in failed if not subject.rollout_uid
        )
        cause = str(failed[0][1])
        return DeliveryFailed(list(uids), list(groups), self.broker, cause, outstanding)

    def _topic(self, environment: str) -> str:
        topic = self._topics.get(environment)
        if topic is None:
            topic = self._topics[environment] = self._layout.rollouts(environment)
        return topic


def _encode(event: Dispatched | Failed) -> bytes:
    try:
        return encode(event)
    except UnicodeEncodeError as error:
        raise InvalidRollout(f"{error.object!r} cannot be written as UTF-8: {error}") from error


def reason_of(error: BaseException) -> str:
    """Why the members that an exception cut off will never come."""
    return f"raised {type(error).__name__}: {error}"
