"""The errors that brokers and owned logs raise."""

from __future__ import annotations

from rollstream.schemas.errors import RollstreamError


class BrokerError(RollstreamError):
    """The broker refused a request, or did not answer it."""


class BrokerUnavailable(BrokerError, TimeoutError):
    """The broker did not answer within the deadline; a later attempt may succeed."""


class PermanentBrokerError(BrokerError):
    """No attempt can succeed until permissions, topics or settings change."""


class BadClientSettings(PermanentBrokerError, ValueError):
    """A broker's address or a property of the client cannot be used, or contradicts what is
    promised; the message names it, its value and what to do."""


class NotAuthorised(PermanentBrokerError):
    """The broker refuses the credentials, or they lack a permission."""


class UnknownTopic(PermanentBrokerError):
    """The topic or partition does not exist."""


class RecordTooLarge(PermanentBrokerError):
    """The record is larger than the client, the topic or the broker allows."""


class BufferFull(BrokerError):
    """The writer's queue is at its bound; nothing was queued."""


class DeliveryUnknown(BrokerError):
    """The record may or may not be in the log: its report was lost or timed out."""


class OffsetLost(BrokerError):
    """The wanted offset is no longer (or not yet) in the log.

    Attributes:
        where: the log, in words.
        wanted: the offset asked for.
        first: the oldest offset that is kept.
        end: the next offset to be written.
    """

    def __init__(self, where: str, wanted: int, first: int, end: int) -> None:
        super().__init__(
            f"{where}: offset {wanted} is not in the log, which holds [{first}, {end})"
        )
        self.where = where
        self.wanted = wanted
        self.first = first
        self.end = end


class TopicMismatch(BrokerError):
    """Topics are missing or not as configured, or a topic has other partitions than it had; the
    message names each, with a remedy."""


class RootMismatch(BrokerError):
    """The store's root is not the deployment's, or no root was recorded yet; the message names both
    ids, both places, and what to do."""


class UnreadableLog(RollstreamError):
    """A log cannot be read on, or must not be written to: its partition is put aside, and all
    others go on. Nothing is written to it. A restart reads it again."""


class LogLost(PermanentBrokerError, UnreadableLog):
    """A log holds less than the store's root knows of, or than this process read of it: it was
    lost, cut back, or is another's. The message names both, and what to do; nothing was decided."""


class Fenced(RollstreamError):
    """A newer owner claimed the log; every reader ignores what this one writes from now on."""


class ClaimFailed(BrokerError):
    """The claim was not proven within the deadline; nothing is owned."""


class NewerEvent(UnreadableLog):
    """A log holds an event of a schema that this version of Rollstream does not know: that of a
    newer one, as the message says, or of none. Readers stop there and fold nothing more."""


class CorruptLog(UnreadableLog):
    """A log holds what no owner may write: a defect. Readers stop there and fold nothing more."""


class DamagedRecord(CorruptLog):
    """The broker delivers a record that is not the one that was written: its checksum differs.

    Attributes:
        where: topic and partition.
        offset: of the record, or of the first one of its batch.
    """

    def __init__(self, where: tuple[str, int], offset: int, detail: str) -> None:
        super().__init__(f"{where[0]}[{where[1]}], offset {offset}: {detail}")
        self.where = where
        self.offset = offset


def lost_message(where: str, read: int, found: str) -> str:
    """Of a ``LogLost`` of a process that read the log up to an offset, and then found this."""
    return (
        f"{where} was read up to {read}, and now {found}: it was lost, or restored from an older "
        "copy, while this process ran, which goes on with it no more. End this process, and "
        "restore the log whole or begin a new kafka.generation (docs/operating/kafka.md, "
        '"Kafka\'s disk is lost")'
    )
