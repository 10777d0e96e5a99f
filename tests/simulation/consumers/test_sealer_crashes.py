"""Sealers that end at any moment, in a world of one thread."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import pytest

from harness.failing_blobs import FullBlobs, PassingBlobs, TornBlobs
from harness.faults import Append, Fate, FaultyBroker
from harness.history import problems_of
from harness.kill_points import KillPoint, arm
from harness.rollouts import make_entry
from harness.sealing import Crash, EvictableBroker, SealWorld
from rollstream.consumers import Sealer
from rollstream.consumers.sealing import STEPS, Flush, FlushStep
from rollstream.runtime.deadline import Deadline
from rollstream.store import Bytes, Pieces, StoreFull, visible_files
from rollstream.store.rollups import ROLLED_TOGETHER, encode_rollup, read_rollup
from rollstream.streams.memory import MemoryBroker
from simulation.consumers.sealers import finish

WITHIN_RECORD = KillPoint.WITHIN_RECORD


def die() -> NoReturn:
    raise Crash


def make_world(seed: int = 0, *, partitions: int = 2) -> SealWorld:
    return SealWorld(
        seed=seed,
        partitions=partitions,
        target_group_size=3,
        min_group_size=2,
        seal_timeout_s=10,
        expire_after_s=20,
        grouping="mixed",
        max_flush_rollouts=8,
    )


def publish_groups(world: SealWorld, first: int, count: int, *, entries_max: int = 1) -> list[str]:
    """Groups of 3, each under two policy versions, so that a flush has several files; in records of
    up to so many entries."""
    entries = []
    for number in range(first, first + count):
        for member in range(3):
            step = number % 3 if number % 2 else member
            entries.append(
                make_entry(
                    rollout_uid=f"g{number}-{member}",
                    example_id=f"ex-{number}",
                    policy_version=f"step-{step}",
                )
            )
    for start in range(0, len(entries), entries_max):
        world.publish_entries(*entries[start : start + entries_max])
    return [entry.fields["rollout_uid"] for entry in entries]


def run_until_it_dies(world: SealWorld, point: KillPoint, passage: int) -> bool:
    """One life of a sealer; whether the point was reached."""
    own = MemoryBroker(world.logs)
    armed = arm(point, own, world.blobs, die, passage=passage)
    try:
        sealer = world.sealer(broker=armed.broker, store=armed.blobs, steps=armed.steps)
        world.run(sealer, seconds=5)
    except Crash:
        return True
    finally:
        own.close()  # What the group's session time-out does.
    return False


@pytest.mark.proves("F1", "I1", "I2", "I3", "I4", "I10")
@pytest.mark.parametrize("point", [point for point in KillPoint if point != WITHIN_RECORD])
@pytest.mark.parametrize("passage", [1, 2, 3])
def test_killed_at_any_step_nothing_is_lost_or_twice(point: KillPoint, passage: int) -> None:
    world = make_world()
    uids = publish_groups(world, 0, 6)
    assert run_until_it_dies(world, point, passage) or passage > 1, f"{point} was never reached"
    uids += publish_groups(world, 6, 3)
    finish(world)
    assert problems_of(world, uids) == []


@pytest.mark.proves("F1", "I1", "I2", "I4", "I10")
@pytest.mark.parametrize("point", list(KillPoint))
@pytest.mark.parametrize("passage", [1, 2, 3])
def test_killed_while_records_end_in_several_flushes_nothing_is_lost_or_twice(
    point: KillPoint, passage: int
) -> None:
    """Records of up to 30 entries, and flushes of 8: the successor, which is killed there too,
    reads records again of which some entries have ended."""
    world = make_world()
    uids = publish_groups(world, 0, 20, entries_max=30)
    assert run_until_it_dies(world, point, passage) or passage > 1, f"{point} was never reached"
    uids += publish_groups(world, 20, 10, entries_max=30)
    run_until_it_dies(world, WITHIN_RECORD, passage)
    finish(world)
    assert problems_of(world, uids) == []
    assert world.settled()["duplicate"] == 0


def test_retention_takes_a_record_of_which_some_entries_have_ended() -> None:
    """The successor knows from the seal log how many are left, and settles these as lost."""
    world = make_world(partitions=1)
    publish_groups(world, 0, 5, entries_max=15)
    assert run_until_it_dies(world, WITHIN_RECORD, 1)
    ended = sum(map(len, world.groups()))
    assert 0 < ended < 15
    world.logs.drop_before(world.source(), 1)
    finish(world)
    assert sum(map(len, world.groups())) == ended
    assert world.settled() == {"lost": 15 - ended}


class RollUpHook(PassingBlobs):
    """Calls ``then`` before or after the first roll-up is created."""

    def __init__(self, world: SealWorld, then: Callable[[], None], *, before: bool) -> None:
        super().__init__(world.blobs)
        self._then = then
        self._before = before

    def create(self, path: str, data: Bytes | Pieces) -> None:
        rollup = path.startswith("rollups/")
        if rollup and self._before:
            self._then()
        super().create(path, data)
        if rollup and not self._before:
            self._then()


def publish_flushes(world: SealWorld, sealer: Sealer, name: str, count: int) -> list[str]:
    """Groups of 3, each of which is flushed by itself."""
    uids = []
    for number in range(count):
        for member in range(3):
            uids.append(f"{name}{number}-{member}")
            world.publish(uids[-1], example_id=f"{name}{number}")
        world.run(sealer, seconds=0.2)
    return uids


def rollups(world: SealWorld) -> int:
    return len(list(world.blobs.list("rollups/")))


@pytest.mark.proves("F1", "I3", "I10")
@pytest.mark.parametrize("before", [True, False])
def test_killed_while_manifests_are_rolled_up_readers_see_every_file_once(before: bool) -> None:
    world = make_world(partitions=1)
    hooked = RollUpHook(world, die, before=before)
    own = MemoryBroker(world.logs)
    sealer = world.sealer(broker=own, store=hooked)
    with pytest.raises(Crash):
        publish_flushes(world, sealer, "a", ROLLED_TOGETHER + 1)
    own.close()
    assert rollups(world) == (not before)
    successor = finish(world)
    publish_flushes(world, successor, "b", ROLLED_TOGETHER)
    assert rollups(world) == 2
    named = [file.path for event in world.flushes() for file in event.files]
    assert visible_files(world.blobs) == named
    assert problems_of(world) == []


def test_rollups_that_are_refused_stop_no_flush() -> None:
    def refuse() -> None:
        raise StoreFull("no space is left")

    world = make_world(partitions=1)
    sealer = world.sealer(store=RollUpHook(world, refuse, before=True))
    uids = publish_flushes(world, sealer, "a", ROLLED_TOGETHER + 10)
    assert rollups(world) == 0
    assert problems_of(world, uids) == []


def test_the_audit_names_a_rollup_that_differs_from_the_seal_log() -> None:
    world = make_world(partitions=1)
    publish_flushes(world, world.sealer(), "a", ROLLED_TOGETHER)
    (blob,) = world.blobs.list("rollups/")
    assert problems_of(world) == []
    rollup = read_rollup(world.blobs.read(blob.path))
    first = rollup.manifests[0]._replace(files=("groups/other.parquet",))
    wrong = rollup._replace(manifests=(first, *rollup.manifests[1:]))
    world.blobs.replace(blob.path, encode_rollup(wrong))
    (problem, *_) = problems_of(world)
    assert f"{blob.path} differs from the seal log, at flush {first.offset}" in problem
    world.blobs.replace(blob.path, b"torn")
    (problem,) = problems_of(world)
    assert f"{blob.path}: no roll-up" in problem


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize(
    "fate", [Fate.LOSE_REPORT, Fate.DOUBT, Fate.DROP, Fate.DOUBT_AND_DROP, Fate.HOLD]
)
def test_lost_reports_leave_no_doubt(fate: Fate, seed: int) -> None:
    world = make_world(seed)
    rng = random.Random(seed)
    faulty = FaultyBroker(MemoryBroker(world.logs), clock=world.clock)
    fates: Counter[Fate] = Counter()

    def decide(append: Append) -> Fate:
        seal_log = append.topic == world.layout.groups("math")
        decided = fate if seal_log and rng.random() < 0.2 else Fate.PASS
        fates[decided] += 1
        return decided

    def run_for_a_minute() -> None:
        world.run(sealer, seconds=2)
        world.run_now_and_then(sealer, seconds=58)

    faulty.decide = decide
    sealer = world.sealer(broker=faulty)
    uids = []
    for round_number in range(6):
        uids += publish_groups(world, 3 * round_number, 3)
        run_for_a_minute()
        faulty.land()
    assert fates[fate] > 0
    faulty.decide = lambda append: Fate.PASS
    run_for_a_minute()
    finish(world)
    assert problems_of(world, uids) == []


@pytest.mark.parametrize("seed", range(6))
def test_sealers_join_and_leave_and_share_the_partitions(seed: int) -> None:
    world = make_world(seed, partitions=4)
    rng = random.Random(seed)
    lives: list[tuple[Sealer, MemoryBroker]] = []
    uids: list[str] = []
    for round_number in range(10):
        uids += publish_groups(world, 4 * round_number, 4)
        if len(lives) < 3 and rng.random() < 0.6:
            own = MemoryBroker(world.logs)
            lives.append((world.sealer(broker=own), own))
        elif lives and rng.random() < 0.5:
            sealer, own = lives.pop(rng.randrange(len(lives)))
            if rng.random() < 0.5:
                sealer.close()
            own.close()
        world.run(*(sealer for sealer, _ in lives), seconds=0.5)
    for sealer, own in lives:
        sealer.close()
        own.close()
    finish(world)
    assert problems_of(world, uids) == []


@pytest.mark.proves("F1", "I4")
@pytest.mark.parametrize("step", ["put_files", "append_event"])
def test_a_zombie_projects_and_commits_nothing(step: str) -> None:
    world = make_world(partitions=1)
    uids = publish_groups(world, 0, 2)
    own = EvictableBroker(world.logs)
    successors: list[Sealer] = []

    def pause(flush: Flush) -> None:
        """While it sleeps its session ends, and somebody else takes over and does the work."""
        if not successors:
            own.evict()
            successors.append(world.sealer())
            world.run(successors[0], seconds=2)

    zombie = world.sealer(broker=own, steps=_pausing_before(step, pause))
    world.run(zombie, seconds=1)
    commits = dict(world.logs.group(world.layout.sealer_group("math")).commits)
    world.run(zombie, *successors, seconds=5)
    assert successors, "the zombie came to the step"
    assert zombie.stats().segments == 0
    assert commits == world.logs.group(world.layout.sealer_group("math")).commits
    uids += publish_groups(world, 2, 2)
    world.run(successors[0], seconds=2)
    finish(world)
    assert problems_of(world, uids) == []


def _pausing_before(name: str, pause: Callable[[Flush], None]) -> tuple[FlushStep, ...]:
    return tuple(
        FlushStep(step.name, _both(pause, step), step.in_loop) if step.name == name else step
        for step in STEPS
    )


def _both(pause: Callable[[Flush], None], step: FlushStep) -> Callable[[Flush], None]:
    def run(flush: Flush) -> None:
        pause(flush)
        step.run(flush)

    return run


def test_a_full_store_is_waited_for_and_nothing_is_lost() -> None:
    world = make_world(partitions=1)
    uids = publish_groups(world, 0, 4)
    full = FullBlobs(world.blobs)
    sealer = world.sealer(store=full)
    world.run(sealer, seconds=30)
    assert world.flushes() == []
    assert full.refused < 30, "attempts come at growing intervals"
    full.refusing = False
    world.run(sealer, seconds=10)
    assert len(world.groups()) == 4
    finish(world)
    assert problems_of(world, uids) == []


def test_a_create_whose_answer_was_lost_is_compared_and_believed() -> None:
    world = make_world(partitions=1)
    uids = publish_groups(world, 0, 4)
    world.run(world.sealer(store=TornBlobs(world.blobs)), seconds=30)
    assert len(world.groups()) == 4
    finish(world)
    assert problems_of(world, uids) == []


def test_deadline_of_a_step_is_kept() -> None:
    world = make_world()
    sealer = world.sealer()
    before = world.clock.monotonic_s()
    sealer.step(Deadline(0.5, world.clock))
    assert world.clock.monotonic_s() - before <= 0.5
