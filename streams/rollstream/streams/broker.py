"""The interfaces of a broker. This file is the contract; one suite tests ``MemoryBroker`` and
``KafkaBroker`` against it (``tests/contract/streams/test_broker_contract.py``).

Every wait has a deadline in seconds. Nothing here knows what a rollout is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from rollstream.streams.errors import BrokerError

EARLIEST = -2  # A start position: the oldest offset that is kept.
END = -1  # A start position: after the newest record.
C = TypeVar("C")
IDLE_S = 0.05  # How long the broker holds an idle reader's request; a seek waits for it.


class TopicPartition(NamedTuple):
    """One partition of a topic, in the broker's terms."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


Logs = Collection[TopicPartition]
Offsets = Mapping[TopicPartition, int]
"""An offset of each log."""
Bounds = dict[TopicPartition, tuple[int, int]]
"""Of each log the oldest offset that is kept, and the next one to be written."""
OnRevoked = Callable[[TopicPartition], None]
Headers = tuple[tuple[str, bytes], ...]
"""What a record says besides key and value: name and value of each header."""


class Record(NamedTuple):
    """One record as read. ``timestamp_us`` is the broker's clock (LogAppendTime) in microseconds,
    whose resolution is a millisecond. A header without a value has an empty one."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes
    headers: Headers = ()


class Delivery(NamedTuple):
    """The outcome of an append. Without ``error`` the record is durable at ``offset``.

    ``error`` is a ``DeliveryUnknown`` where the record may or may not be in the log, a
    ``PermanentBrokerError`` where it is certainly not. ``timestamp_us`` is that of ``Record``, -1
    with an error. ``value`` is the record's where it was refused as too large, for a writer that
    can send it in parts, else empty.
    """

    topic: str
    partition: int
    offset: int
    error: BrokerError | None
    timestamp_us: int = -1
    value: bytes = b""


OnDelivery = Callable[[Delivery], None]


class Writer(Protocol):
    """Appends to any log: idempotent, in order within a partition, acknowledged by all replicas.

    Not shared between threads, but for ``partitions``.
    """

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queues a record and returns at once.

        Without ``partition`` the key decides, by murmur2 as Kafka's Java client does. The callback
        runs inside ``poll`` or ``flush``, on the caller's thread. ``value`` None is a tombstone:
        compaction removes what stood under the key. Readers get it with an empty value.

        Raises:
            BufferFull: the queue is at its bound, or the client failed for good; ``poll`` makes
                room, or another client.
            RecordTooLarge: over the client's limit; nothing was queued.
        """

    def poll(self, timeout_s: float = 0.0) -> None:
        """Runs the callbacks that are due; waits up to ``timeout_s`` for the first."""

    def flush(self, timeout_s: float) -> int:
        """Waits until all are delivered or failed; returns how many are neither at the deadline."""

    def partitions(self, topic: str, timeout_s: float) -> int:
        """Asks the broker how many partitions the topic has; permission to write suffices.

        Raises:
            UnknownTopic, NotAuthorised, BrokerUnavailable: the broker's answer, or none in time.
        """

    def abandon(self) -> None:
        """Throws the writer away: what is queued is dropped, what is in flight is in doubt.

        Outstanding callbacks run with ``DeliveryUnknown`` before it returns. Never raises.
        """


