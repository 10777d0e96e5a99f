"""Kafkas in containers, for machines with a Docker daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Self

import docker
import docker.errors
import requests
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from rollstream.console.broker.ports import free_ports
from rollstream.runtime.deadline import Deadline

KAFKA_IMAGE = "apache/kafka:4.3.0"
DAEMON_TIMEOUT_S = 20
START_TIMEOUT_S = 120.0
CLIENTS_PORT = 9092
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
# What every broker is set to.
EACH = {
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "CLIENTS",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_MESSAGE_MAX_BYTES": str(MESSAGE_BYTES_MAX),
    "KAFKA_REPLICA_FETCH_MAX_BYTES": str(MESSAGE_BYTES_MAX),
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_HEAP_OPTS": "-Xmx320m",
}

# The helper container that cleans up after a killed run is an image that must be pulled.
testcontainers_config.ryuk_disabled = True


def why_no_docker() -> str | None:
    """Returns why no Docker daemon can be used; None where one answers."""
    try:
        client = docker.from_env(timeout=DAEMON_TIMEOUT_S)
        try:
            client.ping()
        finally:
            client.close()
    except (docker.errors.DockerException, requests.RequestException) as failure:
        return f"no Docker daemon answers: {failure}"
    return None


def why_no_kafka_container() -> str | None:
    """Returns why ``KafkaContainer`` cannot be started; None where daemon and image are available.

    Pulls the image where it is not local.
    """
    reason = why_no_docker()
    if reason is not None:
        return reason
    client = docker.from_env(timeout=DAEMON_TIMEOUT_S)
    try:
        client.images.get(KAFKA_IMAGE)
    except docker.errors.ImageNotFound:
        try:
            client.images.pull(KAFKA_IMAGE)
        except (docker.errors.APIError, requests.RequestException) as failure:
            return f"the image {KAFKA_IMAGE} is not local and cannot be pulled: {failure}"
    finally:
        client.close()
    return None


class KafkaContainer:
    """One broker that listens on 127.0.0.1 of this machine, removed at the end of the ``with``.

    Its port is chosen before it starts, because the broker sends clients the address at which they
    reach it from outside the container.
    """

    def __init__(self) -> None:
        port = next(free_ports())
        self.bootstrap = f"127.0.0.1:{port}"
        self._container = DockerContainer(KAFKA_IMAGE).with_envs(
            KAFKA_NODE_ID="1",
            KAFKA_LISTENERS=f"CLIENTS://:{CLIENTS_PORT},CONTROLLER://:9093",
            KAFKA_ADVERTISED_LISTENERS=f"CLIENTS://{self.bootstrap}",
            KAFKA_CONTROLLER_QUORUM_VOTERS="1@localhost:9093",
            KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR="1",
            **EACH,
        )
        # The Docker client takes an address with the port, which testcontainers' types leave out.
        self._container.ports[f"{CLIENTS_PORT}/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]

    def __enter__(self) -> Self:
        self._container.start()
        try:
            wait_for_brokers(self.bootstrap, [self._container])
        except BaseException:
            self._container.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._container.stop()


class ThreeKafkas:
    """Three brokers on 127.0.0.1, each of which is a controller too; removed at the end of the
    ``with``. Each topic has a copy on all of them, and an append waits for two.

    They have the network of this machine: they reach one another as clients reach them.

    Attributes:
        addresses: of each broker, by its id.
    """

    def __init__(self) -> None:
        ports = free_ports()
        self.addresses = {node: f"127.0.0.1:{next(ports)}" for node in (1, 2, 3)}
        controllers = {node: f"127.0.0.1:{next(ports)}" for node in self.addresses}
        voters = ",".join(f"{node}@{address}" for node, address in controllers.items())
        self._containers = {
            node: DockerContainer(KAFKA_IMAGE, network_mode="host").with_envs(
                KAFKA_NODE_ID=str(node),
                KAFKA_LISTENERS=f"CLIENTS://{address},CONTROLLER://{controllers[node]}",
                KAFKA_ADVERTISED_LISTENERS=f"CLIENTS://{address}",
                KAFKA_CONTROLLER_QUORUM_VOTERS=voters,
                KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR="3",
                KAFKA_DEFAULT_REPLICATION_FACTOR="3",
                KAFKA_MIN_INSYNC_REPLICAS="2",
                **EACH,
            )
            for node, address in self.addresses.items()
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    @contextmanager
    def paused(self, node: int) -> Iterator[None]:
        """The broker does nothing until the end of the block; its connections stay open."""
        container = self._containers[node].get_wrapped_container()
        container.pause()
        try:
            yield
        finally:
            container.unpause()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for container in self._containers.values():
                started.callback(container.stop)
                container.start()
            wait_for_brokers(self.bootstrap, [*self._containers.values()])
            self._started = started.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._started.close()


def wait_for_brokers(bootstrap: str, containers: Sequence[DockerContainer]) -> None:
    """Until each of them is in the cluster."""
    deadline = Deadline(START_TIMEOUT_S)
    # One client for the whole wait, because librdkafka reconnects by itself.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while not deadline.passed():
        with suppress(KafkaException):
            if len(admin.list_topics(timeout=deadline.slice_s(2.0)).brokers) == len(containers):
                return
        deadline.log_waiting(lambda: f"the containers at {bootstrap} to answer")
        deadline.wait(0.1)
    logs = [output + errors for output, errors in (one.get_logs() for one in containers)]
    raise TimeoutError(
        f"{KAFKA_IMAGE} did not answer on {bootstrap} within {START_TIMEOUT_S} s:\n"
        + "\n".join(log.decode(errors="replace")[-4000:] for log in logs)
    )
