"""Bytes that no sealer and no sampler wrote, in a log of theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.command_line import TIMEOUT_S, CommandLine
from rollstream.sampler import Sampler
from rollstream.schemas import codec
from rollstream.schemas.events import DeadLetter
from rollstream.streams.broker import TopicPartition


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path)
    line.create_topics()
    return line


def put_junk(line: CommandLine, where: TopicPartition) -> None:
    writer = line.broker().writer()
    writer.append(where.topic, b"junk of somebody else", partition=where.partition)
    assert writer.flush(TIMEOUT_S) == 0


@pytest.mark.proves("F20")
@pytest.mark.parametrize("of_seal_log", [True, False], ids=["seal log", "decision log"])
def test_every_reader_passes_over_bytes_that_no_owner_wrote(
    line: CommandLine, of_seal_log: bool
) -> None:
    seal_log = TopicPartition(line.layout.groups("math"), 1)
    put_junk(line, seal_log if of_seal_log else line.layout.sampler_log("trainer-a"))
    for command in ("status", "audit"):
        done = line.run(command)
        assert (done.exit_code, done.stderr) == (0, "")
    with Sampler(
        "trainer-a",
        config=line.config,
        broker=line.broker(),
        store=line.blobs,
        clock=line.clock,
    ) as sampler:
        assert sampler.resume(None) == 0


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
    assert caplog.text.count("the record at offset 1 is no letter; such are passed over") == 1
    retried = line.run("deadletters", "retry", "--all").stdout
    assert "letter 0: not published: not_an_event" in retried
    assert "letter 2: not published: not_an_event" in retried
