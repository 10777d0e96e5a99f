"""``examples/go_producer``, built and run as its reader would, over the embedded Kafka."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import subprocess
import uuid
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.brokers import TIMEOUT_S, read
from harness.pages import snippets
from harness.sealing import SealWorld
from harness.source_tree import ROOT
from rollstream.producers import AsyncRolloutProducer, RolloutProducer
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.schemas.wire_schemas import shipped
from rollstream.store import open_dataset
from rollstream.streams.broker import EARLIEST, Record, TopicPartition
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]
PARTITIONS = 4
SCHEMA = ROOT / "schemas/rollstream/schemas/avsc/ingest_record.v3.avsc"
BUILD_TIMEOUT_S = 480.0  # The first time downloads what it imports.


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    built = tmp_path_factory.mktemp("go") / "go_producer"
    command = [go, "build", "-o", str(built), "."]
    # Processes of one run build it one after the other: what the first compiled is kept by Go.
    with (tmp_path_factory.getbasetemp().parent / "go_producer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(command, ROOT / "examples/go_producer", BUILD_TIMEOUT_S)
    return built


def run(command: list[str], folder: Path, timeout_s: float = TIMEOUT_S) -> str:
    """What a command that succeeds prints."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def publish(program: Path, bootstrap: str, namespace: str) -> str:
    to = ["-bootstrap", bootstrap, "-namespace", namespace]
    return run([str(program), *to, "-schema", str(SCHEMA)], program.parent)


def test_a_schema_of_another_fingerprint_is_refused(program: Path) -> None:
    other = SCHEMA.with_name("claimed.v1.avsc")
    fingerprint = shipped().newest("claimed").prefix[2:].hex()
    refused = f"the schema's fingerprint is {fingerprint}, not "
    with pytest.raises(AssertionError, match=refused):
        run([str(program), "-schema", str(other)], program.parent)


def test_what_go_publishes_is_read_as_it_was_meant(program: Path, kafka_bootstrap: str) -> None:
    layout = Layout(f"test-{uuid.uuid4().hex[:12]}")
    broker = KafkaBroker(kafka_bootstrap)
    try:
        specs = specs_for(layout, {"math": PARTITIONS}, rollouts_retention_hours=1)
        create_topics(broker.admin(), specs, TIMEOUT_S)
        printed = publish(program, kafka_bootstrap, layout.namespace)
        topic = layout.rollouts("math")
        starts = {TopicPartition(topic, n): EARLIEST for n in range(PARTITIONS)}
        reader = broker.reader(starts)
        found = sorted(read(reader, 2), key=lambda one: -decode_record(one.value).count)
        reader.close()
    finally:
        broker.close()
    assert printed.splitlines() == [
        f"{count} rollouts: partition {one.partition}, offset {one.offset}"
        for count, one in zip((3, 1), found, strict=True)
    ]
    together, alone = (decode_record(one.value) for one in found)
    for record, one in zip((together, alone), found, strict=True):
        check_record(record, one)
    (group,) = set(together.values("group_uid"))
    check_group(together, group)
    assert alone.values("example_id") == ["aime-18"]
    assert alone.values("policy_version") == ["step-121"]
    assert alone.values("group_size") == [1]
    assert alone.values("reward") == [1.0]
    assert tokens(alone, "prompt_tokens") == [[103]]
    assert tokens(alone, "output_tokens") == [[15]]
    assert tokens(alone, "logprobs") == [[-3.0]]
    assert alone.entry(0).fields["loss_mask"] is None


