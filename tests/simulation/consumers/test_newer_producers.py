"""A record of a newer producer stops its partition; an upgraded sealer seals whole groups."""

from __future__ import annotations

import pytest

from harness.history import problems_of
from harness.newer_records import NEWER, NEWER_HEADERS, newer, upgraded
from harness.rollouts import encode_record, make_entry
from harness.sealing import TIMEOUT_S, SealWorld, aside_of
from rollstream.consumers import audit
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ingest.wire import SCHEMA_HEADER
from rollstream.status import Verdict, measure, stuck_stages
from rollstream.streams.broker import Headers

pytestmark = pytest.mark.proves("F19", "F24")
SEALED = [("a0", "a1"), ("b0", "b1"), ("c0", "c1"), ("d0", "d1")]


def put_member(world: SealWorld, partition: int, uid: str, headers: Headers | None = None) -> None:
    """A member of the group of two that ``uid`` begins with; with headers, under a schema that is
    not known."""
    key = world.key_in(partition, uid[0])
    entry = make_entry(rollout_uid=uid, group_uid=key, group_size=2)
    value = encode_record([entry], partitions=world.environment.partitions)
    if headers is None:
        world.put(value, partition=partition)
    else:
        world.put(newer(value), partition=partition, headers=headers)


def stopped() -> SealWorld:
    """Of group b the second member is a newer producer's; group c is behind it, and d elsewhere."""
    world = SealWorld(seal_timeout_s=10, expire_after_s=20, min_group_size=1)
    for uid in ("a0", "a1", "b0"):
        put_member(world, 0, uid)
    with world.sealer() as sealer:
        world.run(sealer)
        put_member(world, 0, "b1", NEWER_HEADERS)
        for uid in ("c0", "c1"):
            put_member(world, 0, uid)
        for uid in ("d0", "d1"):
            put_member(world, 1, uid)
        world.run_now_and_then(sealer, seconds=100)
        assert "[0], offset 3: a newer producer wrote this record" in aside_of(sealer)
        assert f"version {NEWER}; rollstream " in aside_of(sealer)
        assert aside_of(sealer, 1) == ""
        assert world.groups() == [("a0", "a1"), ("d0", "d1")]
        assert world.settled() == {}, "time-outs end no group of a partition that is stopped"
    return world


def verdicts(world: SealWorld) -> tuple[Verdict, ...]:
    figures = measure(world.broker, world.config, Deadline(TIMEOUT_S, world.clock))
    return stuck_stages(figures, world.config)


@pytest.mark.parametrize("runs", [True, False])
def test_an_upgraded_sealer_goes_on_with_whole_groups(runs: bool) -> None:
    """It joins while the older one runs, or afterwards."""
    world = stopped()
    report = audit(world.config, broker=world.broker, store=world.blobs, clock=world.clock)
    assert report.problems == ()
    older = world.sealer()
    world.run(older, seconds=30)
    assert "a newer producer" in aside_of(older)
    if not runs:
        older.close()
    with upgraded(), world.sealer() as sealer:
        if runs:
            world.run(older, sealer, seconds=5)
            older.close()
        world.run(sealer, seconds=30)
        assert world.groups() == SEALED
        assert verdicts(world) == ()
        assert problems_of(world, [uid for group in SEALED for uid in group]) == []


def test_a_sealer_that_is_told_to_goes_past_it_and_seals_what_is_behind() -> None:
    world = stopped()
    with world.sealer(dead_letter_newer=True) as sealer:
        world.run_now_and_then(sealer, seconds=60)
        assert aside_of(sealer) == ""
        assert sealer.stats().dead_letters == 1
    assert world.groups() == [("a0", "a1"), ("b0",), ("c0", "c1"), ("d0", "d1")]
    assert world.settled() == {"unreadable": 1}
    assert problems_of(world) == []


def test_status_names_it_at_once_and_alarms_before_retention_reaches_it() -> None:
    world = stopped()
    with world.sealer() as sealer:
        world.run(sealer, seconds=30)
        (verdict,) = verdicts(world)
        assert (verdict.stage, verdict.level) == ("sealers", "warning")
        assert "math[0] is put aside, and all other partitions go on" in verdict.reason
        assert "retention deletes the oldest in 168 hours" in verdict.reason
        assert "a newer producer wrote this record" in verdict.reason
        world.clock.advance(0.8 * 168 * 3600)
        world.run(sealer, seconds=30)
        (verdict,) = verdicts(world)
        assert verdict.level == "error"
        assert "retention deletes the oldest in 34 hours" in verdict.reason


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((SCHEMA_HEADER, b""),),
        ((SCHEMA_HEADER, b"newest"),),
        ((SCHEMA_HEADER, b"-4"),),
        ((SCHEMA_HEADER, b"9" * 5000),),
        ((SCHEMA_HEADER, str(NEWER - 1).encode()),),
        (("schemas", str(NEWER).encode()),),
    ],
    ids=["none", "empty", "word", "negative", "long", "known", "other"],
)
def test_a_record_that_names_no_newer_schema_is_a_dead_letter(headers: Headers) -> None:
    world = SealWorld()
    put_member(world, 0, "a0", headers)
    for uid in ("b0", "b1"):
        put_member(world, 0, uid)
    with world.sealer() as sealer:
        world.run(sealer)
        assert aside_of(sealer) == ""
    assert world.groups() == [("b0", "b1")]
    assert world.settled() == {"unreadable": 1}


@pytest.mark.parametrize("value", [b"", b"no avro at all", b"\xc3\x02rest"])
def test_bytes_without_our_marker_are_a_dead_letter_whatever_their_header(value: bytes) -> None:
    world = SealWorld()
    world.put(value, headers=NEWER_HEADERS)
    with world.sealer() as sealer:
        world.run(sealer)
        assert aside_of(sealer) == ""
    assert world.settled() == {"unreadable": 1}
