"""Sealers over three brokers of which one is silent, and what they sealed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient

from harness.containers import ThreeKafkas
from harness.rollouts import encode_record, make_entry
from harness.sealer_process import SealerProcess
from harness.sealing import SealWorld
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, TopicPartition, Writer
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.kafka.properties import SESSION_TIMEOUT_MS
from rollstream.streams.owned.follow import ConfirmedEvent, Follower

PARTITIONS = 6
WAIT_S = 60.0  # Nothing that does not wait for the silent broker takes so long.
SESSION_S = SESSION_TIMEOUT_MS / 1000
RECOVERY_S = 30.0  # Once the session with a silent coordinator has ended.
LOOK_S = 0.3


class SealersOfThree:
    """Two sealers, with the sessions that users have.

    Attributes:
        published: how many rollouts of each partition.
    """

    def __init__(self, kafka: ThreeKafkas, folder: Path) -> None:
        self._kafka = kafka
        self._world = SealWorld(kafka=kafka.bootstrap, root=folder, partitions=PARTITIONS)
        settings = self._world.config.kafka.model_copy(update={"client": {}})
        config = self._world.config.model_copy(update={"kafka": settings})
        layout = self._world.layout
        self.group = layout.sealer_group("math")
        self.sources = [self._world.source(number) for number in range(PARTITIONS)]
        self._logs = {
            source: layout.groups_log(PartitionAddress("math", layout.generation, number))
            for number, source in enumerate(self.sources)
        }
        self.published: Counter[TopicPartition] = Counter()
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        self._processes = [SealerProcess(config) for _ in range(2)]

    def beside(self, silent: int) -> KafkaBroker:
        """A handle that knows the other brokers."""
        others = [address for node, address in self._kafka.addresses.items() if node != silent]
        return KafkaBroker(",".join(others))

    def until_shared(self, broker: Broker) -> None:
        """Until both have partitions."""
        deadline = Deadline(WAIT_S)
        while True:
            found = broker.admin().group(self.group, WAIT_S)
            if found.settled and (found.members, len(found.owners)) == (2, PARTITIONS):
                return
            assert not deadline.passed(), found
            deadline.wait(LOOK_S)

    def choose(self, *, coordinates: bool) -> int:
        """The broker that coordinates the sealers' group, or that of the others which leads fewer
        partitions."""
        answers = self._admin.describe_consumer_groups([self.group])
        coordinator = int(answers[self.group].result(WAIT_S).coordinator.id)
        if coordinates:
            return coordinator
        others = self._kafka.addresses.keys() - {coordinator}
        return max(others, key=lambda node: len(self.led_by_others(node)))

    def led_by_others(self, silent: int) -> list[TopicPartition]:
        """The ingest logs that this broker leads not, nor their seal logs."""
        topics = self._admin.list_topics(timeout=WAIT_S).topics
        return [
            source
            for source, log in self._logs.items()
            if silent not in {topics[w.topic].partitions[w.partition].leader for w in (source, log)}
        ]

    def publish(self, writer: Writer, sources: Collection[TopicPartition]) -> None:
        """A group to each; waits for nothing."""
        for source in sources:
            uids = [f"{source}-{self.published[source] + member}" for member in range(2)]
            key = self._world.key_in(source.partition, "ex-1")
            entries = [make_entry(rollout_uid=uid, example_id=key) for uid in uids]
            value = encode_record(entries, partitions=PARTITIONS)
            writer.append(source.topic, value, partition=source.partition)
            self.published[source] += len(uids)

    def until_sealed(
        self,
        broker: Broker,
        sources: Collection[TopicPartition],
        deadline: Deadline | None = None,
    ) -> None:
        """Until everything that was published to these is sealed, once, within ``WAIT_S``."""
        deadline = deadline or Deadline(WAIT_S)
        while (sealed := self.sealed(broker, sources)) != {s: self.published[s] for s in sources}:
            deadline.log_waiting(lambda: f"{self.published} to be sealed")
            assert not deadline.passed(), f"of {self.published} were sealed {sealed}"
            deadline.wait(LOOK_S)

    def sealed(
        self, broker: Broker, sources: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """How many rollouts of these are in a group."""
        found = dict.fromkeys(sources, 0)
        for where, _, _, event in self._events(broker, sources):
            if isinstance(event, Flushed):
                found[self.sources[where.partition]] += rows_of(event)
        return found

    def flushes(self, broker: Broker, sources: Collection[TopicPartition]) -> list[tuple[int, int]]:
        """When each flush was, in microseconds, and how many rollouts it sealed."""
        return [
            (timestamp_us, rows_of(event))
            for _, _, timestamp_us, event in self._events(broker, sources)
            if isinstance(event, Flushed)
        ]

    def claims(
        self, broker: Broker, sources: Collection[TopicPartition]
    ) -> set[tuple[TopicPartition, int]]:
        """Where the claims of these partitions' seal logs stand."""
        events = self._events(broker, sources)
        return {(one.where, one.offset) for one in events if isinstance(one.event, Claimed)}

    def _events(self, broker: Broker, sources: Collection[TopicPartition]) -> list[ConfirmedEvent]:
        starts = {self._logs[source]: 0 for source in sources}
        with closing(Follower(broker, starts)) as follower:
            return list(follower.read_to_end(Deadline(WAIT_S)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.close()
        self._world.close()


def rows_of(event: Flushed) -> int:
    """How many rollouts it sealed."""
    return sum(group.rows for group in event.groups)
