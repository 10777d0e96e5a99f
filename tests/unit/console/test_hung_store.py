"""Commands over a store whose calls hang, as on a mount without its server."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from harness.command_line import CONFIG, CommandLine
from harness.failing_blobs import HangingBlobs
from harness.published_run import Run
from rollstream.console.page.look import RunLook
from rollstream.console.page.server import PageServer
from rollstream.console.services import Services
from rollstream.sampler import Sampler
from rollstream.status.verdict import QUIET_S
from rollstream.store.errors import StoreHangs

pytestmark = pytest.mark.proves("F24")
WAIT_S = 30.0
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
        (["report", "--sampler", "trainer-a", "--html", "page.html"], "list batches/"),
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


def test_a_run_is_not_finished_over_a_root_that_hangs_and_is_once_it_is_back(
    hung: CommandLine,
) -> None:
    blobs = hung.opened
    assert isinstance(blobs, HangingBlobs)
    parts: dict[str, Any] = {"broker": hung.broker(), "store": hung.blobs, "clock": hung.clock}
    with Sampler("trainer-a", config=hung.config, **parts) as sampler:
        sampler.publish_policy(0, policy_version="step-0")
    hung.clock.advance(QUIET_S + 1)
    done = hung.run("finish", columns="400")
    assert (done.exit_code, "has not answered since" in done.output) == (1, True), done.output
    blobs.hangs.clear()
    blobs.free.set()
    assert "trainer-a: the run is over" in hung.run("finish").output


def test_a_page_whose_root_hangs_shows_the_run_and_says_what_hangs_of_a_rollout(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, CONFIG.replace("[store]", "[store]\ntimeout_s = 0.5"))
    run.publish("ex-0")
    run.seal(1)
    line, blobs = run.line, HangingBlobs(run.line.blobs)
    services = Services(broker=lambda _: line.broker(), store=lambda _: blobs, clock=line.clock)
    look = RunLook(services, line.config, "trainer-a", from_files=True, timeout_s=1.0)
    look.read_files()
    with PageServer(look, "127.0.0.1", 0, None) as server, ThreadPoolExecutor(1) as serving:
        serving.submit(server.serve_forever)
        try:
            ((row, *_),) = (asked(server.url, "api/rollouts")[1]["rows"],)
            blobs.hangs.set()
            status, told = asked(server.url, f"api/rollout?key={quote(row['key'])}")
            assert status != HTTPStatus.OK
            assert "has not answered since" in told["error"]
            assert asked(server.url, "api/run")[0] == HTTPStatus.OK
            with pytest.raises(StoreHangs):
                look.read_files()
            blobs.hangs.clear()
            blobs.free.set()
            assert asked(server.url, f"api/rollout?key={quote(row['key'])}")[0] == HTTPStatus.OK
        finally:
            blobs.free.set()
            server.shutdown()


def asked(url: str, path: str) -> tuple[int, Any]:
    """The status and the JSON of an answer of the page."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
    connection.request("GET", f"/{path}")
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


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
