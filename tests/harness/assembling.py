"""Drives an ``Assembler`` by hand: entries and records in, what it decided out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from harness.rollouts import (
    make_dispatched,
    make_ended,
    make_entry,
    make_failed,
    make_record,
)
from rollstream.consumers.assembling import Assembler, DueGroup, Plan, SealDecision
from rollstream.consumers.assembling.decisions import Row, segments_of, values_of
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.ids import SegmentId
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.reasons import SettleReason

SECOND = 1_000_000
NO_BOUND = 1 << 40
Where = tuple[int, int]
"""Offset and entry."""


def among(seen: Collection[SegmentId]) -> Callable[[Sequence[SegmentId]], Sequence[int]]:
    """What an assembler asks, of a collection that may grow."""
    return lambda segments: [index for index, one in enumerate(segments) if one in seen]


def entries_of(decisions: Iterable[SealDecision]) -> Iterator[Where]:
    """All that the decisions settle; of a range that nobody read, each offset's only entry."""
    for decision in decisions:
        rows = () if decision.group is None else decision.group.rows
        yield from ((offset, entry) for _, _, offset, entry in rows)
        yield from ((one.offset, one.entry) for one in decision.settled)
        if decision.unread is not None:
            yield from ((offset, 0) for offset in range(*decision.unread[1:]))


class Drive:
    """Feeds one assembler and commits what it decides, remembering every uid that was settled.

    Args:
        pending_bytes: takes the place of ``max_pending_bytes``, which has to hold larger records.
    """

    def __init__(self, *, watermark: int = 0, pending_bytes: int = 0, **config: Any) -> None:
        self.segments_seen: set[SegmentId] = set()
        self.decisions: list[SealDecision] = []
        self.now_us = 0
        self.assembler = Assembler(
            "math",
            EnvironmentConfig(**{"target_group_size": 2, "min_group_size": 2, **config}),
            among(self.segments_seen),
            watermark=watermark,
        )
        if pending_bytes:
            self.assembler.held.size_max = pending_bytes

    def add(
        self,
        *entries: Entry,
        settled: Collection[int] = (),
        unreadable: Collection[int] = (),
    ) -> int:
        """One record with these entries, now; its offset."""
        record = make_record(entries)
        return self.add_record(record, settled=settled, unreadable=unreadable)

    def add_record(self, record: IngestRecord, **passed: Collection[int]) -> int:
        offset = self.assembler.position
        self.assembler.add(offset, self.now_us, record, **passed)
        return offset

    def rollout(self, uid: str, **fields: Any) -> int:
        """A record of one rollout, and so are the next three."""
        return self.add(make_entry(rollout_uid=uid, **fields))

    def dispatch(self, group_uid: str, size: int, example_id: str = "ex-1") -> int:
        return self.add(
            make_dispatched(example_id=example_id, group_uid=group_uid, group_size=size)
        )

    def fail(
        self, group_uid: str, size: int, count: int = 1, uid: str = "", reason: str = "crashed"
    ) -> int:
        uid = uid or f"failure-{self.assembler.position}"
        named = {"group_uid": group_uid, "group_size": size, "rollout_uid": uid}
        return self.add(make_failed(count=count, reason=reason, **named))

    def end(self, uid: str, segments: int = 0) -> int:
        return self.add(make_ended(uid, segments))

    def wait(self, seconds: float) -> None:
        """Log time passes without a record."""
        self.now_us += round(seconds * SECOND)
        self.assembler.tick(self.now_us)

    def plan(self, entries_max: int, size_max: int) -> Plan | None:
        return self.assembler.decided.plan(entries_max, size_max, self.assembler.now_us)

    def commit(self, entries_max: int = NO_BOUND, size_max: int = NO_BOUND) -> Plan | None:
        plan = self.plan(entries_max, size_max)
        if plan is not None:
            for decision in plan.decisions:
                self.segments_seen.update(segments_of(decision))
            self.assembler.commit(plan)
            self.decisions += plan.decisions
        return plan

    def groups(self) -> list[DueGroup]:
        """Every group that was sealed so far; commits first."""
        self.commit()
        return [d.group for d in self.decisions if d.group is not None]

    def members(self) -> list[tuple[str, ...]]:
        """The uids of each sealed group's rows."""
        return [tuple(values_of(group.rows, "rollout_uid")) for group in self.groups()]

    def settled(self) -> dict[Where, SettleReason]:
        """Where to reason, of all that ended without a group; commits first."""
        self.commit()
        unread = [d.unread for d in self.decisions if d.unread is not None]
        return {(s.offset, s.entry): s.reason for d in self.decisions for s in d.settled} | {
            (offset, 0): reason for reason, *bounds in unread for offset in range(*bounds)
        }

    def settled_offsets(self) -> dict[int, SettleReason]:
        """The same, where each record has one entry."""
        settled = self.settled()
        assert all(entry == 0 for _, entry in settled)
        return {offset: reason for (offset, _), reason in settled.items()}

    def kept_uids(self) -> list[str]:
        """Of the rows that expired."""
        return [uid for d in self.decisions for uid in values_of(d.incomplete, "rollout_uid")]


def places_of(rows: Iterable[Row]) -> list[Where]:
    """Where each row stands in the log."""
    return [(offset, entry) for _, _, offset, entry in rows]


def described(decisions: Sequence[SealDecision]) -> list[Any]:
    """Decisions by value, but for where entries stand and how many bytes they have."""
    found = []
    for group, settled, incomplete, entries, _, unread, *others in decisions:
        sealed = None
        if group is not None:
            uids, idxs = (values_of(group.rows, name) for name in ("rollout_uid", "segment_idx"))
            rest = group._replace(rows=(), first_ts=group.first_ts)
            sealed = (rest, list(zip(uids, idxs, strict=True)))
        reasons = [(s.reason, s.rollout_uid, s.segment_idx) for s in settled]
        kept = values_of(incomplete, "rollout_uid")
        found.append((sealed, reasons, kept, entries, unread, *others))
    return found
