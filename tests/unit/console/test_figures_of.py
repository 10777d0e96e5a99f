"""A look at a deployment whose store does not answer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from harness.command_line import CONFIG, CommandLine
from harness.failing_blobs import PassingBlobs
from rollstream.console.services import Services, figures_of
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.store import Blobs, StoreError
from rollstream.store.layout import ROOT_ID

LOOK_S = 60.0


def test_a_store_that_hangs_leaves_time_to_read_the_logs(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    line.create_topics()

    def hanging(config: RollstreamConfig) -> Blobs:
        def hang(path: str) -> NoReturn:
            line.clock.advance(config.store.timeout_s)
            raise StoreError(f"{path}: the test hangs")

        blobs = PassingBlobs(line.blobs)
        blobs.read = hang  # type: ignore[method-assign]
        return blobs

    assert line.config.store.timeout_s >= LOOK_S
    services = Services(store=hanging, clock=line.clock)
    deadline = Deadline(LOOK_S, line.clock)
    figures = figures_of(services, line.config, line.broker(), deadline)
    assert "the test hangs" in figures.other_root[0]
    assert len(figures.partitions) == 2
    assert deadline.left_s() >= LOOK_S / 2


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[CommandLine]:
    """A deployment whose root's id is not read to its end, as on a mount without its server."""
    text = CONFIG.replace('unused:9092"', 'unused:9092"\ntimeout_s = 1.0')
    text = text.replace("[store]", "[store]\ntimeout_s = 1.0")
    line = CommandLine(tmp_path, text.replace("file:///unused", (tmp_path / "store").as_uri()))
    line.create_topics()
    root_id = tmp_path / "store" / ROOT_ID
    root_id.unlink()
    os.mkfifo(root_id)
    yield line
    os.close(os.open(root_id, os.O_RDWR | os.O_NONBLOCK))  # The call ends that waits for a writer.


@pytest.mark.parametrize(
    ("command", "exit_code", "shown"),
    [
        (["status", "--check", "--timeout", "1"], 2, "math"),
        (["topics", "check", "--timeout", "1"], 1, "topics, 1 differences"),
        (["audit"], 1, ""),
        (["seal"], 1, ""),
        (["topics", "create", "--timeout", "1"], 1, ""),
    ],
)
def test_a_command_over_a_root_that_hangs_ends_and_says_since_when(
    hung: CommandLine, command: list[str], exit_code: int, shown: str
) -> None:
    done = hung.run(*command, columns="400")
    assert done.exit_code == exit_code
    assert re.search(r"store has not answered since \d\d:\d\d:\d\d UTC", done.output)
    assert "does the store hang" in done.output
    assert shown in done.output
