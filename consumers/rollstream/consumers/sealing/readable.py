"""Rejects records that would fail at flush time, so that they become dead letters instead."""

from __future__ import annotations

from rollstream.schemas.codec import Segment
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Dispatched, Event, Failed
from rollstream.schemas.rules import BrokenRule, check_control_names, check_names


def sealable(event: Segment | Event, environment: str) -> Segment | Dispatched | Failed:
    """The event itself, fit to be assembled and written.

    Raises:
        UnreadableEvent: it is not; reason and detail say why.
    """
    try:
        if isinstance(event, Segment):
            origin = event.header.environment
            check_names(event.header)
        elif isinstance(event, Dispatched | Failed):
            origin = event.environment
            check_control_names(event)
        else:
            raise UnreadableEvent(
                "not_an_event", f"{type(event).__name__} does not belong into an ingest log"
            )
    except BrokenRule as broken:
        raise UnreadableEvent("inconsistent", str(broken)) from broken
    if origin != environment:
        raise UnreadableEvent("inconsistent", f"a record of environment {origin!r}")
    return event
