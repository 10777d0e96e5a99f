"""What sealers report of producers: what each has open, said it had begun, and waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from harness.faults import Append, Fate, FaultyBroker
from harness.in_flight import in_flight_problems, reports, standings
from harness.kill_points import KillPoint, arm
from harness.rollouts import make_alive, make_dispatched, make_failed
from harness.sealing import TIMEOUT_S, Crash, SealWorld
from rollstream.consumers import Sealer
from rollstream.consumers.assembling.in_flight import REPEAT_AFTER_US
from rollstream.consumers.sealing.cadence import ALIVE_INTERVAL_S
from rollstream.consumers.sealing.reports_of_now import REPORT_EVERY_S
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Flushed, ProducerInFlight
from rollstream.schemas.ingest.entry import Entry, Producer
from rollstream.streams.errors import NotAuthorised
from rollstream.streams.folds.in_flight import ProducerStanding
from rollstream.streams.memory.writer import MemoryWriter
from rollstream.streams.reports import REPEAT_S
from rollstream.streams.topics.layout import Layout

SOON_S = 2 * REPORT_EVERY_S


def make_world(
    *, partitions: int = 1, max_flush_rollouts: int = 64, expire_after_s: float = 60
) -> SealWorld:
    return SealWorld(
        partitions=partitions,
        seal_timeout_s=10,
        expire_after_s=expire_after_s,
        max_flush_rollouts=max_flush_rollouts,
    )


def dispatched(group: str, **fields: str) -> Entry:
    return make_dispatched(group_uid=group, example_id=group, group_size=2, **fields)


def failed(group: str) -> Entry:
    return make_failed(
        count=2, rollout_uid=f"{group}-failed", group_uid=group, example_id=group, group_size=2
    )


def named(world: SealWorld) -> Iterator[ProducerInFlight]:
    """As each report names them."""
    for _, event in reports(world):
        yield from event.producers


def events(world: SealWorld) -> int:
    return len(world.confirmed_events())


def test_a_group_is_open_from_its_dispatch_until_the_event_that_settles_it() -> None:
    world = make_world()
    sealer = world.sealer()
    world.publish_entries(dispatched("g"), dispatched("h"), producer=Producer("a", 2, 3))
    world.run(sealer, seconds=SOON_S)
    assert standings(world) == [ProducerStanding("a", begun=2, open=2, waiting=3)]
    world.publish_entries(failed("g"))
    world.run(sealer)
    assert standings(world) == [ProducerStanding("a", begun=2, open=1, waiting=3)]
    assert in_flight_problems(world) == []


def test_groups_for_evaluation_are_not_counted() -> None:
    world = make_world()
    sealer = world.sealer()
    world.publish_entries(dispatched("g", split="eval"), producer=Producer("a", 0, 0))
    world.run(sealer, seconds=SOON_S)
    assert standings(world) == [ProducerStanding("a", begun=0, open=0, waiting=0)]


def test_a_group_counts_for_who_dispatched_it_last() -> None:
    world = make_world()
    sealer = world.sealer()
    world.publish_entries(dispatched("g"), producer=Producer("dead", 1, 0))
    world.run(sealer, seconds=SOON_S)
    world.publish_entries(dispatched("g"), producer=Producer("heir", 1, 0))
    world.run(sealer, seconds=SOON_S)
    assert {one.producer_id: one.open for one in standings(world)} == {"dead": 0, "heir": 1}
    world.publish_entries(failed("g"))
    world.run(sealer)
    assert {one.producer_id: one.open for one in standings(world)} == {"dead": 0, "heir": 0}


def test_a_producer_that_waits_is_told_of_though_it_has_begun_nothing() -> None:
    world = make_world()
    sealer = world.sealer()
    world.publish_entries(make_alive("a"), producer=Producer("a", 0, 5))
    world.run(sealer)
    assert standings(world) == [ProducerStanding("a", begun=0, open=0, waiting=5)]
    world.run(sealer, seconds=ALIVE_INTERVAL_S)
    assert world.settled() == {"alive": 1}


def test_a_producer_of_which_nothing_changes_is_named_no_more_often_than_it_must() -> None:
    """It says each second that it lives; readers need to know that it does, every so often."""
    world = make_world()
    sealer = world.sealer()
    world.publish_entries(dispatched("g"), producer=Producer("a", 1, 0))
    for _ in range(20):
        world.publish_entries(make_alive("a"), producer=Producer("a", 1, 0))
        world.run(sealer, seconds=1)
    times = [one.last_ts for one in named(world)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= REPEAT_AFTER_US
    assert max(gaps) <= REPEAT_AFTER_US + 2_000_000
    assert not any(isinstance(one.event, Flushed) for one in world.confirmed_events())


def test_between_flushes_producers_are_reported_at_most_once_a_second() -> None:
    world = make_world()
    sealer = world.sealer()
    for number in range(40):
        world.publish_entries(dispatched(f"g-{number}"), producer=Producer("a", number + 1, 0))
        world.run(sealer, seconds=REPORT_EVERY_S / 10)
    world.run(sealer, seconds=SOON_S)
    assert len(reports(world)) <= 6
    assert standings(world) == [ProducerStanding("a", begun=40, open=40, waiting=0)]


def test_idle_producers_cost_nothing() -> None:
    world = make_world()
    sealer = world.sealer()
    for number in range(50):
        world.publish_entries(dispatched(f"g-{number}"), producer=Producer(f"p-{number}", 1, 0))
        world.publish_entries(failed(f"g-{number}"))
    world.run(sealer, seconds=SOON_S)
    before = events(world), len(reports(world))
    world.run(sealer, seconds=30)
    assert (events(world), len(reports(world))) == before


def test_where_producers_tell_nothing_an_owner_says_so_once() -> None:
    world = make_world()
    world.publish_entries(dispatched("g"))
    sealer = world.sealer()
    for _ in range(3):
        world.run(sealer, seconds=REPEAT_S)
    ((_, said),) = reports(world)
    assert (said.complete, [*said.producers], said.waiting) == (True, [], 0)


def test_all_is_reported_again_each_minute_while_there_is_anything() -> None:
    """Who begins to read needs no more than the last minutes."""
    world = make_world(expire_after_s=600)
    sealer = world.sealer()
    world.publish_entries(dispatched("g"), producer=Producer("a", 1, 0))
    world.run(sealer, seconds=0.5 * REPEAT_S)
    first = len(reports(world))
    world.run(sealer, seconds=REPEAT_S)
    (_, again), *more = reports(world)[first:]
    assert more == []
    assert (again.complete, [one.open for one in again.producers]) == (True, [1])


@pytest.mark.parametrize("fate", [Fate.DROP, Fate.DOUBT, Fate.DOUBT_AND_DROP, Fate.LOSE_REPORT])
def test_a_report_that_does_not_arrive_is_made_again_and_holds_up_no_flush(fate: Fate) -> None:
    world = make_world(expire_after_s=600)
    lost: list[Append] = []

    def decide(append: Append) -> Fate:
        if append.topic != world.layout.reports("math") or len(lost) == 3:
            return Fate.PASS
        lost.append(append)
        return fate

    sealer = world.sealer(broker=FaultyBroker(world.broker, decide))
    world.publish_entries(dispatched("g"), dispatched("h"), producer=Producer("a", 2, 0))
    world.publish_entries(failed("g"))
    world.run(sealer, seconds=SOON_S)
    assert world.settled()["dispatched"] == 1
    world.run(sealer, seconds=4 * TIMEOUT_S)
    assert len(lost) == 3
    assert standings(world) == [ProducerStanding("a", begun=2, open=1, waiting=0)]


class WithoutReports(MemoryWriter):
    """May not write there; that is only known when it tries."""

    def append(self, topic: str, value: bytes | None, **options: Any) -> None:
        if topic == Layout().reports("math"):
            raise NotAuthorised(f"{topic}: may not be written")
        super().append(topic, value, **options)


def test_where_reports_are_refused_all_else_is_sealed_and_it_tries_again_each_minute() -> None:
    world = make_world(expire_after_s=600)
    broker = world.new_broker()
    world.publish_entries(dispatched("g"), dispatched("h"), producer=Producer("a", 2, 0))
    world.publish_entries(failed("g"))
    with patch.object(broker, "writer", lambda **_: WithoutReports(world.logs)):
        sealer = world.sealer(broker=broker)
        world.run(sealer, seconds=SOON_S)
    assert world.settled()["dispatched"] == 1
    assert standings(world) == []
    world.run_now_and_then(sealer, seconds=60 + SOON_S)
    assert world.settled()["dispatched"] == 1


def test_what_an_owner_reports_that_has_a_successor_does_not_count() -> None:
    world = make_world()
    world.publish_entries(dispatched("g"), producer=Producer("a", 1, 0))
    world.run(world.sealer(), seconds=SOON_S)
    (address, old), *_ = reports(world)
    world.logs.group(world.layout.sealer_group("math")).leave(0, world.logs.partition_counts())
    world.publish_entries(failed("g"))
    world.run(world.sealer(), seconds=SOON_S)
    assert [one.open for one in standings(world)] == [0]
    where = world.layout.reports_log(address)
    world.logs.append(where, None, encode(old))
    assert [one.open for one in standings(world)] == [0]


def die() -> NoReturn:
    raise Crash


def live(world: SealWorld, point: KillPoint, passage: int) -> bool:
    """One life of a sealer; whether it ended there."""
    own = world.new_broker()
    armed = arm(point, own, world.blobs, die, passage=passage)
    try:
        sealer = world.sealer(broker=armed.broker, store=armed.blobs, steps=armed.steps)
        world.run(sealer, seconds=3)
    except Crash:
        return True
    finally:
        own.close()
    return False


def begin_and_end(world: SealWorld, first: int) -> None:
    """Six groups of two producers; every other one ends."""
    for number in range(first, first + 6):
        producer = Producer(f"p-{number % 2}", number // 2 + 1, 0)
        world.publish_entries(dispatched(f"g-{number}"), producer=producer)
    world.publish_entries(*(failed(f"g-{number}") for number in range(first, first + 6, 2)))
    world.publish_entries(make_alive("p-0"), producer=Producer("p-0", first // 2 + 3, 1))


@pytest.mark.parametrize("point", [one for one in KillPoint if one != KillPoint.BETWEEN_FILES])
@pytest.mark.parametrize("passage", [1, 2])
def test_who_takes_over_from_a_killed_sealer_reports_what_is_open_and_nothing_else(
    point: KillPoint, passage: int
) -> None:
    world = make_world(partitions=2, max_flush_rollouts=2)
    reporting = world.new_broker()
    sealer: Sealer = world.sealer(broker=reporting)
    begin_and_end(world, 0)
    world.run(sealer, seconds=SOON_S)
    reporting.close()
    begin_and_end(world, 6)
    killed = [live(world, point, passage), live(world, point, passage)]
    assert any(killed) or passage > 1, f"{point} was never reached"
    last = world.sealer()
    world.run(last, seconds=SOON_S)
    assert in_flight_problems(world) == []
    assert sum(one.open for one in standings(world)) == 6
    world.clock.wait(threading.Event(), 60.0)  # The rest expires.
    world.run(last, seconds=SOON_S)
    assert in_flight_problems(world) == []
    assert {one.open for one in standings(world)} == {0}
