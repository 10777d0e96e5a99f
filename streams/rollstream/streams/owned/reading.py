"""The event in a record of an owned log, or the error that names the record and what to do.

A record without the marker of our encoding, or of a schema that is no event, was written by no
owner: it holds no event, and every reader passes over it. A record with our marker may be an
owner's: where it cannot be read, nothing behind it is.
"""

from __future__ import annotations

import logging
from functools import cache

import rollstream
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Claimed, Event, Scored
from rollstream.schemas.scoring import why_unusable
from rollstream.schemas.wire_schemas import shipped
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import CorruptLog, NewerEvent

_REMEDY = (
    "take the right to write to this topic from whoever did, and begin a new kafka.generation (for "
    "a decision log, another sampler's name is enough)"
)
_DAMAGED = (
    "no sealer or sampler of this version wrote it, and nothing behind it is read; " + _REMEDY
)
_log = logging.getLogger(__name__)


@cache
def prefixes_of(*names: str) -> frozenset[bytes]:
    """Returns the first bytes of events of these schemas, in any version. A search for such events
    decodes no other records."""
    return frozenset(one.prefix for one in shipped().schemas if one.name in names)


def event_in(record: Record, owner: Claimed | None = None) -> Event | None:
    """The event that a record of an owned log holds; None: no owner wrote the record.

    Args:
        owner: the claim in effect there, which names the version that is needed.

    Raises:
        NewerEvent: its schema is none of this version's, as where a newer one wrote it. CorruptLog:
            its bytes are no event of their schema. The message names topic, partition, offset and
            remedy.
    """
    try:
        return codec.decode(record.value)
    except UnreadableEvent as error:
        if error.reason == "not_an_event":
            return None
        _raise_if_newer(record, error, owner)
        raise CorruptLog(f"{_at(record)}: {error}: {_DAMAGED}") from error


def score_in(record: Record) -> Scored | None:
    """The score that a record of a log of scores holds; None: it holds no usable score.

    Raises:
        NewerEvent: as ``event_in``: it may be a score.
    """
    try:
        event = codec.decode_as(Scored, record.value)
        broken = why_unusable(event)
    except UnreadableEvent as error:
        _raise_if_newer(record, error)
        broken = str(error)
    if not broken:
        return event
    _log.warning("%s is no score and is passed over: %s", _at(record), broken)
    return None


def _raise_if_newer(record: Record, error: UnreadableEvent, owner: Claimed | None = None) -> None:
    if error.reason == "unknown_schema":
        raise NewerEvent(f"{_at(record)}: {error}: {upgrade_remedy(owner)}") from error


def _at(record: Record) -> str:
    return f"{TopicPartition(record.topic, record.partition)}, offset {record.offset}"


def upgrade_remedy(owner: Claimed | None = None) -> str:
    """What to do about bytes whose schema is none of this version's."""
    claimed = ""
    if owner is not None and owner.software:
        claimed = f" (the log was claimed last by {owner.owner!r}, rollstream {owner.software})"
    return (
        f"rollstream {rollstream.__version__} cannot read it{claimed}. Where a newer version wrote "
        "it, upgrade this process to that version or a later one and start it again "
        "(docs/operating/upgrading.md); where a version before 0.1.0 or another program did, "
        f"{_REMEDY}"
    )
