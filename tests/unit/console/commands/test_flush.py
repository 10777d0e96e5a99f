"""``rollstream flush``: the owners of partitions seal what is pending, and say what they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.beside_readers import AnsweringReaders
from harness.command_line import CONFIG, CommandLine
from harness.rollouts import encode_record, make_entry
from rollstream.consumers import InlineExecutor, Sealer, audit
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

pytestmark = pytest.mark.proves("A6")
SEALED_S = 8.0  # Of the manual clock; time-outs are minutes away.
SECTION = "target_group_size = 4\nmin_group_size = 2"


class Line(CommandLine):
    """Groups of 4 of which 3, 2 and 1 members came, in two partitions. A sealer runs while the
    command reads the seal logs, unless there is none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG.replace("target_group_size = 2", SECTION))
        self.has_sealer = False
        self.create_topics()
        self.has_sealer = True
        self.publish(0, 3)
        self.publish(1, 2)
        self.publish(1, 1)

    def publish(self, partition: int, members: int) -> str:
        """A group with so many members."""
        names = (f"group-{number}-{members}-{self.clock.now_us()}" for number in range(64))
        group = next(one for one in names if partition_of(one.encode(), 2) == partition)
        entries = [
            make_entry(rollout_uid=f"{group}.{member}", group_uid=group, group_size=4)
            for member in range(members)
        ]
        value = encode_record(entries, partitions=2)
        self.logs.append(TopicPartition(self.layout.rollouts("math"), partition), None, value)
        return group

    def sealer(self) -> Sealer:
        return Sealer(
            self.config,
            broker=MemoryBroker(self.logs),
            store=self.blobs,
            clock=self.clock,
            workers=InlineExecutor(),
        )

    def seal(self, seconds: float = SEALED_S) -> None:
        with self.sealer() as sealer:
            deadline = Deadline(seconds, self.clock)
            while not deadline.passed():
                sealer.step(Deadline(0.1, self.clock))

    def answer(self) -> None:
        """Once."""
        if self.has_sealer:
            self.has_sealer = False
            self.seal()

    def broker(self) -> MemoryBroker:
        return AnsweringReaders(self.logs, self.answer)

    def groups(self) -> int:
        """Sealed ones, by the audit, which holds."""
        broker = MemoryBroker(self.logs)
        report = audit(self.config, broker=broker, store=self.blobs, clock=self.clock)
        assert report.holds, report.problems
        return sum(row.groups for row in report.partitions)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def test_groups_with_enough_members_are_sealed_at_once(line: Line) -> None:
    done = line.run("flush", "--environment", "math")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "math[0]: sealed 1 group, 3 rows",
        "math[1]: sealed 1 group, 2 rows; 1 pending group has fewer complete members than "
        "min_group_size (2): `--force` seals smaller ones too",
    ]
    assert line.groups() == 2


def test_force_seals_below_the_minimum_too(line: Line) -> None:
    done = line.run("flush", "--environment", "math", "--force", "--json")
    assert done.exit_code == 0, done.output
    rows = [(one["partition"], one["groups"], one["rows"]) for one in json.loads(done.stdout)]
    assert rows == [(0, 1, 3), (1, 2, 3)]
    assert line.groups() == 3


def test_a_group_is_sealed_once_however_often_it_is_asked(line: Line) -> None:
    for _ in range(2):
        assert line.run("flush", "--environment", "math", "--force").exit_code == 0
        line.has_sealer = True
    done = line.run("flush", "--environment", "math", "--force")
    assert done.stdout == "math[0]: nothing was pending\nmath[1]: nothing was pending\n"
    assert line.groups() == 3


def test_without_a_sealer_the_request_stands_until_there_is_one(line: Line) -> None:
    line.has_sealer = False
    done = line.run("flush", "--environment", "math", "--timeout", "5")
    assert done.exit_code == 1
    assert "math[0]: no sealer has answered" in done.stdout
    assert "`rollstream seal`" in done.stdout
    later = line.publish(0, 2)
    line.clock.advance(60.0)
    much_later = line.publish(0, 2)
    assert later != much_later
    line.seal()
    assert line.groups() == 2, "what began after the request waits for its own members"


def test_the_successor_of_a_sealer_that_dies_carries_the_request_out(line: Line) -> None:
    line.has_sealer = False
    line.run("flush", "--environment", "math", "--timeout", "5")
    first = line.sealer()
    deadline = Deadline(SEALED_S, line.clock)
    while not deadline.passed() and first.stats().groups == 0:
        first.step(Deadline(0.01, line.clock))
    line.seal(60.0)  # Its predecessor does nothing any more.
    assert line.groups() == 2
    line.publish(0, 3)
    line.seal()
    assert line.groups() == 2, "the request is over"
    first.close()


def test_an_environment_that_is_not_configured_is_refused(line: Line) -> None:
    done = line.run("flush", "--environment", "maths")
    assert done.exit_code == 1
    assert "there is no [environments.maths] in this configuration, which has math" in done.stderr


def test_of_two_requests_at_once_each_counts_the_groups_that_were_sealed_for_it(line: Line) -> None:
    line.has_sealer = False
    assert line.run("flush", "--environment", "math", "--timeout", "1").exit_code == 1
    line.has_sealer = True
    done = line.run("flush", "--environment", "math", "--force", "--json")
    assert done.exit_code == 0, done.output
    rows = [(one["partition"], one["groups"], one["rows"]) for one in json.loads(done.stdout)]
    assert rows == [(0, 0, 0), (1, 1, 1)], "the others were sealed for the first request"
    assert line.groups() == 3
