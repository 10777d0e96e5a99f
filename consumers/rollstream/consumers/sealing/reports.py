"""Says in the seal log, between two flushes, what was dispatched and is not decided: groups by
their examples, and how many each producer has open; and what waits for a rollout that it continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from rollstream.consumers.assembling import Assembler
from rollstream.consumers.assembling.pending import PendingGroup
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.intake import Intake
from rollstream.schemas.events import ContinuationsWaiting, GroupsBegun, InFlight
from rollstream.streams.folds.entries import packed_entry
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog

REPORT_EVERY_S = 1.0  # Most groups of quick environments end before, and are never named.
NAMED_BYTES_MAX = 1024 * 1024  # Of one event; what is left is named by the next.
_GROUP_BYTES = 16  # Beside the example.
WAITED_S = 10.0  # What a rollout continues mostly comes sooner, from another worker's buffer.
CONTINUATIONS_MAX = 8  # That are named; all are counted.


class DispatchReports:
    """Appends ``GroupsBegun``, ``InFlight`` and ``ContinuationsWaiting`` between two flushes,
    together and at most once in ``REPORT_EVERY_S``.

    A group is named before the event that settles its dispatch, or never: only what is pending is
    named, and the next flush is planned later. What is in doubt is said again. Of producers flushes
    tell too, and nothing does before everything was read that an earlier owner may have read.
    """

    def __init__(self, context: SealerContext, log: OwnedLog[SealFold]) -> None:
        self._context = context
        self._log = log
        self._named: Sequence[PendingGroup] = ()  # That are confirmed.
        self._reported: InFlight | None = None  # As well.
        self._waiting: ContinuationsWaiting | None = None  # What the log says under its epoch.
        self._due_s = self._look_s = 0.0

    def advance(self, intake: Intake) -> Future[Any] | None:
        """Begins a job of the partition, where there is anything to be said.

        Raises:
            BrokerUnavailable: the end of the ingest log is not known.
        """
        assembler = intake.assembler
        unnamed, producers = assembler.pending.unnamed, assembler.in_flight
        now_s = self._context.clock.monotonic_s()
        if now_s < self._due_s:
            return None
        waiting = self._continuations(intake, now_s)
        due = unnamed or producers.unreported or not producers.complete or waiting
        if not due:
            return None
        groups = _that_fit(unnamed)
        begun = self._begun(assembler, groups) if groups else None
        in_flight = None
        if producers.complete or intake.is_caught_up():
            self._due_s = now_s + REPORT_EVERY_S
            in_flight = self._in_flight(assembler)
        if begun is None and in_flight is None and waiting is None:
            return None
        self._due_s = now_s + REPORT_EVERY_S
        return self._context.workers.submit(self._append, begun, groups, in_flight, waiting)

    def confirm(self, assembler: Assembler) -> None:
        """Takes down what was confirmed since; before any flush is planned, also the last ones of
        an owner that leaves, since these tell of producers whatever was reported of them."""
        for group in self._named:
            assembler.pending.unnamed.pop(group, None)
        if self._reported is not None:
            assembler.in_flight.complete = True
            assembler.in_flight.confirm(self._reported.producers)
        self._named, self._reported = (), None

    def begin(self) -> None:
        """All that is pending is read anew."""
        self._named, self._reported = (), None

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

    def _in_flight(self, assembler: Assembler) -> InFlight | None:
        """None where nothing changed."""
        producers = assembler.in_flight
        changes = producers.changes()
        if producers.complete and not changes:
            return None
        return InFlight(
            epoch=self._log.epoch,
            nonce=self._log.nonce,
            now_ts=assembler.now_us,
            producers=changes,
            complete=not producers.complete,
        )

    def _continuations(self, intake: Intake, now_s: float) -> ContinuationsWaiting | None:
        """What waits for a rollout that it continues; None where the seal log says so already, and
        while it may come from what is still to be read."""
        if now_s < self._look_s:
            return None
        self._look_s = now_s + REPORT_EVERY_S
        until_us = self._context.clock.now_us() - round(WAITED_S * 1e6)
        assembler, said = intake.assembler, self._waiting
        count, examples = assembler.pending.waiting_since(until_us, CONTINUATIONS_MAX)
        if said is None or said.epoch != self._log.epoch:  # A claim takes back what was said.
            unchanged = not count
        else:
            unchanged = (said.count, said.examples) == (count, tuple(examples))
        if unchanged or not intake.is_caught_up():
            return None
        return ContinuationsWaiting(
            epoch=self._log.epoch,
            nonce=self._log.nonce,
            now_ts=assembler.now_us,
            count=count,
            examples=tuple(examples),
        )

    def _append(
        self,
        begun: GroupsBegun | None,
        groups: Sequence[PendingGroup],
        in_flight: InFlight | None,
        waiting: ContinuationsWaiting | None,
    ) -> None:
        events = [event for event in (begun, in_flight, waiting) if event is not None]
        for ticket in [self._log.append(event) for event in events]:
            self._log.wait_confirmed(ticket, self._context.deadline())
        self._named, self._reported = groups, in_flight
        self._waiting = waiting or self._waiting


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
