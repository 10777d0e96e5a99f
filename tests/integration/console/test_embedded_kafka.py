"""The embedded broker as a process: its data outlives it, and it never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.kafka import KafkaFactory, create_topic, produce, read, start_kafka
from rollstream.console.broker import (
    BrokerDataInUse,
    BrokerDidNotStart,
    BrokerNotRunning,
    EmbeddedKafka,
    EmbeddedKafkaError,
    PortTaken,
)
from rollstream.console.broker.ports import Ports, settle_ports

pytestmark = pytest.mark.broker
STOP_S = 120.0  # Only one that hangs takes so long.


@pytest.fixture
def occupied_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_acknowledged_records_survive_kill_9(own_kafka: KafkaFactory) -> None:
    kafka = own_kafka()
    bootstrap, first_pid = kafka.bootstrap, kafka.pid
    topic = create_topic(bootstrap)
    produce(bootstrap, topic, [b"one", b"two"])

    os.kill(first_pid, signal.SIGKILL)
    assert kafka.wait() == -signal.SIGKILL
    kafka.start()

    assert kafka.bootstrap == bootstrap
    assert kafka.pid != first_pid
    assert read(bootstrap, topic, 2) == [b"one", b"two"]


def test_another_object_starts_a_broker_with_its_data_and_only_one_that_was_stopped(
    tmp_path: Path,
) -> None:
    with start_kafka(tmp_path) as first:
        topic = create_topic(first.bootstrap)
        holder = rf"{tmp_path.name}.* held by process {os.getpid()}\b"
        with pytest.raises(BrokerDataInUse, match=holder):
            EmbeddedKafka(tmp_path).start()
        produce(first.bootstrap, topic, [b"kept"])  # Undisturbed.
        bootstrap = first.bootstrap
        first.stop(STOP_S)
    assert first.wait() == 128 + signal.SIGTERM  # Java's own code for an orderly end
    with start_kafka(tmp_path) as second:
        assert second.bootstrap == bootstrap
        assert read(second.bootstrap, topic, 1) == [b"kept"]


def test_every_port_is_open_on_loopback_only(kafka: EmbeddedKafka) -> None:
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(kafka.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert len(listening) == 2  # clients and controller
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_record_of_nearly_16_mib_passes(kafka_bootstrap: str) -> None:
    topic = create_topic(kafka_bootstrap, max_message_bytes=str(16 * 1024 * 1024))
    value = os.urandom(16 * 1024 * 1024 - 1024)

    produce(kafka_bootstrap, topic, [value])

    assert read(kafka_bootstrap, topic, 1) == [value]


def test_the_broker_dies_with_a_parent_that_is_killed_and_the_folder_is_free(
    tmp_path: Path,
) -> None:
    program = (
        "import sys, pathlib\n"
        "from rollstream.console.broker import EmbeddedKafka\n"
        "kafka = EmbeddedKafka(pathlib.Path(sys.argv[1]), heap_mib=320).start()\n"
        "print(kafka.pid, flush=True)\n"
        "kafka.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        broker = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)

    # A start at once waits for the dying broker instead of sharing its files.
    with start_kafka(tmp_path):
        assert not broker.is_running()


def test_the_broker_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path, heap_mib=320)
    starter = threading.Thread(target=kafka.start)
    starter.start()
    starter.join()

    with kafka:
        topic = create_topic(kafka.bootstrap)
        produce(kafka.bootstrap, topic, [b"x"])
        assert kafka.pid in {child.pid for child in psutil.Process().children()}
    assert not psutil.pid_exists(kafka.pid)


def test_a_setting_that_kafka_refuses_ends_the_start_with_its_log(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path, overrides={"log.segment.bytes": "few"})

    with pytest.raises(BrokerDidNotStart, match=r"few[\s\S]*log\.segment\.bytes"):
        kafka.start()


def test_starting_a_running_broker_is_refused(kafka: EmbeddedKafka) -> None:
    with pytest.raises(EmbeddedKafkaError, match=str(kafka.pid)):
        kafka.start()


def test_before_its_start_a_broker_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(BrokerNotRunning, match=r"start\(\)"):
        _ = EmbeddedKafka(tmp_path).bootstrap


def test_a_folder_keeps_its_ports(tmp_path: Path) -> None:
    first = settle_ports(tmp_path, None)

    assert settle_ports(tmp_path, None) == first


def test_an_explicit_port_replaces_only_the_clients_port(tmp_path: Path) -> None:
    first = settle_ports(tmp_path, None)
    (tmp_path / "other").mkdir()
    other = settle_ports(tmp_path / "other", first.broker).controller

    assert settle_ports(tmp_path, other) == Ports(broker=other, controller=first.controller)


def test_a_taken_port_is_refused_by_name(tmp_path: Path, occupied_port: int) -> None:
    with pytest.raises(PortTaken, match=str(occupied_port)):
        settle_ports(tmp_path, occupied_port)


def test_a_damaged_file_of_ports_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text('{"broker": 1}')

    with pytest.raises(EmbeddedKafkaError, match=r"ports\.json.*delete that file"):
        settle_ports(tmp_path, None)
