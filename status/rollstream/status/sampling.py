"""One sampler's figures, from its decision log and the seal logs that it draws from. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from rollstream.folds.group.scored import Given
from rollstream.folds.state import NOTHING, SamplerState
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import Flushed, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import DropReason
from rollstream.status.decided import RECENT_US, DecisionFold
from rollstream.status.figures import SamplerFigures
from rollstream.streams.broker import TopicPartition
from rollstream.streams.owned.follow import ConfirmedEvent
from rollstream.streams.topics.lost import lost_batch

_EVER_US = 2**63


class SamplerReading:
    """Folds what a sampler folds, and notes when it last decided.

    Feed it the whole decision log first, then the seal logs from their starts on, then the scores.

    Attributes:
        decided: what the decision log says.
        aside: why that log cannot be read on; empty: it can.

    Args:
        starts: the offset from which each seal log is read; those of other environments are passed
            over, then and now.
    """

    def __init__(
        self, name: str, choosing: Choosing, starts: Mapping[PartitionAddress, int]
    ) -> None:
        self._starts = {
            log: start for log, start in starts.items() if log.environment in choosing.names()
        }
        self.decided = DecisionFold(name, choosing, self._starts)
        self._groups_read: Counter[PartitionAddress] = Counter()
        self._flushes_since: set[tuple[PartitionAddress, int]] = set()
        self._older = 0
        self._lost = ""
        self.aside = ""

    def end_decisions(self, log: TopicPartition, written: tuple[int, int] | None) -> None:
        """The decision log was read to its end; the store's root held this batch before."""
        self.decided.begin_groups()
        self._lost = lost_batch(log, written, (self._state.trainer_epoch, self._state.next_step))

    def apply_groups(self, log: PartitionAddress, confirmed: ConfirmedEvent) -> None:
        """The next event of a seal log."""
        if log not in self._starts:
            return
        self.decided.begin_groups()
        event = confirmed.event
        self._state.apply_groups(log, confirmed.offset, event, confirmed.timestamp_us)
        if not isinstance(event, Flushed):
            return
        self._groups_read[log] += len(event.groups)
        decided_ts = self.decided.counts.decided_ts
        if decided_ts is None or confirmed.timestamp_us > decided_ts:
            self._flushes_since.add((log, confirmed.offset))

    def end_log(self, log: PartitionAddress, groups_sealed: int) -> None:
        """A seal log was read to its end, or as far as it can be; it sealed so many groups."""
        if log in self._starts:
            taken = self._state.taken_before(log, self._starts[log])
            self._older += groups_sealed - self._groups_read[log] - taken

    def end_groups(self) -> None:
        """All seal logs were read to their ends: no score waits for a group."""
        for environment in self.environments:
            self._state.late.seal_logs_read(environment, _EVER_US)

    def apply_scores(self, log: PartitionAddress, confirmed: ConfirmedEvent) -> None:
        """The next record of a log of scores."""
        if log in self._starts and isinstance(confirmed.event, Scored):
            given = Given(confirmed.event, confirmed.timestamp_us)
            self._state.apply_scores(log, confirmed.offset, given)

    @property
    def _state(self) -> SamplerState:
        return self.decided.state

    @property
    def name(self) -> str:
        """Of the sampler."""
        return self._state.name

    @property
    def environments(self) -> tuple[str, ...]:
        """Those that it serves."""
        return self._state.choosing.names()

    @property
    def scores_read(self) -> Mapping[PartitionAddress, int]:
        """Of each log of scores the offset up to which the sampler has read it, as it said last."""
        read = self.decided.counts.scores_read
        return {PartitionAddress(*one[:3]): one[3] for one in read}

    def figures(self, now_us: int) -> SamplerFigures:
        """The figures once all logs were read."""
        state, counts = self._state, self.decided.counts
        newest = state.newest_policy()
        unacked = [batch for batch in state.open_batches() if batch.status is None]
        oldest = min(unacked, key=lambda batch: batch.since_ts, default=None)
        since = [
            why
            for ref, why in state.waiting.items()
            if (ref.log, ref.offset) in self._flushes_since
        ]
        return SamplerFigures(
            name=state.name,
            environments=state.choosing.names(),
            owner=state.owner,
            over=state.over,
            ready=len(state.ready),
            waiting=dict(Counter(state.waiting.values())),
            older=self._older,
            batches=counts.batches,
            batches_per_minute=recent(counts.served_ts, now_us),
            open_batches=len(state.open_batches()),
            unacked=len(unacked),
            unacked_step=None if oldest is None else oldest.event.step,
            unacked_age_s=None if oldest is None else age_s(now_us, oldest.since_ts),
            next_step=state.next_step,
            trainer_step=counts.trainer_step,
            policy_epoch=state.policy_epoch,
            policy_step=NOTHING if newest is None else newest.step,
            decision_age_s=age_s(now_us, counts.decided_ts),
            dropped_since={DropReason(one): n for one, n in counts.dropped_since.items()},
            waiting_since=dict(Counter(since)),
            wanted=counts.wanted,
            lost=self._lost,
            aside=self.aside,
            clock_ahead_s=counts.clock_ahead_us / 1e6,
        )


def recent(timestamps_us: Sequence[int], now_us: int) -> int:
    """How many of these rising times lie within the last minute."""
    return len(timestamps_us) - bisect_right(timestamps_us, now_us - RECENT_US)


def age_s(now_us: int, then_us: int | None) -> float | None:
    """Seconds since then, never negative; None where then is."""
    return None if then_us is None else max(0.0, (now_us - then_us) / 1e6)
