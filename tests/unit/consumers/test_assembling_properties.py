"""Whatever the log holds, each offset is settled once, however polls and flushes cut it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.assembling import RECORD_BYTES, SECOND
from harness.rollouts import make_segment
from rollstream.consumers.assembling import Assembler, Decision
from rollstream.consumers.assembling.decisions import offsets_of
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.codec import Segment
from rollstream.schemas.events import Dispatched, Failed
from rollstream.schemas.ids import SegmentId, segment_id
from rollstream.schemas.reasons import SettleReason

FOREVER_S = 10_000
CONFIG = EnvironmentConfig(
    target_group_size=3,
    min_group_size=2,
    seal_timeout_s=10,
    expire_after_s=30,
    max_per_replica=2,
    accept_policy_versions=("p0", "p1"),
    max_pending_rollouts=64,
)


class Arrival(NamedTuple):
    seconds: int
    event: Segment | Dispatched | Failed | None


def _rollout(fields: dict[str, Any]) -> Segment:
    return make_segment(**fields)


def _dispatched(fields: dict[str, Any]) -> Dispatched:
    return Dispatched(environment="math", **fields)


def _failed(fields: dict[str, Any]) -> Failed:
    return Failed(environment="math", reason="property", **fields)


uids = st.sampled_from([f"u{n}" for n in range(12)])
group = st.fixed_dictionaries(
    {
        "example_id": st.sampled_from(["x", "y"]),
        "group_uid": st.sampled_from(["", "g", "h"]),
        "group_size": st.integers(0, 4),
    }
)
rollouts = st.builds(
    lambda group, rest: _rollout({**group, **rest}),
    group,
    st.fixed_dictionaries(
        {
            "rollout_uid": uids,
            "segment_idx": st.sampled_from([0, 0, 0, 1, 2]),
            "is_last_segment": st.sampled_from([True, True, False]),
            "continuation_of": st.sampled_from(["", "", "", "nobody"]),
            "policy_version": st.sampled_from(["p0", "p1", "p2"]),
            "replica_id": st.sampled_from(["r0", "r1", "r2"]),
            "split": st.sampled_from(["train", "train", "eval"]),
        }
    ),
)
words = st.builds(_dispatched, group) | st.builds(
    lambda group, rest: _failed({**group, **rest}),
    group,
    st.fixed_dictionaries({"rollout_uid": st.just("") | uids, "count": st.integers(1, 3)}),
)
arrivals = st.lists(
    st.builds(Arrival, st.sampled_from([0, 0, 1, 7]), rollouts | rollouts | words | st.none()),
    max_size=40,
)
# Two keys that are sealed again and again, over trajectories some of which never end.
busy_keys = st.lists(
    st.tuples(st.sampled_from([0, 4, 7]), st.sampled_from("xxxy"), st.integers(0, 5)),
    min_size=20,
    max_size=60,
).map(
    lambda steps: [
        Arrival(
            seconds,
            make_segment(
                rollout_uid=f"u{number}",
                example_id=example,
                is_last_segment=roll > 0,
                policy_version="p0",
                replica_id=f"r{number % 3}",
            ),
        )
        for number, (seconds, example, roll) in enumerate(steps)
    ]
)
logs = arrivals | busy_keys


class Life:
    """One assembler over a log, committing every so many records; a log of what was settled."""

    def __init__(self, log: Sequence[Arrival], flush_every: int) -> None:
        self.log = log
        self.flush_every = flush_every
        self.reasons: dict[int, SettleReason] = {}
        self.seen: set[SegmentId] = set()
        self.decisions: list[Decision] = []
        self.watermarks: list[int] = []
        self.assembler = self._begin(0)

    def _begin(self, watermark: int) -> Assembler:
        return Assembler("math", CONFIG, self.seen.__contains__, watermark=watermark)

    def restart(self) -> None:
        """All that was not committed is forgotten; the log is read again from the watermark."""
        self.assembler = self._begin(self.assembler.decided.watermark)

    def read(self, stop: int) -> None:
        now_us = 0
        settled = {o for d in self.decisions for o in offsets_of([d])}
        for offset, (seconds, event) in enumerate(self.log[:stop]):
            now_us += seconds * SECOND
            if offset < self.assembler.position:
                continue
            if offset in settled:
                self.assembler.skip(offset, now_us)
            elif event is None:
                self.assembler.unreadable(offset, now_us)
            else:
                self.assembler.add(offset, now_us, event, RECORD_BYTES)
            if offset % self.flush_every == 0:
                self.commit()

    def commit(self) -> None:
        while (plan := self.assembler.decided.plan(8, 1 << 30, self.assembler.now_us)) is not None:
            for decision in plan.decisions:
                segments = () if decision.group is None else decision.group.segments
                self.seen.update(segment_id(*s.header[4:6]) for s in segments)
                for reason, offset, uid, idx in decision.settled:
                    assert offset not in self.reasons
                    self.reasons[offset] = reason
                    # A duplicate does not settle its original.
                    if uid and reason is not SettleReason.DUPLICATE:
                        self.seen.add(segment_id(uid, idx))
            self.assembler.commit(plan)
            self.decisions += plan.decisions
            self.watermarks.append(self.assembler.decided.watermark)

    def finish(self) -> None:
        self.read(len(self.log))
        self.assembler.tick(self.assembler.now_us + FOREVER_S * SECOND)
        # What was overdue and went on in a new group needs a second time-out.
        self.assembler.tick(self.assembler.now_us + FOREVER_S * SECOND)
        self.commit()


def _sealed(life: Life) -> list[SegmentId]:
    return [
        segment_id(*segment.header[4:6])
        for decision in life.decisions
        if decision.group is not None
        for segment in decision.group.segments
    ]


def _check(life: Life) -> None:
    settled = Counter(offsets_of(life.decisions))
    assert settled == Counter(range(len(life.log))), "each offset once, none left"
    assert life.assembler.decided.watermark == len(life.log)
    assert life.watermarks == sorted(life.watermarks)
    assert max(Counter(_sealed(life)).values(), default=0) <= 1, "no segment in two groups"
    published = {
        segment_id(*arrival.event.header[4:6])
        for arrival in life.log
        if isinstance(arrival.event, Segment)
    }
    assert published <= life.seen, "not every one of them can be the duplicate of another"
    left = life.assembler
    assert (left.pending.records, left.pending.size, len(left.pending.by_key)) == (0, 0, 0)
    assert (left.decided.records, left.decided.size) == (0, 0)


@pytest.mark.proves("I1", "I2")
@given(logs, st.integers(1, 50))
def test_every_offset_is_settled_once(log: list[Arrival], flush_every: int) -> None:
    life = Life(log, flush_every)
    life.finish()
    _check(life)


@pytest.mark.proves("I5")
@given(logs, st.integers(1, 50))
def test_how_flushes_cut_the_log_decides_nothing(log: list[Arrival], flush_every: int) -> None:
    often, rarely = Life(log, 1), Life(log, flush_every)
    often.finish()
    rarely.finish()
    assert often.decisions == rarely.decisions


@pytest.mark.proves("I8")
@given(logs)
def test_nothing_stays_undecided_for_long(log: list[Arrival]) -> None:
    life = Life(log, 1)
    times_us = list(accumulate(seconds * SECOND for seconds, _ in log))
    for stop, now_us in enumerate(times_us, 1):
        life.read(stop)
        life.commit()
        low = life.assembler.decided.watermark
        # Twice: a trajectory that is completed in a later group ends with that.
        assert low == stop or times_us[low] > now_us - 2 * CONFIG.expire_after_s * SECOND


@pytest.mark.proves("A12", "I1", "I2")
@given(logs, st.integers(1, 10), st.lists(st.integers(0, 40), max_size=4))
def test_restarts_anywhere_settle_every_offset_once(
    log: list[Arrival], flush_every: int, stops: list[int]
) -> None:
    life = Life(log, flush_every)
    for stop in sorted(stops):
        life.read(stop)
        life.restart()
    life.finish()
    _check(life)


@given(logs)
def test_a_watermark_covers_only_what_was_committed(log: list[Arrival]) -> None:
    life = Life(log, 3)
    life.finish()
    covered: set[int] = set()
    fresh = Life(log, 3)
    fresh.read(len(log))
    for decision in fresh.decisions:
        covered.update(offsets_of([decision]))
    assert all(offset in covered for offset in range(fresh.assembler.decided.watermark))
