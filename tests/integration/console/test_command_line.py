"""The installed command, from `up` to `status`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from harness.owned_logs import in_time, owner_of
from harness.rollouts import encode_record, encode_segment, make_entry
from harness.seal_events import flushed
from rollstream.console.broker.ports import free_ports
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import DeadLetter
from rollstream.schemas.wire_schemas import MARKER
from rollstream.status import Figures, measure, stuck_stages
from rollstream.streams.broker import TopicPartition
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 120.0
pytestmark = pytest.mark.broker


class Program:
    """``rollstream ARGUMENTS`` as a process of its own; its lines can be waited for."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollstream.console.entry", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: Queue[str] = Queue()
        self._seen: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def until(self, word: str) -> None:
        """Returns once a line has the word."""
        while word not in (line := self._lines.get(timeout=TIMEOUT_S)):
            self._seen.append(line)
            assert line, f"ended without {word!r}: {self._seen}"

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """Its exit code."""
        return self._process.wait(TIMEOUT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


def configure(folder: Path, bootstrap: str) -> None:
    (folder / "rollstream.toml").write_text(
        f'[kafka]\nbootstrap = "{bootstrap}"\nnamespace = "test-{uuid.uuid4().hex[:12]}"\n'
        f'[store]\nroot = "file://{folder}/store"\n'
        "[environments.math]\npartitions = 1\ntarget_group_size = 2\nflush_interval_s = 0\n"
        "[samplers.trainer-a]\n"
        'environments = ["math"]\n'
    )


def configured(folder: Path) -> RollstreamConfig:
    return load_config(folder / "rollstream.toml")


@pytest.fixture
def folder(kafka_bootstrap: str, tmp_path: Path) -> Path:
    """A folder with a configuration of the shared Kafka."""
    configure(tmp_path, kafka_bootstrap)
    return tmp_path


@pytest.fixture
def served_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a configuration whose Kafka `rollstream up` serves."""
    port = next(free_ports())  # None that an outgoing connection may take until it is listened on.
    configure(tmp_path, f"127.0.0.1:{port}")
    kafka = Program(tmp_path, "up", "--data", "kafka", "--config", "rollstream.toml")
    try:
        kafka.until(f"127.0.0.1:{port}")
        kafka.until("Ctrl-C stops it")
        yield tmp_path
    finally:
        kafka.signal(signal.SIGINT)
        assert kafka.ended() == 0


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollstream.console.entry", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def put(broker: KafkaBroker, topic: str, *values: bytes) -> None:
    writer = broker.writer()
    for value in values:
        writer.append(topic, value, key=b"g", partition=0)
    assert writer.flush(TIMEOUT_S) == 0


def wait_until(folder: Path, held: Callable[[Figures], bool]) -> None:
    """Returns once that is true of what the logs say: a process each time they are read would take
    the cores from those that are waited for."""
    config, deadline = configured(folder), Deadline(TIMEOUT_S)
    with KafkaBroker(config.kafka.bootstrap) as broker:
        while not held(figures := measure(broker, config, deadline)):
            assert not deadline.passed(), figures
            deadline.wait(0.5)


def groups(figures: Figures) -> dict[str, int]:
    return {one.environment: one.groups for one in figures.partitions}


@pytest.mark.proves("F8")
def test_commands_take_a_group_from_publishing_to_a_visible_file(served_folder: Path) -> None:
    folder = served_folder
    created = run(folder, "topics", "create", "--json")
    assert json.loads(created.stdout), created.stderr
    assert run(folder, "topics", "check").returncode == 0
    kafka = configured(folder).kafka
    with KafkaBroker(kafka.bootstrap) as broker:
        writer = broker.writer()
        for name in ("a", "b"):
            value = encode_segment(rollout_uid=name, group_uid="g", group_size=2)
            writer.append(Layout.of(kafka).rollouts("math"), value, key=b"g")
        assert writer.flush(TIMEOUT_S) == 0
    waiting = json.loads(run(folder, "status", "--json").stdout)
    assert [verdict["stage"] for verdict in waiting["stuck"]] == ["sealers"]

    sealer = Program(folder, "seal", "--name", "sealer-x")
    sealer.until("reading from")
    wait_until(folder, lambda figures: groups(figures) == {"math": 1})
    while not json.loads(run(folder, "files", "--json").stdout):
        pass  # Its manifest follows; the test's time-out ends it.
    sealer.signal(signal.SIGTERM)
    sealer.until("sealed segments: 2, groups: 1")
    assert sealer.ended() == 0

    figures = json.loads(run(folder, "status", "--json").stdout)
    (partition,) = figures["partitions"]
    assert (partition["owner"], partition["watermark"]) == ("sealer-x", 2)
    assert (partition["groups"], partition["segments"]) == (1, 2)
    assert figures["samplers"][0]["ready"] == 1


@pytest.mark.proves("F17")
def test_killed_sealer_is_reported_once_its_session_has_timed_out(folder: Path) -> None:
    assert run(folder, "topics", "create").returncode == 0
    sealer = Program(folder, "seal", "--name", "sealer-x")
    sealer.until("reading from")
    kafka = configured(folder).kafka
    layout = Layout.of(kafka)
    with KafkaBroker(kafka.bootstrap) as broker:
        value = encode_segment(rollout_uid="a", group_uid="g", group_size=2)
        put(broker, layout.rollouts("math"), value)
    healthy = run(folder, "status", "--check")
    assert (healthy.returncode, "nothing is stuck" in healthy.stdout) == (0, True), healthy.stdout

    sealer.signal(signal.SIGKILL)
    assert sealer.ended() == -signal.SIGKILL
    wait_until(folder, lambda figures: bool(stuck_stages(figures, configured(folder))))
    done = run(folder, "status", "--check")
    assert done.returncode == 2, done.stderr
    (stuck,) = (line for line in done.stdout.splitlines() if line.startswith("stuck: "))
    assert stuck.startswith("stuck: sealers – 1 records of math[0] wait, the oldest for ")
    assert "no sealer runs: sealer-x ended or died; run `rollstream seal`" in stuck
    assert "sealer-x, gone" in done.stdout


@pytest.mark.proves("F19")
def test_a_dead_letter_goes_back_into_its_log_once(folder: Path) -> None:
    run(folder, "topics", "create")
    kafka = configured(folder).kafka
    layout = Layout.of(kafka)
    letter = DeadLetter(
        topic=layout.rollouts("math"),
        partition=0,
        offset=0,
        entry=0,
        timestamp_ts=1_700_000_000_000_000,
        reason="unknown_schema",
        detail="fingerprint '0102030405060708'",
        value=encode_segment(rollout_uid="a", group_uid="g", group_size=2),
    )
    with KafkaBroker(kafka.bootstrap) as broker:
        writer = broker.writer()
        writer.append(layout.dead_letters(), codec.encode(letter))
        writer.append(letter.topic, b"of a newer version", partition=0)
        assert writer.flush(TIMEOUT_S) == 0
        log = owner_of(broker, TopicPartition(layout.groups("math"), 0))
        log.claim(in_time())
        event = flushed(log.epoch, log.nonce, (), 1, settled={"unreadable": [0]})
        log.wait_confirmed(log.append(event), in_time())
        log.release()
        (row,) = json.loads(run(folder, "deadletters", "list", "--json").stdout)
        assert (row["letter"], row["offset"], row["retried"]) == (0, 0, False)
        first = run(folder, "deadletters", "retry", "--reason", "unknown_schema")
        assert "letter 0: published" in first.stdout, first.stderr
        assert "letter 0: published before" in run(folder, "deadletters", "retry", "0").stdout
        where = TopicPartition(layout.rollouts("math"), 0)
        assert broker.reader({where: 0}).bounds(where, TIMEOUT_S) == (0, 2)


@pytest.mark.proves("F20", "F24")
def test_a_bad_record_of_one_environment_stops_no_sealer_and_no_command(folder: Path) -> None:
    config = folder / "rollstream.toml"
    code = "[environments.code]\npartitions = 1\ntarget_group_size = 2\nflush_interval_s = 0\n"
    config.write_text(config.read_text().replace("[samplers", f"{code}[samplers"))
    assert run(folder, "topics", "create").returncode == 0
    sealers = [Program(folder, "seal", "--name", name) for name in ("sealer-x", "sealer-y")]
    kafka, names = configured(folder).kafka, ("math", "code")
    layout = Layout.of(kafka)

    with KafkaBroker(kafka.bootstrap) as broker:

        def publish(group: str, environment: str) -> None:
            members = [make_entry(rollout_uid=f"{group}{i}", group_uid=group) for i in range(2)]
            value = encode_record(members, environment=environment)
            put(broker, layout.rollouts(environment), value)

        for name in names:
            put(broker, layout.groups(name), b"x")
            publish("a", name)
        wait_until(folder, lambda figures: groups(figures) == {"math": 1, "code": 1})
        assert run(folder, "audit").returncode == 0

        put(broker, layout.groups("math"), MARKER + bytes(8) + b"newer")
        for name in names:
            publish("b", name)
        wait_until(folder, lambda figures: groups(figures)["code"] == 2)
        status = run(folder, "status", "--check")
        audit = run(folder, "audit")
        check = run(folder, "topics", "check")
        assert (status.returncode, audit.returncode, check.returncode) == (2, 1, 1)
        for command in (status, audit, check):
            assert f"{layout.groups('math')}[0], offset" in command.stdout.replace("\n", "")
        figures = json.loads(run(folder, "status", "--json").stdout)["partitions"]
        assert {one["environment"]: one["groups"] for one in figures} == {"math": 1, "code": 2}
    for sealer in sealers:
        sealer.signal(signal.SIGTERM)
    assert [sealer.ended() for sealer in sealers] == [0, 0]


def test_command_without_its_file_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = run(tmp_path, "status")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("rollstream: rollstream.toml: there is no such file")
    assert len(done.stderr.splitlines()) == 1
