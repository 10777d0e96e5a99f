"""A served batch, and what becomes of groups. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.row_outcomes import RowOutcome, unpack_outcomes
from rollstream.schemas.digest import combined
from rollstream.schemas.events import (
    Acked,
    BatchServed,
    CarriedRows,
    ChosenGroup,
    LogPosition,
    Replaced,
)
from rollstream.schemas.records import SampledBatch
from rollstream.schemas.scoring import digest_part
from rollstream.streams.folds.refs import GroupRef, ref_of

Outcome = Literal[
    "trained",
    "failed",
    "skipped",
    "stale",
    "no_weight_step",
    "too_old",
    "off_branch",
    "capacity",
    "filtered",
    "unreadable",
    "by_trainer",
    "retired",
    "unscored",
    "ahead",
    "other_lineage",
    "unknown",
    "not_carried",
]
_OF_BATCHES = ("trained", "failed", "skipped", "filtered", "unknown")
DROPPED: tuple[Outcome, ...] = tuple(one for one in get_args(Outcome) if one not in _OF_BATCHES)

SHAPING = "shaping"
"""Where a request has the settings of what shapes its batch."""
LOST = "carry_lost"
"""Where it has the groups that would be carried, had their files not been lost: id to why."""
CARRIED = b"carried"
"""Sets a group that is carried apart, in the digest, from one that was chosen."""

_USED = (RowOutcome.TRAINED, RowOutcome.KEPT)


@dataclass(frozen=True, slots=True)
class Replacement:
    """The newest replacement in a batch: a repetition of it changes nothing."""

    before: bytes
    slots: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """One decision, with its replacements and acks so far.

    Attributes:
        event: as it was written.
        offset: of the event in the decision log.
        batch_id: of the batch as it is now: each replacement gives it a new one.
        groups: in the slots of the batch, replacements among them; those that were chosen for it.
        refs: of ``groups``.
        cursor: of the newest choice.
        digest: of ``all_groups``.
        chosen_at: offset of the newest choice.
        policy_epoch: of the policies that were published at the newest choice.
        since_ts: when its ack began to be awaited, microseconds: of the newest choice, or of the
            resume that serves it again.
        replacements: how many there were.
        status: of the ack; None: not acked in the epoch in effect.
        skipped: slots that the ack names as not trained on.
        filtered: slots of groups that what shapes the batch left out whole, by the ack.
        outcomes: as ``Acked`` has them.
        final: the trainer's checkpoint holds it.
        made: digest of what a batch maker made of it; empty: not known.
    """

    event: BatchServed
    offset: int
    batch_id: str
    groups: tuple[ChosenGroup, ...]
    refs: tuple[GroupRef, ...]
    cursor: tuple[LogPosition, ...]
    digest: bytes
    chosen_at: int
    policy_epoch: int
    since_ts: int
    replacements: int = 0
    replaced: Replacement | None = None
    status: str | None = None
    skipped: tuple[int, ...] = ()
    filtered: tuple[int, ...] = ()
    outcomes: NDArray[np.int32] | None = None
    final: bool = False
    made: bytes = b""

    @classmethod
    def of(cls, event: BatchServed, offset: int) -> Self:
        """As it was decided."""
        return cls(
            event,
            offset,
            event.batch_id,
            event.groups,
            tuple(map(ref_of, event.groups)),
            event.cursor,
            event.digest,
            chosen_at=offset,
            policy_epoch=event.policy_epoch,
            since_ts=event.now_ts,
        )

    def replaced_by(self, event: Replaced, offset: int) -> Self:
        """With other groups in some slots."""
        slots = tuple(event.slots.tolist())
        groups, refs = list(self.groups), list(self.refs)
        for slot, chosen in zip(slots, event.groups, strict=True):
            groups[slot], refs[slot] = chosen, ref_of(chosen)
        return replace(
            self,
            batch_id=event.batch_id,
            groups=tuple(groups),
            refs=tuple(refs),
            cursor=event.cursor,
            digest=event.digest,
            chosen_at=offset,
            policy_epoch=event.policy_epoch,
            since_ts=event.now_ts,
            replacements=self.replacements + 1,
            replaced=Replacement(self.digest, slots, event.reason),
            made=b"",
        )

    def acked_by(self, event: Acked) -> Self:
        """With what the ack says."""
        filtered = event.filtered
        if event.outcomes is not None:
            of_rows = unpack_outcomes(event.outcomes).items()
            new = [(slot, rows) for slot, rows in of_rows if slot < len(self.groups)]
            filtered = tuple([slot for slot, rows in new if not np.isin(rows, _USED).any()])
        return replace(
            self,
            status=event.status,
            skipped=event.skipped,
            filtered=filtered,
            outcomes=event.outcomes,
        )

    @property
    def outcome_bytes(self) -> bytes | None:
        """``outcomes``, to be compared."""
        return None if self.outcomes is None else self.outcomes.tobytes()

    def unacked(self) -> Self:
        """Without what an ack said."""
        return replace(self, status=None, skipped=(), filtered=(), outcomes=None)

    @property
    def carried(self) -> tuple[CarriedRows, ...]:
        """What the step before left over, in the slots after those of ``groups``."""
        return self.event.carried

    @property
    def all_groups(self) -> tuple[ChosenGroup, ...]:
        """In all slots, those carried last."""
        if not self.carried:
            return self.groups
        return (*self.groups, *(one.group for one in self.carried))

    @property
    def all_refs(self) -> tuple[GroupRef, ...]:
        """Of ``all_groups``."""
        if not self.carried:
            return self.refs
        return (*self.refs, *self.carried_refs)

    @property
    def carried_refs(self) -> tuple[GroupRef, ...]:
        """Of the groups that are carried."""
        return tuple(ref_of(one.group) for one in self.carried)

    @property
    def is_shaped(self) -> bool:
        """Whether the step after it may carry what it leaves over."""
        return is_shaped(self.event.request)

    @property
    def lost(self) -> Mapping[str, str]:
        """Groups that it would carry, had their files not been lost: id to why."""
        if LOST not in self.event.request:
            return {}
        found: dict[str, str] = json.loads(self.event.request).get(LOST, {})
        return found

    @property
    def acked(self) -> tuple[GroupRef, ...]:
        """The groups that its ack covers: none before it, nor those that were not trained on."""
        if self.status is None:
            return ()
        untrained = self.untrained
        return tuple(ref for slot, ref in enumerate(self.refs) if slot not in untrained)

    @property
    def untrained(self) -> tuple[int, ...]:
        """Slots that the ack names: ``skipped`` and ``filtered``."""
        return self.skipped + self.filtered

    def overdue(self, now_us: int, ack_timeout_s: float) -> bool:
        """Whether it should have been acked, or released, by now."""
        unacked = self.status is None and not self.final
        return unacked and now_us - self.since_ts > ack_timeout_s * 1e6

    @property
    def current_step(self) -> int:
        """The trainer's step when it was decided."""
        event = self.event
        return event.step if event.current_step < 0 else event.current_step

    @property
    def sampled(self) -> SampledBatch:
        """The whole batch, as users see it."""
        ids = tuple(group.group_id for group in self.all_groups)
        return SampledBatch(self.batch_id, ids, self.event.now_ts)


@lru_cache(maxsize=16)  # A trainer's are mostly the same.
def is_shaped(request: str) -> bool:
    """Whether a batch that was served for this request is shaped."""
    return SHAPING in json.loads(request)


def batch_digest(groups: Sequence[ChosenGroup], carried: Sequence[CarriedRows] = ()) -> bytes:
    """xxh3-128 over the groups' digests, masks and late scores, in order; of those that are carried
    also over which rows are wanted."""
    parts = list(chain.from_iterable(map(_digested, groups)))
    for one in carried:
        parts += [CARRIED, *_digested(one.group), one.wanted.tobytes()]
    return combined(parts)


def _digested(group: ChosenGroup) -> list[bytes]:
    parts = [group.digest]
    if group.row_mask is not None:
        parts.append(group.row_mask.tobytes())
    if group.scores:
        parts.append(digest_part(group.scores))
    return parts
