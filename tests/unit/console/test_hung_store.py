"""Commands over a store whose calls hang, as on a mount without its server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.command_line import CONFIG, CommandLine
from harness.failing_blobs import HangingBlobs

pytestmark = pytest.mark.proves("F24")
OLD = '{"environment": "math", "rollouts": []}'


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[CommandLine]:
    text = CONFIG.replace('unused:9092"', 'unused:9092"\ntimeout_s = 1.0')
    line = CommandLine(tmp_path, text.replace("[store]", "[store]\ntimeout_s = 0.5"))
    line.create_topics()
    blobs = line.opened = HangingBlobs(line.blobs)
    blobs.hangs.set()
    yield line
    blobs.free.set()


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (["audit"], "read root_id.json"),
        (["files"], "list manifests/"),
        (["import", "OLD"], "read root_id.json"),
        (["replay", "--sampler", "trainer-a", "--step", "0", "--from-files"], "list batches/"),
        (["retain", "--older-than", "1d", "--dry-run"], "read root_id.json"),
        (["show", "some-uid"], "list"),
        (["show", "--sampler", "trainer-a", "--step", "0", "--from-files"], "list batches/"),
        (["topics", "create"], "read root_id.json"),
        (["without-logs", "--sampler", "trainer-a"], "read root_id.json"),
    ],
)
def test_a_command_ends_with_1_and_says_which_call_hangs_since_when(
    hung: CommandLine, tmp_path: Path, command: list[str], call: str
) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text(OLD)
    arguments = [str(old) if one == "OLD" else one for one in command]
    done = hung.run(*arguments, columns="400")
    assert done.exit_code == 1, done.output
    since = re.search(r"has not answered since \d\d:\d\d:\d\d UTC \((.*?)\)", done.output)
    assert since is not None, done.output
    assert since[1].startswith(call)
    assert "Mend the mount or the disk, then try again" in done.output
    assert isinstance(hung.opened, HangingBlobs)
    assert hung.opened.begun == 1, "more than one thread is left behind"


def test_a_signal_ends_a_sealer_that_waits_for_its_root(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    line.create_topics()
    blobs = line.opened = HangingBlobs(line.blobs)
    blobs.hangs.set()
    line.stopping.set()
    begun_s = time.monotonic()
    done = line.run("seal", columns="400")
    assert time.monotonic() - begun_s < line.config.kafka.timeout_s / 2
    blobs.free.set()
    assert done.exit_code == 1
    assert "has not answered since" in done.output
