"""A seal log that cannot be read: which commands name it, and what they do about all others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.command_line import CONFIG, CommandLine
from harness.rollouts import encode_record, make_entry
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import TopicPartition

pytestmark = pytest.mark.proves("F20", "F24")
UNREADABLE = {
    "newer": MARKER + bytes(8) + b"newer",
    "torn": codec.encode(Claimed(owner="sealer-1", nonce="n"))[:-1],
}
TWO_ENVIRONMENTS = CONFIG.replace(
    'environments = ["math"]', 'environments = ["math", "code"]'
).replace("[samplers", "[environments.code]\npartitions = 1\n[samplers")


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path, TWO_ENVIRONMENTS)
    line.create_topics()
    return line


def append(line: CommandLine, topic: str, value: bytes) -> int:
    """To partition 0; returns the record's offset."""
    where = TopicPartition(topic, 0)
    line.logs.append(where, None, value)
    return line.logs.bounds(where)[1] - 1


def publish(line: CommandLine, environment: str, uid: str) -> None:
    entry = make_entry(rollout_uid=uid, example_id="ex-0")
    append(line, line.layout.rollouts(environment), encode_record([entry], environment=environment))


@pytest.mark.parametrize("kind", UNREADABLE)
def test_commands_name_it_and_go_on_with_all_others(line: CommandLine, kind: str) -> None:
    offset = append(line, line.layout.groups("math"), UNREADABLE[kind])
    named = f"{line.layout.groups('math')}[0], offset {offset}"
    publish(line, "math", "m")
    publish(line, "code", "c")
    line.clock.advance(3600.0)

    status = line.run("status", "--check", "--json")
    assert status.exit_code == 2
    figures = json.loads(status.stdout)
    (stuck,) = [one["reason"] for one in figures["stuck"] if "put aside" in one["reason"]]
    assert named in stuck
    assert "retention deletes the oldest in 167 hours" in stuck
    assert [named in one["aside"] for one in figures["partitions"]].count(True) == 1

    audit = line.run("audit", "--json")
    assert audit.exit_code == 1
    report = json.loads(audit.stdout)
    (problem,) = report["problems"]
    assert named in problem
    assert [row["published"] for row in report["partitions"]] == [1, 0, 1]

    check = line.run("topics", "check")
    assert check.exit_code == 1
    assert named in check.stdout
    assert "1 differences" in check.stdout


def test_status_and_audit_name_a_decision_log_that_cannot_be_read(line: CommandLine) -> None:
    where = line.layout.sampler_log("trainer-a")
    offset = append(line, where.topic, UNREADABLE["newer"])
    status = line.run("status", "--check")
    assert status.exit_code == 2
    assert f"{where}, offset {offset}" in status.stdout.replace("\n", "")
    assert "decides nothing" in status.stdout
