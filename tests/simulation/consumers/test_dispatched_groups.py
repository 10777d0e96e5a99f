"""What became of dispatched groups, by the logs alone, whoever died meanwhile."""

from __future__ import annotations

import threading

import pytest

from harness.rollouts import make_dispatched, make_entry, make_failed
from harness.sealing import EvictableBroker, SealWorld
from rollstream.consumers.sealing.reports import REPORT_EVERY_S
from rollstream.sampler import Progress, SamplerView
from rollstream.schemas.events import GroupsBegun

EXPIRE_AFTER_S = 60.0


def make_world() -> SealWorld:
    return SealWorld(
        partitions=1,
        samplers=("trainer-a",),
        seal_timeout_s=10,
        expire_after_s=EXPIRE_AFTER_S,
    )


def dispatch(world: SealWorld, *examples: str) -> None:
    world.publish_entries(
        *(make_dispatched(group_uid=f"{one}-1", example_id=one, group_size=2) for one in examples)
    )


def progress(world: SealWorld) -> Progress:
    """As somebody sees it who reads the logs from their beginning."""
    with SamplerView(
        "trainer-a", config=world.config, broker=world.broker, store=world.blobs, clock=world.clock
    ) as view:
        return view.progress()


@pytest.mark.proves("F14")
def test_what_was_dispatched_and_is_not_back_is_known_after_a_sealer_died() -> None:
    world = make_world()
    broker = EvictableBroker(world.logs)
    sealer = world.sealer(broker=broker)
    began = world.clock.now_us()
    dispatch(world, "back", "failing", "dying")
    world.run(sealer, seconds=2 * REPORT_EVERY_S)
    assert {*progress(world).dispatched["math"]} == {"back", "failing", "dying"}
    for uid in ("a", "b"):
        world.publish(uid, example_id="back", group_uid="back-1", group_size=2)
    world.publish_entries(
        make_failed(count=2, group_uid="failing-1", example_id="failing", group_size=2)
    )
    world.run(sealer)
    before = progress(world)
    assert before.ready == {"math": 1}
    assert before.never_back == {"math": {"failing": {"failed": 1}}}
    ((example, (since_ts,)),) = before.dispatched["math"].items()
    assert example == "dying"
    assert began <= since_ts <= began + 1_000_000
    broker.close()  # As a process does that is killed.
    successor = world.sealer()
    world.run(successor, seconds=2 * REPORT_EVERY_S)
    assert progress(world) == before
    world.clock.wait(threading.Event(), EXPIRE_AFTER_S)
    world.run(successor)
    after = progress(world)
    assert after.dispatched == {}
    assert after.never_back == {"math": {"dying": {"expired": 1}, "failing": {"failed": 1}}}


def test_a_group_that_ends_at_once_is_never_named() -> None:
    world = make_world()
    world.publish_entries(
        make_dispatched(group_uid="g", example_id="ex", group_size=2),
        *(
            make_entry(rollout_uid=uid, group_uid="g", example_id="ex", group_size=2)
            for uid in ("a", "b")
        ),
    )
    world.run(world.sealer(), seconds=3 * REPORT_EVERY_S)
    assert world.groups() == [("a", "b")]
    assert not any(isinstance(one.event, GroupsBegun) for one in world.confirmed_events())


def test_groups_are_named_once_by_an_owner_and_at_most_once_a_second() -> None:
    world = make_world()
    sealer = world.sealer()
    for number in range(40):
        dispatch(world, f"ex-{number}")
        world.run(sealer, seconds=REPORT_EVERY_S / 10)
    world.run(sealer, seconds=2 * REPORT_EVERY_S)
    named = [one.event for one in world.confirmed_events() if isinstance(one.event, GroupsBegun)]
    examples = [example for event in named for example in event.example_ids]
    assert sorted(examples) == sorted(f"ex-{number}" for number in range(40))
    assert len(named) <= 6
