"""``rollstream deadletters``: letters are named, shown, and published again once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from harness.command_line import CommandLine
from harness.faults import FaultyBroker
from harness.newer_records import NEWER_HEADERS, newer, upgraded
from harness.owned_logs import owner_of
from harness.rollouts import encode_record, make_entry
from harness.seal_events import flushed
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.consumers.dead_letters import retry_letters
from rollstream.consumers.dead_letters.retrying import RetryState
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import DeadLetter, Retried, UnreadRanges
from rollstream.schemas.reasons import LetterReason
from rollstream.streams.broker import TopicPartition
from rollstream.streams.dead_letters import read_letters
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.owned.adoption import CLOCKS_APART_US
from rollstream.streams.partitioning import partition_of

TIMEOUT_S = 30.0
TURNS_MAX = 200
PARTITIONS = 2
TWO = {"counts": {0: 2}}
FIRST_LOST = UnreadRanges(reason="lost", firsts=np.zeros(1, np.int64), stops=np.ones(1, np.int64))


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path)
    line.create_topics()
    return line


def append(line: CommandLine, topic: str, *values: bytes, partition: int = 0) -> None:
    writer = line.broker().writer()
    for value in values:
        writer.append(topic, value, partition=partition)
    assert writer.flush(TIMEOUT_S) == 0


def letter(line: CommandLine, value: bytes | None, *, offset: int = 0, **of: Any) -> DeadLetter:
    """A letter about entry 0 of a record of ``rollouts.math``."""
    fields: dict[str, Any] = {
        "topic": line.layout.rollouts("math"),
        "partition": 0,
        "offset": offset,
        "entry": 0,
        "timestamp_ts": 1_700_000_000_000_000,
        "reason": "unknown_schema",
        "detail": "fingerprint '0102030405060708'",
        "value": value,
        **of,
    }
    return DeadLetter(**fields)


def write_letters(line: CommandLine, *letters: DeadLetter) -> None:
    """Letters of partition 0, where whatever stands up to them is settled as unreadable."""
    stop = max(one.offset for one in letters) + 1
    append(line, line.layout.rollouts("math"), *[b"of a newer version"] * stop)
    settle(line, stop, settled={"unreadable": range(stop)})
    append(line, line.layout.dead_letters(), *map(codec.encode, letters))


def settle(line: CommandLine, watermark: int, **flush: Any) -> None:
    """One flush of a sealer of partition 0."""
    log = owner_of(line.broker(), TopicPartition(line.layout.groups("math"), 0))
    log.claim(Deadline(TIMEOUT_S))
    unread = flush.pop("unread", ())
    event = flushed(log.epoch, log.nonce, flush.pop("sealed", ()), watermark, **flush)
    log.wait_confirmed(log.append(replace(event, unread=unread)), Deadline(TIMEOUT_S))
    log.release()


def group(name: str, **overrides: Any) -> list[Any]:
    """The two members of a group."""
    return [
        make_entry(rollout_uid=f"{name}-{i}", group_uid=name, group_size=2, **overrides)
        for i in range(2)
    ]


def sealed(line: CommandLine) -> tuple[int, dict[str, int]]:
    """Seals what is in the ingest log; how many segments are sealed, and the rest by reason."""
    with Sealer(
        line.config,
        broker=line.broker(),
        store=line.blobs,
        clock=line.clock,
        workers=InlineExecutor(),
    ) as sealer:
        for _ in range(TURNS_MAX):
            sealer.step(Deadline(1.0, line.clock))
        sealer.flush(TIMEOUT_S)
    rows = json.loads(line.run("audit", "--json").stdout)["partitions"]
    settled = sum((Counter(row["settled"]) for row in rows), Counter[str]())
    return sum(row["sealed"] for row in rows), dict(settled)


@pytest.mark.proves("F19")
def test_a_record_of_an_unknown_schema_is_listed_and_shown_and_refused_until_it_can_be_read(
    line: CommandLine,
) -> None:
    value = encode_record(group("g"), partitions=PARTITIONS)
    newer = value[:2] + bytes(8) + value[10:]
    append(line, line.layout.rollouts("math"), newer)
    assert sealed(line) == (0, {"unreadable": 1})
    (row,) = json.loads(line.run("deadletters", "list", "--json").stdout)
    assert (row["reason"], row["offset"], row["bytes"]) == ("unknown_schema", 0, len(newer))
    assert (
        "unknown_schema: fingerprint '0000000000000000'" in line.run("deadletters", "list").stdout
    )
    shown = json.loads(line.run("deadletters", "show", str(row["letter"])).stdout)
    assert shown["entries"].startswith("cannot be read here: unknown_schema")
    done = line.run("deadletters", "retry", "--reason", "unknown_schema")
    assert done.exit_code == 1
    assert f"letter {row['letter']}: not published: unknown_schema" in done.stdout
    assert line.logs.bounds(TopicPartition(line.layout.rollouts("math"), 0)) == (0, 1)


class TurnsEvent(threading.Event):
    """Set after so many looks."""

    def is_set(self) -> bool:
        self.looks = getattr(self, "looks", 0) + 1
        return self.looks > TURNS_MAX


@pytest.mark.proves("F19")
@pytest.mark.parametrize(("options", "letters"), [((), 0), (("--dead-letter",), 1)])
def test_a_record_of_a_newer_producer_is_a_letter_only_where_seal_is_told_so(
    line: CommandLine, options: tuple[str, ...], letters: int
) -> None:
    writer = line.broker().writer()
    value = newer(encode_record(group("g"), partitions=PARTITIONS))
    topic, number = line.layout.rollouts("math"), partition_of(b"g", PARTITIONS)
    writer.append(topic, value, partition=number, headers=NEWER_HEADERS)
    assert writer.flush(TIMEOUT_S) == 0
    line.stopping = TurnsEvent()
    assert line.run("seal", *options).exit_code == 0
    found = json.loads(line.run("deadletters", "list", "--json").stdout)
    assert [row["reason"] for row in found] == ["unknown_schema"] * letters
    with upgraded():
        segments, settled = sealed(line)
    assert (segments, settled.get("unreadable", 0)) == (0 if letters else 2, letters)
    if letters:
        with upgraded():
            done = line.run("deadletters", "retry", "--reason", "unknown_schema")
            assert "2 entries published" in done.stdout
            assert sealed(line) == (2, {"unreadable": 1})


@pytest.mark.proves("F19")
def test_what_is_retried_twice_counts_once(line: CommandLine) -> None:
    write_letters(line, letter(line, encode_record(group("g"), partitions=PARTITIONS)))
    shown = json.loads(line.run("deadletters", "show", "0").stdout)
    assert [entry["rollout_uid"] for entry in shown["entries"]] == ["g-0", "g-1"]
    number = partition_of(b"g", PARTITIONS)
    first = line.run("deadletters", "retry", "0")
    where = f"{line.layout.rollouts('math')}[{number}]"
    assert first.stdout.splitlines() == [
        f"letter 0: published: {where} at {1 if number == 0 else 0}",
        "2 entries published of 1 letters; 0 letters published before, 0 were sealed, 0 refused",
    ]
    again = line.run("deadletters", "retry", "--all")
    assert "letter 0: published before" in again.stdout
    assert again.exit_code == 0
    assert sealed(line) == (2, {"unreadable": 1})
    (row,) = json.loads(line.run("deadletters", "list", "--json").stdout)
    assert row["retried"] is True


def test_two_letters_of_one_entry_are_published_once(line: CommandLine) -> None:
    one = letter(line, encode_record(group("g")[:1], partitions=PARTITIONS))
    write_letters(line, one, one)
    states = [row["state"] for row in retried(line, "--all")]
    assert states == ["published", "published before"]


def test_a_retry_that_ended_before_its_mark_is_a_duplicate(line: CommandLine) -> None:
    """As where the process was killed between the two."""
    write_letters(line, letter(line, encode_record(group("g"), partitions=PARTITIONS)))
    value = encode_record(group("g"), partitions=PARTITIONS)
    number = partition_of(b"g", PARTITIONS)
    append(line, line.layout.rollouts("math"), value, partition=number)
    assert [row["state"] for row in retried(line, "0")] == ["published"]
    assert sealed(line) == (2, {"duplicate": 2, "unreadable": 1})


@pytest.mark.proves("F19")
def test_entries_go_to_the_partitions_of_their_keys_and_those_that_break_a_rule_come_back(
    line: CommandLine,
) -> None:
    names = [f"group-{i}" for i in range(8)]
    bad = make_entry(rollout_uid="bad", group_uid="bad", split="x" * 5_000)
    entries = [entry for name in names for entry in group(name)]
    write_letters(line, letter(line, encode_record([*entries, bad], partitions=5)))
    done = line.run("deadletters", "retry", "--json", "0")
    assert done.exit_code == 1
    (row,) = json.loads(done.stdout)
    assert (row["state"], row["entries"]) == ("published in part", 16)
    assert "entry 16: split is 'xxx" in row["detail"]
    assert sealed(line) == (16, {"unreadable": 2})
    first, again = json.loads(line.run("deadletters", "list", "--json").stdout)
    assert (first["retried"], again["retried"], again["reason"]) == (True, False, "inconsistent")
    states = [row["state"] for row in retried(line, "--all")]
    assert states == ["published before", "not published"]


@pytest.mark.proves("F19")
def test_what_was_sealed_after_its_letter_was_written_is_not_published_again(
    line: CommandLine,
) -> None:
    """A sealer that could not read it delivered the letter and was killed before its flush; its
    successor can read it."""
    name = next(
        n for n in map("g{}".format, range(99)) if partition_of(n.encode(), PARTITIONS) == 0
    )
    value = encode_record(group(name), partitions=PARTITIONS)
    append(line, line.layout.rollouts("math"), value)
    append(line, line.layout.dead_letters(), codec.encode(letter(line, value)))
    early = line.run("deadletters", "retry", "0")
    assert early.exit_code == 1
    assert "letter 0: not published: no seal log says yet what became of it" in early.stdout
    assert sealed(line) == (2, {})
    late = line.run("deadletters", "retry", "0")
    assert late.exit_code == 0
    assert "letter 0: was sealed" in late.stdout
    assert line.logs.bounds(TopicPartition(line.layout.rollouts("math"), 0)) == (0, 1)


@pytest.mark.parametrize(
    ("entry", "members", "flush", "state"),
    [
        (0, 1, {"sealed": [0]}, "was sealed"),
        (0, 1, {"settled": {"expired": [0]}}, "was sealed"),
        (0, 1, {"settled": {"unreadable": [0]}}, "published"),
        (1, 1, {"sealed": [(0, 0)], "settled": {"unreadable": [(0, 1)]}, **TWO}, "published"),
        (0, 2, {"settled": {"unreadable": [(0, 0)]}, **TWO, "watermark": 0}, "was sealed"),
        (0, 2, {"unread": (FIRST_LOST,)}, "published"),
    ],
    ids=["sealed", "expired", "unreadable", "one entry", "told apart", "lost"],
)
def test_seal_log_says_whether_a_letter_may_be_published(
    line: CommandLine, entry: int, members: int, flush: dict[str, Any], state: str
) -> None:
    value = encode_record(group("g")[:members], partitions=PARTITIONS)
    flush = {"watermark": 1, **flush}
    settle(line, **flush)
    append(line, line.layout.dead_letters(), codec.encode(letter(line, value, entry=entry)))
    assert [row["state"] for row in retried(line, "0")] == [state]


def test_retry_reads_the_seal_log_from_about_the_time_of_the_letter_until_all_is_known(
    line: CommandLine,
) -> None:
    value = encode_record(group("g"), partitions=PARTITIONS)
    for offset in range(120):
        settle(line, offset + 1, sealed=[offset])
    line.clock.advance(CLOCKS_APART_US / 1e6 + 1.0)
    settle(line, 121, settled={"unreadable": [120]})
    append(line, line.layout.dead_letters(), codec.encode(letter(line, value, offset=120)))
    for offset in range(121, 241):
        settle(line, offset + 1, sealed=[offset])
    broker = FaultyBroker(line.broker())
    for state, read in (RetryState.PUBLISHED, 550), (RetryState.BEFORE, 10):
        deadline, before = Deadline(TIMEOUT_S, line.clock), broker.records_read
        (outcome,) = retry_letters(line.config, broker, lambda _: True, deadline)
        assert outcome.state == state
        assert broker.records_read - before < read, "of more than 720"


def test_a_letter_that_a_stopped_sealer_wrote_late_is_not_published_although_it_was_sealed_before(
    line: CommandLine,
) -> None:
    settle(line, 1, sealed=[0])
    for _ in range(20):
        settle(line, 1)
    line.clock.advance(10 * CLOCKS_APART_US / 1e6)
    value = encode_record(group("g")[:1], partitions=PARTITIONS)
    append(line, line.layout.dead_letters(), codec.encode(letter(line, value)))
    assert [row["state"] for row in retried(line, "0")] == ["was sealed"]


def test_letters_are_read_however_long_it_takes_as_long_as_the_broker_answers(
    line: CommandLine,
) -> None:
    write_letters(line, *(letter(line, None, offset=offset) for offset in range(100)))
    deadline = Deadline(1.0, line.clock)
    with line.broker() as broker:
        for _ in read_letters(broker, line.layout, deadline):
            line.clock.advance(0.6)
    assert not deadline.passed()


@pytest.mark.parametrize(
    ("value", "finding"),
    [
        (None, "the letter holds no bytes"),
        (b"junk", "not_an_event"),
        (encode_record(group("g"), environment="physics"), "no environment 'physics'"),
        (encode_record([make_entry(rollout_uid="")]), "rollout_uid is empty"),
    ],
    ids=["no bytes", "junk", "environment", "broken"],
)
def test_what_cannot_be_sealed_is_refused_with_the_reason(
    line: CommandLine, value: bytes | None, finding: str
) -> None:
    write_letters(line, letter(line, value))
    done = line.run("deadletters", "retry", "0")
    assert done.exit_code == 1
    assert finding in done.stdout
    assert "0 letters published before, 0 were sealed, 1 refused" in done.stdout


def test_letters_are_chosen_by_number_or_reason(line: CommandLine) -> None:
    value = encode_record(group("g")[:1], partitions=PARTITIONS)
    reasons = enumerate(["torn", "unknown_schema", "unknown_schema"])
    write_letters(line, *(letter(line, value, offset=i, reason=r) for i, r in reasons))
    assert [row["number"] for row in retried(line, "--reason", "unknown_schema")] == [1, 2]
    listed = json.loads(line.run("deadletters", "list", "--json", "--reason", "torn").stdout)
    assert [(row["letter"], row["retried"]) for row in listed] == [(0, False)]
    assert line.run("deadletters", "retry").exit_code == 2
    missing = line.run("deadletters", "retry", "9")
    told = "there are no letters 9; `rollstream deadletters list` names them\n"
    assert (missing.exit_code, missing.stderr, missing.stdout) == (1, told, "")
    assert line.run("deadletters", "show", "9").exit_code == 1


def test_letters_are_readable_in_a_terminal_of_80_columns(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_letters(line, letter(line, b"bad", reason="torn", detail="word " * 30))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    head, *reason = line.run("deadletters", "list", columns="80").stdout.splitlines()
    assert head.startswith("letter 0: ")
    assert "3 bytes" in head
    assert reason[0].startswith("  torn: word word ")
    assert len(reason) == 3
    assert all(len(one) <= 80 and one.startswith("  word") for one in reason[1:])


def test_a_reason_that_no_letter_has_names_those_that_are_there(line: CommandLine) -> None:
    write_letters(line, letter(line, b"", reason="torn"), letter(line, b"", reason="inconsistent"))
    done = line.run("deadletters", "list", "--reason", "unknown_schema")
    told = "no dead letter has the reason unknown_schema; those kept have: inconsistent, torn\n"
    assert (done.stdout, done.stderr) == ("", told)
    done = line.run("deadletters", "list", "--reason", "unknown_schema", "--json")
    assert (done.stdout, done.exit_code) == ("[]\n", 0)


@pytest.mark.parametrize("command", ["list", "retry"])
def test_an_unknown_reason_is_refused_with_those_that_there_are(
    command: str, line: CommandLine
) -> None:
    done = line.run("deadletters", command, "--reason", "nix")
    assert (done.stdout, done.exit_code) == ("", 2)
    assert "nix" in done.stderr
    assert all(reason in done.stderr for reason in LetterReason)


@pytest.mark.proves("F17")
@pytest.mark.parametrize("arguments", [["list"], ["show", "0"], ["retry", "--all"]])
def test_a_broker_that_cannot_be_reached_is_told_before_anything_is_read(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    class Away(MemoryBroker):
        def admin(self) -> NoReturn:
            raise BrokerUnavailable("Kafka at unused:9092 cannot be reached")

    monkeypatch.setattr(line, "broker", lambda: Away(line.logs))
    done = line.run("deadletters", *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "rollstream: Kafka at unused:9092 cannot be reached\n"


def test_no_letters_are_said_to_be_none(line: CommandLine) -> None:
    assert line.run("deadletters", "list").stdout == "no dead letters\n"


def test_marks_name_where_the_entry_stood(line: CommandLine) -> None:
    one = letter(line, encode_record(group("g"), partitions=PARTITIONS), offset=7)
    write_letters(line, one)
    with line.broker() as broker:
        (outcome,) = retry_letters(
            line.config, broker, lambda _: True, Deadline(TIMEOUT_S, line.clock)
        )
    assert outcome.entries == 2
    where = TopicPartition(line.layout.dead_letters(), 0)
    _, mark = line.logs.read(where, 0, 10)
    assert codec.decode(mark.value) == Retried(topic=one.topic, partition=0, offset=7, entry=0)


def retried(line: CommandLine, *arguments: str) -> list[dict[str, Any]]:
    """What ``retry`` did."""
    found: list[dict[str, Any]] = json.loads(
        line.run("deadletters", "retry", "--json", *arguments).stdout
    )
    return found
