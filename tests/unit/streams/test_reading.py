"""A stretch of a log, read to its end and no further, in time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Bounds, LogReader, Logs, Record, TopicPartition, TopicSpec
from rollstream.streams.errors import BrokerUnavailable, OffsetLost
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.reading import (
    OVERLAP_RECORDS,
    WINDOW_RECORDS,
    bounds_in_time,
    read_between,
    read_windows,
    windows_back,
)

WHERE = TopicPartition("log", 0)


class Log:
    """A log of 200 records; those before 10 are gone."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.logs = MemoryLogs(self.clock)
        self.logs.create(TopicSpec(WHERE.topic, 1, {}))
        for number in range(200):
            self.logs.append(WHERE, None, str(number).encode())
        self.logs.drop_before(WHERE, 10)

    def reader(self) -> LogReader:
        return MemoryBroker(self.logs).reader({WHERE: 10})

    def read(self, start: int, stop: int) -> list[int]:
        deadline = Deadline(5.0, self.clock)
        records = list(read_between(self.reader(), WHERE, start, stop, deadline))
        assert [int(record.value) for record in records] == [r.offset for r in records]
        return [record.offset for record in records]


@pytest.mark.parametrize(("start", "stop"), [(10, 200), (10, 11), (50, 150), (199, 200)])
def test_a_stretch_has_the_records_from_its_start_up_to_its_stop(start: int, stop: int) -> None:
    assert Log().read(start, stop) == list(range(start, stop))


@pytest.mark.parametrize(("start", "stop"), [(50, 50), (60, 50), (0, 0)])
def test_an_empty_stretch_asks_nobody(start: int, stop: int) -> None:
    assert Log().read(start, stop) == []


def test_a_start_that_is_no_longer_in_the_log_is_typed() -> None:
    with pytest.raises(OffsetLost):
        Log().read(9, 20)


def test_a_stop_beyond_the_end_ends_at_the_deadline() -> None:
    log = Log()
    with pytest.raises(BrokerUnavailable):
        log.read(190, 201)
    assert log.clock.monotonic_s() >= 5.0


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("records", [0, 1, WINDOW_RECORDS, WINDOW_RECORDS + 1, 100_000])
def test_windows_go_back_to_the_beginning_and_overlap(first: int, records: int) -> None:
    end = first + records
    windows = list(windows_back(first, end))
    assert sorted({*windows}, reverse=True) == windows
    assert not windows or (windows[-1][0], windows[0][1]) == (first, end)
    for (newer, _), (begin, stop) in pairwise(windows):
        assert begin < newer < stop == min(end, newer + OVERLAP_RECORDS)
    assert len(windows) <= 6, "each is larger than the one before"


def test_windows_of_several_logs_are_read_together_and_end_each_where_it_should() -> None:
    log = Log()
    others = [TopicPartition("other", number) for number in range(3)]
    log.logs.create(TopicSpec("other", 3, {}))
    for where in others:
        for number in range(100):
            log.logs.append(where, None, str(number).encode())
    log.logs.add_marker(others[2])
    reader = MemoryBroker(log.logs).reader({WHERE: 10})
    windows = {WHERE: (150, 200), others[0]: (0, 100), others[1]: (5, 5), others[2]: (90, 101)}
    found: dict[TopicPartition, list[int]] = {}
    for record in read_windows(reader, windows, Deadline(5.0, log.clock)):
        where = TopicPartition(record.topic, record.partition)
        found.setdefault(where, []).append(record.offset)
        if where == others[0] and record.offset == 2:
            del windows[where]
    assert found == {
        WHERE: list(range(150, 200)),
        others[0]: [0, 1, 2],
        others[2]: list(range(90, 100)),
    }
    late = {WHERE: (190, 200), others[0]: (90, 101), others[1]: (90, 102)}
    with pytest.raises(BrokerUnavailable, match=r"\[0\] up to 100 of 101, .*\[1\] up to"):
        list(read_windows(reader, late, Deadline(1.0, log.clock)))


class Stuck:
    """A reader that hands over nothing behind some offset until it is told where to read."""

    def __init__(self, inner: LogReader, clock: ManualClock) -> None:
        self._inner = inner
        self._clock = clock
        self._seeks = 0

    def seek(self, where: TopicPartition, offset: int) -> None:
        self._seeks += 1
        self._inner.seek(where, offset)

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        found = self._inner.poll(5, 0.0) if self._seeks > 1 or self.read_to(WHERE) < 20 else []
        if not found:
            self._clock.advance(timeout_s)
        return found

    def read_to(self, where: TopicPartition) -> int:
        return self._inner.read_to(where)


def test_a_reader_that_hands_over_nothing_begins_anew_where_it_is() -> None:
    log = Log()
    stuck, deadline = Stuck(log.reader(), log.clock), Deadline(60.0, log.clock)
    records = read_between(stuck, WHERE, 10, 40, deadline)  # type: ignore[arg-type]
    assert [one.offset for one in records] == list(range(10, 40))


class Reluctant:
    """A reader whose log has no leader for a while."""

    def __init__(self, inner: LogReader, refusals: int) -> None:
        self.inner = inner
        self.refusals = refusals

    def all_bounds(self, logs: Logs, timeout_s: float) -> Bounds:
        if self.refusals:
            self.refusals -= 1
            raise BrokerUnavailable("not leader")
        return self.inner.all_bounds(logs, timeout_s)


def test_bounds_are_asked_for_again_while_the_log_has_no_leader() -> None:
    log = Log()
    reader = Reluctant(log.reader(), refusals=20)
    assert bounds_in_time(reader, WHERE, Deadline(5.0, log.clock)) == (10, 200)  # type: ignore[arg-type]
    reader.refusals = 10**6
    with pytest.raises(BrokerUnavailable, match="not leader"):
        bounds_in_time(reader, WHERE, Deadline(5.0, log.clock))  # type: ignore[arg-type]
