"""Sealed groups that have not ended: those that may be served, and why the others wait. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.folds.group.eligible import Stand, stand_of
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.folds.group.known_groups import KnownGroups
from rollstream.folds.group.packed_refs import PackedRefs
from rollstream.folds.group.scored import Given, with_scores
from rollstream.folds.life.waiting import WaitingGroups
from rollstream.folds.ready.index import ReadyIndex
from rollstream.folds.scores.evaluated import EvaluatedGroups
from rollstream.folds.scores.late_scores import LateScores
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import Event, Flushed, ServedScore
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef


class AliveGroups:
    """Of split ``train``; of others what they earned.

    Attributes:
        known: all of them, those among them that batches hold.
        ready: that may be served.
        waiting: that may not be as they are, and why.
        late: which ones take late scores.
        evaluated: groups of other splits, which are never served.
    """

    def __init__(self, choosing: Choosing, logs: Sequence[PartitionAddress]) -> None:
        self.known = KnownGroups(PackedRefs(logs))
        self.ready = ReadyIndex(
            choosing.seed,
            self.known,
            takes_turns=choosing.takes_turns,
            least=choosing.least_of_aged,
        )
        self.waiting = WaitingGroups(self.known.packed)
        self.late = LateScores(logs, self.known.packed, choosing.environments)
        self.evaluated = EvaluatedGroups(self.known.packed)

    def of_flush(
        self,
        log: PartitionAddress,
        offset: int,
        event: Flushed,
        logged_ts: int,
        wanted: Sequence[int],
        choosing: Choosing,
    ) -> list[tuple[KnownGroup, Stand]]:
        """Those groups of the flush, with the scores that came before it, and how they stand.
        Changes nothing."""
        scored = bool(choosing.scorer)
        found = known_groups(log, offset, event, wanted, all_targets=scored, logged_ts=logged_ts)
        for at, group in enumerate(found):
            if given := self.late.given(group):
                found[at] = with_scores(group, given, choosing)
        return [(group, stand_of(group, choosing)) for group in found]

    def arrive(self, group: KnownGroup) -> None:
        """The group, as ``of_flush`` gave it, was sealed."""
        if group.targets:
            self.late.arrive(group)

    def end_flush(self, log: PartitionAddress, event: Event, logged_ts: int) -> None:
        """All of an event of a seal log was applied."""
        self.late.passed(logged_ts)
        if isinstance(event, Flushed) and event.groups:
            self.late.sealed(log.environment, event)

    def add(self, group: KnownGroup, stand: Stand) -> None:
        """The group may be served, or waits."""
        if stand == "eval":
            self.evaluated.add(group)
            return
        self.known[group.ref] = group
        match stand:
            case "ready" | "filtered":
                self.ready.add(group, filtered=stand == "filtered")
            case _:
                self.waiting.add(group, stand)
                if stand == "reward":
                    self.late.wait(group)

    def score(self, log: PartitionAddress, offset: int, given: Given, choosing: Choosing) -> None:
        """Applies the next record of a log of scores, by rising offset."""
        for ref in self.late.apply(log, offset, given):
            before = self.evaluated.scored.get(ref) or self.known[ref]
            if before.logged_ts > self.late.waits_until(log.environment, given):
                continue
            group = with_scores(before, [given], choosing)
            if group is before:
                continue
            stand = stand_of(group, choosing)
            if not group.is_train:
                self.evaluated.replace(group)
            elif ref in self.ready:
                self.ready.discard([ref])
                self.add(group, stand)
            elif group.has_rewards and self.waiting.get(ref) == "reward":
                self.waiting.remove(group)
                self.late.end_wait(group, given.logged_ts)
                self.add(group, stand)
            else:
                self.known[ref] = group

    def scores(self) -> list[tuple[ServedScore, ...]]:
        """Of each group that takes any, for a digest."""
        return [self.known[ref].scores for ref in sorted(self.known)] if self.late else []

    def withdraw(self, refs: Sequence[GroupRef]) -> None:
        """They were taken, and are neither ready, nor wait."""
        self.ready.discard(refs)
        for ref in filter(self.waiting.__contains__, refs):
            if self.waiting.remove(group := self.known[ref]) == "reward":
                self.late.end_wait(group)

    def discard(self, ref: GroupRef) -> None:
        """It has ended, and no batch holds it."""
        if self.late and (known := self.known.get(ref)) is not None and known.targets:
            self.late.leave(known)
        self.known.discard(ref)
