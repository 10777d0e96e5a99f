"""Names dispatched groups in the seal log while they are not decided."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from rollstream.consumers.assembling import Assembler
from rollstream.consumers.assembling.pending import PendingGroup
from rollstream.consumers.sealing.context import SealerContext
from rollstream.schemas.events import GroupsBegun
from rollstream.streams.folds.entries import packed_entry
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog

NAME_EVERY_S = 1.0  # Most groups of quick environments end before, and are never named.
NAMED_BYTES_MAX = 1024 * 1024  # Of one event; what is left is named by the next.
_GROUP_BYTES = 16  # Beside the example.


class BegunGroups:
    """Appends ``GroupsBegun`` between two flushes, at most one in ``NAME_EVERY_S``.

    A group is named before the event that settles its dispatch, or never: only what is pending is
    named, and the next flush is planned later. One whose event is in doubt is named again.
    """

    def __init__(self, context: SealerContext, log: OwnedLog[SealFold]) -> None:
        self._context = context
        self._log = log
        self._named: Sequence[PendingGroup] = ()  # That are confirmed.
        self._due_s = 0.0

    def advance(self, assembler: Assembler) -> Future[Any] | None:
        """Begins a job of the partition, where there are groups to be named."""
        unnamed = assembler.pending.unnamed
        for group in self._named:
            unnamed.pop(group, None)
        self._named = ()
        now_s = self._context.clock.monotonic_s()
        if not unnamed or now_s < self._due_s:
            return None
        self._due_s = now_s + NAME_EVERY_S
        groups: list[PendingGroup] = []
        size = 0
        for group in unnamed:
            size += _GROUP_BYTES + len(group.key[1].encode())
            if groups and size > NAMED_BYTES_MAX:
                break
            groups.append(group)
        event = GroupsBegun(
            epoch=self._log.epoch,
            nonce=self._log.nonce,
            now_ts=assembler.now_us,
            example_ids=tuple(group.key[1] for group in groups),
            entries=np.array(
                [packed_entry(unnamed[one].offset, unnamed[one].entry) for one in groups], np.int64
            ),
            ages_s=np.array(
                [(assembler.now_us - group.first_ts) / 1e6 for group in groups], np.float32
            ),
        )
        return self._context.workers.submit(self._append, event, groups)

    def _append(self, event: GroupsBegun, groups: Sequence[PendingGroup]) -> None:
        ticket = self._log.append(event)
        self._log.wait_confirmed(ticket, self._context.deadline())
        self._named = groups
