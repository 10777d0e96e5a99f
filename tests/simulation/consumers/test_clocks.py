"""Time-outs and ages go by the brokers' clocks, whatever the sealer's clock says."""

from __future__ import annotations

import pytest

from harness.failing_blobs import PassingBlobs
from harness.history import problems_of
from harness.retention import RetentionWorld
from harness.sealing import TIMEOUT_S, SealWorld
from harness.wrong_clock import HOUR_US, WrongClock
from rollstream.consumers.retention.owner import SCHEDULE_EVERY_S
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics.catalogue import STUCK
from rollstream.status import Alarm, Figures, Verdict, measure, samples, stuck_stages
from rollstream.store import BlobInfo, Blobs
from rollstream.store.errors import StoreAway

SEAL_TIMEOUT_S = 60.0
HOUR_S = 3_600.0
NAMED_WITHIN_S = 60.0


@pytest.mark.proves("F24")
@pytest.mark.parametrize("ahead_us", [HOUR_US, -HOUR_US], ids=["ahead", "behind"])
def test_a_sealer_whose_clock_is_wrong_cuts_no_group_and_is_not_late(ahead_us: int) -> None:
    world = SealWorld(
        partitions=1, target_group_size=3, min_group_size=1, seal_timeout_s=SEAL_TIMEOUT_S
    )
    sealer = world.sealer(clock=WrongClock(world.clock, ahead_us))
    uids = ["first", "second"]
    for uid in uids:
        world.publish(uid, example_id="one")
    world.run(sealer, seconds=SEAL_TIMEOUT_S - 2)
    assert world.groups() == []
    world.run(sealer, seconds=4)
    assert world.groups() == [("first", "second")]
    assert problems_of(world, uids) == []


@pytest.mark.proves("F24")
def test_a_takeover_postpones_no_time_out() -> None:
    """Nothing arrives any more: the successor's claim is the newest record."""
    world = SealWorld(
        partitions=1, target_group_size=3, min_group_size=1, seal_timeout_s=SEAL_TIMEOUT_S
    )
    world.publish("alone")
    seal_and_die(world, seconds=SEAL_TIMEOUT_S - 20)
    successor = world.sealer(clock=WrongClock(world.clock, -HOUR_US))
    world.run(successor, seconds=18)
    assert world.groups() == []
    world.run(successor, seconds=4)
    assert world.groups() == [("alone",)]


@pytest.mark.proves("F24")
def test_a_sealer_whose_clock_is_days_ahead_deletes_no_file_before_its_time() -> None:
    world = RetentionWorld(partitions=1, retain_after_hours=24)
    world.seal_groups(0, 4)
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=2)
    sampler.checkpointed(0)
    with world.leaving(world.sealer(clock=WrongClock(world.clock, 48 * HOUR_US))) as sealer:
        world.run_now_and_then(sealer, seconds=2 * SCHEDULE_EVERY_S)
        assert world.retired_files() == []
        world.clock.advance(23.5 * HOUR_S)
        world.run(sealer, seconds=5)
        assert world.retired_files() == [], "it is due, and none is a day old"
        world.clock.advance(HOUR_S)
        world.run(sealer, seconds=5)
        assert len(world.retired_files()) == 2
    assert world.problems() == []


@pytest.mark.proves("F24")
@pytest.mark.parametrize("ahead_us", [48 * HOUR_US, -48 * HOUR_US], ids=["ahead", "behind"])
def test_a_sealer_whose_clock_is_wrong_deletes_no_file_that_is_being_written(
    ahead_us: int,
) -> None:
    world = RetentionWorld(partitions=1)
    blobs = AskedForStaged(world.blobs)
    begun_us = world.clock.now_us()
    with world.leaving(world.sealer(clock=WrongClock(world.clock, ahead_us), store=blobs)) as own:
        world.run(own)
        world.ask()
        world.retain(own)
    written_us = begun_us + min(0, ahead_us)  # By the clock of that machine.
    assert [before_us for before_us in blobs.before_us if before_us > written_us] == []
    assert blobs.before_us


