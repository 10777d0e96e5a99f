"""The owner's side of an owned log: claim, append, heard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.schemas.events import Event
from rollstream.streams.broker import Broker, TopicPartition


class Checkpoint(NamedTuple):
    """What a fold tells ``Adopted``.

    Attributes:
        fold_from: offset of a claim, among those that ``checkpoint`` was given, before which nothing
            matters any more.
        watermark: the low watermark; -1 where the log has none.
        counts: totals by name.
    """

    fold_from: int
    watermark: int
    counts: Mapping[str, int]


class LogFold(Protocol):
    """State as a fold over the events of one partition that count. Pure."""

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """The next event that counts (claims and adoptions among them), in the order of offsets."""

    def checkpoint(self, claims: Sequence[int]) -> Checkpoint:
        """Which of ``claims`` (offsets, rising, the newest last) a later fold may start from."""

    def digest(self) -> bytes:
        """Equal for equal states."""


F = TypeVar("F", bound=LogFold)


class Ticket(NamedTuple):
    """An append that is on its way; ``OwnedLog.heard`` tells what became of it."""

    number: int


class OwnedLog(Generic[F]):
    """One owner's hold on one partition.

    Guarantees: after ``claim`` returned, ``fold`` holds everything that counts up to the claim, and
    what ``heard`` confirms is in the partition and counts for ever, with nothing of a newer owner
    before it. Whoever acts on an event acts only after ``heard``.

    Not shared between threads.
    """

    fold: F
    epoch: int
    nonce: str

    def __init__(
        self,
        broker: Broker,
        where: TopicPartition,
        *,
        owner: str,
        make_fold: Callable[[], F],
        clock: Clock,
        entropy: Entropy,
    ) -> None: ...

    def claim(self, deadline: Deadline, *, hint: int | None = None) -> F:
        """Takes over: appends ``Claimed``, reads until that very claim comes back, folds, appends
        ``Adopted`` and hears it. Also the way out of doubt: the writer is thrown away and made anew.

        Where no foreign claim intervened since this object's last claim, the fold goes on from where
        it stood; else it is made anew.

        Args:
            deadline: for all of it.
            hint: offset of any claim (from the consumer group's metadata); wrong, stale, missing or a
                zombie's: never harmful, at worst slow.

        Raises:
            ClaimFailed: not proven by the deadline. BrokerError: a permanent refusal.
        """
        raise NotImplementedError

    def append(self, event: Event) -> Ticket:
        """Queues an event that carries this claim's epoch and nonce; returns at once.

        Raises:
            Fenced: already known to be overtaken. DeliveryUnknown: in doubt; claim again first.
            RecordTooLarge.
        """
        raise NotImplementedError

    def heard(self, ticket: Ticket, deadline: Deadline) -> int:
        """Waits until every offset between the claim and this event is known and ours; its offset.

        Applies each event to ``fold`` in order as it is heard, this one last.

        Raises:
            Fenced: a newer claim stands before it. DeliveryUnknown: time-out or lost report: claim
            again, then ``fold`` tells whether it is there. PermanentBrokerError.
        """
        raise NotImplementedError

    def poll(self) -> None:
        """Serves delivery reports without waiting; call it where a loop turns."""
        raise NotImplementedError

    def release(self) -> None:
        """Lets go: closes the writer and reader. Idempotent; nothing is written."""
        raise NotImplementedError
