"""A group that is not decided yet, and its trajectories that are not complete yet.

Which group a segment belongs to: with ``group_uid`` the producer said so, and the example is part
of the key only so that one uid used twice by mistake never joins rollouts of two problems. Without
it the key is inferred: strict (example, policy version) or mixed (example); split and lineage
always separate, since a group has one of each. Groups hold whole trajectories, so the key's segment
is that of the first, 0.

Whether a trajectory's segments form one unbroken chain: segment k > 0 may say what it continues.
``continuation_of`` is then the ``rollout_uid`` of segment k - 1, which may be its own, and
``prefix_hash`` names all tokens of segments 0 to k - 1 (``rollstream.schemas.ids.prefix_hash``).
Empty means that the producer does not say; then the segments of one ``rollout_uid`` are one
trajectory.

Under which uid a step counts: the one with which its trajectory began. Writers of this version name
a trajectory by ``rollstream.schemas.ids.step_rollout_uid``, older ones by its own uid alone. Steps
of one prompt may come from both; its trajectories are known by the digest, and keep the name of the
step that was read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
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
from rollstream.schemas.ids import GroupKey, prefix_hash, step_rollout_uid
from rollstream.schemas.reasons import SealReason, SettleReason

PendingKey = tuple[str, ...]
"""(group_uid, example_id), or ('', example_id, policy version or '', split, lineage)."""


names_of = itemgetter("policy_version", "lineage", "replica_id", "stop_reason")
"""``RowNames`` of a combination of ``IngestRecord.header["shared"]``."""


class StepUids(NamedTuple):
    """How a step names its trajectory; ``trajectory_uid`` is empty where it is ``rollout_uid``."""

    rollout_uid: str
    trajectory_uid: str = ""

    def digest(self, prompt_uid: str) -> str:
        """By which the trajectory is known, whichever of its names the step has."""
        if self.trajectory_uid:
            return self.rollout_uid
        return step_rollout_uid(prompt_uid, self.rollout_uid)


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

    def step_uids(self) -> StepUids:
        """How it names its trajectory."""
        return StepUids(self.value("rollout_uid"), self.value("trajectory_uid"))

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
        uid: of the rollout that came first.
        group: it waits in; another one once that is sealed.
        first_entry, first_ts: of the segment that came first, whatever its index; as a group's.
        replica_id: the env replica that it counts for: that of the segment that came first.
        ends: the control event that ended it, if any; settled with its segments.
        names: uids of its other rollouts, those that are still to come among them.
        lasts: the index of the last segment, each time that an entry said so.
    """

    uid: str
    group: PendingGroup
    first_entry: int
    first_ts: int
    replica_id: str
    ends: list[Settlement] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _rows: dict[int, PendingEntry] = field(default_factory=dict)
    lasts: list[int] = field(default_factory=list)
    _second: list[PendingEntry] = field(default_factory=list)  # Of an index that was taken.
    _fitting: int = 0  # How many of the first segments were read and continue each other.
    _prefix: str = ""  # Names all tokens of the first ``_hashed`` segments.
    _hashed: int = 0

    @property
    def entries(self) -> int:
        """How many it holds."""
        return len(self._rows) + len(self._second) + len(self.ends)

    def add(self, row: PendingEntry, is_last: bool) -> ChainState:
        """Adds a segment; returns what the trajectory is now."""
        if self._rows.setdefault(row.segment_idx, row) is not row:
            self._second.append(row)
        if is_last:
            self.lasts.append(row.segment_idx)
        return self._state()

    def join(self, other: Chain) -> None:
        """The other's segments are of this trajectory, too."""
        for row in other.rows():
            if self._rows.setdefault(row.segment_idx, row) is not row:
                self._second.append(row)
        self.lasts += other.lasts
        self.ends += other.ends

    def end(self, settlement: Settlement, segments: int) -> ChainState:
        """It has so many segments, 0: those up to the newest one so far; returns what it is now."""
        self.ends.append(settlement)
        self.lasts.append(segments - 1 if segments else max(self._rows))
        return self._state()

    def rows(self) -> list[PendingEntry]:
        """In the order of the trajectory."""
        return [*(self._rows[idx] for idx in sorted(self._rows)), *self._second]

    def pending_rows(self) -> list[PendingRow]:
        """The same as ``PendingGroup.rows`` has them."""
        return [(row.held, row.entry) for row in self.rows()]

    def is_trainable(self) -> bool:
        """Whether its segments so far can be trained on without an end: every one up to the newest
        was read, each continues those before it, and the newest has a reward of its own."""
        newest = max(self._rows)
        rewarded = self._rows[newest].value("reward") is not None
        return rewarded and newest + 1 == self._fitting

    def waiting(self) -> PendingEntry | None:
        """A segment that names the rollout which it continues and of which the segment before was
        not read; None: there is none."""
        if len(self._rows) > self._fitting:
            for idx, row in self._rows.items():
                if idx and idx - 1 not in self._rows and row.value("continuation_of"):
                    return row
        return None

    def _state(self) -> ChainState:
        last = self.lasts
        if self._second or (last and max(self._rows) > min(last)):
            return ChainState.BROKEN
        while (row := self._rows.get(self._fitting)) is not None:
            if not self._continues(row):
                return ChainState.BROKEN
            self._fitting += 1
        complete = last and len(self._rows) > min(last)
        return ChainState.COMPLETE if complete else ChainState.OPEN

    def _continues(self, row: PendingEntry) -> bool:
        """Whether the segment continues those before it, all of which were read."""
        prior, idx = row.value("continuation_of"), row.segment_idx
        before = self._rows[idx - 1].uid if idx else row.uid
        if prior != before and (prior or row.uid != before):
            return False
        claimed = row.value("prefix_hash")
        if not (claimed and idx):
            return True
        for earlier in map(self._rows.__getitem__, range(self._hashed, idx)):
            prompt, output = earlier.tokens("prompt_tokens"), earlier.tokens("output_tokens")
            self._prefix = prefix_hash(self._prefix, prompt, output)
        self._hashed = idx
        return bool(claimed == self._prefix)


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
        failed_uids: the failed members whose uid is known, and why what comes of them later ends.
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
        is_prompt: it was begun by a step: it waits for every trajectory that begins until it has
            ``size`` of them; where that is 0, until none has begun for a time.
        begun_us: log time at which its newest trajectory began.
        uids: of a prompt's trajectories, by their digests: the uids with which they began.
    """

    key: PendingKey
    size: int
    first_entry: int
    first_ts: int
    rows: list[PendingRow] = field(default_factory=list)
    names: set[RowNames] = field(default_factory=set)
    members: int = 0
    failed: int = 0
    failed_uids: dict[str, SettleReason] = field(default_factory=dict)
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
    is_prompt: bool = False
    begun_us: int = 0
    uids: dict[str, StepUids] = field(default_factory=dict)

    @property
    def begun(self) -> int:
        """Its trajectories, whether they go on, have ended or failed."""
        return self.members + self.failed + len(self.chains)

    def remember(self, step: PendingEntry) -> None:
        """The step's trajectory has begun here, under this name if it had none."""
        uids = step.step_uids()
        self.uids.setdefault(uids.digest(self.key[0]), uids)

    def begun_as(self, step: StepUids) -> StepUids | None:
        """How the step's trajectory began here; None: it did not. The digest may be given in the
        place of the trajectory's own uid."""
        found = self.uids.get(step.digest(self.key[0]))
        return found or self.uids.get(step.trajectory_uid)

    def uids_of(self, rollout_uid: str) -> dict[str, StepUids]:
        """What is remembered of a trajectory that began under this uid."""
        return {key: own for key, own in self.uids.items() if own.rollout_uid == rollout_uid}

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
        self.failed_uids[uid] = SettleReason.FAILED
        if given:
            given = given[:FAILED_REASON_CHARS]
            self.failures = self.failures or {}
            self.failures[given] = self.failures.get(given, 0) + count

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
