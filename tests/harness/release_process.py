"""``python -m harness.release_process``: what one release does with the logs and files of a folder;
each line of stdin is one thing to do, and each line of stdout its result, as JSON."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.command_line import TIMEOUT_S, CommandLine
from harness.rollouts import make_fields
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.sampler.history import check_from_files, replay_step
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.fields import row_fields
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.wire import record_headers
from rollstream.store import list_manifests, open_dataset
from rollstream.streams.broker import TopicPartition, TopicSpec
from rollstream.streams.memory import MemoryLogs

CONFIG = """
[kafka]
bootstrap = "unused:9092"
[store]
root = "file://{root}"
[environments.math]
partitions = 1
target_group_size = 2
flush_interval_s = 0.15
[samplers.trainer-a]
environments = ["math"]
max_policy_lag = 100
[samplers.trainer-b]
environments = ["math"]
max_policy_lag = 100
"""
TURNS = 30  # A sealer joins its group and reads a few records in fewer.
RECORDS_MAX = 1_000_000


class World(CommandLine):
    """The command line over logs that are kept in a file between processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG.format(root=folder / "store"))
        self._file = folder / "logs.json"
        if self._file.exists():
            self._load(json.loads(self._file.read_text(encoding="utf-8")))
        else:
            self.create_topics()

    def save(self) -> None:
        """Writes the logs."""
        topics = self.logs.topics().values()
        logs = [TopicPartition(t.name, p) for t in topics for p in range(t.partitions)]
        records = [r for log in logs for r in self.logs.read(log, 0, RECORDS_MAX)]
        kept = {
            "topics": [(t.name, t.partitions, dict(t.config)) for t in topics],
            "records": [
                (
                    *(r.topic, r.partition, r.timestamp_us, base64.b64encode(r.value).decode()),
                    [(name, value.decode()) for name, value in r.headers],
                )
                for r in sorted(records, key=lambda record: record.timestamp_us)
            ],
        }
        self._file.write_text(json.dumps(kept), encoding="utf-8")

    def _load(self, kept: Mapping[str, Any]) -> None:
        self.clock = ManualClock()
        self.logs = MemoryLogs(self.clock)
        for name, partitions, config in kept["topics"]:
            self.logs.create(TopicSpec(name, partitions, config))
        for topic, partition, timestamp_us, value, *rest in kept["records"]:
            self.clock.advance((timestamp_us - self.clock.now_us()) / 1e6)
            where = TopicPartition(topic, partition)
            # The golden run is older than headers.
            given = tuple((name, text.encode()) for name, text in (rest[0] if rest else ()))
            self.logs.append(where, None, base64.b64decode(value), given)


def publish(world: World, rollouts: list[dict[str, Any]]) -> Any:
    """Appends one record of these rollouts."""
    defaults = {f.name: f.default for f in row_fields().values() if not f.extra}
    entries = []
    for overrides in rollouts:
        arrays = {
            name: {n: np.array(a, np.uint8) for n, a in overrides[name].items()}
            for name in ("token_arrays",)
            if name in overrides
        }
        entries.append(Entry.of({**defaults, **make_fields(**{**overrides, **arrays})}))
    value = encode_entries(entries, environment="math", worker_id="worker-0", partitions=1)
    where = TopicPartition(world.layout.rollouts("math"), 0)
    return world.logs.append(where, None, value, record_headers()).offset


def seal(world: World, *, dead_letter: bool = False) -> Any:
    """Seals what is there; how many segments and groups, and why partitions were put aside."""
    with Sealer(
        world.config,
        broker=world.broker(),
        store=world.blobs,
        clock=world.clock,
        workers=InlineExecutor(),
        owner="sealer-a",
        dead_letter_newer=dead_letter,
    ) as sealer:
        for _ in range(TURNS):
            sealer.step(Deadline(0.1, world.clock))
        sealer.flush(TIMEOUT_S)
        stats = sealer.stats()
    aside = [one.aside for one in stats.partitions if one.aside]
    return {"segments": stats.segments, "groups": stats.groups, "aside": aside}


def serve(
    world: World,
    step: int,
    groups: int,
    checkpointed: int | None = None,
    sampler: str = "trainer-a",
) -> Any:
    """Resumes and trains one step; the batch, and its rollouts as records."""
    parts: dict[str, Any] = {"broker": world.broker(), "store": world.blobs, "clock": world.clock}
    with Sampler(sampler, config=world.config, **parts) as trainer:
        trainer.resume(checkpointed)
        batch = trainer.next_batch(step, groups, timeout_s=TIMEOUT_S)
        records = [record for group in range(groups) for record in batch.records(group)]
        found = {
            "uids": list(batch.uids),
            "digest": batch.digest.hex(),
            "tokens": batch.tokens.tolist(),
            "records": {record.rollout_uid: _shown(record) for record in records},
        }
        trainer.ack(batch)
        trainer.checkpointed(step)
    return found


def _shown(record: Any) -> Any:
    names = (
        "region",
        "site",
        "sampler_seed",
        "notes",
        "entropies",
        "prefix_hash",
        "lineage",
        "rewards",
    )
    found = {name: getattr(record, name) for name in names if hasattr(record, name)}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in found.items()
    }


def replayed(world: World, step: int) -> Any:
    """Whether the recorded batch is decided again, and the files hold it."""
    again = replay_step(
        "trainer-a", step, config=world.config, broker=world.broker(), timeout_s=TIMEOUT_S
    )
    files = check_from_files("trainer-a", step, config=world.config, store=world.blobs)
    return {"again": [one.same for one in again], "files": files.same}


def dataset(world: World) -> Any:
    """The data set's rows by uid, without lists of tokens."""
    table = open_dataset(world.blobs.root).to_table()
    names = (
        "rollout_uid",
        "region",
        "sampler_seed",
        "notes",
        "entropies",
        "prefix_hash",
        "lineage",
    )
    rows = table.select([name for name in names if name in table.schema.names]).to_pylist()
    return {row["rollout_uid"]: row for row in rows}


def manifests(world: World) -> Any:
    """Of each manifest its offset, its groups and what only some versions have."""
    return [
        {
            "offset": manifest.offset,
            "groups": [group.group_uid for group in manifest.event.groups],
            "digests": [group.digest.hex() for group in manifest.event.groups],
            "region": getattr(manifest.event, "region", None),
            "retired": getattr(manifest.event, "retired", None),
        }
        for manifest in list_manifests(world.blobs)
    ]


def command(world: World, arguments: list[str]) -> Any:
    """Runs ``rollstream ARGUMENTS``."""
    done = world.run(*arguments)
    return {"exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}


def ends(world: World) -> Any:
    """How many records each log has."""
    topics = world.logs.topics()
    return {name: world.logs.bounds(TopicPartition(name, 0))[1] for name in topics}


ACTIONS: Mapping[str, Callable[..., Any]] = {
    action.__name__: action
    for action in (publish, seal, serve, replayed, dataset, manifests, command, ends)
}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        world = World(Path(asked["folder"]))
        try:
            result = ACTIONS[asked["do"]](world, **asked["arguments"])
        except RollstreamError as error:
            result = {"error": type(error).__name__, "message": str(error)}
        world.save()
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
