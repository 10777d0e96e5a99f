"""Files that are retired by request and by schedule, and deleted, on the twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from harness.failing_blobs import PassingBlobs
from harness.kill_points import RetentionPoint, arm_retention
from harness.retention import NAME, RetentionWorld
from harness.sealing import TIMEOUT_S, Crash, EvictableBroker
from rollstream.consumers.retention import owner
from rollstream.consumers.retention.owner import PLAN_S, PLANS_SHARE, SCHEDULE_EVERY_S
from rollstream.sampler import Batch, GroupsUnreadable, Sampler
from rollstream.sampler.history import check_from_files, replay_step
from rollstream.schemas.events import Claimed
from rollstream.store import (
    BlobInfo,
    BlobMissing,
    Blobs,
    Bytes,
    Pieces,
)
from rollstream.store.layout import manifests_prefix, retired_prefix
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.owned import log
from rollstream.streams.topics.specs import specs_for

NEVER_S = 1e9
POINTS = [(point, passage) for point in RetentionPoint for passage in (1, 2)]


def die() -> NoReturn:
    raise Crash


def trained(world: RetentionWorld, sampler: Sampler, *, steps: int = 1) -> list[Batch]:
    """Batches of 2 groups; the last of them is open, and all others are final."""
    first = sampler.progress().next_step
    batches = [sampler.next_batch(step=first + at, num_groups=2) for at in range(steps + 1)]
    sampler.checkpointed(first + steps - 1)
    return batches


@pytest.mark.proves("I7", "I10")
def test_files_of_final_groups_are_deleted_and_all_others_stay() -> None:
    world = RetentionWorld()
    world.seal_groups(0, 8)
    sampler = world.sampler()
    final, opened = trained(world, sampler)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    deleted = world.paths_of(final)
    assert world.retired_files() == deleted
    assert world.files_on_disk() == sorted({*world.sealed_files()} - {*deleted})
    assert world.problems() == []
    again = sampler.next_batch(step=1, num_groups=2)
    assert (again.digest, again.tokens.tobytes()) == (opened.digest, opened.tokens.tobytes())
    whole = [answer for answer in world.answers() if not answer.more]
    assert [answer.files for answer in whole] == [()] * world.environment.partitions


@pytest.mark.proves("F1", "I4", "I7", "I10")
@pytest.mark.parametrize(("point", "passage"), POINTS)
def test_killed_at_any_step_what_was_retired_is_deleted_and_nothing_else(
    point: RetentionPoint, passage: int
) -> None:
    """Two rounds, so that there is an older event whose blob is deleted."""
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 12)
    sampler = world.sampler()
    final = trained(world, sampler, steps=2)[:-1]
    world.ask()
    if point is RetentionPoint.BEFORE_FORGOTTEN:
        with world.leaving(world.sealer()) as sealer:
            world.retain(sealer, sampler=sampler)
        sampler.checkpointed(2)
        final += [sampler.next_batch(step=2, num_groups=2)]
        world.ask()
    died = run_until_it_dies(world, point, passage, sampler)
    assert died or passage > 1, f"{point} was never reached"
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    deleted = sorted(path for batch in final for path in world.paths_of(batch))
    assert world.retired_files() == deleted
    assert world.files_on_disk() == sorted({*world.sealed_files()} - {*deleted})
    assert world.problems() == []
    assert len(list(world.blobs.list("retired/"))) == 1
    asked = 2 if point is RetentionPoint.BEFORE_FORGOTTEN else 1
    assert sum(not answer.more for answer in world.answers()) == asked, "each is answered once"


@pytest.mark.proves("I10")
def test_a_request_is_answered_once_readers_leave_out_what_was_retired() -> None:
    """Who asked may list the files in the moment of the answer."""
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 8)
    sampler = world.sampler()
    final, _ = trained(world, sampler)
    answered: list[list[bool]] = []
    blobs = NoticedProjections(
        world.blobs, lambda: answered.append([not answer.more for answer in world.answers()])
    )
    world.ask()
    with world.leaving(world.sealer(store=blobs)) as sealer:
        world.retain(sealer, sampler=sampler)
    assert answered == [[False]], "before its one projection there is its event, and no answer"
    assert [not answer.more for answer in world.answers()] == [False, True]
    assert world.retired_files() == world.paths_of(final)


class NoticedProjections(PassingBlobs):
    """Calls ``before`` each time that files are about to be left out by readers."""

    def __init__(self, inner: Blobs, before: Callable[[], None]) -> None:
        super().__init__(inner)
        self._before = before

    def create(self, path: str, data: Bytes | Pieces) -> None:
        if path.startswith("retired/"):
            self._before()
        super().create(path, data)


def run_until_it_dies(
    world: RetentionWorld, point: RetentionPoint, passage: int, sampler: Sampler
) -> bool:
    own = MemoryBroker(world.logs)
    armed = arm_retention(point, own, world.blobs, die, passage=passage)
    try:
        world.retain(world.sealer(broker=armed.broker, store=armed.blobs), sampler=sampler)
    except Crash:
        return True
    finally:
        own.close()  # What the group's session time-out does.
    return False


@pytest.mark.proves("I3", "I4", "I7")
@pytest.mark.parametrize("point", list(RetentionPoint))
def test_a_sealer_that_sleeps_at_any_step_and_wakes_up_harms_nothing(
    point: RetentionPoint,
) -> None:
    """While it sleeps its successor retires and deletes the same, and more."""
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 12)
    sampler = world.sampler()
    trained(world, sampler)
    world.ask()
    if point is RetentionPoint.BEFORE_FORGOTTEN:
        with world.leaving(world.sealer()) as sealer:
            world.retain(sealer, sampler=sampler)
        sampler.checkpointed(1)
        world.ask()
    own = EvictableBroker(world.logs)
    slept: list[bool] = []

    def sleep() -> None:
        slept.append(True)
        own.evict()
        with world.leaving(world.sealer()) as successor:
            world.retain(successor, sampler=sampler)
            sampler.checkpointed(sampler.progress().next_step - 1)
            world.ask()
            world.retain(successor, sampler=sampler)

    armed = arm_retention(point, own, world.blobs, sleep)  # type: ignore[arg-type]
    zombie = world.sealer(broker=armed.broker, store=armed.blobs)
    world.retain(zombie, sampler=sampler)
    assert slept, f"{point} was never reached"
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    assert len(world.retired_files()) == 4
    assert world.files_on_disk() == sorted({*world.sealed_files()} - {*world.retired_files()})
    assert world.problems() == []
    zombie.close()


def test_a_request_that_nobody_owns_waits_for_the_first_sealer() -> None:
    world = RetentionWorld()
    world.ask()  # Before anything was ever claimed, in one of the partitions.
    world.seal_groups(0, 2)
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer)
    assert len(world.answers()) == 2


def test_what_is_too_young_or_not_done_is_kept_and_the_answer_says_why() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 4)
    sampler = world.sampler()
    trained(world, sampler)
    world.ask(older_than_s=3_600)
    sealer = world.sealer()
    world.retain(sealer, sampler=sampler)
    assert world.answers()[0].detail == ""
    sampler.checkpointed(1)
    world.seal_groups(4, 2, sealer=sealer)
    world.ask()
    world.ask(kind="compact")
    world.retain(sealer, sampler=sampler)
    assert len(world.retired_files()) == 4
    world.ask()
    world.retain(sealer, sampler=sampler)
    *_, held = world.answers()
    (unknown,) = (answer.detail for answer in world.answers() if answer.refused)
    assert "does nothing for Requested(kind='compact'" in unknown
    assert "2 files held back by sampler 'trainer-a' (groups ready or waiting: 2" in held.detail
    sealer.close()


@pytest.mark.parametrize("samplers", [(), (NAME,)])
def test_without_knowing_every_sampler_nothing_is_retired(samplers: tuple[str, ...]) -> None:
    world = RetentionWorld(partitions=1, samplers=samplers)
    world.seal_groups(0, 2)
    if samplers:
        specs = specs_for(world.layout, {}, ["somebody"])
        world.broker.admin().create([spec for spec in specs if "sampler" in spec.name], 1.0)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer)
    (answer,) = world.answers()
    assert answer.files == ()
    assert "add the section" in answer.detail


def test_by_schedule_files_are_retired_once_they_are_old_enough() -> None:
    world = RetentionWorld(partitions=1, retain_after_hours=1.0)
    world.seal_groups(0, 4)
    sampler = world.sampler()
    trained(world, sampler)
    sealer = world.sealer()
    world.run(sealer, seconds=2 * SCHEDULE_EVERY_S)
    assert world.answers() == []
    world.run(seconds=3_600)
    world.run(sealer, seconds=2 * SCHEDULE_EVERY_S)
    assert len(world.retired_files()) == 2
    assert [answer.request for answer in world.answers()] == [owner.BY_SCHEDULE]
    sealer.close()


def test_a_log_that_is_claimed_again_and_again_by_its_owner_keeps_the_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "RECLAIM_EVERY_RECORDS", 3)
    world = RetentionWorld(partitions=1, retain_after_hours=1e-9)
    world.seal_groups(0, 4)
    trained(world, world.sampler())
    sealer = world.sealer()
    for number in range(10):
        world.seal_groups(4 + number, 1, sealer=sealer)
        world.run(sealer, seconds=SCHEDULE_EVERY_S / 8)
    claims = [one for one in world.confirmed_events() if isinstance(one.event, Claimed)]
    assert len(claims) > 10
    assert len(world.retired_files()) == 2
    sealer.close()


@pytest.mark.proves("I7")
def test_files_wait_for_a_sampler_that_has_not_seen_that_they_are_retired() -> None:
    """One that is registered after the files were retired, and began before."""
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 4)
    sampler = world.sampler()
    final, _ = trained(world, sampler)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer)
    assert len(world.retired_files()) == 2
    assert world.files_on_disk() == world.sealed_files(), "the sampler recorded no cursor"
    world.register("trainer-b")
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
        assert world.files_on_disk() == world.sealed_files()
        late = world.sampler("trainer-b", seed=2)
        assert late.next_batch(step=0, num_groups=2, timeout_s=1.0).step == 0
        assert late.stats().outcomes == {"retired": 2}
        world.retain(sealer, sampler=late)
    assert world.files_on_disk() == sorted({*world.sealed_files()} - {*world.paths_of(final)})
    assert world.problems() == []


def test_files_of_a_finished_run_wait_for_nobody() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 2)
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=2)
    sampler.checkpointed(0)
    sampler.finish()
    sampler.close()
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer)
    assert world.files_on_disk() == []


def test_a_step_is_decided_again_from_the_logs_and_its_files_are_said_to_be_retired() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 6)
    sampler = world.sampler()
    trained(world, sampler)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    sampler.close()
    for step in (0, 1):
        replayed = replay_step(
            NAME, step, config=world.config, broker=world.broker, clock=world.clock
        )
        assert [one.same for one in replayed] == [True]
    assert check_from_files(NAME, 1, config=world.config, store=world.blobs).same
    with pytest.raises(BlobMissing, match="was retired"):
        check_from_files(NAME, 0, config=world.config, store=world.blobs)


def test_files_of_somebody_else_among_manifests_and_retired_ones_are_passed_over() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 4)
    (address,) = world.layout.addresses({"math": 1})
    for prefix in (manifests_prefix(address), retired_prefix(address)):
        for name in ("notes.txt", "0.json", "00-first.txt"):
            world.blobs.create(f"{prefix}{name}", b"x")
    sampler = world.sampler()
    trained(world, sampler)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    assert len(world.retired_files()) == 2
    assert world.problems() == []


def test_an_error_beside_the_loop_is_a_warning_and_sealing_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(PassingBlobs):
        def read(self, path: str) -> bytes:
            if failing and path.startswith("manifests/"):
                raise ZeroDivisionError("nobody foresaw this")
            return super().read(path)

        def list(
            self, prefix: str, *, after: str = "", limit: int | None = None
        ) -> Iterator[BlobInfo]:
            if failing and prefix.startswith("retired/"):
                raise ZeroDivisionError("nor this")
            return super().list(prefix, after=after, limit=limit)

    failing = [True]
    world = RetentionWorld(partitions=1)
    sealer = world.sealer(store=Failing(world.blobs))
    world.seal_groups(0, 4, sealer=sealer)
    sampler = world.sampler()
    trained(world, sampler)
    world.ask()
    world.retain(sealer, sampler=sampler)
    world.seal_groups(4, 1, sealer=sealer)
    assert len(world.sealed_files()) == 5
    told = [one.message for one in caplog.records if "nor this" in one.message and one.exc_info]
    assert len(told) == len({*told}) > 0, "with its place, at first"
    failing.clear()
    world.retain(sealer, sampler=sampler)
    assert len(world.retired_files()) == 2
    sealer.close()


class SlowManifests(PassingBlobs):
    """Reading a manifest takes longer than a plan may.

    Attributes:
        opened: how many were.
    """

    def __init__(self, world: RetentionWorld) -> None:
        super().__init__(world.blobs)
        self.opened = 0
        self.slow = True
        self._clock = world.clock

    def read(self, path: str) -> bytes:
        if path.startswith("manifests/"):
            self.opened += 1
            if self.slow:
                self._clock.advance(PLAN_S + 1.0)
        return super().read(path)


def test_by_schedule_a_plan_goes_on_behind_what_the_one_before_had_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "ORPHANS_EVERY_S", NEVER_S)  # The search for them opens some too.
    world = RetentionWorld(partitions=1, retain_after_hours=0.001)
    world.seal_groups(0, 6)
    held = world.sealed_files()
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=6)  # Open: these are held back.
    world.seal_groups(6, 2)
    sampler.next_batch(step=1, num_groups=2)
    blobs = SlowManifests(world)
    sealer = world.sealer(store=blobs)
    world.run_now_and_then(sealer, seconds=9 * PLANS_SHARE * PLAN_S)
    assert blobs.opened == 8 + 1, "each once, and the newest before the claim"
    sampler.checkpointed(0)
    world.run_now_and_then(sealer, seconds=9 * PLANS_SHARE * PLAN_S)
    assert world.retired_files() == held
    sealer.close()


def test_a_request_is_answered_once_all_old_files_were_looked_at() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 4)
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=4)
    sampler.checkpointed(0)
    world.ask()
    with world.leaving(world.sealer(store=SlowManifests(world))) as sealer:
        world.run_now_and_then(sealer, seconds=30 * PLAN_S)
    assert len(world.retired_files()) == 4
    assert [answer.more for answer in world.answers()][-3:] == [True, True, False]


def test_a_request_that_fails_midway_says_so_and_what_was_retired_stays_retired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Slow(SlowManifests):
        def read(self, path: str) -> bytes:
            if len(world.retired_files()) == 2:
                world.broker.admin().create(specs, TIMEOUT_S)
            return super().read(path)

    world = RetentionWorld(partitions=1)
    specs = [one for one in specs_for(world.layout, {}, ["somebody"]) if "somebody" in one.name]
    world.seal_groups(0, 4)
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=4)
    sampler.checkpointed(0)
    world.ask()
    with world.leaving(world.sealer(store=Slow(world))) as sealer:
        world.run_now_and_then(sealer, seconds=30 * PLAN_S)
    answers = world.answers()
    assert [answer.refused for answer in answers] == [False, False, True]
    assert [answer.more for answer in answers] == [True, True, False]
    assert "sampler 'somebody' has a decision log" in answers[-1].detail
    assert "nothing more is retired: sampler 'somebody' has a decision log" in caplog.text
    assert len(world.retired_files()) == 2
    assert world.problems() == []


@pytest.mark.proves("F4")
def test_a_file_that_is_deleted_and_was_not_retired_fails_the_audit() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 2)
    world.blobs.delete(world.sealed_files()[0])
    assert ["is missing" in problem for problem in world.problems()] == [True]


def test_a_final_step_whose_files_are_deleted_says_so_and_is_not_repaired() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 6)
    sampler = world.sampler()
    trained(world, sampler)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    sampler.close()
    again = world.sampler(seed=3)  # Which has no rows in its memory.
    with pytest.raises(GroupsUnreadable, match="files were retired") as refused:
        again.next_batch(step=0, num_groups=2)
    assert len(refused.value.groups) == 2
    assert again.next_batch(step=2, num_groups=2).num_groups == 2
    assert again.stats().outcomes == {"trained": 2}, "nothing was replaced or dropped"


def test_what_readers_leave_out_is_written_again_from_the_log_where_it_was_deleted() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 8)
    sampler = world.sampler()
    for _ in range(2):  # Two events.
        trained(world, sampler)
        world.ask()
        with world.leaving(world.sealer()) as sealer:
            world.retain(sealer, sampler=sampler)
        sampler.checkpointed(sampler.progress().next_step - 1)
    before = {blob.path: world.blobs.read(blob.path) for blob in world.blobs.list("retired/")}
    for path in before:
        world.blobs.delete(path)
    assert any("readers use retired files" in problem for problem in world.problems())
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    assert {path: world.blobs.read(path) for path in before} == before
    assert world.problems() == []
