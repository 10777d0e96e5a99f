"""One sampler contract, three worlds to test it in: in memory, on Kafka, and over Ray on Kafka."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.groups import GroupWriter
from harness.stores import scratch_store
from rollstream.consumers import create_deployment
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import Sampler, SamplerApi
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.rows.rank_reader import RankReader
from rollstream.store.blobs import Blobs
from rollstream.store.local import LocalBlobs
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import Layout

WITHOUT_RAY = pytest.mark.parametrize(
    "world", ["memory", pytest.param("kafka", marks=pytest.mark.broker)], indirect=True
)
"""For a test whose commands and replies cross to an actor in other tests: what else it tests is the
same code there, and each actor is a process to be started."""


def once_over_ray(name: str, *values: object) -> pytest.MarkDecorator:
    """Returns the parameters of a test whose calls cross to an actor alike with every value.

    In memory and on Kafka the test runs with each value, and over Ray with the first.
    """
    broker = pytest.mark.broker
    return pytest.mark.parametrize(
        ("world", name),
        [
            *(pytest.param("memory", value) for value in values),
            *(pytest.param("kafka", value, marks=broker) for value in values),
            pytest.param("ray", values[0], marks=broker),
        ],
        indirect=["world"],
    )


ENVIRONMENTS = {"code": 1, "math": 2}
TIMEOUT_S = 30.0


def config_of(
    root: str, name: str, *, bootstrap: str = "unused:9092", **sampler: Any
) -> RollstreamConfig:
    """The configuration of one sampler over two environments, in a namespace of its own."""
    return RollstreamConfig.model_validate(
        {
            "kafka": {"bootstrap": bootstrap, "namespace": f"test-{name}"},
            "store": {"root": root},
            "environments": {name: {"partitions": n} for name, n in ENVIRONMENTS.items()},
            "samplers": {name: {"environments": sorted(ENVIRONMENTS), **sampler}},
        }
    )


class SamplerWorld(Protocol):
    """Logs, a store, and clients of one sampler."""

    name: str
    config: RollstreamConfig
    store: Blobs

    def configure(self, **sampler: Any) -> None:
        """Sets the sampler's configuration, before the first ``open``."""

    def open(self) -> SamplerApi:
        """Another client of the same sampler, as another trainer's process would have."""

    def successor(self) -> Sampler:
        """Another owner under the same name, from its first call that decides on; the caller
        closes it."""

    def restart(self) -> None:
        """What decides is lost and begins again from the logs."""

    def writer(self, environment: str = "math", partition: int = 0) -> GroupWriter:
        """Seals groups into that partition."""

    def broker(self) -> Broker: ...

    def close(self) -> None: ...


class LocalWorld:
    """``Sampler``, all in this process; clients share one, as ranks in threads would."""

    def __init__(self, broker: Broker, store: Blobs, config: RollstreamConfig) -> None:
        (self.name,) = config.samplers
        self.config = config
        self.store = store
        self._broker = broker
        self._first: Sampler | None = None
        self._writers: list[GroupWriter] = []
        create_deployment(config, broker=broker, store=store)

    def configure(self, **sampler: Any) -> None:
        self.config = config_of(
            self.config.store.root,
            self.name,
            bootstrap=self.config.kafka.bootstrap,
            **sampler,
        )

    def open(self) -> SamplerApi:
        if self._first is None:
            self._first = Sampler(
                self.name, config=self.config, broker=self._broker, store=self.store
            )
            return self._first
        return SecondClient(self._first)

    def successor(self) -> Sampler:
        return Sampler(self.name, config=self.config, broker=self._broker, store=self.store)

    def owner(self) -> OwnerInProcess:
        """A successor that executes commands. Its caller closes it."""
        return OwnerInProcess(
            self.name,
            self.config,
            broker=self._broker,
            store=self.store,
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )

    def restart(self) -> None:
        assert self._first is not None
        self._first.close()
        self._first = None

    def writer(self, environment: str = "math", partition: int = 0) -> GroupWriter:
        topic = Layout(self.config.kafka.namespace).groups(environment)
        where = TopicPartition(topic, partition)
        self._writers.append(GroupWriter(self._broker, where, self.store, environment=environment))
        return self._writers[-1]

    def broker(self) -> Broker:
        return self._broker

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        if self._first is not None:
            self._first.close()
        self._broker.close()


class SecondClient(SamplerApi):
    """Another trainer's client of a sampler in this process.

    Attributes:
        sampler: may be replaced by another of its name, as an actor is that was killed.
    """

    def __init__(self, sampler: SamplerApi, rank_reader: RankReader | None = None) -> None:
        super().__init__(
            sampler._name,
            sampler._clock,
            sampler._timeout_s,
            rank_reader or sampler._rank_reader,
        )
        self.sampler = sampler

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        return self.sampler._execute(command, wait_s)

    def close(self) -> None:
        pass


def new_name() -> str:
    """Of a sampler that no other test uses."""
    return f"trainer-{uuid.uuid4().hex[:12]}"


def memory_world(clock: Clock | None = None) -> LocalWorld:
    """Everything in memory.

    Args:
        clock: of the broker, instead of the system's.
    """
    return LocalWorld(
        MemoryBroker(MemoryLogs(clock)), scratch_store(), config_of("file:///unused", new_name())
    )


def kafka_world(bootstrap: str, folder: Path) -> LocalWorld:
    """A real broker and a real disk."""
    config = config_of(folder.as_uri(), new_name(), bootstrap=bootstrap)
    return LocalWorld(KafkaBroker(bootstrap), LocalBlobs(folder), config)


def world_of(request: pytest.FixtureRequest, folder: Path) -> LocalWorld:
    """In ``memory``, or over ``kafka``, as the parameter of the fixture says."""
    if request.param == "memory":
        return memory_world()
    return kafka_world(request.getfixturevalue("kafka_bootstrap"), folder)


def log_end(world: SamplerWorld) -> int:
    """The next offset to be written to the sampler's decision log."""
    log = Layout.of(world.config.kafka).sampler_log(world.name)
    with closing(world.broker().reader({log: 0})) as reader:
        return reader.bounds(log, TIMEOUT_S)[1]
