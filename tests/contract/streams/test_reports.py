"""What sealers report of now, as it is read on and on."""

from __future__ import annotations

from math import inf
from uuid import uuid4

import pytest

from harness.brokers import TIMEOUT_S, World, until, write
from harness.in_flight import report
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import encode
from rollstream.schemas.events import PartitionReport, ProducerInFlight
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import NotAuthorised
from rollstream.streams.reports import LOOK_EVERY_S, Reports
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

pytestmark = pytest.mark.proves("F5")

LOG = PartitionAddress("math", 1, 1)


class Folded:
    """How far the seal log is folded."""

    def __init__(self) -> None:
        self.offset = 100.0

    def __call__(self, log: PartitionAddress) -> float:
        assert log == LOG
        return self.offset


class Following:
    """A reader of one log of reports, and who writes there."""

    def __init__(self, world: World, where: TopicPartition) -> None:
        self._world, self._where = world, where
        self.folded = Folded()
        self.reports = Reports(world.broker(), {where: LOG}, SystemClock())

    def write(self, *events: PartitionReport) -> None:
        write(self._world.broker(), self._where, [encode(event) for event in events])

    def load(self) -> None:
        self.reports.load(self.folded, Deadline(TIMEOUT_S))

    def opened(self) -> dict[str, int]:
        standings = self.reports.reported.in_flight.standings("math", 2**62)
        return {one.producer_id: one.open for one in standings}

    def until(self, opened: dict[str, int]) -> None:
        until(lambda: self.opened() == opened, lambda: self.reports.follow(self.folded))


@pytest.fixture
def following(world: World, where: TopicPartition) -> Following:
    return Following(world, where)


def said(open_groups: int, *, seal_offset: int = 5, epoch: int = 3) -> PartitionReport:
    now_us = SystemClock().now_us()
    one = ProducerInFlight("a", 9, open_groups, 0, now_us)
    return report(one, seal_offset=seal_offset, epoch=epoch, now_ts=now_us)


def test_who_begins_knows_what_was_reported_lately_and_then_what_comes(
    following: Following,
) -> None:
    following.write(said(4))
    following.load()
    assert following.opened() == {"a": 4}
    following.write(said(3))
    following.until({"a": 3})


def test_an_empty_log_is_read_at_once(following: Following) -> None:
    following.load()
    assert following.opened() == {}
    following.write(said(2))
    following.until({"a": 2})


def test_a_report_counts_once_the_seal_log_is_folded_up_to_where_it_holds(
    following: Following,
) -> None:
    following.folded.offset = 7
    following.write(said(4, seal_offset=6))
    following.write(said(3, seal_offset=7))
    following.write(said(2, seal_offset=8))
    following.load()
    assert following.opened() == {"a": 4}
    following.folded.offset = 8
    following.until({"a": 3})
    following.folded.offset = 9
    following.until({"a": 2})


def test_of_an_owner_that_has_a_successor_nothing_counts(following: Following) -> None:
    following.write(said(4, epoch=8))
    following.write(said(9, epoch=3))
    following.load()
    assert following.opened() == {"a": 4}


def test_what_cannot_be_read_is_passed_over(
    world: World, where: TopicPartition, following: Following
) -> None:
    write(world.broker(), where, [b"garbage"])
    following.write(said(4))
    following.load()
    assert following.opened() == {"a": 4}


def test_once_it_begins_anew_it_knows_what_it_did(following: Following) -> None:
    following.write(said(4))
    following.load()
    following.reports.restart()
    assert following.opened() == {}
    following.load()
    assert following.opened() == {"a": 4}


def test_of_a_log_that_is_not_folded_little_is_held_and_others_are_read(
    world: World, where: TopicPartition, following: Following
) -> None:
    following.load()
    following.folded.offset = 0
    for _ in range(2):
        following.write(*(said(7, seal_offset=9) for _ in range(200)))
        following.reports.follow(following.folded)
    following.write(said(3, seal_offset=9))
    following.folded.offset = 10
    following.until({"a": 3})


def test_all_that_came_is_taken_in_one_call(following: Following) -> None:
    following.load()
    following.write(*map(said, range(300)))
    until(lambda: following.opened() == {"a": 299}, lambda: following.reports.follow(lambda _: inf))


def test_a_topic_that_is_missing_is_done_without_until_it_is_made(world: World) -> None:
    clock, layout = ManualClock(), Layout(f"ns-{uuid4().hex}")
    where = layout.reports_log(LOG)
    reports = Reports(world.broker(), {where: LOG}, clock)
    reports.load(lambda _: inf, Deadline(TIMEOUT_S))
    assert "math" not in reports.reported.reads
    made = [one for one in specs_for(layout, {"math": 2}, {}) if one.name == where.topic]
    world.broker().admin().create(made, TIMEOUT_S)
    clock.advance(LOOK_EVERY_S)
    until(
        lambda: "math" in reports.reported.reads,
        lambda: reports.follow(lambda _: inf),
    )
    reports.close()


def test_a_broker_that_refuses_is_done_without_for_a_while(
    world: World, where: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, broker = ManualClock(SystemClock().now_us()), world.broker()
    write(world.broker(), where, [encode(said(4))])
    reports = Reports(broker, {where: LOG}, clock)

    def refuse(*_: object, **__: object) -> None:
        raise NotAuthorised("may not be read")

    with monkeypatch.context() as refusing:
        refusing.setattr(broker, "reader", refuse)
        reports.load(lambda _: inf, Deadline(TIMEOUT_S))
    assert "math" not in reports.reported.reads
    clock.advance(LOOK_EVERY_S)
    until(
        lambda: "math" in reports.reported.reads,
        lambda: reports.follow(lambda _: inf),
    )
    reports.close()
