"""Bytes that no sealer and no sampler wrote, in a log of theirs: who says what about them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.command_line import TIMEOUT_S, CommandLine
from rollstream.sampler import Sampler
from rollstream.schemas import codec
from rollstream.schemas.events import DeadLetter
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import CorruptLog

REMEDY = "take the right to write to this topic from whoever did, and begin a new kafka.generation"


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path)
    line.create_topics()
    return line


def put_junk(line: CommandLine, where: TopicPartition) -> str:
    """Appends it; how an error names it."""
    reader = line.broker().reader({where: 0})
    _, offset = reader.bounds(where, TIMEOUT_S)
    reader.close()
    writer = line.broker().writer()
    writer.append(where.topic, b"junk of somebody else", partition=where.partition)
    assert writer.flush(TIMEOUT_S) == 0
    return f"{where}, offset {offset}: not_an_event: begins with '6a756e6b"


@pytest.mark.parametrize("command", ["status", "audit", "seal"])
def test_a_command_that_reads_a_seal_log_names_the_record_and_the_remedy(
    line: CommandLine, command: str
) -> None:
    named = put_junk(line, TopicPartition(line.layout.groups("math"), 1))
    in_time = threading.Timer(TIMEOUT_S, line.stopping.set)
    in_time.start()
    done = line.run(command)
    in_time.cancel()
    assert done.exit_code == 1
    (message,) = [row for row in done.stderr.splitlines() if row.startswith("rollstream: ")]
    assert named in message
    assert REMEDY in message


def test_status_names_the_record_of_a_decision_log(line: CommandLine) -> None:
    named = put_junk(line, line.layout.sampler_log("trainer-a"))
    done = line.run("status")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"rollstream: {named}")
    assert "another sampler's name is enough" in done.stderr


@pytest.mark.parametrize("of_seal_log", [True, False], ids=["seal log", "decision log"])
def test_a_sampler_names_the_record(line: CommandLine, of_seal_log: bool) -> None:
    seal_log = TopicPartition(line.layout.groups("math"), 1)
    named = put_junk(line, seal_log if of_seal_log else line.layout.sampler_log("trainer-a"))
    with pytest.raises(CorruptLog) as raised:
        Sampler(
            "trainer-a",
            config=line.config,
            broker=line.broker(),
            store=line.blobs,
            clock=line.clock,
        ).resume(None)
    assert str(raised.value).startswith(named)
    assert REMEDY in str(raised.value)


def test_letters_on_both_sides_of_it_are_listed_and_retried(
    line: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    where = TopicPartition(line.layout.dead_letters(), 0)
    writer = line.broker().writer()
    letter = DeadLetter(
        topic=line.layout.rollouts("math"),
        partition=0,
        offset=0,
        entry=0,
        timestamp_ts=1,
        reason="unknown_schema",
        detail="fingerprint '0102030405060708'",
        value=b"of a newer version",
    )
    writer.append(where.topic, codec.encode(letter))
    assert writer.flush(TIMEOUT_S) == 0
    put_junk(line, where)
    writer.append(where.topic, codec.encode(replace(letter, offset=1)))
    assert writer.flush(TIMEOUT_S) == 0
    done = line.run("deadletters", "list")
    assert done.exit_code == 0
    assert [row[:9] for row in done.stdout.splitlines() if row.startswith("letter")] == [
        "letter 0:",
        "letter 2:",
    ]
    assert caplog.text.count("1 records, the last at offset 1, are no letters and are passed") == 1
    retried = line.run("deadletters", "retry", "--all").stdout
    assert "letter 0: not published: not_an_event" in retried
    assert "letter 2: not published: not_an_event" in retried
