"""Every path below a store's root (docs/architecture.md, "Files"). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from rollstream.schemas.ids import PartitionAddress

GROUPS = "groups"
INCOMPLETE = "incomplete"
MANIFESTS = "manifests"
ROLLUPS = "rollups"
RETIRED = "retired"
BATCHES = "batches"
SCORES = "scores"
SNAPSHOTS = "snapshots"
HINTS = "hints"
STAGING = "staging"
PROBES = "probes"
ROOT_ID = "root_id.json"
_PARTITION = re.compile(r"environment=([^/]+)/generation=([0-9]+)/partition=([0-9]+)/")
_POLICY_VERSION = re.compile(r"/policy_version=([^/]+)/")
_ROWS_NAME = re.compile(
    r"(?:groups|incomplete)/environment=([^/]+)/.*/([0-9]+)-g([0-9]+)-p([0-9]+)-[0-9]+(?:-[0-9]+)?"
    r"\.parquet"
)
_OFFSET_NAME = re.compile(r"(?:.*/)?([0-9]{20})\.json")
_SNAPSHOT_NAME = re.compile(r"(?:.*/)?([0-9]{20})\.snapshot")
_SCORES_NAME = re.compile(r".*/partition=[0-9]+/([0-9]{20})-([0-9]{20})\.parquet")
_STAGED_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{32})\.groups")
_BATCH_NAME = re.compile(r"(?:.*/)?trainer_epoch=([0-9]+)/([0-9]{12,})\.json")


def _value(text: str) -> str:
    """A hive partition value, escaped for paths as Spark and Arrow do."""
    return quote(text, safe=" _-.+@,") or "__HIVE_DEFAULT_PARTITION__"


def rows_path(
    kind: str, environment: str, policy_version: str, segment_idx: int, epoch: int, name: str
) -> str:
    """A Parquet file under ``groups/`` or ``incomplete/``."""
    return (
        f"{rows_prefix(kind, environment)}policy_version={_value(policy_version)}"
        f"/segment={segment_idx}/{epoch}-{name}.parquet"
    )


def flush_name(address: PartitionAddress, flush: int) -> str:
    """The last part of the names of a flush's files; a claim numbers its flushes."""
    return f"g{address.generation}-p{address.partition}-{flush}"


class RowsWriter(NamedTuple):
    """The partition that a Parquet file is of, and the epoch of the claim that wrote it."""

    address: PartitionAddress
    epoch: int


def rows_writer_in(path: str) -> RowsWriter | None:
    """The writer of a Parquet file under ``groups/`` or ``incomplete/``; None: no sealer named it
    so."""
    found = _ROWS_NAME.fullmatch(path)
    if found is None:
        return None
    address = PartitionAddress(unquote(found[1]), *map(int, found.group(3, 4)))
    return RowsWriter(address, int(found[2]))


def rows_prefix(kind: str, environment: str) -> str:
    """What the paths of an environment's Parquet files of that kind begin with."""
    return f"{kind}/environment={_value(environment)}/"


def policy_version_in(path: str) -> str:
    """The groups' policy version, of a path that ``rows_path`` made."""
    found = _POLICY_VERSION.search(path)
    assert found is not None, path
    return unquote(found[1])


def manifest_path(address: PartitionAddress, offset: int) -> str:
    """The manifest of the flush at this offset of the partition's seal log."""
    return f"{manifests_prefix(address)}{offset:020d}.json"


def manifests_prefix(address: PartitionAddress) -> str:
    """What the paths of all manifests of a partition begin with."""
    return f"{MANIFESTS}/{_partition(address)}/"


def manifests_of(environment: str, generation: int) -> str:
    """What the paths of all manifests of an environment's partitions begin with."""
    return f"{MANIFESTS}/{_environment(environment, generation)}/"


def address_in(path: str) -> PartitionAddress | None:
    """The partition of a manifest; None: the file is none, whoever put it there."""
    found = _PARTITION.search(path)
    return (
        None if found is None else PartitionAddress(unquote(found[1]), *map(int, found.group(2, 3)))
    )


def rollup_path(address: PartitionAddress, level: int, first: int, last: int) -> str:
    """What the manifests of a partition from one offset to another name, in one blob."""
    return f"{rollups_prefix(address)}{level}-{first:020d}-{last:020d}.json"


def rollups_prefix(address: PartitionAddress) -> str:
    """What the paths of all roll-ups of a partition begin with."""
    return f"{ROLLUPS}/{_partition(address)}/"


def retired_path(address: PartitionAddress, offset: int) -> str:
    """Which files of a partition are retired, after the event at this offset of its seal log."""
    return f"{retired_prefix(address)}{offset:020d}.json"


def retired_prefix(address: PartitionAddress) -> str:
    """What the paths of all blobs about a partition's retired files begin with."""
    return f"{RETIRED}/{_partition(address)}/"