class AskedForStaged(PassingBlobs):
    """Remembers up to which times unfinished files were deleted."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.before_us: list[int] = []

    def delete_staged(self, before_us: int) -> int:
        self.before_us.append(before_us)
        return super().delete_staged(before_us)


@pytest.mark.proves("F24")
def test_status_names_a_sealer_whose_clock_goes_wrong_while_it_does_and_nobody_else() -> None:
    world = SealWorld(partitions=1)
    clock = WrongClock(world.clock, 0)
    with world.sealer(clock=clock) as sealer:
        world.publish("first")
        world.run(sealer, seconds=5)
        assert stuck(world) == []
        clock.ahead_us = HOUR_US
        world.run(sealer, seconds=NAMED_WITHIN_S)
        (told,) = stuck(world)
        assert told.alarm is Alarm.WRONG_CLOCK
        assert told.reason.startswith("sealer-1 seals math[0], and its machine's clock is about ")
        assert "3600 s ahead of the brokers'" in told.reason
        assert STUCK.sample(1, "sealers", "wrong_clock", "warning") in samples(Figures(), [told])
        clock.ahead_us = 0
        world.run(sealer, seconds=NAMED_WITHIN_S)
        assert stuck(world) == []


@pytest.mark.proves("F24")
def test_a_machine_that_slept_has_a_right_clock_and_its_sealer_learns_the_time() -> None:
    """Its monotonic clock stood still meanwhile, and nothing arrives afterwards."""
    world = SealWorld(
        partitions=1, target_group_size=3, min_group_size=1, seal_timeout_s=SEAL_TIMEOUT_S
    )
    clock = Sleeping(world.clock)
    with world.sealer(clock=clock) as sealer:
        world.publish("alone")
        world.run(sealer, seconds=5)
        clock.sleep(HOUR_S)
        world.run(sealer, seconds=NAMED_WITHIN_S / 2)
        assert world.groups() == [("alone",)]
        assert stuck(world) == []


@pytest.mark.proves("F24")
def test_a_sealer_whose_store_was_away_when_it_took_over_has_a_right_clock_and_is_not_late() -> (
    None
):
    world = SealWorld(
        partitions=1, target_group_size=3, min_group_size=1, seal_timeout_s=2 * SEAL_TIMEOUT_S
    )
    for uid in ("a", "b", "c"):
        world.publish(uid, example_id="one")
    seal_and_die(world, seconds=5)
    blobs = NoManifests(world.blobs)
    with world.sealer(store=blobs) as successor:
        world.run(successor, seconds=SEAL_TIMEOUT_S)
        blobs.away = False
        world.publish("alone")
        world.run(successor, seconds=2 * SEAL_TIMEOUT_S - 5)
        assert stuck(world) == []
        assert ("alone",) not in world.groups()
        world.run(successor, seconds=10)
        assert ("alone",) in world.groups()


class NoManifests(PassingBlobs):
    """The store is away for whoever looks for manifests."""

    away = True

    def info(self, path: str) -> BlobInfo | None:
        if self.away and "manifest" in path:
            raise StoreAway("the test's store is away")
        return super().info(path)


@pytest.mark.proves("F24")
def test_status_names_no_sealer_whose_clock_is_almost_right_again() -> None:
    world = SealWorld(partitions=1)
    clock = WrongClock(world.clock, 0)
    with world.sealer(clock=clock) as sealer:
        world.publish("first")
        world.run(sealer, seconds=5)
        clock.ahead_us = 31_000_000
        world.run(sealer, seconds=NAMED_WITHIN_S / 2)
        assert [told.alarm for told in stuck(world)] == [Alarm.WRONG_CLOCK]
        clock.ahead_us = 1_500_000
        world.run(sealer, seconds=NAMED_WITHIN_S)
        assert stuck(world) == []


def seal_and_die(world: SealWorld, seconds: float) -> None:
    """A sealer seals for so long, and its group takes its partitions away."""
    broker = world.new_broker()
    world.run(world.sealer(broker=broker), seconds=seconds)
    broker.close()
    world.logs.group(world.layout.sealer_group("math")).leave(0, world.logs.partition_counts())


def stuck(world: SealWorld) -> list[Verdict]:
    figures = measure(world.broker, world.config, Deadline(TIMEOUT_S, world.clock))
    return list(stuck_stages(figures, world.config))


class Sleeping(WrongClock):
    """The clock of a machine that may sleep."""

    def __init__(self, inner: ManualClock) -> None:
        super().__init__(inner, 0)
        self._manual = inner
        self._slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self._manual.advance(seconds)
        self._slept_s += seconds

    def monotonic_s(self) -> float:
        return super().monotonic_s() - self._slept_s
