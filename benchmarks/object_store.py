"""What does a root in an object store cost, and how fast is it with one that is slow?

``PYTHONPATH=tests python -m benchmarks.object_store``, over versitygw on loopback:

- ``way``: the whole way with the root on a local disk and in S3, in turn: processor time a rollout
  by process, requests a rollout, and what they cost at S3's list price.
- ``sealer``: how many rollouts a second one sealer of four partitions seals of a backlog, where no
  request is delayed and where each is by 200 ms.
- ``reads``: how long a sampler takes for its first batch, of 64 groups in 1 to 64 files.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.one_round import run_round
from benchmarks.scenarios import GROUP_SIZE, SCENARIOS, Scenario
from benchmarks.sealed_backlog import SealedBacklog
from benchmarks.systems.interface import START_TIMEOUT_S, Services
from benchmarks.systems.kafka_broker import fresh_kafka
from benchmarks.systems.rollstream import Rollstream, RollstreamPublisher
from benchmarks.systems.rollstream_services import ANY_LAG, config_text, sealer, services
from benchmarks.systems.rollstream_source import SAMPLER
from benchmarks.systems.slow_store import KINDS, SlowStore, slow_store
from benchmarks.workload import ENVIRONMENT, Workload
from harness.s3_server import s3_server
from rollstream.consumers import create_deployment
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.schemas.events import Flushed
from rollstream.streams.broker import TopicPartition
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.reading import event_in
from rollstream.streams.topics.layout import Layout

PARTITIONS = 4
DELAY_S = 0.2
ZSTD = 'compression = "zstd"\n'
OURS = ("producer", "sealer-1", "sampler", "trainer")
DOLLARS = {"PUT": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}  # us-east-1.
BACKLOG = 60_000  # Rollouts.
SEAL_S = 600.0
BATCH_GROUPS = 64
FILES = (1, 8, 64)  # That the groups of a batch lie in.


@contextmanager
def s3_store(
    folder: Path, delay_s: float, progress: Path | None = None
) -> Iterator[tuple[StoreConfig, StoreConfig, SlowStore]]:
    """An empty root, as it is and behind the proxy; credentials are in the environment."""
    with s3_server(folder / "s3") as server, slow_store(server.port, delay_s, progress) as proxy:
        os.environ.update(server.variables)
        os.environ["AWS_ENDPOINT_URL"] = ""
        root = server.store("bench")
        yield root, root.model_copy(update={"endpoint": proxy.endpoint}), proxy


@dataclass(frozen=True)
class OneSealer(Rollstream):
    """Rollstream with one sealer of four partitions and zstd files.

    Attributes:
        in_s3: whether the root is in S3; else it is on the local disk.
        requests: of the rounds, while they were measured.
    """

    in_s3: bool = False
    requests: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def services(self, folder: Path, scenario: Scenario) -> Iterator[Services]:
        run = partial(services, environment=ZSTD, sampler=ANY_LAG, sealers=1, partitions=PARTITIONS)
        if not self.in_s3:
            with run(folder) as running:
                yield running
            return
        with (
            s3_store(folder, 0.0, folder / "progress") as (_, store, proxy),
            run(folder, store=store) as running,
        ):
            yield running
            self.requests.update(proxy.counts())


def measure_way(rounds: int, measure_s: float) -> None:
    scenario = replace(SCENARIOS["1024"], measure_s=measure_s)
    systems = [OneSealer("disk"), OneSealer("s3", in_s3=True)]
    cpu_us: dict[str, list[Mapping[str, float]]] = {system.name: [] for system in systems}
    rollouts = 0.0
    for number in range(rounds):
        for system in systems:
            one = run_round(system, scenario, warm_up_s=8.0)
            cpu_us[system.name].append(one.cpu_us_per_rollout)
            rollouts += one.rollouts_per_s * measure_s if system.in_s3 else 0.0
            print(f"round {number + 1}, {system.name}: {one.rollouts_per_s:,.0f} rollouts/s")
    print(f"\n{'processor time, us a rollout':30}{'disk':>8}{'s3':>8}{'ratio':>8}")
    for label in (*OURS, "ours"):
        disk, s3 = (
            statistics.median(_of(label, spent) for spent in cpu_us[system.name])
            for system in systems
        )
        print(f"{label:30}{disk:8.1f}{s3:8.1f}{s3 / disk:8.2f}")
    _print_requests(systems[1].requests, rollouts)


def _of(label: str, spent: Mapping[str, float]) -> float:
    return sum(spent.get(ours, 0.0) for ours in OURS) if label == "ours" else spent.get(label, 0.0)


def _print_requests(requests: Counter[str], rollouts: float) -> None:
    print(f"\n{'requests of 1,000,000 rollouts':30}{'':>8}{'dollars':>8}")
    for kind in KINDS:
        each = requests[kind] / rollouts * 1e6
        print(f"{kind:30}{each:8,.0f}{each * DOLLARS[kind]:8.4f}")
    dollars = sum(requests[kind] * DOLLARS[kind] for kind in KINDS) / rollouts * 1e6
    print(f"{'all':30}{requests.total() / rollouts * 1e6:8,.0f}{dollars:8.4f}", flush=True)


def measure_sealer(rounds: int, backlog: int) -> None:
    for number in range(rounds):
        for delay_s in (0.0, DELAY_S):
            per_s, requests = _sealed_per_s(delay_s, backlog)
            kinds = ", ".join(f"{requests[kind]} {kind}" for kind in KINDS)
            print(
                f"round {number + 1}, {delay_s * 1e3:3.0f} ms a request: {per_s:,.0f} rollouts/s "
                f"sealed by one sealer of {PARTITIONS} partitions; {kinds}",
                flush=True,
            )


def _sealed_per_s(delay_s: float, backlog: int) -> tuple[float, Counter[str]]:
    with tempfile.TemporaryDirectory(prefix="bench-object-store-") as name:
        folder = Path(name)
        with fresh_kafka(folder) as kafka, s3_store(folder, delay_s) as (_, store, proxy):
            path = folder / "rollstream.toml"
            path.write_text(
                config_text(kafka.bootstrap, store, PARTITIONS, environment=ZSTD, sampler=ANY_LAG)
            )
            config = load_config(path)
            create_deployment(config, timeout_s=START_TIMEOUT_S)
            workload = Workload(SCENARIOS["1024"])
            publisher = RollstreamPublisher(kafka.bootstrap, 0, GROUP_SIZE)
            for number in range(backlog):
                publisher.publish(workload.rollout(number))
            publisher.close()
            running = sealer(folder, path, 0)
            try:
                topic = Layout.of(config.kafka).groups(ENVIRONMENT)
                sealed = _flushes(kafka.bootstrap, topic, backlog)
            finally:
                running.signal(signal.SIGKILL)
            (first_us, first), (last_us, _) = min(sealed), max(sealed)
            rollouts = sum(count for _, count in sealed) - first
            return rollouts / ((last_us - first_us) / 1e6), proxy.counts()


def _flushes(bootstrap: str, topic: str, rollouts: int) -> list[tuple[int, int]]:
    """Of each flush the log's time and its rollouts, once so many are sealed."""
    found: list[tuple[int, int]] = []
    deadline = Deadline(SEAL_S)
    logs = {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}
    with KafkaBroker(bootstrap) as broker, closing(broker.reader(logs)) as reader:
        while sum(count for _, count in found) < rollouts:
            if deadline.passed():
                raise TimeoutError(f"not all {rollouts} rollouts were sealed within {SEAL_S:g} s")
            for record in reader.poll(1_000, 1.0):
                event = event_in(record)
                if isinstance(event, Flushed):
                    found.append((record.timestamp_us, len(event.segments.uids)))
    return found


