"""A sealer of many partitions wakes up for records and due work; it does not spin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from harness.sealing import SealWorld
from rollstream.consumers import Sealer
from rollstream.consumers.sealing.environment import EnvironmentSealer
from rollstream.consumers.sealing.partition import IDLE_EVERY_S, PENDING_EVERY_S, Partition
from rollstream.consumers.sealing.sealer import IDLE_WAIT_S, OTHERS_WAIT_S, STEP_S
from rollstream.runtime.deadline import Deadline

PARTITIONS = 64
QUIET_S = 10.0


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Counts rounds of the loop, and looks at partitions."""
    counts: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **settings: object) -> object:
            counts[name] += 1
            return method(*args, **settings)

        return call

    with (
        patch.object(EnvironmentSealer, "step", counted("rounds", EnvironmentSealer.step)),
        patch.object(Partition, "advance", counted("looks", Partition.advance)),
    ):
        yield counts


def run(world: SealWorld, sealer: Sealer, seconds: float) -> None:
    """As ``Sealer.run`` does."""
    until = Deadline(seconds, world.clock)
    while not until.passed():
        sealer.step(Deadline(STEP_S, world.clock))


def counted_while_quiet(world: SealWorld, sealer: Sealer) -> Counter[str]:
    """The counts of a quiet time that comes after another one."""
    run(world, sealer, QUIET_S)
    with counting() as counts:
        run(world, sealer, QUIET_S)
    return counts


def test_a_sealer_with_nothing_to_do_comes_round_now_and_then() -> None:
    with SealWorld(partitions=PARTITIONS) as world, world.sealer() as sealer:
        counts = counted_while_quiet(world, sealer)
        assert counts["rounds"] <= 1.1 * QUIET_S / IDLE_WAIT_S
        assert counts["looks"] <= 2 * PARTITIONS * QUIET_S / IDLE_EVERY_S


def test_groups_that_are_not_due_do_not_keep_it_busy() -> None:
    with SealWorld(partitions=PARTITIONS, seal_timeout_s=600.0) as world, world.sealer() as sealer:
        for number in range(PARTITIONS):
            world.publish(f"u{number}", partition=number)
        counts = counted_while_quiet(world, sealer)
        assert counts["rounds"] <= 1.5 * QUIET_S / IDLE_WAIT_S
        assert counts["looks"] <= 1.5 * PARTITIONS * QUIET_S / PENDING_EVERY_S


def test_a_record_ends_the_wait_and_its_group_is_sealed_at_once() -> None:
    with SealWorld(partitions=PARTITIONS) as world, world.sealer() as sealer:
        run(world, sealer, QUIET_S)
        world.publish("a", partition=3)
        world.publish("b", partition=3)
        began_s = world.clock.monotonic_s()
        while not world.groups():
            sealer.step(Deadline(STEP_S, world.clock))
        assert world.clock.monotonic_s() - began_s <= OTHERS_WAIT_S


def test_a_time_out_is_found_soon_after_it_is_due() -> None:
    with (
        SealWorld(partitions=PARTITIONS, seal_timeout_s=5.0, min_group_size=1) as world,
        world.sealer() as sealer,
    ):
        run(world, sealer, QUIET_S)
        world.publish("alone", partition=3)
        began_s = world.clock.monotonic_s()
        while not world.groups():
            sealer.step(Deadline(STEP_S, world.clock))
        late_s = world.clock.monotonic_s() - began_s - 5.0
        assert 0 <= late_s <= 2 * (PENDING_EVERY_S + IDLE_WAIT_S)
