"""Sealers that are wrong on purpose: each is another tuple of steps, and each is caught."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest

from harness.history import problems_of
from harness.rollouts import encode_record, make_entry
from harness.sealing import Crash, SealWorld, aside_of
from rollstream.consumers.sealing import Flush, FlushStep
from rollstream.schemas import codec
from rollstream.schemas.events import Flushed, TouchedOffsets
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import TopicPartition
from rollstream.streams.folds.seal import FLUSHES_KEPT_MIN
from simulation.broken.steps import (
    APPEND,
    COMMIT,
    PROJECT,
    PUT,
    changing,
    draft_only,
    exchanged_entries,
    project_early,
    watermark_too_far,
)


def crash(flush: Flush) -> NoReturn:
    raise Crash


CRASH = FlushStep("crash", crash)


def world_after(*steps: FlushStep) -> SealWorld:
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
    sealer = world.sealer()
    world.run(sealer, seconds=5)
    assert "the group committed 4" in aside_of(sealer)


def test_a_manifest_before_the_event_is_confirmed_is_refused_by_the_next_owner() -> None:
    world = world_after(PUT, FlushStep("project_early", project_early), CRASH, APPEND, COMMIT)
    sealer = world.sealer()
    world.run(sealer, seconds=5)
    assert "does not hold the flush" in aside_of(sealer)


def test_an_event_before_its_files_is_found() -> None:
    world = world_after(FlushStep("draft_only", draft_only), APPEND, CRASH, PUT, PROJECT, COMMIT)
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
        broker=own, steps=(PUT, FlushStep("append_unconfirmed", append_unconfirmed), PROJECT, CRASH)
    )
    with pytest.raises(Crash):
        world.run(hasty, seconds=5)
    found = problems_of(world, "ab")
    assert any("does not count" in problem for problem in found)
    assert any("is visible" in problem for problem in found)


def world_within_a_record(*steps: FlushStep, partitions: int = 1) -> SealWorld:
    """One life of such a sealer over one record, of which two entries are sealed by its first flush
    and two wait for others."""
    world = SealWorld(partitions=partitions, target_group_size=2, max_flush_rollouts=2)
    uids = ("a", "b", "c", "d")
    examples = ("ex-0", "ex-0", "ex-2", "ex-3")  # Of partition 0, also where there are two.
    world.publish_entries(
        *(make_entry(rollout_uid=u, example_id=e) for u, e in zip(uids, examples, strict=True))
    )
    own = world.new_broker()
    with suppress(Crash):  # Or the event is refused, and the partition put aside.
        world.run(world.sealer(broker=own, steps=steps), seconds=5)
    own.close()
    return world


def with_another_record(world: SealWorld, value: bytes) -> SealWorld:
    """The same seal log of partition 0, and an ingest log that begins with other bytes."""
    other = SealWorld(partitions=world.environment.partitions)
    other.put(value)
    where = TopicPartition(world.layout.groups("math"), 0)
    root_recorded = len(other.logs.read(where, 0, 100))
    for record in world.logs.read(where, root_recorded, 100):
        other.logs.append(where, record.key, record.value)
    return other


def test_sound_steps_within_a_record_leave_nothing_to_find() -> None:
    world = world_within_a_record(PUT, APPEND, PROJECT, COMMIT, CRASH)
    for uid, example in (("e", "ex-2"), ("f", "ex-3")):
        world.publish(uid, example_id=example)
    world.run(world.sealer(), seconds=5)
    assert world.groups() == [("a", "b"), ("c", "e"), ("d", "f")]
    assert problems_of(world, "abcdef") == []


def test_a_watermark_past_an_offset_with_unsettled_entries_is_refused_by_every_reader() -> None:
    too_far = changing(watermark_too_far)
    world = world_within_a_record(PUT, too_far, APPEND, CRASH, PROJECT, COMMIT)
    sealer = world.sealer()
    world.run(sealer, seconds=5)
    assert re.search(r"from 0 to 1, over 0 offsets .* and 2 entries of others", aside_of(sealer))


def test_a_sealer_that_read_fewer_entries_than_a_record_has_is_found() -> None:
    """It takes the record for settled, and everybody who folds its log agrees."""

    def without_the_rest(event: Flushed) -> Flushed:
        touched = TouchedOffsets(offsets=event.touched.offsets, counts=np.array([2], np.int32))
        return replace(event, watermark=1, touched=touched)

    world = world_within_a_record(PUT, changing(without_the_rest), APPEND, PROJECT, CRASH, COMMIT)
    world.run(world.sealer(), seconds=5)
    assert any("entries" in problem for problem in problems_of(world, drained=False))
    assert "c was published and is nowhere" in problems_of(world, "abcd")


def test_an_event_that_exchanges_entries_of_a_record_is_found() -> None:
    """Each of them ends once, so that neither the fold nor the audit can tell."""

    world = world_within_a_record(PUT, changing(exchanged_entries), APPEND, PROJECT, CRASH, COMMIT)
    found = problems_of(world, drained=False)
    assert any("ended as" in problem for problem in found)
    assert any("rows, not" in problem for problem in found)


def test_a_successor_that_settles_an_entry_again_is_refused() -> None:
    def again(event: Flushed) -> Flushed:
        entries = event.segments.entries.copy()
        entries[0] = 0  # Of the record of which its predecessor sealed the first two.
        return replace(event, segments=replace(event.segments, entries=entries))

    world = world_within_a_record(PUT, APPEND, PROJECT, COMMIT, CRASH)
    world.publish("e", example_id="ex-2")
    sealer = world.sealer(steps=(PUT, changing(again), APPEND))
    world.run(sealer, seconds=5)
    assert "entry 0 of source offset 0 is settled a second time" in aside_of(sealer)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (encode_record([make_entry(rollout_uid=uid) for uid in "xyz"], partitions=1), "3 entries"),
        (b"garbage", "entries that cannot be read (not_an_event"),
    ],
    ids=["fewer", "none"],
)
def test_a_record_that_is_not_the_one_that_was_sealed_stops_the_next_owner(
    value: bytes, found: str
) -> None:
    """The log was restored to something else: nobody knows what its entries are."""
    other = with_another_record(world_within_a_record(PUT, APPEND, PROJECT, COMMIT, CRASH), value)
    told = re.escape(f"record at 0 has {found}") + ".*; the seal log says 4: it is not the one that"
    sealer = other.sealer()
    other.run(sealer, seconds=5)
    assert re.search(told, aside_of(sealer))
    reader = other.broker.reader({TopicPartition(other.layout.dead_letters(), 0): 0})
    assert reader.poll(1, 0.1) == []


@pytest.mark.proves("F19")
def test_a_record_that_a_newer_sealer_sealed_in_part_asks_for_an_upgrade() -> None:
    newer = MARKER + bytes(8) + b"newer"
    world = with_another_record(world_within_a_record(PUT, APPEND, PROJECT, COMMIT, CRASH), newer)
    sealer = world.sealer()
    world.run(sealer, seconds=5)
    assert re.search(r"math\.1\[0\], offset 0: .* upgrade this process", aside_of(sealer))


def test_what_was_read_with_a_record_that_stops_the_sealer_is_taken_or_left() -> None:
    """Of its own partition nothing behind it is settled, of the other one everything is sealed."""
    world = with_another_record(
        world_within_a_record(PUT, APPEND, PROJECT, COMMIT, CRASH, partitions=2), b"garbage"
    )
    for uid in ("v", "w"):
        world.publish(uid, partition=0)
    for uid in ("x", "y"):
        world.publish(uid, partition=1)
    sealer = world.sealer()
    world.run(sealer, seconds=5)
    assert "record at 0 has entries that cannot be read" in aside_of(sealer, 0)
    assert aside_of(sealer, 1) == ""
    sealer.close()
    assert world.groups() == [("a", "b"), ("x", "y")]
    assert world.settled() == {}


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
