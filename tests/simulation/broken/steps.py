"""Flushes that are wrong on purpose: other tuples of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from rollstream.consumers.sealing import STEPS, Flush, FlushStep
from rollstream.consumers.sealing.rows import draft_flush
from rollstream.schemas.events import Flushed

PUT, APPEND, PROJECT, ROLL_UP, COMMIT = STEPS


def draft_only(flush: Flush) -> None:
    """The event without its files."""
    flush.event = draft_flush(flush.plan, flush.target, lambda path, data: None)


def project_early(flush: Flush) -> None:
    """The manifest of an event that is still to be appended: at the log's end, if nobody else
    writes."""
    with closing(flush.context.broker.reader({flush.log.where: 0})) as reader:
        flush.offset = reader.bounds(flush.log.where, 1.0)[1]
    PROJECT.run(flush)


def changing(change: Callable[[Flushed], Flushed]) -> FlushStep:
    """A step that changes the event before it is appended."""

    def run(flush: Flush) -> None:
        assert flush.event is not None
        flush.event = change(flush.event)

    return FlushStep("change", run)


def watermark_too_far(event: Flushed) -> Flushed:
    return replace(event, watermark=event.watermark + 1)


def exchanged_entries(event: Flushed) -> Flushed:
    """Each of them ends once, so that neither the fold nor the audit can tell."""
    entries = event.segments.entries[::-1].copy()
    return replace(event, segments=replace(event.segments, entries=entries))


BROKEN_STEPS: Mapping[str, tuple[FlushStep, ...]] = {
    "commit_first": (PUT, COMMIT, APPEND, PROJECT, ROLL_UP),
    "manifest_first": (PUT, FlushStep("project_early", project_early), APPEND, ROLL_UP, COMMIT),
    "event_first": (FlushStep("draft_only", draft_only), APPEND, PUT, PROJECT, ROLL_UP, COMMIT),
    "watermark_too_far": (PUT, changing(watermark_too_far), APPEND, PROJECT, ROLL_UP, COMMIT),
    "exchanged_entries": (PUT, changing(exchanged_entries), APPEND, PROJECT, ROLL_UP, COMMIT),
}
