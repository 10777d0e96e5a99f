"""Rejects records that would fail at flush time, so that they become dead letters instead."""

from __future__ import annotations

from operator import attrgetter

from rollstream.schemas.codec import Segment
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Dispatched, Event, Failed
from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.ids import NAME_CHARS_MAX, VERSION_BYTES_MAX, names_a_folder

_names_of = attrgetter(
    "example_id", "group_uid", "rollout_uid", "lineage", "replica_id", "split", "stop_reason"
)


def sealable(event: Segment | Event, environment: str) -> Segment | Dispatched | Failed:
    """The event itself, fit to be assembled and written.

    Raises:
        UnreadableEvent: it is not; reason and detail say why.
    """
    if isinstance(event, Segment):
        if event.header.environment == environment:
            _check(event.header)
            return event
    elif not isinstance(event, Dispatched | Failed):
        raise UnreadableEvent(
            "not_an_event", f"{type(event).__name__} does not belong into an ingest log"
        )
    elif event.environment == environment:
        uid = event.rollout_uid if isinstance(event, Failed) else ""
        _check_names((event.example_id, event.group_uid, uid))
        return event
    else:
        raise UnreadableEvent(
            "inconsistent", f"{type(event).__name__} of environment {event.environment!r}"
        )
    raise UnreadableEvent("inconsistent", f"a rollout of environment {event.header.environment!r}")


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
