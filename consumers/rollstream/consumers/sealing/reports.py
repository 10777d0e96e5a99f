"""Says in the seal log, between two flushes, which groups were dispatched and are not decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

REPORT_EVERY_S = 1.0  # Most groups of quick environments end before, and are never named.
NAMED_BYTES_MAX = 1024 * 1024  # Of one event; what is left is named by the next.
_GROUP_BYTES = 16  # Beside the example.


class DispatchReports:
    """Appends ``GroupsBegun`` between two flushes, at most once in ``REPORT_EVERY_S``.

    A group is named before the event that settles its dispatch, or never: only what is pending is
    named, and the next flush is planned later. What is in doubt is said again.
    """

    def __init__(self, context: SealerContext, log: OwnedLog[SealFold]) -> None:
        self._context = context
        self._log = log
        self._naming: tuple[Future[int], Sequence[PendingGroup]] | None = None
        self._due_s = 0.0

    def advance(self, assembler: Assembler) -> Future[Any] | None:
        """Begins a job of the partition, where there is anything to be said."""
        unnamed = assembler.pending.unnamed
        now_s = self._context.clock.monotonic_s()
        if now_s < self._due_s or not unnamed:
            return None
        self._due_s = now_s + REPORT_EVERY_S
        groups = _that_fit(unnamed)
        said = self._context.appends.begin(self._log, self._begun(assembler, groups))
        self._naming = said, groups
        return said

    def confirm(self, assembler: Assembler) -> None:
        """Takes down what was confirmed since; before any flush is planned."""
        if self._naming is not None and self._naming[0].done():
            (said, groups), self._naming = self._naming, None
            for group in groups if said.exception() is None else ():
                assembler.pending.unnamed.pop(group, None)

    def begin(self) -> None:
        """All that is pending is read anew."""
        self._naming = None

    def _begun(self, assembler: Assembler, groups: Sequence[PendingGroup]) -> GroupsBegun:
        unnamed, now_us = assembler.pending.unnamed, assembler.now_us
        entries = [packed_entry(unnamed[one].offset, unnamed[one].entry) for one in groups]
        return GroupsBegun(
            epoch=self._log.epoch,
            nonce=self._log.nonce,
            now_ts=now_us,
            example_ids=tuple(group.key[1] for group in groups),
            entries=np.array(entries, np.int64),
            ages_s=np.array([(now_us - group.first_ts) / 1e6 for group in groups], np.float32),
        )


def _that_fit(unnamed: Iterable[PendingGroup]) -> list[PendingGroup]:
    """As many as one event has room for."""
    groups: list[PendingGroup] = []
    size = 0
    for group in unnamed:
        size += _GROUP_BYTES + len(group.key[1].encode())
        if groups and size > NAMED_BYTES_MAX:
            break
        groups.append(group)
    return groups
