"""What does one sealer of 256 partitions take, and how soon has another one taken them over?

``python -m benchmarks.partitions`` starts an embedded Kafka and ``rollstream seal``. Once all
partitions are claimed, it reads the sealer's clients, threads, files and memory. Then it kills the
sealer, and waits until a second one has claimed all of them. It also times ``rollstream status``,
and fills the dedupe horizons of some partitions to see what they take.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import psutil

from benchmarks.systems.kafka_broker import fresh_kafka
from rollstream.console.broker.child import BoundChild
from rollstream.consumers import create_deployment
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.remembered import Remembered
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.kafka.properties import SESSION_TIMEOUT_MS
from rollstream.streams.topics.layout import Layout

PROGRAM = Path(sys.executable).with_name("rollstream")
PARTITIONS = 256
FILES_MAX = 1024
CLAIM_RECORDS = 2  # A claim, and its adoption.
IDLE_S = 20.0
HORIZONS = 16  # That are filled.
SEGMENTS_A_FLUSH = 512
LOOK_S = 0.5
WAIT_S = 180.0
TIMEOUT_S = 30.0
MIB = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    partitions: int = parser.parse_args().partitions
    print(f"a full dedupe horizon: {_horizon_mib():.1f} MiB a partition")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with fresh_kafka(folder) as kafka, KafkaBroker(kafka.bootstrap) as broker:
            path = folder / "rollstream.toml"
            path.write_text(
                f'[kafka]\nbootstrap = "{kafka.bootstrap}"\n'
                f'[store]\nroot = "{(folder / "store").as_uri()}"\n'
                f"[environments.math]\npartitions = {partitions}\n"
            )
            config = load_config(path)
            create_deployment(config, broker=broker)
            topic = Layout.of(config.kafka).groups("math")
            logs = [TopicPartition(topic, number) for number in range(partitions)]
            _measure(broker, logs, path)


def _measure(broker: Broker, logs: list[TopicPartition], config: Path) -> None:
    before = _ends(broker, logs)
    first = _sealer(config, "first")
    adopted_s = _until_claimed(broker, logs, before)
    time.sleep(IDLE_S)
    process = psutil.Process(first.pid)
    cpu_s = sum(process.cpu_times()[:2])
    time.sleep(IDLE_S)
    share = (sum(process.cpu_times()[:2]) - cpu_s) / IDLE_S
    print(f"one sealer of {len(logs)} partitions that is idle:")
    print(f"  librdkafka clients  {_clients(first.pid)}")
    print(f"  threads             {process.num_threads()}")
    print(f"  open files          {process.num_fds()} (limit {FILES_MAX})")
    print(f"  resident            {process.memory_info().rss / MIB:.0f} MiB")
    print(f"  of a core           {100 * share:.1f} %")
    print(f"  claimed all         {adopted_s:.1f} s after its start")
    begun_s = time.monotonic()
    status = [str(PROGRAM), "status", "--config", str(config)]
    subprocess.run(status, check=False, capture_output=True, timeout=WAIT_S)
    print(f"  `rollstream status` {time.monotonic() - begun_s:.1f} s")
    before = _ends(broker, logs)
    first.signal(signal.SIGKILL)
    second = _sealer(config, "second")
    taken_s = _until_claimed(broker, logs, before) - SESSION_TIMEOUT_MS / 1000
    print(f"  killed: a second one has claimed all {taken_s:.1f} s after the session time-out")
    second.signal(signal.SIGTERM)
    if second.wait(WAIT_S) is None:
        second.signal(signal.SIGKILL)


def _horizon_mib() -> float:
    """What a dedupe horizon takes that is full for a while."""
    horizon = EnvironmentConfig().dedupe_horizon
    flushes = 2 * horizon // SEGMENTS_A_FLUSH
    filled = [Remembered() for _ in range(HORIZONS)]
    process = psutil.Process()
    before = process.memory_info().rss
    for flush in range(flushes):
        for partition, one in enumerate(filled):
            uids = [f"{partition}-{flush}-{number:016x}" for number in range(SEGMENTS_A_FLUSH)]
            one.add(uids, flush)
            one.forget(flush - horizon // SEGMENTS_A_FLUSH)
    return float(process.memory_info().rss - before) / MIB / HORIZONS


def _sealer(config: Path, name: str) -> BoundChild:
    limited = f"ulimit -n {FILES_MAX}; exec {PROGRAM} seal --config {config} --name {name}"
    output = config.with_name(f"{name}.log")
    return BoundChild(["/bin/sh", "-c", limited], cwd=config.parent, output=output)


def _ends(broker: Broker, logs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    with closing(broker.reader({})) as reader:
        return {where: end for where, (_, end) in reader.all_bounds(logs, TIMEOUT_S).items()}


def _until_claimed(
    broker: Broker, logs: Sequence[TopicPartition], before: Mapping[TopicPartition, int]
) -> float:
    """How long it took until each log has a claim more, and its adoption."""
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + WAIT_S:
        ends = _ends(broker, logs)
        if all(ends[where] >= before[where] + CLAIM_RECORDS for where in logs):
            return time.monotonic() - begun_s
        time.sleep(LOOK_S)
    raise TimeoutError(f"not all {len(logs)} partitions were claimed within {WAIT_S:g} s")


def _clients(pid: int) -> int:
    """Each has one main thread."""
    names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return names.count("rdk:main")


if __name__ == "__main__":
    main()
