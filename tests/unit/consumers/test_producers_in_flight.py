"""What an assembler knows of producers, and what of it is news."""

from __future__ import annotations

from harness.assembling import SECOND, Drive
from harness.in_flight import report
from harness.rollouts import make_dispatched, make_failed, make_record
from rollstream.consumers.assembling.in_flight import REPORTED_BYTES_MAX, ProducersInFlight
from rollstream.schemas.codec import encode
from rollstream.schemas.ingest.entry import Producer
from rollstream.schemas.rules import NAME_CHARS_MAX


def test_once_a_flush_is_committed_the_groups_that_end_with_it_are_open_no_more() -> None:
    drive = Drive()
    producers = drive.assembler.in_flight
    for number in range(3):
        entry = make_dispatched(group_uid=f"g-{number}", group_size=2)
        drive.add_record(make_record([entry], producer=Producer("a", number + 1, 0)))
    producers.confirm(producers.changes())
    drive.add(make_failed(count=2, group_uid="g-1", group_size=2))
    plan = drive.plan(100, 1 << 20)
    assert plan is not None
    assert producers.changes() == ()
    drive.assembler.commit(plan)
    assert [(one.producer_id, one.begun, one.open) for one in producers.changes()] == [("a", 3, 2)]


def test_all_are_named_again_on_request() -> None:
    producers = ProducersInFlight()
    for name in "ab":
        producers.tell(Producer(name, 1, 0), SECOND)
    states = [producers.complete]
    producers.confirm(producers.changes())
    states.append(producers.complete)
    assert producers.changes() == ()
    producers.repeat()
    states.append(producers.complete)
    assert states == [False, True, False]
    assert [one.producer_id for one in producers.changes()] == ["a", "b"]


def test_more_producers_than_an_event_has_room_for_are_named_by_several() -> None:
    producers = ProducersInFlight()
    name = "é" * (NAME_CHARS_MAX - 4)
    for number in range(300):
        producers.tell(Producer(f"{number:04}{name}", 1, 0), SECOND)
    named = []
    while changes := producers.changes():
        assert (
            len(encode(report(*changes, epoch=2**62, nonce="n" * 16))) <= REPORTED_BYTES_MAX + 1_000
        )
        producers.confirm(changes)
        named += [one.producer_id for one in changes]
    assert len(named) == len(set(named)) == 300


def test_who_was_silent_for_ten_minutes_and_has_nothing_open_takes_no_memory() -> None:
    producers = ProducersInFlight()
    producers.tell(Producer("open", 1, 0), SECOND)
    producers.begin("open")
    producers.confirm(producers.changes())
    for minute in range(120):
        for number in range(10):
            producers.tell(Producer(f"{minute}-{number}", 1, 0), minute * 60 * SECOND)
    assert len(producers.unreported) <= 10 * 12
    producers.end("open")
    producers.tell(Producer("other", 1, 0), 180 * 60 * SECOND)
    assert {one.producer_id for one in producers.changes()} == {"other"}
