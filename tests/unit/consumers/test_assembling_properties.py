"""Whatever the log holds, each entry is settled once, however records, polls and flushes cut it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, cycle, groupby
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.assembling import SECOND, among, described, entries_of
from harness.rollouts import make_dispatched, make_ended, make_entry, make_failed, make_record
from rollstream.consumers.assembling import Assembler, SealDecision, decisions, fitting
from rollstream.consumers.assembling.decisions import (
    files_of,
    segments_of,
    values_of,
)
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.ids import SegmentId, segment_id
from rollstream.schemas.ingest.entry import Entry, EntryKind

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
PARTIAL = EnvironmentConfig(**{**CONFIG.model_dump(), "partial_trajectories": "train"})
configs = st.sampled_from([CONFIG, PARTIAL])
UNREADABLE = make_entry(rollout_uid="unreadable")
ONES = (1,)


class Arrival(NamedTuple):
    seconds: int
    entry: Entry


uids = st.sampled_from([f"u{n}" for n in range(12)])
group = st.fixed_dictionaries(
    {
        "example_id": st.sampled_from(["x", "y"]),
        "group_uid": st.sampled_from(["", "g", "h"]),
        "group_size": st.integers(0, 4),
    }
)
arrays = st.sampled_from(
    [{}, {}, {}, {"a": np.zeros(3, "u1")}, {"a": np.zeros((3, 2), "u1")}, {"b": np.ones(3, "<f4")}]
)
rollouts = st.builds(
    lambda group, rest: make_entry(**{**group, **rest}),
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
            "token_arrays": arrays,
        }
    ),
)
rollouts |= rollouts.map(lambda entry: entry._replace(kind=EntryKind.APPENDED))
control = (
    st.builds(lambda group: make_dispatched(**group), group)
    | st.builds(
        lambda group, rest: make_failed(**{**group, **rest}),
        group,
        st.fixed_dictionaries(
            {"rollout_uid": st.sampled_from(["f0", "f1"]) | uids, "count": st.integers(1, 3)}
        ),
    )
    | st.builds(make_ended, uids, st.sampled_from([0, 0, 1, 2, 3]))
)
arrivals = st.lists(
    st.builds(
        Arrival,
        st.sampled_from([0, 0, 0, 1, 7]),
        rollouts | rollouts | control | st.just(UNREADABLE),
    ),
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
            make_entry(
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
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=5)
"""How many entries the records have, over and over."""


class Cut(NamedTuple):
    """One record: its entries are those from ``first`` on."""

    first: int
    now_us: int
    entries: list[Entry]

    @property
    def stop(self) -> int:
        return self.first + len(self.entries)


def cut_into(log: Sequence[Arrival], sizes: Sequence[int]) -> Iterator[Cut]:
    """Records of these sizes, or smaller: time passes only between records, and the named arrays of
    one record agree."""
    times = list(accumulate(arrival.seconds * SECOND for arrival in log))
    wanted = cycle(sizes)
    left, last = 0, None
    record: Cut | None = None
    for number, (now_us, arrival) in enumerate(zip(times, log, strict=True)):
        arrays = arrival.entry.fields.get("token_arrays", {})
        shapes = {name: named.shape for name, named in arrays.items()}
        if record is None or not left or record.now_us != now_us or shapes != last:
            if record is not None:
                yield record
            record, left, last = Cut(number, now_us, []), next(wanted), shapes
        record.entries.append(arrival.entry)
        left -= 1
    if record is not None:
        yield record


class Life:
    """One assembler over a log, committing every so many records; a log of what was settled."""

    def __init__(
        self,
        log: Sequence[Arrival],
        flush_every: int,
        sizes: Sequence[int] = ONES,
        config: EnvironmentConfig = CONFIG,
    ) -> None:
        self.log = log
        self.config = config
        self.flush_every = flush_every
        self.records = list(cut_into(log, sizes))
        self.seen: set[SegmentId] = set()
        self.decisions: list[SealDecision] = []
        self.watermarks: list[int] = []
        self.assembler = self._begin(0)

    def _begin(self, watermark: int) -> Assembler:
        return Assembler("math", self.config, among(self.seen), watermark=watermark)

    def restart(self) -> None:
        """All that was not committed is forgotten; the log is read again from the watermark."""
        self.assembler = self._begin(self.assembler.decided.watermark)

    def read(self, stop: int) -> None:
        """Every record that ends before the entry ``stop``."""
        settled: dict[int, set[int]] = {
            offset: {entry for _, entry in same}
            for offset, same in groupby(sorted(entries_of(self.decisions)), lambda it: it[0])
        }
        for offset, record in enumerate(self.records):
            if offset < self.assembler.position:
                continue
            if record.stop > stop:
                break
            done = settled.get(offset, set())
            if len(done) == len(record.entries):
                self.assembler.skip(offset, record.now_us, len(done))
            else:
                unreadable = {
                    number for number, entry in enumerate(record.entries) if entry is UNREADABLE
                }
                self.assembler.add(
                    offset,
                    record.now_us,
                    make_record(record.entries),
                    settled=done,
                    unreadable=unreadable,
                )
            if offset % self.flush_every == 0:
                self.commit()

    def commit(self) -> None:
        while (plan := self.assembler.decided.plan(8, 1 << 30, self.assembler.now_us)) is not None:
            files: set[object] = set()
            for decision in plan.decisions:
                self.seen.update(segments_of(decision))
                files |= files_of(decision)
            assert len(files) <= decisions.FLUSH_FILES_MAX
            for offset, count in plan.touched.items():
                assert count == len(self.records[offset].entries)
            self.assembler.commit(plan)
            self.decisions += plan.decisions
            self.watermarks.append(self.assembler.decided.watermark)

    def finish(self) -> None:
        self.read(len(self.log))
        self.assembler.tick(self.assembler.now_us + FOREVER_S * SECOND)
        # What was overdue and went on in a new group needs a second time-out.
        self.assembler.tick(self.assembler.now_us + FOREVER_S * SECOND)
        self.commit()


def _restarted(life: Life, stops: list[int]) -> Life:
    """The life, to its end, with a restart at each stop."""
    for stop in sorted(stops):
        life.read(stop)
        life.restart()
    life.finish()
    return life


def _sealed(life: Life) -> list[SegmentId]:
    groups = [d.group for d in life.decisions if d.group is not None]
    rows = list(chain.from_iterable(group.rows for group in groups))
    uids, idxs = (values_of(rows, name) for name in ("rollout_uid", "segment_idx"))
    return list(map(segment_id, uids, idxs))


def _check(life: Life) -> None:
    settled = Counter(entries_of(life.decisions))
    everything = [
        (offset, entry)
        for offset, record in enumerate(life.records)
        for entry in range(len(record.entries))
    ]
    assert settled == Counter(everything), "each entry once, none left"
    assert life.assembler.decided.watermark == len(life.records)
    assert life.watermarks == sorted(life.watermarks)
    assert max(Counter(_sealed(life)).values(), default=0) <= 1, "no segment in two groups"
    published = {
        segment_id(entry.fields["rollout_uid"], entry.fields["segment_idx"])
        for _, entry in life.log
        if entry.kind == EntryKind.SEGMENT and entry is not UNREADABLE
    }
    assert published <= life.seen, "not every one of them can be the duplicate of another"
    left = life.assembler
    assert (left.pending.entries, left.held.size, len(left.pending.by_key)) == (0, 0, 0)
    assert (left.decided.entries, left.decided.size, left.decided.held.size) == (0, 0, 0)


@pytest.mark.proves("I1", "I2")
@given(logs, st.integers(1, 50), cuts, configs)
def test_every_entry_is_settled_once(
    log: list[Arrival], flush_every: int, sizes: list[int], config: EnvironmentConfig
) -> None:
    life = Life(log, flush_every, sizes, config)
    life.finish()
    _check(life)


@pytest.mark.proves("I5")
@given(logs, st.integers(1, 50), cuts, configs)
def test_how_records_and_flushes_cut_the_log_decides_nothing(
    log: list[Arrival], flush_every: int, sizes: list[int], config: EnvironmentConfig
) -> None:
    alone, together = Life(log, 1, ONES, config), Life(log, flush_every, sizes, config)
    alone.finish()
    together.finish()
    assert described(alone.decisions) == described(together.decisions)


whole_rollouts = st.lists(
    st.builds(
        lambda number, named, version, split: Arrival(
            number % 8 == 7,
            make_entry(
                rollout_uid=f"u{number}",
                policy_version=version,
                replica_id=f"r{number % 2}",
                split=split,
                **named,
            ),
        ),
        st.integers(0, 400),
        st.fixed_dictionaries(
            {
                "example_id": st.sampled_from(["x", "y", "z"]),
                "group_uid": st.sampled_from(["", "g", "h"]),
                "group_size": st.sampled_from([0, 0, 1, 3, 5]),
            }
        ),
        st.sampled_from(["p0", "p0", "p1", "p2"]),
        st.sampled_from(["train", "train", "train", "eval"]),
    ),
    max_size=80,
)
long_cuts = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@pytest.mark.proves("I1", "I5")
@given(whole_rollouts | logs, long_cuts, st.booleans(), st.sampled_from([64, 1_000]))
def test_plain_entries_decide_as_those_that_are_looked_at_in_full(
    log: list[Arrival], sizes: list[int], same_size: bool, pending_max: int
) -> None:
    """A cap that nothing reaches makes the assembler look at each entry in full."""
    if same_size:
        log = [
            it._replace(entry=make_entry(**{**it.entry.fields, "group_size": 3}))
            for it in log
            if it.entry.kind == EntryKind.SEGMENT and it.entry is not UNREADABLE
        ]
    given_config = {**CONFIG.model_dump(), "max_pending_rollouts": pending_max}
    lives = [
        Life(log, 2, sizes, EnvironmentConfig(**{**given_config, "max_per_replica": cap}))
        for cap in (None, 1_000)
    ]
    for life in lives:
        life.finish()
        _check(life)
    plain, full = lives
    assert described(plain.decisions) == described(full.decisions)
    assert list(entries_of(plain.decisions)) == list(entries_of(full.decisions))
    assert [d.size for d in plain.decisions] == [d.size for d in full.decisions]
    assert plain.watermarks == full.watermarks


@pytest.mark.proves("I8")
@given(logs, cuts, configs)
def test_nothing_stays_undecided_for_long(
    log: list[Arrival], sizes: list[int], config: EnvironmentConfig
) -> None:
    life = Life(log, 1, sizes, config)
    for stop, record in enumerate(life.records, 1):
        life.read(record.stop)
        life.commit()
        low = life.assembler.decided.watermark
        # Twice: a trajectory that is completed in a later group ends with that.
        oldest = record.now_us - 2 * CONFIG.expire_after_s * SECOND
        assert low == stop or life.records[low].now_us > oldest


@pytest.mark.proves("A12", "I1", "I2")
@given(logs, st.integers(1, 10), st.lists(st.integers(0, 40), max_size=4), cuts, configs)
def test_restarts_anywhere_settle_every_entry_once(
    log: list[Arrival],
    flush_every: int,
    stops: list[int],
    sizes: list[int],
    config: EnvironmentConfig,
) -> None:
    _check(_restarted(Life(log, flush_every, sizes, config), stops))


@given(logs, cuts)
def test_a_watermark_covers_only_what_was_committed(log: list[Arrival], sizes: list[int]) -> None:
    life = Life(log, 3, sizes)
    life.read(len(log))
    covered = Counter(offset for offset, _ in entries_of(life.decisions))
    below = range(life.assembler.decided.watermark)
    assert all(covered[offset] == len(life.records[offset].entries) for offset in below)


@contextmanager
def few_files(files_max: int) -> Iterator[None]:
    """A flush takes no more files, and so leaves out many decisions."""
    with (
        mock.patch.object(decisions, "FLUSH_FILES_MAX", files_max),
        mock.patch.object(fitting, "FLUSH_FILES_MAX", files_max),
    ):
        yield


@pytest.mark.proves("I1", "I2")
@given(logs, st.integers(1, 10), st.lists(st.integers(0, 40), max_size=4), cuts, configs)
def test_decisions_that_wait_for_files_are_settled_once_after_restarts_too(
    log: list[Arrival],
    flush_every: int,
    stops: list[int],
    sizes: list[int],
    config: EnvironmentConfig,
) -> None:
    with few_files(1):
        life = _restarted(Life(log, flush_every, sizes, config), stops)
    _check(life)


@pytest.mark.proves("I5")
@given(whole_rollouts | logs, st.integers(1, 50), st.integers(1, 3), configs)
def test_how_many_files_a_flush_takes_changes_no_decision(
    log: list[Arrival], flush_every: int, files_max: int, config: EnvironmentConfig
) -> None:
    """But rows that are kept for people: those of many files are settled in several decisions."""
    alone, together = Life(log, 1, ONES, config), Life(log, flush_every, ONES, config)
    alone.finish()
    with few_files(files_max):
        together.finish()
    left, found = (_of_groups(life) for life in (alone, together))
    for one in found:
        left.remove(one)
    assert left == []
    assert life_settled(alone) == life_settled(together)


def _of_groups(life: Life) -> list[object]:
    return described([one for one in life.decisions if one.group is not None])


def life_settled(life: Life) -> Counter[tuple[int, int, str]]:
    return Counter(
        (one.offset, one.entry, str(one.reason))
        for decision in life.decisions
        for one in decision.settled
    )
