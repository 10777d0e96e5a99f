"""A small deployment for sealers: logs, files, a clock, and a writer that publishes."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from harness.entropy import SeededEntropy
from harness.rollouts import encode_record, make_entry
from harness.stores import scratch_store
from rollstream.consumers import InlineExecutor, Sealer, audit, create_deployment
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
    SamplerConfig,
)
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
from rollstream.schemas.ingest.entry import Entry, Producer
from rollstream.store import Blobs, open_store
from rollstream.streams.broker import Broker, Headers, TopicPartition, Writer
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 20.0
UNTIL_S = 150.0  # Sessions that end included; a busy machine is slow.
SHORT_SESSIONS = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}


class Crash(BaseException):
    """The end of a simulated process: no code of its own runs any more."""


class EvictableBroker(MemoryBroker):
    """A broker whose group members can be thrown out while their process sleeps."""

    def __init__(self, logs: MemoryLogs) -> None:
        super().__init__(logs)
        self._members: list[MemoryGroupReader] = []

    def group_reader(
        self,
        group: str,
        topics: Sequence[str],
        *,
        on_revoked: Callable[[TopicPartition], None],
    ) -> MemoryGroupReader:
        self._members.append(super().group_reader(group, topics, on_revoked=on_revoked))
        return self._members[-1]

    def evict(self) -> None:
        """What a session time-out does; the members learn of it in their next poll."""
        for member in self._members:
            member.evict()


class SealWorld:
    """One environment, ``math``, in memory unless a broker is given.

    Args:
        kafka: bootstrap of a real broker; it comes with files under ``root``, real time, a
            namespace of its own, and short sessions.
        samplers: that draw from it.
        config: of the environment; by default groups of 2 in 2 partitions, flushed at once.
    """

    def __init__(
        self,
        *,
        kafka: str = "",
        root: Path | None = None,
        seed: int = 0,
        samplers: Sequence[str] = (),
        **config: Any,
    ) -> None:
        real = bool(kafka)
        namespace = f"test-{uuid.uuid4().hex[:12]}" if real else "rollstream"
        self.clock: Any = SystemClock() if real else ManualClock()
        self.logs = MemoryLogs(self.clock)
        self.layout = Layout(namespace)
        self.environment = EnvironmentConfig(
            **{"partitions": 2, "target_group_size": 2, "flush_interval_s": 0.0, **config}
        )
        self.config = RollstreamConfig(
            kafka=KafkaConfig(
                bootstrap=kafka or "memory:0",
                namespace=namespace,
                timeout_s=TIMEOUT_S,
                client=SHORT_SESSIONS if real else {},
            ),
            store=StoreConfig(root=f"file://{root or '/nowhere'}"),
            environments={"math": self.environment},
            samplers=dict.fromkeys(samplers, self.sampler_section()),
        )
        self.blobs: Blobs = open_store(self.config.store.root) if real else scratch_store()
        self.broker: Broker = KafkaBroker(kafka) if real else MemoryBroker(self.logs)
        self._writer: Writer | None = None
        self.published = 0
        self._seed = seed
        self._sealers = 0
        create_deployment(
            self.config,
            broker=self.broker,
            store=self.blobs,
            clock=self.clock,
            entropy=SeededEntropy(10**9 + seed),
        )

    def sampler_section(self) -> SamplerConfig:
        """Of each sampler. In memory none grants shares: what does goes by the machine's time, and
        folds what was sealed whenever it looks."""
        in_memory = isinstance(self.clock, ManualClock)
        return SamplerConfig(environments=("math",), admission=not in_memory)

    def source(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.layout.rollouts("math"), partition)

    def sealer(self, *, broker: Broker | None = None, **arguments: Any) -> Sealer:
        """A sealer of its own broker; nothing runs beside its loop unless ``workers`` do."""
        self._sealers += 1
        entropy = SeededEntropy(1000 * self._seed + self._sealers)
        wanted: dict[str, Any] = {
            "store": self.blobs,
            "clock": self.clock,
            "entropy": entropy,
            "owner": f"sealer-{self._sealers}",
            "workers": InlineExecutor(),
            **arguments,
        }
        return Sealer(self.config, broker=broker or self.new_broker(), **wanted)

    def new_broker(self) -> Broker:
        """Another handle on the same logs."""
        kafka = self.config.kafka
        if isinstance(self.broker, KafkaBroker):
            return KafkaBroker(kafka.bootstrap, kafka.client)
        return MemoryBroker(self.logs)

    def until(self, *sealers: Sealer, pending: int = 0) -> None:
        """Waits until no more than ``pending`` entries are unsettled; sealers take turns."""
        deadline = Deadline(UNTIL_S, self.clock)
        while self._unsettled() > pending:
            self.run(*sealers, seconds=0.3)
            assert not deadline.passed(), f"{self._unsettled()} entries are still unsettled"

    def _unsettled(self) -> int:
        report = audit(self.config, broker=self.broker, store=self.blobs, clock=self.clock)
        return sum(row.pending for row in report.partitions)

    def close(self) -> None:
        self.broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def publish(self, uid: str, *, partition: int | None = None, **fields: Any) -> None:
        """A rollout in a record of its own. Where a partition is named, its group_uid or example_id
        becomes one that belongs there."""
        if partition is not None:
            name = "group_uid" if fields.get("group_uid") else "example_id"
            fields[name] = self.key_in(partition, fields.get(name, "ex-1"))
        self.publish_entries(make_entry(rollout_uid=uid, **fields))

    def key_in(self, partition: int, name: str) -> str:
        """A key with this name in front that belongs to the partition."""
        keys = (f"{name}.{number}" for number in itertools.count())
        return next(key for key in keys if self.partition_of(key) == partition)

    def partition_of(self, key: str) -> int:
        return partition_of(key.encode(), self.environment.partitions)

    def publish_entries(self, *entries: Entry, producer: Producer | None = None) -> None:
        """One record a partition, with the entries that belong there, in their order."""
        by_partition: dict[int, list[Entry]] = {}
        for entry in entries:
            by_partition.setdefault(self.partition_of(entry.key), []).append(entry)
        for partition, together in by_partition.items():
            partitions = self.environment.partitions
            value = encode_record(together, partitions=partitions, producer=producer)
            self.put(value, partition=partition, entries=len(together))

    def put(
        self, value: bytes, *, partition: int = 0, entries: int = 1, headers: Headers = ()
    ) -> None:
        """Any bytes, with so many entries."""
        if self._writer is None:
            self._writer = self.broker.writer(linger_ms=0.0)
        topic = self.layout.rollouts("math")
        self._writer.append(topic, value, partition=partition, headers=headers)
        assert self._writer.flush(TIMEOUT_S) == 0
        self.published += entries

    def run(self, *sealers: Sealer, seconds: float = 1.0) -> None:
        """The sealers take turns for a while of the world's clock."""
        deadline = Deadline(seconds, self.clock)
        while not deadline.passed():
            if not sealers:
                self.clock.wait(threading.Event(), deadline.left_s())
            for sealer in sealers:
                sealer.step(Deadline(min(0.05, deadline.left_s()), self.clock))

    def run_now_and_then(self, *sealers: Sealer, seconds: float) -> None:
        """The sealers have a turn each second of the world's clock, as hours of it are long."""
        deadline = Deadline(seconds, self.clock)
        while not deadline.passed():
            self.clock.wait(threading.Event(), 1.0)
            self.run(*sealers, seconds=0.05)

    def confirmed_events(self) -> list[ConfirmedEvent]:
        """Every event of the seal log that counts, of a partition that is put aside up to there."""
        addresses = self.layout.addresses({"math": self.environment.partitions})
        starts = {self.layout.groups_log(address): 0 for address in addresses}
        with closing(Follower(self.broker, starts, aside={})) as follower:
            return list(follower.read_to_end(Deadline(TIMEOUT_S, self.clock)))

    def flushes(self) -> list[Flushed]:
        return [
            confirmed.event
            for confirmed in self.confirmed_events()
            if isinstance(confirmed.event, Flushed)
        ]

    def groups(self) -> list[tuple[str, ...]]:
        """The uids of each sealed group, sorted."""
        groups = []
        for event in self.flushes():
            start = 0
            for group in event.groups:
                groups.append(tuple(sorted(event.segments.uids[start : start + group.rows])))
                start += group.rows
        return sorted(groups)

    def settled(self) -> Counter[str]:
        """How many entries were settled, by reason."""
        counts: Counter[str] = Counter()
        for event in self.flushes():
            for part in event.settled:
                counts[part.reason] += len(part.offsets)
            for ranges in event.unread:
                counts[ranges.reason] += int((ranges.stops - ranges.firsts).sum())
        return counts


def aside_of(sealer: Sealer, partition: int = 0) -> str:
    """Why the sealer put its partition of this number aside."""
    return {one.partition: one.aside for one in sealer.stats().partitions}[partition]
