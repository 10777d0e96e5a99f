"""A broker that answers no question, and a store that hangs, hold neither the loop nor others."""

from __future__ import annotations

import pytest

from harness.failing_blobs import PassingBlobs
from harness.held_workers import HeldWorkers
from harness.history import problems_of
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.consumers.sealing.threads import SealerThreads
from rollstream.store.errors import StoreHangs

HANG_TIMEOUT_S = 300.0


def sealer_with(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch, *, askers: HeldWorkers, writers: HeldWorkers
) -> Sealer:
    """A sealer of which some threads stand still when the test says so."""

    def threads(cls: type[SealerThreads], workers: object) -> SealerThreads:
        return cls(writers, writers, writers, askers, InlineExecutor(), InlineExecutor())

    monkeypatch.setattr(SealerThreads, "of", classmethod(threads))
    return world.sealer()


def committed(world: SealWorld, partition: int) -> int:
    group, where = world.layout.sealer_group("math"), world.source(partition)
    found = world.broker.admin().committed(group, [where], TIMEOUT_S)
    return found[where].offset if found else 0


@pytest.mark.proves("F24")
def test_sealing_goes_on_while_the_broker_answers_no_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    askers = HeldWorkers()
    world = SealWorld(seal_timeout_s=5.0, min_group_size=1)
    sealer = sealer_with(world, monkeypatch, askers=askers, writers=HeldWorkers())
    world.run(sealer)
    askers.holding = True
    uids = ["a", "b", "c", "d", "alone"]
    for uid in uids[:4]:
        world.publish(uid, partition=0, example_id="one")
    world.publish("alone", partition=1)
    world.run(sealer, seconds=20)
    assert world.groups() == [("a", "b"), ("c", "d")], "nobody knows whether more was published"
    askers.go_on()
    world.run(sealer, seconds=5)
    assert ("alone",) in world.groups()
    assert (committed(world, 0), committed(world, 1)) == (4, 1)
    assert problems_of(world, uids) == []


def test_a_letter_that_is_not_delivered_holds_its_own_partition_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    askers = HeldWorkers()
    world = SealWorld()
    sealer = sealer_with(world, monkeypatch, askers=askers, writers=HeldWorkers())
    world.run(sealer)
    askers.holding = True
    world.put(b"no avro at all", partition=0)
    for uid in "ab":
        world.publish(uid, partition=1, example_id="one")
    world.run(sealer, seconds=20)
    assert (world.groups(), world.settled()) == ([("a", "b")], {})
    askers.go_on()
    world.run(sealer, seconds=5)
    assert world.settled() == {"unreadable": 1}


@pytest.mark.proves("F24")
def test_a_sealer_whose_store_hangs_gives_its_partitions_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    workers = HeldWorkers(begins=True)
    world = SealWorld()
    sealer = sealer_with(world, monkeypatch, askers=HeldWorkers(), writers=workers)
    world.run(sealer)
    workers.holding = True
    uids = ["a", "b"]
    for uid in uids:
        world.publish(uid, partition=0, example_id="one")
    with pytest.raises(StoreHangs, match=r"put_files has not ended since .* gives its partitions"):
        world.run(sealer, seconds=2 * HANG_TIMEOUT_S)
    sealer.close()
    assert sealer.is_hung
    monkeypatch.undo()
    with world.sealer(store=PassingBlobs(world.blobs)) as successor:
        world.run(successor, seconds=5)
        assert world.groups() == [("a", "b")]
    workers.go_on()
    assert problems_of(world, uids) == []


@pytest.mark.proves("F24")
def test_a_sealer_with_nothing_left_to_seal_leaves_a_store_that_hangs_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.sealer.ASK_S", 0.01)
    workers = HeldWorkers(begins=True)
    world = SealWorld()
    kafka = world.config.kafka.model_copy(update={"timeout_s": 0.2})
    world.config = world.config.model_copy(update={"kafka": kafka})
    sealer = sealer_with(world, monkeypatch, askers=HeldWorkers(), writers=workers)
    world.run(sealer)
    workers.holding = True
    sealer.close()
    assert sealer.is_hung, "the last scores were to be written, and the loop did not do it"