def test_what_go_and_python_publish_is_sealed_once_each(
    program: Path, kafka_bootstrap: str, tmp_path: Path
) -> None:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path, partitions=PARTITIONS) as world:
        namespace = world.layout.namespace
        publish(program, kafka_bootstrap, namespace)
        publish_from_the_page(kafka_bootstrap, namespace)
        uids = asyncio.run(publish_with_the_sdk(kafka_bootstrap, namespace))
        with world.sealer(workers=None) as sealer:
            world.until(sealer)
        groups, settled = world.groups(), world.settled()
        rows = open_dataset(world.config.store.root).to_table().to_pylist()
    assert settled == {}
    assert sorted(map(len, groups)) == [1, 2, 2, 3]
    assert {("worker-7-1", "worker-7-2"), tuple(sorted(uids))} <= set(groups)
    assert sorted(row["rollout_uid"] for row in rows) == sorted(chain.from_iterable(groups))
    outputs = sorted(row["output_tokens"] for row in rows)
    of_go = [[7, 8, 9], [7, 10], [11, 12, 13, 14], [15]]
    assert outputs == sorted([*of_go, [7, 8, 9], [10, 11], [21, 22], [23, 24]])


def publish_from_the_page(bootstrap: str, namespace: str) -> None:
    """Runs the Python of docs/wire_format.md."""
    (snippet,) = snippets("wire_format.md", "python")
    names: dict[str, Any] = {}
    exec(snippet, names)
    text = SCHEMA.read_text(encoding="utf-8")
    names["publish"](bootstrap, text, "math", names["rollouts"], namespace=namespace)


async def publish_with_the_sdk(bootstrap: str, namespace: str) -> tuple[str, str]:
    """The uids of a group of two, one from each producer."""
    member: dict[str, Any] = {
        **{"environment": "math", "example_id": "aime-19", "policy_version": "step-121"},
        **{"group_uid": "g-python", "group_size": 2, "prompt_tokens": [1], "reward": 1.0},
        **{"logprobs": [-1.0, -1.0], "weight_step": 121},
    }
    with RolloutProducer(bootstrap, namespace=namespace) as producer:
        first = producer.publish(**member, output_tokens=[21, 22])
    async with AsyncRolloutProducer(bootstrap, namespace=namespace) as other:
        second = await other.publish(**member, output_tokens=[23, 24])
    return first, second


def check_record(record: IngestRecord, one: Record) -> None:
    """What holds for any record of the program."""
    assert record.broken == {}
    assert one.key is None
    assert (record.environment, record.partitions) == ("math", PARTITIONS)
    assert record.worker_id == "go-worker-7"
    assert not any(record.kinds)
    assert record.values("segment_idx") == [0] * record.count
    assert all(record.values("is_last_segment"))
    assert record.values("metadata") == ["{}"] * record.count
    assert record.values("split") == ["train"] * record.count
    for uid, group in zip(record.values("rollout_uid"), record.values("group_uid"), strict=True):
        assert uid.startswith(f"{group}-")
        assert partition_of(group.encode(), PARTITIONS) == one.partition
    for created in record.values("created_ts"):
        # The log's times have milliseconds.
        assert -1_000 <= one.timestamp_us - created < TIMEOUT_S * 1_000_000


def check_group(record: IngestRecord, group: str) -> None:
    assert record.values("example_id") == ["aime-17"] * 3
    assert record.values("group_size") == [3] * 3
    assert record.values("rollout_uid") == [f"{group}-{member}" for member in range(3)]
    assert record.values("policy_version") == ["step-120", "step-120", "step-121"]
    assert record.values("weight_step") == [120, 120, 121]
    assert record.values("reward") == [1.0, 0.0, 0.5]
    assert tokens(record, "prompt_tokens") == [[101, 102]] * 3
    assert tokens(record, "output_tokens") == [[7, 8, 9], [7, 10], [11, 12, 13, 14]]
    assert tokens(record, "logprobs") == [[-0.5, -0.25, -0.125], [-0.5, -2], [-1, -1, -1, 0]]
    masks = [record.entry(n).fields["loss_mask"] for n in range(3)]
    assert masks == [None, b"\x01\x00", None]


def tokens(record: IngestRecord, name: str) -> list[list[float]]:
    """The values of an array, one list an entry."""
    dtype = record.arrays[name].signature.dtype
    packed = [record.entry(n).fields[name] for n in range(record.count)]
    return [np.frombuffer(one, dtype).tolist() for one in packed]
