"""Measures what a large fleet of env workers costs by its size alone.

``python -m benchmarks.fleets``: 1,000 and then 10,000 producers each begin a group a minute, which
takes 40 s. Brokers, store and clock are the in-memory twins, so a minute of theirs takes as long as
its work. Records are real: the producers' are sealed by a sealer, a trainer takes batches, and its
sampler tells each producer how many groups it may begin. Then the trainer stops: soon every
producer waits, and nothing is generated any more. Printed are what one worker reads, what the
sampler spends on shares, and what logs that are kept for ever grow by meanwhile.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers.admission.log import AdmissionLog
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.sampler import NotEnoughGroups, Sampler
from rollstream.sampler.engine.outbox import announcing
from rollstream.schemas.codec import decode_as
from rollstream.schemas.events import ProducerShare, share_of
from rollstream.schemas.fields import row_fields
from rollstream.schemas.ids import READS_ITS_SHARE
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry, EntryKind, Producer
from rollstream.store.memory import MemoryBlobs
from rollstream.store.warm_memory import keep_memory_warm
from rollstream.streams.broker import EARLIEST, Record, TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import SHARES_PARTITIONS, Layout

ENVIRONMENT, SAMPLER, PARTITIONS = "math", "trainer", 4
TICK_S = 0.25  # As often does a sampler look what to share out.
EVERY_S, TAKES_S = 60.0, 40.0  # A producer begins a group, and a group lasts.
ALIVE_S = 2.0  # A producer with an open group says so, as ``Standing`` has it.
STEP_S = 30.0  # A trainer's.
WARM_UP_S, MEASURED_S, CALM_S = 60.0, 60.0, 90.0
# Of a batch, which are the records that are written to a partition at one time, and of a record.
BATCH_OVERHEAD, RECORD_OVERHEAD = 61, 12
READ_BYTES_MAX, CORE_MAX = 2_000, 0.05
KEPT_FOR_EVER = ("groups", "scores", "sampler")


class CountingBroker(MemoryBroker):
    """Counts what is read."""

    read_bytes = 0

    def reader(self, starts: Mapping[TopicPartition, int], **options: Any) -> MemoryReader:
        reader = super().reader(starts, **options)
        poll = reader.poll

        def counted(records_max: int, timeout_s: float) -> list[Record]:
            records = poll(records_max, timeout_s)
            self.read_bytes += _size(records)
            return records

        reader.poll = counted  # type: ignore[method-assign]
        return reader


class Threads:
    """Steps the threads of samplers in turns, by the made clock, and counts their time."""

    def __init__(self, clock: ManualClock) -> None:
        self.used_s = defaultdict[str, float](float)
        self._clock = clock
        self._due: dict[StepThread, float] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes their place."""

        def wake(thread: StepThread) -> None:
            self._due[thread] = self._clock.monotonic_s()

        with (
            patch.object(StepThread, "wake", wake),
            patch.object(StepThread, "join", lambda *_: None),
            patch.object(announcing, "SystemClock", lambda: self._clock),
        ):
            yield

    def run(self) -> None:
        """Runs those that are due."""
        for thread, due_s in list(self._due.items()):
            step = thread._step()
            if step is None or due_s > self._clock.monotonic_s():
                continue
            del self._due[thread]
            began_s = time.thread_time()
            sleep_s = step()
            self.used_s[thread.name] += time.thread_time() - began_s
            if sleep_s is not None:
                self._due.setdefault(thread, self._clock.monotonic_s() + sleep_s)


