"""Members of groups that did not end by themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from rollstream.folds.group.known import rollout_begins
from rollstream.schemas.columns import offsets_of
from rollstream.schemas.events import Flushed

Unfinished = Literal["failed", "aborted", "truncated"]
"""``failed``: it never came, by what its producer said or since it broke a rule; ``aborted`` and
``truncated``: it did, and its last segment stopped so."""
STOPPED: dict[str, Unfinished] = {"abort": "aborted", "length": "truncated"}
"""By the stop reason of a rollout's last segment."""


class UnfinishedMembers(NamedTuple):
    """Of the group with this index in its flush: so many ended so."""

    group: int
    kind: Unfinished
    members: int


def unfinished_members(event: Flushed) -> Iterator[UnfinishedMembers]:
    """Those of each group that the flush sealed; each counts once, however it ended. A group of
    which every member failed is not sealed: it is one of ``Flushed.unsealed``."""
    failed, rows, segments = event.groups.failed_members, event.groups.rows, event.segments
    for index in np.flatnonzero(failed).tolist():
        yield UnfinishedMembers(index, "failed", int(failed[index]))
    for number, reason in enumerate(segments.stop_reasons):
        kind = STOPPED.get(reason)
        if kind is not None and event.groups:
            begins = rollout_begins(segments, offsets_of(rows)[:-1])
            lasts = np.append(begins[1:], True)
            stopped = lasts & (segments.stop_reason_idxs == number)
            counts = np.bincount(np.repeat(np.arange(len(rows)), rows)[stopped])
            for index in np.flatnonzero(counts).tolist():
                yield UnfinishedMembers(index, kind, int(counts[index]))
