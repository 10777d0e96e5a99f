"""Says in the seal log, between two flushes, which groups were dispatched and are not decided."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np

from rollstream.consumers.assembling import Assembler
from rollstream.consumers.assembling.fitting import that_fit
from rollstream.consumers.assembling.pending import PendingGroup
from rollstream.consumers.beside.chores import Job
from rollstream.consumers.sealing.context import SealerContext
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import GroupsBegun
from rollstream.streams.folds.entries import packed_entry
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog

REPORT_EVERY_S = 1.0  # Most groups of quick environments end before, and are never named.
NAMED_BYTES_MAX = 1024 * 1024  # Of one event; what is left is named by the next.
_GROUP_BYTES = 16  # Beside the example.


def report_dispatched(
    context: SealerContext, log: OwnedLog[SealFold], assembler: Assembler, deadline: Deadline
) -> Job:
    """Appends ``GroupsBegun`` between two flushes, at most once in ``REPORT_EVERY_S``.

    A group is named before the event that settles its dispatch, or never: only what is pending is
    named, and the next flush is planned later. What is in doubt is said again.
    """
    groups = that_fit(assembler.pending.unnamed, _event_bytes, NAMED_BYTES_MAX)
    if not groups:
        return REPORT_EVERY_S
    unnamed, now_us = assembler.pending.unnamed, assembler.now_us
    entries = [packed_entry(unnamed[one].offset, unnamed[one].entry) for one in groups]
    event = GroupsBegun(
        epoch=log.epoch,
        nonce=log.nonce,
        now_ts=now_us,
        example_ids=tuple(group.key[1] for group in groups),
        entries=np.array(entries, np.int64),
        ages_s=np.array([(now_us - group.first_ts) / 1e6 for group in groups], np.float32),
    )
    with suppress(RollstreamError):  # The partition is told too.
        yield partial(context.appends.begin, log, event)
        for group in groups:
            unnamed.pop(group, None)
    return REPORT_EVERY_S


def _event_bytes(group: PendingGroup) -> int:
    return _GROUP_BYTES + len(group.key[1].encode())
