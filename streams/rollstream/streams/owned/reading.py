"""The event in a record of an owned log, or the error that names the record and what to do."""

from __future__ import annotations

from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Event
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import CorruptLog

_FOREIGN = (
    "no sealer or sampler of this version wrote it, and nothing behind it is read; take the right "
    "to write to this topic from whoever did, and begin a new kafka.generation (for a decision "
    "log, another sampler's name is enough)"
)
_UNKNOWN_SCHEMA = "a version of Rollstream with schemas that this one lacks wrote it; upgrade"


def event_in(record: Record) -> Event:
    """The event that a record of an owned log holds.

    Raises:
        CorruptLog: it holds none; the message names topic, partition, offset and remedy.
    """
    try:
        return codec.decode(record.value)
    except UnreadableEvent as error:
        remedy = _UNKNOWN_SCHEMA if error.reason == "unknown_schema" else _FOREIGN
        where = TopicPartition(record.topic, record.partition)
        raise CorruptLog(f"{where}, offset {record.offset}: {error}: {remedy}") from error
