"""What a broker, or an owned log, may answer, as types."""

from __future__ import annotations

from rollstream.schemas.errors import RollstreamError


class BrokerError(RollstreamError):
    """The broker refused, or could not be asked."""


class BrokerUnavailable(BrokerError, TimeoutError):
    """No answer within the deadline; asking again later may help."""


class PermanentBrokerError(BrokerError):
    """Asking again cannot help until somebody changes something."""


class NotAuthorised(PermanentBrokerError):
    """The broker knows us and says no."""


class UnknownTopic(PermanentBrokerError):
    """The topic or partition does not exist."""


class RecordTooLarge(PermanentBrokerError):
    """The record is over the limit of client, topic or broker."""


class BufferFull(BrokerError):
    """The writer's queue is at its bound; nothing was queued."""


class DeliveryUnknown(BrokerError):
    """The record may or may not be in the log: its report was lost or timed out."""


class OffsetLost(BrokerError):
    """The wanted offset is no longer (or not yet) in the log.

    Attributes:
        wanted: the offset asked for.
        first: the oldest offset that is kept.
        end: the next offset to be written.
    """

    def __init__(self, where: str, wanted: int, first: int, end: int) -> None:
        super().__init__(
            f"{where}: offset {wanted} is not in the log, which holds [{first}, {end})"
        )
        self.wanted = wanted
        self.first = first
        self.end = end


class TopicMismatch(BrokerError):
    """Topics are missing or not as configured; the message says which and what to do."""


class Fenced(RollstreamError):
    """A newer owner took over; whatever this one writes from now on is ignored by every reader."""


class ClaimFailed(BrokerError):
    """The claim could not be proven within the deadline; nothing is owned."""


class CorruptLog(RollstreamError):
    """A log says what no owner of ours may write: a defect. Nothing is folded over it."""
