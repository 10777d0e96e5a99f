"""Sealers that are wrong on purpose: each is another tuple of steps, and each is caught."""

from __future__ import annotations

from typing import NoReturn

import pytest

from harness.history import problems_of
from harness.sealing import Crash, SealWorld
from rollstream.consumers.sealing import STEPS, Flush, Step
from rollstream.consumers.sealing.rows import draft_flush
from rollstream.schemas import codec
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import CorruptLog
from rollstream.streams.folds.seal import FLUSHES_KEPT_MIN

PUT, APPEND, PROJECT, COMMIT = STEPS


def crash(flush: Flush) -> NoReturn:
    raise Crash


CRASH = Step("crash", crash)


def world_after(*steps: Step) -> SealWorld:
    """One life of such a sealer over two groups, and one life of a sound one after it."""
    world = SealWorld(partitions=1, seal_timeout_s=1, expire_after_s=2)
    for uid in ("a", "b", "c", "d"):
        world.publish(uid, example_id=f"ex-{uid in 'ab'}")
    own = world.new_broker()
    sealer = world.sealer(broker=own, steps=steps)
    with pytest.raises(Crash):
        world.run(sealer, seconds=5)
    own.close()
    return world


def test_sound_steps_and_a_crash_leave_nothing_to_find() -> None:
    world = world_after(PUT, APPEND, PROJECT, COMMIT, CRASH)
    world.run(world.sealer(), seconds=5)
    assert problems_of(world, "abcd") == []


def test_a_commit_before_the_event_is_confirmed_is_refused_by_the_next_owner() -> None:
    world = world_after(PUT, COMMIT, CRASH, APPEND, PROJECT)
    with pytest.raises(CorruptLog, match="the group committed 4"):
        world.run(world.sealer(), seconds=5)


def test_a_manifest_before_the_event_is_confirmed_is_found() -> None:
    def project_early(flush: Flush) -> None:
        flush.offset = 2
        PROJECT.run(flush)

    world = world_after(PUT, Step("project_early", project_early), CRASH, APPEND, COMMIT)
    world.run(world.sealer(), seconds=5)
    assert any("does not count" in problem for problem in problems_of(world, drained=False))


def test_an_event_before_its_files_is_found() -> None:
    def draft_only(flush: Flush) -> None:
        flush.event = draft_flush(flush.plan, flush.target, lambda path, data: None)

    world = world_after(Step("draft_only", draft_only), APPEND, CRASH, PUT, PROJECT, COMMIT)
    world.run(world.sealer(), seconds=5)
    assert any("is missing" in problem for problem in problems_of(world, "abcd"))


def test_an_owner_who_does_not_wait_for_confirmation_is_found() -> None:
    """It projects what it appended as a zombie: nobody counts the event, the files are shown."""
    world = SealWorld(partitions=1)
    own = world.new_broker()

    def append_unconfirmed(flush: Flush) -> None:
        assert flush.event is not None
        where = TopicPartition(world.layout.groups("math"), 0)
        successor = world.sealer()
        own.close()
        world.run(successor, seconds=1)
        writer = world.broker.writer()
        writer.append(where.topic, codec.encode(flush.event), partition=0)
        flush.offset = world.broker.reader({where: 0}).bounds(where, 1.0)[1] - 1

    for uid in ("a", "b"):
        world.publish(uid)
    hasty = world.sealer(
        broker=own, steps=(PUT, Step("append_unconfirmed", append_unconfirmed), PROJECT, CRASH)
    )
    with pytest.raises(Crash):
        world.run(hasty, seconds=5)
    found = problems_of(world, "ab")
    assert any("does not count" in problem for problem in found)
    assert any("is visible" in problem for problem in found)


def test_a_file_that_changed_on_disk_is_found() -> None:
    world = world_after(PUT, APPEND, PROJECT, COMMIT, CRASH)
    (file,) = world.flushes()[0].files
    world.blobs.replace(file.path, bytes(file.size))
    assert any("has checksum" in problem for problem in problems_of(world, drained=False))


def test_a_rollout_that_is_settled_again_beyond_the_dedupe_horizon_is_found() -> None:
    world = SealWorld(
        partitions=1, seal_timeout_s=1, expire_after_s=2, dedupe_horizon=1, max_flush_rollouts=2
    )
    uids = [f"u{number}" for number in range(2 * (FLUSHES_KEPT_MIN + 2))]
    for number, uid in enumerate(uids):
        world.publish(uid, example_id=f"ex-{number // 2}")
    sealer = world.sealer()
    world.run(sealer, seconds=5)
    assert problems_of(world, uids) == []
    world.publish("u0")
    world.run(sealer, seconds=5)
    assert world.settled() == {"expired": 1}
    assert problems_of(world, uids) == ["segment 0 of u0 was sealed or settled 2 times"]
