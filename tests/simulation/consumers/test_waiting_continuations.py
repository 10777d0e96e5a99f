"""Rollouts that continue one which has not come are named while it may still come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from rich.console import Console

from harness.in_flight import reports
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.console.status_view import status_view
from rollstream.consumers import Sealer
from rollstream.runtime.deadline import Deadline
from rollstream.status import PartitionFigures, measure

pytestmark = pytest.mark.proves("A17", "F20")


@pytest.fixture
def world() -> SealWorld:
    return SealWorld(samplers=["trainer-a"], seal_timeout_s=150.0, expire_after_s=300.0)


def later(world: SealWorld, uid: str, prior: str, idx: int = 1) -> None:
    """A later segment of a rollout of group g."""
    named = {"group_uid": "g", "group_size": 8, "continuation_of": prior}
    world.publish(uid, partition=0, segment_idx=idx, **named)


def first(world: SealWorld, uid: str) -> None:
    world.publish(uid, partition=0, group_uid="g", group_size=8, is_last_segment=False)


def partition(world: SealWorld, number: int = 0) -> PartitionFigures:
    return measure(world.broker, world.config, Deadline(TIMEOUT_S, world.clock)).partitions[number]


def told(world: SealWorld) -> list[int]:
    """How many there are, as each report says that says something else than the one before."""
    counts = [event.waiting for _, event in reports(world)]
    return [count for before, count in pairwise([0, *counts]) if count != before]


def test_they_are_named_with_what_they_wait_for_and_since_when(world: SealWorld) -> None:
    with world.sealer() as sealer:
        later(world, "r1", "r0")
        world.run(sealer, seconds=5)
        assert partition(world).continuations == 0, "it may be on its way"
        world.run(sealer, seconds=60)
        figures = partition(world)
        (one,) = figures.continuing
        assert figures.continuations == 1
        assert (one.uid, one.segment_idx, one.continues) == ("r1", 1, "r0")
        assert 60 <= one.age_s <= 70
        assert one.group_uid == world.key_in(0, "g")
        first(world, "r0")
        world.run(sealer, seconds=5)
        assert partition(world).continuations == 0
        assert told(world) == [1, 0]


def test_many_are_counted_and_the_longest_are_named(world: SealWorld) -> None:
    with world.sealer() as sealer:
        for number in range(20):
            later(world, f"late-{number}", f"early-{number}")
            world.run(sealer, seconds=1)
        world.run(sealer, seconds=30)
        figures = partition(world)
        assert figures.continuations == 20
        named = [f"late-{number}" for number in range(8)]
        assert [one.uid for one in figures.continuing] == named
        for number in range(4):
            first(world, f"early-{number}")
        world.run(sealer, seconds=5)
        assert partition(world).continuations == 16
        said = len(reports(world))
        world.run(sealer, seconds=100)
        assert len(reports(world)) <= said + 2, "each minute all is said again"


def test_one_that_never_comes_is_named_until_expiry(world: SealWorld) -> None:
    with world.sealer() as sealer:
        later(world, "r1", "r0")
        world.run(sealer, seconds=280)
        assert partition(world).continuations == 1
        world.run(sealer, seconds=40)
        assert partition(world).continuations == 0
    assert world.settled() == {"broken_chain": 1}


@pytest.mark.parametrize("clean", [True, False])
def test_a_new_owner_says_it_anew(world: SealWorld, clean: bool) -> None:
    sealer = world.sealer()
    later(world, "r1", "r0")
    later(world, "s1", "s0")
    world.run(sealer, seconds=30)
    assert partition(world).continuations == 2
    if clean:
        sealer.close()
    else:
        world.logs.group(world.layout.sealer_group("math")).leave(0, world.logs.partition_counts())
    first(world, "r0")
    assert partition(world).continuations == 2, "as it was said"
    with world.sealer() as successor:
        world.run(successor, seconds=30)
        assert partition(world).continuations == 1
        first(world, "s0")
        world.run(successor, seconds=30)
        assert partition(world).continuations == 0


def test_an_owner_that_claims_again_says_it_again(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.sealer() as sealer:
        later(world, "r1", "r0")
        world.run(sealer, seconds=30)
        monkeypatch.setattr("rollstream.streams.owned.log.RECLAIM_EVERY_RECORDS", 1)
        claimed(world, sealer)
        monkeypatch.undo()
        world.run(sealer, seconds=5)
        assert partition(world).continuations == 1
        claims = {event.epoch for _, event in reports(world) if event.waiting}
        assert len(claims) == 2


def claimed(world: SealWorld, sealer: Sealer) -> None:
    """Some other rollout is sealed, and the log claimed again."""
    for one in "ab":
        world.publish(f"other-{one}", partition=0, example_id="other")
    world.run(sealer, seconds=2)


def test_status_shows_them_in_words() -> None:
    world = SealWorld()
    with world.sealer() as sealer:
        for number in range(10):
            later(world, f"late-{number}", f"early-{number}")
        world.run(sealer, seconds=60)
    figures = measure(world.broker, world.config, Deadline(TIMEOUT_S, world.clock))
    console = Console(width=400)
    with console.capture() as printed:
        console.print(status_view(figures, (), {}))
    text = printed.get()
    assert "math[0]: 10 trajectories wait for a rollout that they continue" in text
    assert f"segment 1 of late-0 (group {world.key_in(0, 'g')}) waits for early-0 since" in text
    assert "broken_chain" in text
    assert text.count("waits for early-") == 8
    assert "; and 2 more" in text
