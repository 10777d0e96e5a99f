"""What a producer may answer, as types."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.schemas.errors import InvalidRollout, RollstreamError
from rollstream.streams.errors import BrokerUnavailable, BufferFull, UnknownTopic

__all__ = [
    "BufferFull",
    "DeliveryFailed",
    "FlushTimedOut",
    "ForkedProducer",
    "InvalidRollout",
    "ProducerClosed",
    "ProducerError",
    "RolloutTooLarge",
    "UnknownTopic",
]

_UIDS_SHOWN = 5


class ProducerError(RollstreamError):
    """A producer could not do what was asked."""


class ProducerClosed(ProducerError):
    """The producer was closed; make a new one."""


class ForkedProducer(ProducerError):
    """The producer was made before this process was forked off; make one in each process."""


class RolloutTooLarge(InvalidRollout):
    """A rollout, or what is attached to it, is over a limit; nothing was published.

    Attributes:
        size: bytes.
        limit: bytes.
    """

    def __init__(self, what: str, size: int, limit: int, remedy: str) -> None:
        super().__init__(f"{what}: {size} bytes, over the limit of {limit}; {remedy}")
        self.size = size
        self.limit = limit


class DeliveryFailed(ProducerError):
    """Rollouts that are not, or perhaps not, in the log.

    Publishing them again with the same ``rollout_uid`` is safe: duplicates are settled as such.

    Attributes:
        uids: of the rollouts, in the order in which they failed.
        group_uids: of the groups for which the word that they were dispatched, or that a member
            failed, was not delivered; they seal by time-out if nothing else completes them.
        outstanding: how many more records were on their way when the time of a ``flush`` was up;
            they stay queued. 0 from every other call.
    """

    def __init__(
        self,
        uids: Sequence[str],
        group_uids: Sequence[str],
        broker: str,
        cause: str,
        outstanding: int = 0,
    ) -> None:
        shown = ", ".join(uids[:_UIDS_SHOWN]) + (", …" if len(uids) > _UIDS_SHOWN else "")
        events = f" and {len(group_uids)} group events" if group_uids else ""
        more = (
            f"; {outstanding} more rollouts and events are still on their way, flush again"
            if outstanding
            else ""
        )
        super().__init__(
            f"{len(uids)} rollouts{events} were not delivered to {broker} ({shown}): {cause}; "
            f"publish them again with the same rollout_uid, duplicates are settled as such{more}"
        )
        self.uids = tuple(uids)
        self.group_uids = tuple(group_uids)
        self.outstanding = outstanding


class FlushTimedOut(BrokerUnavailable):
    """Records were still on their way when the time was up; they stay queued.

    Attributes:
        outstanding: how many records.
    """

    def __init__(self, broker: str, outstanding: int, timeout_s: float) -> None:
        super().__init__(
            f"{outstanding} rollouts and events did not reach {broker} within {timeout_s:g} s; "
            "check that the broker runs and can be reached from here, then flush again"
        )
        self.outstanding = outstanding
