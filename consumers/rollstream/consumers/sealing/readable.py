"""Which records of an ingest log can be sealed. Whatever would stop a flush later is told here, so
that one bad record never stands in the way of the rest."""

from __future__ import annotations

from urllib.parse import quote

from rollstream.schemas.codec import Segment, decode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Dispatched, Failed
from rollstream.schemas.header import RolloutHeader

_INT32_MAX = 2**31 - 1
# The version names a folder, and file systems take names of 255 bytes.
VERSION_BYTES_MAX = 200
_SHORT_VERSION = VERSION_BYTES_MAX // 12  # A character takes at most 12 bytes when it is escaped.


class Reading:
    """Decodes the records of one environment."""

    def __init__(self, environment: str) -> None:
        self._environment = environment

    def decode(self, value: bytes) -> Segment | Dispatched | Failed:
        """The event, fit to be assembled and written.

        Raises:
            UnreadableEvent: it is not; reason and detail say why.
        """
        event = decode(value)
        if isinstance(event, Segment):
            if event.header.environment == self._environment:
                _check(event.header)
                return event
        elif not isinstance(event, Dispatched | Failed):
            raise UnreadableEvent(
                "not_an_event", f"{type(event).__name__} does not belong into an ingest log"
            )
        elif event.environment == self._environment:
            return event
        else:
            raise UnreadableEvent(
                "inconsistent", f"{type(event).__name__} of environment {event.environment!r}"
            )
        raise UnreadableEvent(
            "inconsistent", f"a rollout of environment {event.header.environment!r}"
        )


def _check(header: RolloutHeader) -> None:
    if not header.rollout_uid:
        raise UnreadableEvent("inconsistent", "rollout_uid is empty: nothing could tell it apart")
    if not 0 <= header.segment_idx <= _INT32_MAX:
        raise UnreadableEvent("inconsistent", f"segment_idx is {header.segment_idx}")
    if not -_INT32_MAX <= header.policy_epoch <= _INT32_MAX:
        raise UnreadableEvent("inconsistent", f"policy_epoch is {header.policy_epoch}")
    if not -_INT32_MAX <= header.group_size <= _INT32_MAX:
        raise UnreadableEvent("inconsistent", f"group_size is {header.group_size}")
    version = header.policy_version
    if len(version) > _SHORT_VERSION and len(quote(version)) > VERSION_BYTES_MAX:
        raise UnreadableEvent(
            "inconsistent",
            f"policy_version of {len(version)} characters; escaped, at most {VERSION_BYTES_MAX}",
        )
