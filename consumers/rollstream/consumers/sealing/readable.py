"""Which records of an ingest log can be sealed. Whatever would stop a flush later is told here, so
that one bad record never stands in the way of the rest."""

from __future__ import annotations

from operator import attrgetter

from rollstream.schemas.codec import Segment, decode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Dispatched, Failed
from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.ids import NAME_CHARS_MAX, VERSION_BYTES_MAX, names_a_folder

_names_of = attrgetter(
    "example_id", "group_uid", "rollout_uid", "lineage", "replica_id", "split", "stop_reason"
)


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
            uid = event.rollout_uid if isinstance(event, Failed) else ""
            _check_names((event.example_id, event.group_uid, uid))
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
    version = header.policy_version
    if not names_a_folder(version):
        raise UnreadableEvent(
            "inconsistent",
            f"policy_version of {len(version)} characters; escaped, at most {VERSION_BYTES_MAX}",
        )
    _check_names(_names_of(header))


def _check_names(names: tuple[str, ...]) -> None:
    if sum(map(len, names)) > NAME_CHARS_MAX:
        longest = max(map(len, names))
        if longest > NAME_CHARS_MAX:
            raise UnreadableEvent(
                "inconsistent", f"a name of {longest} characters; at most {NAME_CHARS_MAX}"
            )