class Fleet:
    """The producers, as columns.

    Attributes:
        ended: groups that were published.
    """

    def __init__(self, size: int, broker: MemoryBroker, clock: ManualClock) -> None:
        self.ids = [f"{number:08x}{READS_ITS_SHARE}" for number in range(size)]
        self.ended = 0
        self._rows = {name: row for row, name in enumerate(self.ids)}
        self._clock = clock
        self._topic = Layout().rollouts(ENVIRONMENT)
        self._writer = broker.writer()
        topic = Layout().shares(ENVIRONMENT)
        logs = {TopicPartition(topic, number): EARLIEST for number in range(SHARES_PARTITIONS)}
        self._shares = broker.reader(logs)
        self.begun = np.zeros(size, np.int64)
        self.totals = np.zeros(size, np.int64)
        self._ends_s = np.full(size, np.inf)
        self._begins_s = np.random.default_rng(0).uniform(0.0, EVERY_S, size)
        self._told_s = np.full(size, -np.inf)
        self._told_waiting = np.zeros(size, np.bool_)
        fields = {name: one.default for name, one in row_fields().items() if not one.extra}
        self._fields = {**fields, "replica_id": "r", "group_size": 1}

    @property
    def waiting(self) -> int:
        """Producers that wait to begin a group."""
        return int(self._told_waiting.sum())

    @property
    def open(self) -> int:
        """Groups that are begun and have not ended."""
        return int(np.isfinite(self._ends_s).sum())

    def turn(self) -> None:
        """What producers do now."""
        self._read()
        now_s = self._clock.monotonic_s()
        for row in np.flatnonzero(self._ends_s <= now_s).tolist():
            self._ends_s[row] = np.inf
            self._publish(row)
        wants = (self._begins_s <= now_s) & ~np.isfinite(self._ends_s)
        may = wants & (self.totals > self.begun)
        self._told_waiting[may] = False
        for row in np.flatnonzero(may).tolist():
            self.begun[row] += 1
            self._ends_s[row], self._begins_s[row] = now_s + TAKES_S, now_s + EVERY_S
            self._dispatch(row)
        waits = wants & ~may
        lives = waits | np.isfinite(self._ends_s)
        tells = lives & (self._told_s + ALIVE_S <= now_s) | (waits & ~self._told_waiting)
        self._told_waiting = waits
        for row in np.flatnonzero(tells).tolist():
            self._append(row, EntryKind.ALIVE, self.ids[row], example_id=self.ids[row])

    def _read(self) -> None:
        while records := self._shares.poll(4_096, 0.0):
            for record in records:
                of = share_of(record.key)
                if of is not None:
                    share = decode_as(ProducerShare, record.value) if record.value else None
                    self.totals[self._rows[of[1]]] = 0 if share is None else share.total

    def _dispatch(self, row: int) -> None:
        uid = self._uid(row)
        self._append(row, EntryKind.DISPATCHED, uid, group_uid=uid, example_id=uid, group_size=1)

    def _publish(self, row: int) -> None:
        self.ended += 1
        uid, tokens = self._uid(row), np.arange(4, dtype=np.int32).tobytes()
        self._append(
            row,
            EntryKind.SEGMENT,
            uid,
            group_uid=uid,
            example_id=uid,
            rollout_uid=f"{uid}-0",
            group_size=1,
            prompt_tokens=tokens,
            prompt_count=4,
            output_tokens=tokens,
            token_count=4,
            logprobs=np.zeros(4, np.float32).tobytes(),
            reward=1.0,
            policy_version="v0",
            weight_step=0,
        )

    def _uid(self, row: int) -> str:
        return f"{self.ids[row]}-{self.begun[row]}"

    def _append(self, row: int, kind: EntryKind, key: str, **fields: Any) -> None:
        nothing = {"prompt_tokens": b"", "output_tokens": b"", "created_ts": self._clock.now_us()}
        producer = Producer(self.ids[row], int(self.begun[row]), int(self._told_waiting[row]))
        value = encode_entries(
            [Entry.of({**self._fields, **nothing, **fields}, kind)],
            environment=ENVIRONMENT,
            worker_id="w",
            partitions=PARTITIONS,
            producer=producer,
        )
        partition = partition_of(key.encode(), PARTITIONS)
        self._writer.append(self._topic, value, partition=partition)
        self._told_s[row] = self._clock.monotonic_s()


class Measured(NamedTuple):
    """What one fleet came to.

    Attributes:
        read_bytes_s: by one worker; the most of four.
        cores: of the sampler, on shares.
        groups_s: that were begun.
        kept_bytes_s: growth of logs that are kept for ever, while all wait and nothing is made.
    """

    producers: int
    groups_s: float
    read_bytes_s: float
    cores: float
    waiting: int
    open: int
    kept_bytes_s: float