def staged_path(address: PartitionAddress, staged_us: int, checksum: str) -> str:
    """Groups that were staged for a partition at this time, in one file of this checksum."""
    return f"{staged_prefix(address)}{staged_us:020d}-{checksum}.groups"


def staged_prefix(address: PartitionAddress) -> str:
    """What the paths of all groups that are staged for a partition begin with."""
    return f"{STAGING}/{_partition(address)}/"


def staged_in(address: PartitionAddress, path: str) -> tuple[int, str] | None:
    """When a file was staged, and its checksum; None: it is no such file of the partition."""
    prefix = staged_prefix(address)
    name = _STAGED_NAME.fullmatch(path.removeprefix(prefix)) if path.startswith(prefix) else None
    return None if name is None else (int(name[1]), name[2])


def rollup_in(path: str) -> tuple[int, int, int] | None:
    """The level of a roll-up, and the first and the last offset; None: the file is none, whoever
    put it there."""
    numbers = path.rpartition("/")[2].removesuffix(".json").split("-")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None
    level, first, last = map(int, numbers)
    return level, first, last


def offset_in(path: str) -> int | None:
    """Of a manifest, or of a blob about retired files; None: the file is neither, whoever put it
    there."""
    name = _OFFSET_NAME.fullmatch(path)
    return None if name is None else int(name[1])


def batch_path(sampler: str, trainer_epoch: int, step: int) -> str:
    """The JSON file of a batch that a sampler served."""
    return f"{batches_prefix(sampler)}trainer_epoch={trainer_epoch}/{step:012d}.json"


def batches_prefix(sampler: str) -> str:
    """What the paths of all batches of a sampler begin with."""
    return f"{BATCHES}/sampler={_value(sampler)}/"


def newest_batches_prefix(sampler: str) -> str:
    """The blobs that name the newest batches of a sampler; no ``*.json``, which are batches."""
    return f"{batches_prefix(sampler)}newest/"


def newest_batch_path(sampler: str, claim: int) -> str:
    """The JSON blob that names the newest batch that was decided under a claim."""
    return f"{newest_batches_prefix(sampler)}{claim:012d}"


def examples_path(examples_id: str) -> str:
    """The Parquet file of the examples that were made of a batch."""
    return f"{BATCHES}/examples/{_value(examples_id)}.parquet"


def batch_in(path: str) -> tuple[int, int] | None:
    """Trainer epoch and step of a batch; None: the file is none, whoever put it there."""
    name = _BATCH_NAME.fullmatch(path)
    return None if name is None else (int(name[1]), int(name[2]))


def snapshot_path(sampler: str, log: str, offset: int) -> str:
    """A sampler's state over its decision log ``log`` below this offset."""
    return f"{snapshots_prefix(sampler, log)}{offset:020d}.snapshot"


def snapshots_prefix(sampler: str, log: str) -> str:
    """What the paths of all snapshots of a sampler begin with."""
    return f"{SNAPSHOTS}/sampler={_value(sampler)}/log={_value(log)}/"


def hint_path(sampler: str, log: str, kind: str) -> str:
    """What readers of this kind made of a sampler's decision log ``log``."""
    return f"{HINTS}/sampler={_value(sampler)}/log={_value(log)}/{kind}.hint"


def snapshot_offset_in(path: str) -> int | None:
    """Of a snapshot; None: the file is none, whoever put it there."""
    name = _SNAPSHOT_NAME.fullmatch(path)
    return None if name is None else int(name[1])


def scores_path(address: PartitionAddress, first: int, stop: int) -> str:
    """The Parquet file of the scores at offsets [first, stop) of the partition's log."""
    return f"{scores_prefix(address)}{first:020d}-{stop:020d}.parquet"


def scores_prefix(address: PartitionAddress) -> str:
    """What the paths of all scores of a partition begin with."""
    return f"{SCORES}/{_partition(address)}/"


def scores_of(environment: str, generation: int) -> str:
    """What the paths of all scores of an environment begin with."""
    return f"{SCORES}/{_environment(environment, generation)}/"


def score_range_in(path: str) -> tuple[int, int] | None:
    """The offsets of a file of scores; None: the file is none, whoever put it there."""
    name = _SCORES_NAME.fullmatch(path)
    return None if name is None else (int(name[1]), int(name[2]))


def score_partition_in(path: str) -> int | None:
    """The partition of the same."""
    name = _SCORES_NAME.fullmatch(path)
    return None if name is None else int(path.rpartition("/partition=")[2].partition("/")[0])


def _partition(address: PartitionAddress) -> str:
    return f"{_environment(address.environment, address.generation)}/partition={address.partition}"


def _environment(name: str, generation: int) -> str:
    return f"environment={_value(name)}/generation={generation}"
