"""What a sampler decided, by its decision log, which is read from a hint on if the log proves it.

A hint is a fold that was saved. It knows no seal log, so it serves every reader whose seal logs
begin behind all groups that it has decisions about. One that is missing, damaged or disproved costs
time: the log is read from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf

import xxhash

import rollstream
from rollstream.folds.saved_state import UnusableState, from_bytes, to_pieces
from rollstream.folds.state import SamplerState
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import (
    Acked,
    Adopted,
    BatchServed,
    Claimed,
    CursorRecorded,
    Dropped,
    Event,
    PolicyPublished,
    Replaced,
    Requested,
    Resumed,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import DropReason
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, LogLost, OffsetLost, lost_message
from rollstream.streams.owned.adoption import holds
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.fold import FoldCheckpoint, FoldedLog, SavedFold
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import bounds_in_time, read_between
from rollstream.streams.topics.lost import Hint

RECENT_US = 60_000_000  # What rates are over.
NEVER = 1 << 62  # A seal log that is not read begins behind every group.
HINT_EVENTS = 2_048  # Behind so many events a new hint is worth its file.


@dataclass(slots=True)
class DecisionCounts:
    """What a sampler's state does not say.

    Attributes:
        batches: that were served, replays left out.
        wanted: groups of the newest of them.
        trainer_step: the next step of the trainer.
        decided_ts: log time of the newest decision, or of the first claim.
        served_ts: log times of the batches of the minute up to the newest.
        dropped_since: groups that were dropped since the newest decision, by reason.
        clock_ahead_us: how far its owner's clock was ahead of the brokers' at its newest cursor.
        scores_read: of its newest cursor, each log of scores with the offset up to which it read.
    """

    batches: int = 0
    wanted: int = 0
    trainer_step: int = 0
    decided_ts: int | None = None
    served_ts: list[int] = field(default_factory=list)
    dropped_since: dict[str, int] = field(default_factory=dict)
    clock_ahead_us: int = 0
    scores_read: Sequence[tuple[str, int, int, int]] = ()

    def apply(self, timestamp_us: int, event: Event) -> None:
        """Counts the next event."""
        if cursor := getattr(event, "cursor", ()):
            self.scores_read = [
                (one.environment, one.generation, one.partition, one.scores_next_offset)
                for one in cursor
            ]
        match event:
            case Claimed():
                self.clock_ahead_us = 0
                if self.decided_ts is None:
                    self.decided_ts = timestamp_us
                return
            case CursorRecorded():
                self.clock_ahead_us = event.now_ts - timestamp_us
                return
            case Adopted() | Requested():
                return
            case Dropped():
                # No trainer gets further by a drop: where every group is dropped, it waits.
                reason = DropReason(event.reason).value
                self.dropped_since[reason] = self.dropped_since.get(reason, 0) + len(event.groups)
                return
            case BatchServed():
                self.batches += 1
                self.wanted = len(event.groups)
                since_us = timestamp_us - RECENT_US
                self.served_ts = [*(one for one in self.served_ts if one > since_us), timestamp_us]
                self.trainer_step = event.step + 1
            case Acked():
                # A batch that is replayed is not served anew, but acked.
                self.trainer_step = max(self.trainer_step, event.step + 1)
            case PolicyPublished():
                # Of a final batch that is replayed nothing is recorded, but of its weights.
                self.trainer_step = max(self.trainer_step, event.step)
            case Resumed():
                self.trainer_step = event.first_step
        self.decided_ts = timestamp_us
        self.dropped_since.clear()


class DecisionFold:
    """Folds the decisions, and knows no groups before ``begin_groups``: a start from the groups'
    logs as they are kept is as good while no decision is about a group behind that start.

    Args:
        starts: where each seal log will be read from.

    Attributes:
        state: what the sampler decided.
        counts: what else is told of it.
        has_begun: whether it depends on starts of seal logs; such a fold is not saved.
    """

    def __init__(
        self, name: str, choosing: Choosing, starts: Mapping[PartitionAddress, int]
    ) -> None:
        self.state = SamplerState(name, choosing, list(starts))
        for log in starts:
            self.state.start_at(log, NEVER)
        self.counts = DecisionCounts()
        self._starts = starts
        self._reach: dict[PartitionAddress, int] = {}  # Behind all groups that were decided about.
        self.has_begun = False

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """The next event of the decision log."""
        if self.needs_groups(event):
            self.begin_groups()
        for log, group_offset in _groups_of(event):
            self._reach[log] = max(self._reach.get(log, 0), group_offset + 1)
        self.state.apply(offset, timestamp_us, event)
        self.counts.apply(timestamp_us, event)

    def needs_groups(self, event: Event) -> bool:
        """Whether the event is about a group that will be read."""
        if self.has_begun:
            return False
        return any(at >= self._starts.get(log, NEVER) for log, at in _groups_of(event))

    def begin_groups(self) -> None:
        """From now on the state takes what comes of the seal logs. Idempotent."""
        if not self.has_begun:
            self.has_begun = True
            for log, start in self._starts.items():
                self.state.start_at(log, start)

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        """As the state's."""
        return self.state.checkpoint(claims)

    def told(self) -> bytes:
        """What is saved beside the state, in one line."""
        reach = [[*log, at] for log, at in sorted(self._reach.items())]
        return json.dumps({**asdict(self.counts), "reach": reach}).encode()

    def take(self, state: SamplerState, told: bytes) -> None:
        """Goes on from what was saved.

        Raises:
            UnusableState: it has decisions about groups that will be read.
        """
        found = json.loads(told)
        reach = {PartitionAddress(*log): at for *log, at in found.pop("reach")}
        if any(at > self._starts.get(log, NEVER) for log, at in reach.items()):
            raise UnusableState("it has decisions about groups that are to be read")
        self.state, self.counts, self._reach = state, DecisionCounts(**found), reach


