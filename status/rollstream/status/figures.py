"""The figures of each stage at one moment. Ages are seconds by the broker's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollstream.folds.group.eligible import Waits
from rollstream.schemas.reasons import DropReason
from rollstream.streams.troubles import CommitNote


@dataclass(frozen=True, slots=True)
class ContinuationFigures:
    """Segment ``segment_idx`` of the rollout ``uid``, which waits for the segment before it, of the
    rollout ``continues``."""

    uid: str
    segment_idx: int
    continues: str
    example_id: str
    group_uid: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFigures:
    """One partition of an environment, from the ingest log to the seal log.

    Attributes:
        kept_from: oldest offset that the ingest log still has.
        ingest_end: next offset to be written to the ingest log.
        published_age_s: of the newest record there; None: there is none.
        oldest_age_s: of the record at the watermark, which waits longest; None: none waits.
        records_per_s: published, over the last minute.
        held: whether a running sealer has it, by the consumer group; None: it changes hands just
            now. A sealer that died is in the group until its session has timed out (10 s).
        owner: who claimed the seal log last; empty: it was never claimed.
        watermark: every entry of every ingest offset below it is settled.
        settled: entries, so far, whatever became of them.
        touched: ingest offsets of which any entry is settled.
        touched_entries: that the records there have.
        segments: in sealed groups.
        groups_per_s: sealed, over the last minute.
        flush_age_s: of the newest flush; None: there is none.
        recent_settled: entries, over the last minute, whatever became of them.
        recent_unreadable: those of them that are dead letters.
        foreign: records of the seal log that no owner wrote; they are passed over.
        aside: why the seal log cannot be read on, with the offset; empty: it can.
        continuations: trajectories of which a segment waits for the rollout that it continues, for
            ten seconds or longer; ``continuing`` are those that wait longest.
        trouble: why its sealer seals nothing there, as that sealer says; empty: it says nothing.
        beside: what fails while it seals, likewise.
    """

    environment: str
    partition: int
    kept_from: int
    ingest_end: int
    published_age_s: float | None
    oldest_age_s: float | None
    records_per_s: float
    held: bool | None
    owner: str
    watermark: int
    settled: int
    touched: int
    touched_entries: int
    groups: int
    segments: int
    groups_per_s: float
    flush_age_s: float | None
    recent_settled: int = 0
    recent_unreadable: int = 0
    foreign: int = 0
    aside: str = ""
    trouble: str = ""
    beside: str = ""
    continuations: int = 0
    continuing: tuple[ContinuationFigures, ...] = ()

    @property
    def put_aside(self) -> str:
        """Why nothing of it is sealed until somebody acts: its seal log, or what its sealer says;
        empty: it is not put aside."""
        return self.aside or CommitNote(None, self.trouble).aside

    @property
    def backlog(self) -> int:
        """Records from the watermark on: pending in groups, or not read yet."""
        return max(0, self.ingest_end - self.watermark)

    @property
    def unread(self) -> int:
        """Records of which no entry is settled: what they hold is not known."""
        return max(0, self.ingest_end - self.touched)

    @property
    def waiting(self) -> int | None:
        """Entries of the backlog. A record of which none is settled counts as the mean of those of
        which some are; None: there are only such records."""
        pending = self.touched_entries - self.settled
        if not self.unread:
            return pending
        if not self.touched:
            return None
        return pending + round(self.unread * self.entries_per_record)

    @property
    def entries_per_record(self) -> float:
        """The mean of the records of which any entry is settled; 1 where none is."""
        return self.touched_entries / self.touched if self.touched else 1.0

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were settled."""
        return max(0, self.kept_from - self.watermark)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerFigures:
    """One sampler, from its decision log.

    Attributes:
        owner: who claimed the log last; empty: it was never claimed.
        ready: groups that are sealed, neither served nor dropped, and can be served as they are.
        waiting: groups that cannot yet, by what they wait for; evaluations wait for nothing.
        older: groups sealed before what was read of the seal logs, and neither served nor dropped:
            ready, waiting, or evaluations.
        over: whether the run was finished, and nothing was decided since.
        batches: served so far; released ones count.
        batches_per_minute: served in the last minute.
        open_batches: served and not final yet, of which ``unacked`` are not acked.
        unacked_step: of the open batch whose ack is awaited longest, for ``unacked_age_s``; None:
            every one is acked.
        next_step: the first that was not served.
        trainer_step: what its trainer asks for next; before ``next_step`` where it went back to a
            checkpoint and replays.
        policy_epoch: of the policies that are published now.
        policy_step: of the newest policy of that epoch; -1: none was published.
        decision_age_s: of the newest decision that is no drop (before there is one, of the oldest
            claim); None: there is neither.
        dropped_since: groups that were dropped after that decision, by reason.
        wanted: groups of the newest batch that was decided; 0: none was.
        waiting_since: of those in ``waiting``, the ones sealed after that decision.
        lost: how the log holds less than the store's root knows of, in words; empty: it does not,
            or the root was not looked at.
        aside: why the log cannot be read on, with the offset; empty: it can.
        clock_ahead_s: how far its machine's clock was ahead of the brokers', as it said last.
    """

    name: str
    environments: tuple[str, ...]
    owner: str
    ready: int
    waiting: Mapping[Waits, int]
    older: int
    over: bool
    batches: int
    batches_per_minute: int
    open_batches: int
    unacked: int
    unacked_step: int | None
    unacked_age_s: float | None
    next_step: int
    trainer_step: int
    policy_epoch: int
    policy_step: int
    decision_age_s: float | None
    dropped_since: Mapping[DropReason, int]
    waiting_since: Mapping[Waits, int]
    wanted: int = 0
    lost: str = ""
    aside: str = ""
    clock_ahead_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFigures:
    """The producers of an environment that live, of which ``waiting`` wait to begin groups; none
    that was silent for a minute is counted.

    Attributes:
        told_by: samplers whose newest shares are valid, each with its setting by which it grants
            no more.
    """

    environment: str
    producers: int
    waiting: int
    told_by: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFigures:
    """Entries that no sealer could read, while their topic keeps them.

    Attributes:
        kept: how many entries, but for those that `deadletters retry` published again. Of records
            before the newest thousand it is not known which these are, or whether two are letters
            of one entry: each counts.
        newest_age_s: of the newest; None: there is none among the newest thousand records, and so
            for what follows.
        newest_reason: why it could not be read, with the details.
        newest_from: topic, partition and offset where it stood.
    """

    kept: int
    newest_age_s: float | None = None
    newest_reason: str = ""
    newest_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures of a deployment.

    Attributes:
        missing_topics: topics that are configured and do not exist; with any, the rest is empty.
        topics_off: topics that do not exist and without which the rest works, and what is off.
        other_root: how this machine's store root differs from the deployment's, or why it cannot be
            read, in words.
        sealers: how many run, by environment; one may seal several.
        admission: of the environments that samplers serve and whose topic for it is there.
        unnamed_samplers: that have a decision log and no section in the configuration.
        scores_aside: logs of scores that cannot be read on, topic and partition, each with the
            reason.
    """

    missing_topics: tuple[str, ...] = ()
    topics_off: tuple[str, ...] = ()
    other_root: tuple[str, ...] = ()
    partitions: tuple[PartitionFigures, ...] = ()
    samplers: tuple[SamplerFigures, ...] = ()
    sealers: Mapping[str, int] = field(default_factory=dict)
    admission: tuple[AdmissionFigures, ...] = ()
    dead_letters: DeadLetterFigures = DeadLetterFigures(kept=0)
    unnamed_samplers: tuple[str, ...] = ()
    scores_aside: Mapping[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether every sampler's run is over; there is at least one."""
        return bool(self.samplers) and all(sampler.over for sampler in self.samplers)
