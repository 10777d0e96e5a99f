"""A group that is not decided yet, and its trajectories that are not complete yet.

Which group a segment belongs to: with ``group_uid`` the producer said so, and the example is part
of the key only so that one uid used twice by mistake never joins rollouts of two problems. Without
it the key is inferred: strict (example, policy version) or mixed (example); split and lineage
always separate, since a group has one of each. Groups hold whole trajectories, so the key's segment
is that of the first, 0.

Whether a trajectory's segments form one unbroken chain: segment k > 0 may say what it continues.
``continuation_of`` is then the trajectory's own ``rollout_uid``, and ``prefix_hash`` names all
tokens of segments 0 to k - 1 (``rollstream.schemas.ids.prefix_hash``). Empty means that the
producer does not say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from rollstream.consumers.assembling.decisions import (
    FAILED_REASON_CHARS,
    DueGroup,
    Row,
    RowNames,
    Settlement,
    Unsealed,
)
from rollstream.consumers.assembling.held import HeldRecord, PendingRow
from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.ids import GroupKey, prefix_hash
from rollstream.schemas.reasons import SealReason, SettleReason

PendingKey = tuple[str, ...]
"""(group_uid, example_id), or ('', example_id, policy version or '', split, lineage)."""


names_of = itemgetter("policy_version", "lineage", "replica_id", "stop_reason")
"""``RowNames`` of a combination of ``IngestRecord.header["shared"]``."""


class PendingEntry(NamedTuple):
    """One entry; ``uid`` and ``segment_idx`` as a settlement names it."""

    held: HeldRecord
    entry: int
    uid: str = ""
    segment_idx: int = 0

    def settlement(self, reason: SettleReason) -> Settlement:
        """Why it ends without a readable group."""
        return Settlement(reason, self.held.offset, self.entry, self.uid, self.segment_idx)

    @property
    def kind(self) -> int:
        """Of ``EntryKind``."""
        return self.held.record.kinds[self.held.index(self.entry)]

    def value(self, name: str) -> Any:
        """A text or a number of it."""
        return self.held.record.values(name)[self.held.index(self.entry)]

    def names(self) -> RowNames:
        """What it adds to those of its group."""
        record = self.held.record
        of = record.shared_indexes[self.held.index(self.entry)]
        names: RowNames = names_of(record.header["shared"][of])
        return names

    def tokens(self, name: str) -> memoryview:
        """An array that every segment has, packed."""
        record, index = self.held.record, self.held.index(self.entry)
        run = record.arrays.get(name)
        return memoryview(b"") if run is None else record.bytes_of(run, index, index + 1)


class ChainState(Enum):
    """What some segments of one trajectory amount to."""

    OPEN = auto()  # Segments are missing.
    COMPLETE = auto()  # The last segment and every one before it, each continuing those before it.
    BROKEN = auto()  # No later segment can complete it.


@dataclass(slots=True, eq=False)
class Chain:
    """A trajectory of which some segments were read.

    Attributes:
        group: it waits in; another one once that is sealed.
        first_entry, first_ts: of the segment that came first, whatever its index; as a group's.
        replica_id: the env replica that it counts for: that of the segment that came first.
        ends: the control event that ended it, if any; settled with its segments.
    """

    group: PendingGroup
    first_entry: int
    first_ts: int
    replica_id: str
    ends: list[Settlement] = field(default_factory=list)
    _rows: dict[int, PendingEntry] = field(default_factory=dict)
    _last: list[int] = field(default_factory=list)  # Indexes of the last segment, as was said.

    @property
    def entries(self) -> int:
        """How many it holds."""
        return len(self._rows) + len(self.ends)

    @property
    def has_end(self) -> bool:
        """Whether it is known which segment is the last."""
        return bool(self._last)

    def add(self, row: PendingEntry, is_last: bool) -> ChainState:
        """Adds a segment; returns what the trajectory is now."""
        self._rows[row.segment_idx] = row
        if is_last:
            self._last.append(row.segment_idx)
        return self._state()

    def end(self, settlement: Settlement, segments: int) -> ChainState:
        """It has so many segments, 0: those up to the newest one so far; returns what it is now."""
        self.ends.append(settlement)
        self._last.append(segments - 1 if segments else max(self._rows))
        return self._state()

    def rows(self) -> list[PendingEntry]:
        """In the order of the trajectory."""
        return [self._rows[idx] for idx in sorted(self._rows)]

    def pending_rows(self) -> list[PendingRow]:
        """The same as ``PendingGroup.rows`` has them."""
        return [(row.held, row.entry) for row in self.rows()]

    def is_trainable(self) -> bool:
        """Whether its segments so far can be trained on without an end: every one up to the newest
        was read, each continues those before it, and the newest has a reward of its own."""
        newest = max(self._rows)
        rewarded = self._rows[newest].value("reward") is not None
        return rewarded and newest + 1 == len(self._rows) and self._unbroken()

    def _state(self) -> ChainState:
        last = self._last
        if last and max(self._rows) > min(last):
            return ChainState.BROKEN
        if not last or len(self._rows) <= min(last):
            return ChainState.OPEN
        return ChainState.COMPLETE if self._unbroken() else ChainState.BROKEN

    def _unbroken(self) -> bool:
        rows = self.rows()
        if any(row.value("continuation_of") not in ("", row.uid) for row in rows[1:]):
            return False
        said = [row.value("prefix_hash") for row in rows]
        if not any(said[1:]):
            return True
        prefix = ""
        for (before, _), (_, claimed) in pairwise(zip(rows, said, strict=True)):
            prompt, output = before.tokens("prompt_tokens"), before.tokens("output_tokens")
            prefix = prefix_hash(prefix, prompt, output)
            if claimed not in ("", prefix):
                return False
        return True


@dataclass(slots=True, eq=False)
class PendingGroup:
    """Members so far, and whatever else is settled together with them.

    Attributes:
        size: members, complete or failed, at which the group is full.
        first_entry, first_ts: of the entry that it began with, counted over all that were read.
        rows: of complete members: the held record, and the number of the entry.
        names: of these rows, each combination once.
        members: how many members are complete.
        failed: how many members will never come.
        failed_uids: the failed members whose uid is known.
        failures: how many failed, by the reasons that their producer gave; at most as many reasons
            as it has entries.
        chains: trajectories that are not complete, by uid.
        settlements: dispatches, failures and the like, settled with the group.
        replicas: members by env replica; only where a cap is set.
        entries: that it holds.
        signatures: dtype and trailing shape of each named array, by the first segment that had it.
        split: ``train`` while every member is; else that of one that is not.
        overdue: the seal time-out has passed, but the group had too few members.
        dispatched: one of the settlements is a dispatch.
        producer_id: of the producer that dispatched it and has it open; empty: nobody told.
    """

    key: PendingKey
    size: int
    first_entry: int
    first_ts: int
    rows: list[PendingRow] = field(default_factory=list)
    names: set[RowNames] = field(default_factory=set)
    members: int = 0
    failed: int = 0
    failed_uids: set[str] = field(default_factory=set)
    failures: dict[str, int] | None = None
    chains: dict[str, Chain] = field(default_factory=dict)
    settlements: list[Settlement] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)
    entries: int = 0
    signatures: dict[str, ArraySignature] = field(default_factory=dict)
    split: str = "train"
    overdue: bool = False
    dispatched: bool = False
    producer_id: str = ""

    def agrees(self, row: PendingEntry) -> bool:
        """Whether the segment's named arrays have the dtypes and trailing shapes that the group's
        have; from now on the group has them."""
        found = row.held.record.signatures(row.held.index(row.entry))
        if any(self.signatures.get(name, of) != of for name, of in found.items()):
            return False
        self.signatures |= found
        return True

    def fail(self, uid: str, count: int, given: str) -> None:
        """So many members will never come; one that has a uid fails once, for whatever reasons.
        The producer may have ``given`` one."""
        if uid in self.failed_uids:
            return
        self.failed += count
        self.failed_uids.add(uid)
        if given:
            given = given[:FAILED_REASON_CHARS]
            self.failures = self.failures or {}
            self.failures[given] = self.failures.get(given, 0) + count

    def trainable_chains(self) -> list[tuple[str, Chain]]:
        """Trajectories that are not complete and can be trained on all the same."""
        return [(uid, chain) for uid, chain in self.chains.items() if chain.is_trainable()]

    def due(self, environment: str, reason: SealReason, rows: Sequence[Row]) -> DueGroup:
        """The group to be sealed for that reason, with its rows as they were taken."""
        group_uid, example_id, *inferred = self.key
        return DueGroup(
            GroupKey(environment, example_id, 0, "".join(inferred[:1]), group_uid),
            self.split,
            reason,
            self.failed,
            rows,
            self.names,
            self.signatures,
            self.first_ts,
        )

    def unsealed(self, reason: SealReason | None) -> Unsealed:
        """Why it was not sealed, where it was to be, for that reason, or expired (None)."""
        if reason is None:
            why = SettleReason.EXPIRED
        elif self.rows:
            why = SettleReason.TOO_LARGE
        else:
            failed = (one.reason for one in self.settlements)
            why = next(one for one in failed if one not in _NO_FAILURE)
        return Unsealed(why, self.key[1])


_NO_FAILURE = (SettleReason.DISPATCHED, SettleReason.ENDED)