class LogReader(Protocol):
    """Reads named partitions from named offsets. Not shared between threads.

    Within a partition records come in the order of offsets, none skipped, also where a ``poll``
    raised between. A marker that ends a transaction takes an offset and is no record.
    """

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        """Returns the next records; an empty list where none came within ``timeout_s``.

        Raises:
            OffsetLost: a wanted offset is not in the log any more; again at each call until the
                partition is sought elsewhere.
            BrokerUnavailable, NotAuthorised, UnknownTopic: the broker's answer, or none in time.
        """

    def bounds(self, where: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Asks the broker for (oldest offset that is kept, next offset to be written)."""
        return self.all_bounds([where], timeout_s)[where]

    def all_bounds(self, logs: Logs, timeout_s: float) -> Bounds:
        """The bounds of many logs, in a few requests; if one log has no answer, none has."""

    def offsets_at(self, ends: Offsets, timestamp_us: int, timeout_s: float) -> Offsets:
        """Asks the broker for the first offset of each log whose record is as new as that, by its
        clock; what ``ends`` says of the log where none is."""

    def read_to(self, where: TopicPartition) -> int:
        """An offset below which everything was returned since the partition was sought, or is no
        record but a marker. It follows the reader to the log's end, in the course of further polls,
        and lags before. Asks nobody."""

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Makes ``offset`` the next record of ``where`` that ``poll`` returns, whether it was read
        before or not."""

    def pause(self, where: TopicPartition) -> None:
        """Stops reading it, if it is read, and forgets where; ``seek`` starts again, of a member of
        a group ``begin``."""

    def close(self) -> None:
        """Idempotent."""


class GroupReader(LogReader, Protocol):
    """A member of a consumer group (cooperative-sticky).

    A partition that the group assigns is paused until ``begin``; ``poll`` never returns records of
    a paused, revoked or lost partition. Rebalances happen inside ``poll`` only. What the group
    committed is asked of ``Admin``.
    """

    def assigned(self) -> frozenset[TopicPartition]:
        """Returns the partitions that are assigned now, begun or not."""

    def begin(self, where: TopicPartition, offset: int) -> None:
        """Starts reading an assigned partition there."""

    def commit(self, where: TopicPartition, offset: int, metadata: str) -> Future[bool]:
        """Commits; waits for nothing. ``poll`` takes the answer: whether the group itself says that
        the partition is still this member's, or the error. It may never come, so whoever waits has
        a deadline.
        """


class Committed(NamedTuple):
    """What a consumer group committed for a partition."""

    offset: int
    metadata: str


Commits = dict[TopicPartition, Committed]


class TopicSpec(NamedTuple):
    """A topic as it should be, or as it is.

    Attributes:
        config: in Kafka's names and spelling.
        replication: copies of each partition; of a topic to be made -1 is the broker's default.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    replication: int = -1


class GroupMembers(NamedTuple):
    """Who is in a consumer group now, as the group itself has it.

    Attributes:
        owners: which member each assigned partition is with, by the member's id.
        members: how many there are.
        settled: False while partitions change hands, when some may be with nobody.
    """

    owners: Mapping[TopicPartition, str]
    members: int
    settled: bool


class Admin(Protocol):
    """Topics and groups."""

    def reach(self, timeout_s: float) -> None:
        """Returns once a broker answers.

        Raises:
            BrokerUnavailable: none can be reached, or none answers, at once where that is known;
                the message tells refused, not resolved and silent apart. NotAuthorised.
        """

    def brokers(self, timeout_s: float) -> int:
        """Returns how many brokers the cluster has now.

        Raises:
            BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
        """

    def group(self, name: str, timeout_s: float) -> GroupMembers:
        """Asks a consumer group for its members; one that nobody ever joined has none.

        A member that died is in it until its session has timed out (10 s).

        Raises:
            BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
        """

    def committed(self, group: str, asked: Logs, timeout_s: float) -> Commits:
        """Returns what a consumer group committed last of these partitions; none of those of which
        it committed nothing.

        Raises:
            BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
        """

    def describe(self, names: Collection[str], timeout_s: float) -> dict[str, TopicSpec]:
        """Returns those of ``names`` that exist, with their effective configuration and their
        replication."""

    def topics(self, prefix: str, timeout_s: float) -> list[str]:
        """Returns the names of all topics that begin with ``prefix`` and that this client may
        describe, sorted."""

    def create(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        """Creates all; one that exists is left as it is. They can be used when it returns."""


class Broker(Protocol):
    """Makes clients for logs. Making one is cheap and sends no request."""

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        """``retries=False``: each record is sent a single time, and any failure is reported as
        doubt at once; for an owner, who settles doubt by a claim and keeps one record in flight.
        """

    def reader(self, starts: Offsets, *, idle_s: float = IDLE_S) -> LogReader:
        """Reads ``starts`` from these offsets (or EARLIEST, END). At the end of a log it asks the
        broker once in ``idle_s``, and gets at once what comes: more spares a broker that thousands
        follow."""

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: OnRevoked
    ) -> GroupReader:
        """Joins ``group``. ``on_revoked`` runs inside ``poll`` for each partition that is revoked
        or lost, before another member may have it (revoked) or after (lost)."""

    def admin(self) -> Admin: ...

    def outage(self) -> str:
        """Why no broker can be reached, as the clients of this one know; empty: as far as they
        know, one can. Asks nobody, from any thread."""
        return ""

    def close(self) -> None:
        """Closes what it made. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Opened:
    """The clients that a broker made and that are in use, for its ``close``. Those that the parent
    of a forked process made are left to the parent."""

    def __init__(self) -> None:
        self._by_process: dict[int, WeakKeyDictionary[Any, Callable[[Any], None]]] = {}

    def add(self, client: C, end: Callable[[C], None]) -> C:
        """Returns the client, which ``end`` closes."""
        self._by_process.setdefault(os.getpid(), WeakKeyDictionary())[client] = end
        return client

    def close(self) -> None:
        """Closes all of them."""
        for client, end in list(self._by_process.get(os.getpid(), {}).items()):
            end(client)
