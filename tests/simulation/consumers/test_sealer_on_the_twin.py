"""A sealer over logs and files in memory."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence

import pytest

from harness.faults import Append, Fate, FaultyBroker
from harness.history import problems_of
from harness.rollouts import (
    encode_record,
    encode_segment,
    make_dispatched,
    make_entry,
    members,
)
from harness.sealing import SealWorld, aside_of
from rollstream.schemas import codec
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import Claimed, DeadLetter
from rollstream.schemas.ingest.entry import ENTRIES_MAX
from rollstream.schemas.ingest.wire import read_record, write_record
from rollstream.store import list_manifests, read_rows, visible_files
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import OffsetLost, TopicMismatch
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import RECORD_BYTES_MAX


def test_rollouts_become_groups_files_and_manifests() -> None:
    world = SealWorld()
    for number in range(8):
        world.publish(f"u{number}", example_id=f"ex-{number // 2}")
    sealer = world.sealer()
    world.run(sealer)
    assert world.groups() == [("u0", "u1"), ("u2", "u3"), ("u4", "u5"), ("u6", "u7")]
    named = {file.path for event in world.flushes() for file in event.files}
    assert named == set(visible_files(world.blobs))
    assert len(list(list_manifests(world.blobs))) == len(world.flushes())
    assert sealer.stats().segments == 8
    assert sum(p.watermark for p in sealer.stats().partitions) == 8


def test_rows_of_a_file_are_those_that_its_event_names() -> None:
    world = SealWorld(partitions=1)
    for number in range(4):
        world.publish(f"u{number}", example_id=f"ex-{number % 2}", output_tokens=range(number + 1))
    world.run(world.sealer())
    (event,) = world.flushes()
    (file,) = event.files
    rows = read_rows(world.blobs, file.path)
    assert tuple(rows.scalars["rollout_uid"]) == event.segments.uids == ("u0", "u2", "u1", "u3")
    assert event.segments.token_counts.tolist() == [1, 3, 2, 4]
    digests = row_digests(rows, [group.row_start for group in event.groups])
    assert digests == [group.digest for group in event.groups]


def test_policy_versions_lie_in_files_of_their_own() -> None:
    world = SealWorld(partitions=1, grouping="mixed")
    world.publish("a", example_id="x", policy_version="step-1", weight_step=1)
    world.publish("b", example_id="x", policy_version="step-2", weight_step=2)
    world.publish("c", example_id="y", policy_version="step-2", weight_step=2)
    world.publish("d", example_id="y", policy_version="step-2", weight_step=2)
    world.run(world.sealer())
    groups = [group for event in world.flushes() for group in event.groups]
    assert [(g.policy_version, g.weight_step) for g in groups] == [("mixed", 1), ("step-2", 2)]
    assert ["policy_version=mixed" in path for path in visible_files(world.blobs)] == [True, False]


@pytest.mark.proves("A6")
def test_time_outs_run_without_arrivals() -> None:
    world = SealWorld(target_group_size=8, seal_timeout_s=10, expire_after_s=60)
    world.publish("a")
    world.publish("b")
    sealer = world.sealer()
    world.run(sealer, seconds=9)
    assert world.groups() == []
    world.run(sealer, seconds=2)
    assert world.groups() == [("a", "b")]


def test_catching_up_seals_nothing_too_early() -> None:
    world = SealWorld(partitions=1, target_group_size=3, seal_timeout_s=10, expire_after_s=60)
    world.publish("a")
    world.publish("b")
    world.publish("c")
    world.clock.wait(threading.Event(), 1000)
    world.run(world.sealer())
    assert world.groups() == [("a", "b", "c")]


@pytest.mark.proves("A6")
def test_flush_makes_pending_groups_readable() -> None:
    world = SealWorld(target_group_size=8)
    world.publish("a")
    world.publish("b")
    sealer = world.sealer()
    world.run(sealer)
    sealer.flush()
    assert world.groups() == [("a", "b")]


@pytest.mark.proves("A12")
def test_pending_rollouts_come_back_after_a_restart() -> None:
    world = SealWorld()
    world.publish("a")
    first = world.sealer()
    world.run(first)
    first.close()
    world.publish("b")
    world.run(world.sealer())
    assert world.groups() == [("a", "b")]


@pytest.mark.proves("A4")
def test_a_uid_is_a_duplicate_after_a_restart_too() -> None:
    world = SealWorld()
    world.publish("a")
    world.publish("b")
    first = world.sealer()
    world.run(first)
    first.close()
    world.publish("a")
    world.run(world.sealer())
    assert world.groups() == [("a", "b")]
    assert world.settled() == {"duplicate": 1}


def test_what_cannot_be_read_becomes_a_dead_letter_and_the_rest_goes_on() -> None:
    world = SealWorld(partitions=1)
    bad = {
        "not_an_event": b"no avro at all",
        "unknown_schema": b"\xc3\x01" + bytes(8) + b"rest",
        "torn": encode_segment(rollout_uid="torn")[:-4],
        "inconsistent": encode_segment(rollout_uid="never", group_size=-1),
        "wrong_environment": encode_record([make_entry()], environment="other"),
        "wrong_partition": encode_record([make_entry()], partitions=7),
    }
    world.publish("a")
    for value in bad.values():
        world.put(value, partition=0)
    world.publish("b")
    sealer = world.sealer()
    world.run(sealer)
    assert world.groups() == [("a", "b")]
    assert world.settled() == {"unreadable": 6}
    letters = letters_of(world)
    assert {letter.reason: letter.value for letter in letters} == bad
    assert [(letter.offset, letter.entry) for letter in letters] == [(n, 0) for n in range(1, 7)]
    assert sealer.stats().dead_letters == 6


def test_one_bad_entry_is_a_letter_of_one_and_the_others_of_its_record_go_on() -> None:
    world = SealWorld(partitions=2)
    other = world.key_in(1, "elsewhere")
    mine = world.key_in(0, "here")
    bad = make_entry(rollout_uid="bad", example_id=mine, segment_idx=-1)
    stray = make_entry(rollout_uid="stray", example_id=other)
    listed = make_entry(rollout_uid="listed", example_id=mine, metadata="[1]")
    good = [make_entry(rollout_uid=uid, example_id=mine) for uid in "ab"]
    world.put(encode_record([good[0], bad, stray, listed, good[1]], partitions=2), entries=5)
    world.run(world.sealer())
    assert world.groups() == [("a", "b")]
    assert world.settled() == {"unreadable": 3}
    letters = letters_of(world)
    assert [(letter.entry, letter.reason) for letter in letters] == [
        (1, "inconsistent"),
        (2, "wrong_partition"),
        (3, "inconsistent"),
    ]
    assert letters[2].detail.startswith("metadata '[1]' of 3 characters is no JSON object")
    assert "partition 1 of 2" in letters[1].detail
    assert "partitioner=murmur2_random" in letters[1].detail
    assert [letter.value for letter in letters] == [
        encode_record([entry], partitions=2) for entry in (bad, stray, listed)
    ]
    assert problems_of(world, "ab") == []


def test_a_record_of_a_producer_that_saw_other_partitions_names_both_numbers() -> None:
    world = SealWorld(partitions=2)
    world.put(encode_record(members(3), partitions=8), entries=3)
    world.run(world.sealer())
    assert world.settled() == {"unreadable": 3}
    letters = letters_of(world)
    assert [letter.entry for letter in letters] == [0, 1, 2]
    (detail,) = {letter.detail for letter in letters}
    assert "chose among 8 partitions, and math has 2:" in detail
    assert "partitioner=murmur2_random" in detail


def test_more_entries_than_there_are_bytes_of_are_one_letter() -> None:
    world = SealWorld(partitions=1)
    header, *_ = read_record(encode_record(members(1)))
    nothing = {name: b"" for name, value in header.items() if isinstance(value, bytes)}
    value = write_record({**header, **nothing, "count": ENTRIES_MAX}, [])
    assert len(value) < 100
    world.put(value)
    world.run(world.sealer())
    assert world.settled() == {"unreadable": 1}
    (letter,) = letters_of(world)
    assert (letter.reason, letter.entry, letter.value) == ("inconsistent", 0, value)


def test_a_key_that_breaks_a_rule_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(key: bytes, partitions: int) -> int:
        hashed.append(key)
        return partition_of(key, partitions)

    monkeypatch.setattr("rollstream.consumers.sealing.intake.partition_of", counted)
    world = SealWorld(partitions=1)
    good, bad = make_entry(), make_entry(rollout_uid="bad", example_id="x" * 1_000_000)
    world.put(encode_record([bad, good]), entries=2)
    world.run(world.sealer())
    assert hashed == [good.fields["example_id"].encode()]
    (letter,) = letters_of(world)
    assert letter.entry == 0


def letters_of(world: SealWorld) -> list[DeadLetter]:
    reader = world.broker.reader({TopicPartition(world.layout.dead_letters(), 0): 0})
    return [codec.decode_as(DeadLetter, record.value) for record in reader.poll(100, 1)]


def test_records_after_a_dead_letter_that_is_refused_are_read_again_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.dead_letters.LETTERS_MAX", 1)
    world = SealWorld(partitions=2)
    refused = [True]

    def decide(append: Append) -> Fate:
        letter = append.topic == world.layout.dead_letters()
        return Fate.DROP if letter and refused else Fate.PASS

    sealer = world.sealer(broker=FaultyBroker(world.new_broker(), decide, clock=world.clock))
    world.run(sealer)  # It has both partitions, so one poll reads all of these.
    uids = []
    for partition in range(2):
        for number in range(4):
            uids.append(f"p{partition}-{number}")
            world.publish(uids[-1], partition=partition)
            if partition == 0 and number in (0, 2):
                world.put(b"no avro at all", partition=partition)
    world.run(sealer, seconds=100)
    assert world.groups() == [("p1-0", "p1-1"), ("p1-2", "p1-3")]
    assert [at.position for at in sealer.stats().partitions] == [4, 4], "one letter has a place"
    refused.clear()
    world.run(sealer)
    assert ("p0-2", "p0-3") in world.groups()
    assert world.settled() == {"unreadable": 2}
    assert sealer.stats().read == 10, "each counts once, however often it is read"
    assert problems_of(world, uids) == []


@pytest.mark.parametrize(
    "name", ["rollout_uid", "example_id", "replica_id", "policy_version", "split"]
)
def test_a_name_that_no_event_could_hold_stands_in_nobodys_way(name: str) -> None:
    world = SealWorld(partitions=1)
    world.publish("a")
    for number in range(2):
        long = "n" * (9 * 1024 * 1024) + str(number)
        world.put(encode_segment(**{"rollout_uid": f"long-{number}", name: long}))
    world.publish("b")
    world.run(world.sealer())
    assert world.groups() == [("a", "b")]
    assert world.settled() == {"unreadable": 2}


def test_bytes_too_many_for_a_letter_are_described_instead() -> None:
    world = SealWorld(partitions=1)
    world.put(bytes(RECORD_BYTES_MAX - 10), partition=0)
    sealer = world.sealer()
    world.run(sealer)
    assert world.settled() == {"unreadable": 1}
    (letter,) = letters_of(world)
    assert letter.value is None
    assert f"its {RECORD_BYTES_MAX - 10} bytes" in letter.detail


def test_a_reason_too_long_for_a_letter_is_cut() -> None:
    world = SealWorld(partitions=1)
    world.publish("a")
    world.put(encode_record([make_entry()], environment="\0" * (5 * 1024 * 1024)))
    world.publish("b")
    world.run(world.sealer())
    assert world.groups() == [("a", "b")]
    assert world.settled() == {"unreadable": 1}


class CutBroker(MemoryBroker):
    """A broker whose log was cut back to ``end`` and goes on there, once it was read and sealed."""

    def __init__(self, logs: MemoryLogs, end: int) -> None:
        super().__init__(logs)
        self._end = end

    def group_reader(
        self,
        group: str,
        topics: Sequence[str],
        *,
        on_revoked: Callable[[TopicPartition], None],
    ) -> MemoryGroupReader:
        reader = super().group_reader(group, topics, on_revoked=on_revoked)
        answer, read, polls = reader.poll, [0], [0]

        def poll(records_max: int, timeout_s: float) -> list[Record]:
            polls[0] += bool(read[0])
            if polls[0] > 10:
                self.logs.clock.wait(threading.Event(), timeout_s)
                raise OffsetLost(f"{topics[0]}[0]", read[0], 0, self._end)
            records = answer(records_max, timeout_s)
            read[0] += len(records)
            return records

        reader.poll = poll  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize("end", [2, 9], ids=["still shorter", "longer again"])
def test_a_log_that_was_cut_back_stops_the_sealer(end: int) -> None:
    world = SealWorld(partitions=1)
    for uid in "abcd":
        world.publish(uid)
    sealer = world.sealer(broker=CutBroker(world.logs, end))
    world.run(sealer)
    assert re.search(rf"offset 4 .* \[0, {end}\).* cut back", aside_of(sealer))
    sealer.close()
    assert world.groups() == [("a", "b"), ("c", "d")], "what was read before is committed"


@pytest.mark.parametrize("log", ["rollouts", "groups"])
def test_a_log_that_is_cut_back_while_nothing_comes_stops_the_sealer(log: str) -> None:
    world = SealWorld(partitions=1)
    for uid in "abcd":
        world.publish(uid)
    sealer = world.sealer()
    world.run(sealer)
    where = TopicPartition(next(name for name in world.logs.topics() if f".{log}." in name), 0)
    end = world.logs.bounds(where)[1]
    world.logs.cut_back(where, end - 1)
    # Kafka's client says nothing of it: the sealer has to ask.
    reader = sealer._environments[0]._reader

    def poll(records_max: int, timeout_s: float) -> list[Record]:
        world.logs.clock.wait(threading.Event(), timeout_s)
        return []

    reader.poll = poll  # type: ignore[method-assign]
    world.run(sealer, seconds=30)
    assert f"was read up to {end}, and now the log ends at {end - 1}" in aside_of(sealer)
    sealer.close()
    assert world.logs.bounds(where)[1] == end - 1, "nothing was written to it"


def test_expired_rows_are_kept_apart() -> None:
    world = SealWorld(partitions=1, seal_timeout_s=1, expire_after_s=2)
    world.publish("a")
    world.run(world.sealer(), seconds=5)
    assert world.settled() == {"expired": 1}
    (event,) = world.flushes()
    (file,) = event.incomplete
    assert file.path.startswith("incomplete/environment=math/policy_version=step-0/segment=0/")
    assert list(read_rows(world.blobs, file.path).scalars["rollout_uid"]) == ["a"]
    assert visible_files(world.blobs) == []


def test_a_trajectory_that_outlived_its_group_expires_without_arrivals() -> None:
    world = SealWorld(
        partitions=1, target_group_size=3, min_group_size=1, seal_timeout_s=10, expire_after_s=12
    )
    world.publish("t", is_last_segment=False)
    world.publish("a")
    sealer = world.sealer()
    world.run(sealer, seconds=11)
    assert world.groups() == [("a",)]
    assert world.settled() == {}
    world.run(sealer, seconds=2)
    assert world.settled() == {"expired": 1}
    assert problems_of(world, ["t", "a"]) == []


def test_a_dispatch_is_settled_with_its_group() -> None:
    world = SealWorld(partitions=1)
    world.publish_entries(make_dispatched(group_uid="g"))
    world.publish("a", group_uid="g", group_size=2)
    sealer = world.sealer()
    world.run(sealer)
    assert world.settled() == {}
    world.publish("b", group_uid="g", group_size=2)
    world.run(sealer)
    assert world.settled() == {"dispatched": 1}
    assert world.groups() == [("a", "b")]


def test_the_group_remembers_the_watermark_and_a_claim() -> None:
    world = SealWorld(partitions=1)
    world.publish("a")
    world.publish("b")
    world.publish("c")
    sealer = world.sealer()
    world.run(sealer, seconds=3)
    sealer.close()
    committed = world.logs.group(world.layout.sealer_group("math")).commits[world.source()]
    assert committed.offset == 2
    events = {confirmed.offset: confirmed.event for confirmed in world.confirmed_events()}
    claim = events[int(committed.metadata)]
    assert isinstance(claim, Claimed)
    assert claim.owner == "sealer-1"


def test_a_sealer_does_not_start_without_its_topics() -> None:
    world = SealWorld()
    with pytest.raises(TopicMismatch, match=r"rollouts\.math\.1 is missing"):
        world.sealer(broker=MemoryBroker(MemoryLogs(world.clock)))
