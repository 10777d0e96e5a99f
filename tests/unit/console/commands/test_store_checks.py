"""``topics create``, ``topics check`` and ``status`` name what the store does not do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pytest

from harness.command_line import CommandLine
from harness.failing_blobs import OverwritingBlobs, PassingBlobs
from harness.s3_server import S3Server
from rollstream.store import Blobs, StoreRefused, open_store

pytestmark = pytest.mark.proves("A23")


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def without(blobs: Blobs, *methods: str) -> Blobs:
    """A store in which these methods are refused."""

    def refuse(path: str, *_: object, **__: object) -> NoReturn:
        raise StoreRefused(f"{path}: the test refuses it")

    passing = PassingBlobs(blobs)
    for method in methods:
        setattr(passing, method, refuse)
    return passing


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (OverwritingBlobs, "the store has no conditional writes"),
        (lambda blobs: without(blobs, "create"), "no right to create"),
        (lambda blobs: without(blobs, "delete"), "no right to delete"),
    ],
)
def test_topics_are_not_created_over_a_store_that_does_not_do_everything(
    line: CommandLine, broken: Callable[[Blobs], Blobs], named: str
) -> None:
    line.opened = broken(line.blobs)
    done = line.run("topics", "create")
    assert done.exit_code == 1
    assert named in done.stderr
    assert line.broker().admin().describe([line.layout.groups("math")], 5.0) == {}


def test_topics_check_names_what_this_machine_may_not(line: CommandLine) -> None:
    line.create_topics()
    assert line.run("topics", "check").exit_code == 0
    line.opened = without(line.blobs, "create", "delete")
    done = line.run("topics", "check", "--json")
    assert done.exit_code == 1
    found = [one for one in json.loads(done.stdout) if one["what"] == "store"]
    assert [one["found"].partition(":")[0] for one in found] == [
        "no right to create",
        "no right to delete",
    ]
    assert "until then sealers and samplers write nothing" in line.run("topics", "check").stdout


def test_topics_check_writes_nothing_to_a_folder_that_is_no_root(
    line: CommandLine, tmp_path: Path
) -> None:
    line.create_topics()
    root = tmp_path / "store"
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    assert line.run("topics", "check").exit_code == 1
    assert [*root.iterdir()] == []


def test_status_works_without_the_right_to_write(line: CommandLine) -> None:
    line.create_topics()
    line.opened = without(line.blobs, "create", "replace", "delete")
    done = line.run("status")
    assert done.exit_code == 0
    assert "stuck: store" not in done.stdout


@pytest.mark.parametrize("method", ["read", "list"])
def test_status_shows_the_logs_and_why_the_store_cannot_be_read(
    line: CommandLine, method: str
) -> None:
    line.create_topics()
    line.opened = without(line.blobs, method)
    done = line.run("status", "--json")
    assert done.exit_code == 0
    figures = json.loads(done.stdout)
    assert len(figures["partitions"]) == 2
    (stuck,) = [one for one in figures["stuck"] if one["stage"] == "store"]
    assert "the test refuses it" in stuck["reason"]


def test_no_secret_is_printed(
    line: CommandLine,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets = ("wrong-secret-9876543210", "session-token-1234567890")
    line.create_topics()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secrets[0])
    monkeypatch.setenv("AWS_SESSION_TOKEN", secrets[1])
    line.opened = open_store(s3.store(uuid4().hex))
    printed = ""
    for command in (["topics", "create"], ["topics", "check"], ["status"], ["files"], ["audit"]):
        for how in ([], ["--json"]):
            done = line.run(*command, *how)
            printed += done.output + repr(done.exception)
    assert "InvalidToken; the session's token is wrong" in printed
    for secret in secrets:
        assert secret not in printed + caplog.text + repr(line.opened)
