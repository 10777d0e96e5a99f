"""Logs of a run in memory, kept as bytes: what each shipped version of the algorithm chose.

New ones, of a version that has none: ``PYTHONPATH=tests python -m harness.golden_decisions``. Files
that exist are never written again: they are what was shipped.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from harness.events import GOLDEN
from harness.groups import GroupSpec
from harness.sampler_worlds import ENVIRONMENTS, LocalWorld, config_of
from rollstream.folds.group.eligible import Accept
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.decide.choosing.choose import ALGORITHM
from rollstream.schemas.codec import EventCodec, encode, event_kinds
from rollstream.schemas.events import Event
from rollstream.schemas.wire_schemas import SchemaRegistry, shipped
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import TopicPartition, TopicSpec
from rollstream.streams.memory import MemoryBroker, MemoryLogs

SAMPLER = "trainer-a"
STEPS = 16
# One after the other, each for two steps, since a run's configuration is edited.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"seed": 7, "max_policy_lag": 4},
    {"seed": 7, "max_policy_lag": 2, "recency": "exp"},
    {"seed": 8, "recency": "linear", "capacity_groups": 20},
    {"seed": 8, "environments": ["math"], "order": "ready"},
    {"seed": 9, "on_policy_fraction": 0.5, "recency": "exp", "alpha": 2.0, "capacity": 16},
    {"seed": 9, "max_samples": 3, "recent_n_versions": 4},
    {"seed": 9, "max_samples": -1, "prefer_policy_versions": ["step-11", "step-9"]},
    {
        "seed": 9,
        "max_rollout_step_delay": 4,
        "max_rollout_timestamp_delay": 1.2e9,  # Since 1970 it has been longer.
        "off_branch": "keep",
    },
)
ASKED: dict[int, dict[str, Any]] = {
    3: {"seed": 11},
    8: {"grouping": "strict"},
    9: {"policy_version": "step-9"},
    11: {"start_offset": 2},
}
"""Of next_batch, by step."""
WAIT_S = 30.0


def config() -> RollstreamConfig:
    """Where the logs are; of the sampler it has no setting that chose anything."""
    return config_of("file:///unused", SAMPLER, seed=99, environments=["code"])


def golden_logs(algorithm: int) -> Path:
    """Where the logs lie that this version wrote."""
    return GOLDEN / f"decisions.algorithm-{algorithm}.json"


def run() -> MemoryLogs:
    """Groups of many policies arrive while batches are chosen, dropped from, replaced and
    released."""
    logs = MemoryLogs()
    world = LocalWorld(MemoryBroker(logs), MemoryBlobs(), config())
    writers = [
        world.writer(environment, partition)
        for environment, partitions in ENVIRONMENTS.items()
        for partition in range(partitions)
    ]
    epoch = 0
    for step in range(STEPS):
        for index, writer in enumerate(writers):
            writer.flush(*_groups(step, epoch, f"{index}-"))
        if step % 2 == 0:
            world.configure(**SETTINGS[step // 2])
            sampler = world.open()
            sampler.resume(step - 1 if step else None, later="release" if step == 6 else "replay")
        shares = {"math": 0.75, "code": 0.25} if step in (1, 4) else None
        accept: Accept | None = "nonzero_std" if step in (2, 7) else None
        if step == STEPS - 1:
            sampler.set_current_step(step - 1)
        num_groups = 3 if step == 9 else 4 if step < STEPS - 2 else 20
        batch = sampler.next_batch(
            step, num_groups, accept=accept, mix=shares, timeout_s=WAIT_S, **ASKED.get(step, {})
        )
        if step % 3 == 1:
            batch = sampler.replace(batch, [1, 3], "tried", timeout_s=WAIT_S)
            batch = sampler.replace(batch, [0], "again", timeout_s=WAIT_S)
        epoch = sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}").epoch
        if step % 2:
            sampler.ack(batch)
            sampler.checkpointed(step)
            if step == 5:
                sampler.next_batch(step + 1, 2, timeout_s=WAIT_S)  # Released by the resume.
            world.restart()
    world.close()
    return logs


def _groups(step: int, epoch: int, prefix: str) -> list[GroupSpec]:
    """Four groups of three examples, of the four newest policies; from the ninth step on two have a
    rollout each that is older, by its weights and by its worker's clock. Before the last resume one
    is of weights that it goes back behind."""
    equal = (1.0, 1.0) if step % 3 == 0 else (0.0, 1.0)
    other: dict[int, dict[str, Any]] = {
        0: {"weight_step": step + (step == STEPS - 2)},
        1: {"rewards": (0.0, 1.0, 0.5), "weight_steps": (step - 5, step, step)},
        2: {"rewards": (0.0, 0.5, 1.0), "extras": ({}, {"created_ts": 1})},
    }
    return [
        GroupSpec(
            example_id=f"{prefix}{number % 3}",
            policy_epoch=epoch,
            **{
                "weight_step": max(0, step - number),
                "rewards": rewards,
                **(other.get(number, {}) if step >= 8 else {}),
            },
        )
        for number, rewards in enumerate((equal, (0.0, 1.0), (0.0, 0.5), (1.0, 0.0)))
    ]


def to_bytes(logs: MemoryLogs) -> bytes:
    """The records of seal and decision logs, by topic and partition, with the schemas that they
    were written under: until a release these change in place."""
    found, schemas = {}, {}
    for name, spec in sorted(logs.topics().items()):
        places = [TopicPartition(name, number) for number in range(spec.partitions)]
        records = [logs.read(where, 0, logs.bounds(where)[1]) for where in places]
        if any(records):
            found[name] = [[base64.b64encode(one.value).decode() for one in of] for of in records]
        for record in chain.from_iterable(records):
            schema = shipped().schema_of(record.value)
            schemas[schema.name] = schema.source
    return json.dumps({"schemas": schemas, "logs": found}, indent=0, sort_keys=True).encode()


def from_bytes(
    content: bytes, change: Callable[[Event], Event] = lambda event: event
) -> MemoryLogs:
    """The logs again, each event as ``change`` returns it."""
    stored = json.loads(content)
    codec = codec_of(stored["schemas"])
    logs = MemoryLogs()
    for name, partitions in stored["logs"].items():
        logs.create(TopicSpec(name, len(partitions), {"max.message.bytes": str(2**24)}))
        for number, values in enumerate(partitions):
            for value in values:
                event = change(codec.decode(base64.b64decode(value)))
                logs.append(TopicPartition(name, number), None, encode(event))
    return logs


def codec_of(schemas: Mapping[str, Any]) -> EventCodec:
    """Reads events that were written under these schemas, by name, or under those of now."""
    texts = {f"{name}.v0.avsc": source for name, source in schemas.items()}
    texts |= {f"{one.name}.v{one.version}.avsc": one.source for one in shipped().schemas}
    registry = SchemaRegistry({name: json.dumps(source) for name, source in texts.items()})
    return EventCodec(registry, event_kinds())


def write_missing() -> Path | None:
    """Writes the logs of this version's algorithm, where there are none; which ones."""
    path = golden_logs(ALGORITHM)
    if path.exists():
        return None
    path.write_bytes(to_bytes(run()))
    return path


if __name__ == "__main__":
    write_missing()