def measure_reads() -> None:
    print(f"\n{'first batch of 64 groups, ms':30}{'0 ms':>8}{'200 ms':>8}")
    with tempfile.TemporaryDirectory(prefix="bench-object-store-") as name:
        folder = Path(name)
        for files in FILES:
            took = [_first_batch_ms(folder / f"{files}-{ms}", files, ms / 1e3) for ms in (0, 200)]
            print(f"{f'in {files} files':30}{took[0]:8,.0f}{took[1]:8,.0f}", flush=True)


def _first_batch_ms(folder: Path, files: int, delay_s: float) -> float:
    folder.mkdir()
    with fresh_kafka(folder) as kafka, s3_store(folder, delay_s) as (direct, slow, proxy):
        path = folder / "rollstream.toml"
        write = partial(config_text, kafka.bootstrap, partitions=1, sampler=ANY_LAG)
        path.write_text(write(store=direct, environment=ZSTD))
        create_deployment(load_config(path), timeout_s=START_TIMEOUT_S)
        backlog = SealedBacklog(path, ENVIRONMENT, compression="zstd")
        for first in range(0, BATCH_GROUPS, BATCH_GROUPS // files):
            backlog.seal(first, BATCH_GROUPS // files)
        backlog.close()
        path.write_text(write(store=slow, environment=ZSTD))
        with Sampler(SAMPLER, config=path) as sampler:
            step = sampler.resume(None)
            begun_s, before = time.monotonic(), proxy.counts()
            sampler.next_batch(step, BATCH_GROUPS, timeout_s=START_TIMEOUT_S)
            took_s = time.monotonic() - begun_s
            print(f"  {files} files: {dict(proxy.counts() - before)}", flush=True)
            return 1e3 * took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["way", "sealer", "reads"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure-s", type=float, default=20.0)
    parser.add_argument("--backlog", type=int, default=BACKLOG)
    arguments = parser.parse_args()
    if "way" in arguments.parts:
        measure_way(arguments.rounds, arguments.measure_s)
    if "sealer" in arguments.parts:
        measure_sealer(arguments.rounds, arguments.backlog)
    if "reads" in arguments.parts:
        measure_reads()


if __name__ == "__main__":
    main()
