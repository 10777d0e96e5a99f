"""``rollstream seal --retry``: running sealers try partitions again that they put aside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.beside_readers import BesideReaders
from harness.command_line import CommandLine
from harness.failing_blobs import HangingBlobs
from harness.rollouts import encode_record, make_entry
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker

pytestmark = pytest.mark.proves("F20", "F24")
TORN = codec.encode(Claimed(owner="sealer-1", nonce="n"))[:-1]


class Line(CommandLine):
    """Two partitions; a sealer runs while a command reads. It put partition 0 aside."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sealer: Sealer | None = None
        self.create_topics()
        self.sealer = Sealer(
            self.config,
            broker=MemoryBroker(self.logs),
            store=self.blobs,
            clock=self.clock,
            workers=InlineExecutor(),
        )
        self.seal(1.0)
        self.log = TopicPartition(self.layout.groups("math"), 0)
        self.offset = self.logs.bounds(self.log)[1]
        self.logs.append(self.log, None, TORN)
        self.seal(30.0)

    def seal(self, seconds: float) -> None:
        deadline = Deadline(seconds, self.clock)
        while self.sealer is not None and not deadline.passed():
            self.sealer.step(Deadline(0.1, self.clock))

    def close(self) -> None:
        """The sealer leaves."""
        if self.sealer is not None:
            self.sealer.close()
            self.sealer = None

    def broker(self) -> MemoryBroker:
        return BesideReaders(self.logs, lambda: self.seal(0.5))


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    yield line
    line.close()


def test_a_log_that_still_cannot_be_read_is_named_and_not_written_to(line: Line) -> None:
    done = line.run("seal", "--retry")
    assert done.exit_code == 1
    assert f"{line.log}, offset {line.offset}" in done.stdout.replace("\n", "")
    assert "math[0]: still cannot be read, and nothing was written" in done.stdout
    assert line.logs.bounds(line.log)[1] == line.offset + 1


def test_a_root_that_hangs_ends_it_and_nobody_is_asked(line: Line) -> None:
    line.logs.cut_back(line.log, line.offset)  # It was mended.
    blobs = line.opened = HangingBlobs(line.blobs)
    blobs.hangs.set()
    done = line.run("seal", "--retry", "--timeout", "3", columns="400")
    blobs.free.set()
    assert (done.exit_code, "has not answered since" in done.output) == (1, True), done.output
    assert line.logs.bounds(line.log)[1] == line.offset


def test_a_log_that_was_lost_is_named_and_not_written_to(line: Line) -> None:
    line.logs.cut_back(line.log, line.offset)
    entry = make_entry(rollout_uid="a", example_id="ex-0", group_uid="g", group_size=1)
    source = TopicPartition(line.layout.rollouts("math"), 0)
    line.logs.append(source, None, encode_record([entry], partitions=2))
    assert line.run("seal", "--retry").exit_code == 0
    line.seal(10.0)  # Its flush has a manifest.
    line.logs.cut_back(line.log, 0)
    line.seal(30.0)
    done = line.run("seal", "--retry")
    assert done.exit_code == 1
    assert "still cannot be read, and nothing was written" in done.stdout
    assert "the log was lost or cut back" in done.stdout.replace("\n", " ")
    assert line.logs.bounds(line.log) == (0, 0)


def test_a_partition_that_was_mended_is_sealed_again(line: Line) -> None:
    assert "`rollstream seal --retry`" in line.run("status").stdout.replace("\n", " ")
    line.logs.cut_back(line.log, line.offset)
    elsewhere = line.run("seal", "--retry", "--environment", "math", "--partition", "1")
    assert elsewhere.stdout == "no sealer says that it put a partition aside\n"
    entry = make_entry(rollout_uid="a", example_id="ex-0")
    source = TopicPartition(line.layout.rollouts("math"), 0)
    line.logs.append(source, None, encode_record([entry], partitions=2))
    done = line.run("seal", "--retry", "--environment", "math", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [
        {"environment": "math", "partition": 0, "sealed": True, "detail": ""}
    ]
    line.seal(10.0)
    again = line.run("seal", "--retry")
    assert again.stdout == "no sealer says that it put a partition aside\n"
    assert "put aside" not in line.run("status").stdout


def test_without_a_sealer_it_says_that_none_answered(line: Line) -> None:
    line.logs.cut_back(line.log, line.offset)
    line.close()
    done = line.run("seal", "--retry", "--timeout", "5")
    assert done.exit_code == 1
    assert "math[0]: asked, and not sealed yet: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--retry", "--partition", "0"), "needs --environment"),
        (("--partition", "0"), "go with --retry"),
        (("--retry", "--dead-letter"), "--dead-letter is for a sealer that starts"),
        (("--retry", "--environment", "math", "--partition", "7"), "has a partition 7"),
        (("--retry", "--environment", "maths"), "there is no [environments.maths]"),
    ],
)
def test_what_names_no_partition_is_refused(
    line: Line, arguments: tuple[str, ...], told: str
) -> None:
    done = line.run("seal", *arguments)
    assert done.exit_code != 0
    assert told in " ".join(done.output.replace("│", " ").split())