class DecisionLog:
    """A decision log, folded as far as it was read.

    Args:
        fold: that folded nothing.
        hint: None: there is none.
        root_id: of the root that has the hint.
    """

    def __init__(
        self,
        broker: Broker,
        where: TopicPartition,
        fold: DecisionFold,
        hint: Hint | None = None,
        root_id: str = "",
    ) -> None:
        self.fold = fold
        self._where = where
        self._hint = hint
        self._root_id = root_id
        self._reader = broker.reader({where: 0})
        self._log: FoldedLog[DecisionFold] | None = None
        self._unsaved = 0  # Events that no hint has.

    def read(self, deadline: Deadline, *, answers_within_s: float = inf) -> None:
        """Folds what came since the last call, up to the log's end. After an error of the broker
        the next call goes on where this one ended.

        Raises:
            BrokerUnavailable: not read by the deadline, or no answer in time. UnreadableLog: it
                cannot be read on, or was cut back, also where it was written anew since.
                UnknownTopic.
        """
        answer = Deadline(deadline.slice_s(answers_within_s), deadline.clock)
        _, end = bounds_in_time(self._reader, self._where, answer)
        log = self._log
        if log is None:
            log = self._log = self._begun(deadline)
        elif log.owner and not holds(self._reader, self._where, log.place(), deadline):
            found = f"the log, which ends at {end}, does not hold the last of them"
            raise LogLost(lost_message(str(self._where), log.next_offset, found))
        try:
            for record in read_between(self._reader, self._where, log.next_offset, end, deadline):
                event = event_in(record, log.owner)
                if event is not None and self.fold.needs_groups(event):
                    self._save(log)
                counts = log.apply(record.offset, record.timestamp_us, event, record.value)
                self._unsaved += counts
                if deadline.passed():
                    raise BrokerUnavailable(
                        f"{self._where} was read up to {log.next_offset}, not to its end at {end}, "
                        f"within {deadline.timeout_s} s. Allow more time"
                    )
        except OffsetLost as error:
            raise LogLost(f"{error}: restore the log (docs/operating/kafka.md)") from error
        self._save(log)

    def close(self) -> None:
        """Idempotent."""
        self._reader.close()

    def _begun(self, deadline: Deadline) -> FoldedLog[DecisionFold]:
        """From the hint, where the log holds the very record that it ended with; else from 0."""
        data = b"" if self._hint is None else self._hint.read()
        told, _, saved = data.partition(b"\n")
        try:
            if saved:
                state, place = from_bytes(saved, self._identity(told), self.fold.state)
                if holds(self._reader, self._where, place, deadline):
                    self.fold.take(state, told)
                    return FoldedLog.going_on(SavedFold(self.fold, place), Fence())
        except UnusableState:
            pass
        return FoldedLog(self.fold, Fence(), 0)

    def _save(self, log: FoldedLog[DecisionFold]) -> None:
        is_due = self._unsaved >= HINT_EVENTS and not self.fold.has_begun
        if self._hint is None or log.owner is None or not is_due:
            return
        told, self._unsaved = self.fold.told(), 0
        pieces = to_pieces(SavedFold(self.fold.state, log.place()), self._identity(told))
        self._hint.write(b"\n".join([told, b"".join(pieces)]))

    def _identity(self, told: bytes) -> dict[str, str]:
        return {
            "sampler": self.fold.state.name,
            "log": str(self._where),
            "root_id": self._root_id,
            "told": xxhash.xxh3_128_hexdigest(told),
            # No version of the fold stands for what is told beside the state.
            "told_by": " ".join([rollstream.__version__, *DecisionCounts.__slots__]),
        }


def _groups_of(event: Event) -> Iterator[tuple[PartitionAddress, int]]:
    """The groups that the event is about and no event before it had to be: seal log and offset."""
    if isinstance(event, BatchServed | Replaced | Dropped):
        for group in event.groups:
            yield PartitionAddress(*group[:3]), group.offset