def measure(size: int, say: Callable[[str], None] = print) -> Measured:
    """A fleet of so many producers."""
    clock = ManualClock()
    logs = MemoryLogs(clock)
    broker, store, config = MemoryBroker(logs), MemoryBlobs(), _config(size)
    create_deployment(config, broker=broker, store=store, clock=clock)
    threads, fleet = Threads(clock), Fleet(size, broker, clock)
    workers = [CountingBroker(logs) for _ in range(4)]
    topic = Layout().admission(ENVIRONMENT)
    followed = [
        AdmissionLog(worker, topic, fleet.ids[number], clock)
        for number, worker in enumerate(workers)
    ]
    sealer = Sealer(
        config, broker=MemoryBroker(logs), store=store, clock=clock, workers=InlineExecutor()
    )
    with threads.installed():
        sampler = Sampler(
            SAMPLER, config=config, broker=MemoryBroker(logs), store=store, clock=clock
        )
        trainer = Trainer(sampler, fleet, size // 2, clock)

        def seal() -> None:
            read = -1
            while sealer.stats().read != read:
                read = sealer.stats().read
                sealer.step(Deadline(0.0, clock))

        def run(seconds: float, acts: Sequence[Callable[[], object]]) -> float:
            begun, began_s = int(fleet.begun.sum()), clock.monotonic_s()
            while clock.monotonic_s() < began_s + seconds:
                fleet.turn()
                seal()
                threads.run()
                for one in (*(log.look for log in followed), *acts):
                    one()
                clock.advance(TICK_S)
            return (int(fleet.begun.sum()) - begun) / seconds

        trainer.begin()
        run(WARM_UP_S, [trainer.turn])
        read, used_s = [one.read_bytes for one in workers], sum(threads.used_s.values())
        groups_s = run(MEASURED_S, [trainer.turn])
        most = max(one.read_bytes - before for one, before in zip(workers, read, strict=True))
        spent_s = sum(threads.used_s.values()) - used_s
        while fleet.open:
            run(CALM_S, [])
        kept = _kept_bytes(logs)
        run(CALM_S, [])
        kept = _kept_bytes(logs) - kept
    found = Measured(
        size,
        groups_s,
        most / MEASURED_S,
        spent_s / MEASURED_S,
        fleet.waiting,
        fleet.open,
        kept / CALM_S,
    )
    say(_line(found))
    return found


class Trainer:
    """Takes a batch each ``STEP_S``, and publishes its policy."""

    def __init__(self, sampler: Sampler, fleet: Fleet, groups: int, clock: ManualClock) -> None:
        self._sampler = sampler
        self._fleet = fleet
        self._groups = groups
        self._clock = clock
        self._step = 0
        self._next_s = 0.0

    def begin(self) -> None:
        """The first policy."""
        self._sampler.resume(None)
        self._sampler.publish_policy(0, policy_version="v0")

    def turn(self) -> None:
        """A step, where one is due and there are groups for it."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s or self._fleet.ended < (self._step + 1) * self._groups:
            return
        try:
            batch = self._sampler.next_batch(self._step, self._groups, timeout_s=0.0)
        except NotEnoughGroups:  # They are not sealed yet.
            return
        self._sampler.ack(batch)
        self._step += 1
        self._sampler.publish_policy(self._step, policy_version=f"v{self._step}")
        self._next_s = now_s + STEP_S


def _config(size: int) -> RollstreamConfig:
    return RollstreamConfig.model_validate(
        {
            "kafka": {"bootstrap": "in-memory:0"},
            "store": {"root": "file:///unused"},
            "environments": {
                ENVIRONMENT: {
                    "partitions": PARTITIONS,
                    "target_group_size": 1,
                    "min_group_size": 1,
                    "flush_interval_s": 2.0,
                }
            },
            "samplers": {
                SAMPLER: {
                    "environments": [ENVIRONMENT],
                    "groups_per_step": size // 2,
                    "max_policy_lag": -1,
                    "capacity_groups": 10 * size,
                }
            },
        }
    )


def _kept_bytes(logs: MemoryLogs) -> int:
    """In logs that are kept for ever."""
    size = 0
    for name, spec in logs.topics().items():
        if name.split(".")[1] in KEPT_FOR_EVER:
            for number in range(spec.partitions):
                where = TopicPartition(name, number)
                first, end = logs.bounds(where)
                size += _size(logs.read(where, first, end))
    return size


def _size(records: Sequence[Record]) -> int:
    """Bytes of these records, uncompressed."""
    batches = {(one.topic, one.partition, one.timestamp_us) for one in records}
    sizes = (len(one.key or b"") + len(one.value) + RECORD_OVERHEAD for one in records)
    return sum(sizes) + BATCH_OVERHEAD * len(batches)


def _line(one: Measured) -> str:
    return (
        f"{one.producers:,} producers, {one.groups_s:.1f} groups begun a second: a worker reads "
        f"{one.read_bytes_s:,.0f} bytes/s (at most {READ_BYTES_MAX:,}); the sampler spends "
        f"{one.cores:.1%} of a core on shares (at most {CORE_MAX:.0%}); with {one.waiting:,} that "
        f"wait and {one.open:,} open groups, logs that are kept for ever grow by "
        f"{one.kept_bytes_s:,.0f} bytes/s (0)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--producers", type=int, nargs="+", default=[1_000, 10_000])
    keep_memory_warm()  # As in an actor: its threads are not to pay for the garbage of others.
    for size in parser.parse_args().producers:
        measure(size)


if __name__ == "__main__":
    main()
