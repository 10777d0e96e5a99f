"""The set of late scores: Parquet files that hold what the logs of scores hold, and their reader.

A file is a function of the records of one partition from the first offset in its name up to the
last one, so that writers may repeat one another, and two of them overlap: the reader takes each
record once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.schemas.events import RolloutScore, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import NewestVersions
from rollstream.store.blobs import Blobs
from rollstream.store.errors import CorruptFile
from rollstream.store.layout import (
    score_partition_in,
    score_range_in,
    scores_of,
    scores_path,
    scores_prefix,
)
from rollstream.store.open import open_store

SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("rollout_uid", pa.string()),
        ("scorer", pa.string()),
        ("attempt", pa.string()),
        ("reward", pa.float64()),
        ("rewards", pa.map_(pa.string(), pa.float64())),
        ("flags", pa.list_(pa.string())),
        ("expect_version", pa.int32()),
        ("logged_ts", pa.timestamp("us", tz="UTC")),
        ("scored_ts", pa.timestamp("us", tz="UTC")),
        ("log_generation", pa.int32()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("log_entry", pa.int32()),
    ]
)
_READ_SCHEMA = SCHEMA.append(pa.field("version", pa.int32()))


class LoggedScore(NamedTuple):
    """A record of a log of scores."""

    offset: int
    logged_ts: int
    event: Scored


def written_up_to(blobs: Blobs, address: PartitionAddress) -> int:
    """The first offset of the partition's log that no file covers."""
    position = 0
    for first, stop, _ in _ranges(blobs, address):
        if first > position:
            break
        position = max(position, stop)
    return position


def write_scores(
    blobs: Blobs, address: PartitionAddress, first: int, stop: int, records: Sequence[LoggedScore]
) -> None:
    """Writes the records of [first, stop), all that can be used of them; a file that is there
    already stays."""
    rows = [row for record in records for row in _rows_of(address, record)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    out = BytesIO()
    pq.write_table(table, out, compression="zstd")
    blobs.replace(scores_path(address, first, stop), out.getvalue())


def open_scores(root: str | Path | Blobs, environment: str, *, generation: int = 1) -> pa.Table:
    """All scores of an environment that are in files, each once: a row a rollout, or one without
    ``rollout_uid`` for a whole group; in the order of partitions and offsets.

    Column ``version`` counts, from 1, the scores of one rollout by one scorer, as samplers count
    them; null: the row changes nothing, since it says again what the version before it says, or
    expected another version (``expect_version``). Scores of a rollout by uid alone count apart from
    those with its group's id; among these are those of the whole group, whose rows have the
    greatest version that they are of any rollout.

    Args:
        root: ``store.root``, or the blobs below it.

    Raises:
        CorruptFile: a file is damaged. StoreError: the root cannot be read.
    """
    blobs = open_store(str(root)) if isinstance(root, str | Path) else root
    rows: list[dict[str, Any]] = []
    listed = [
        score_partition_in(blob.path) for blob in blobs.list(scores_of(environment, generation))
    ]
    for partition in sorted({number for number in listed if number is not None}):
        rows += _with_versions(_rows(blobs, PartitionAddress(environment, generation, partition)))
    return pa.Table.from_pylist(rows, _READ_SCHEMA)


def _ranges(blobs: Blobs, address: PartitionAddress) -> list[tuple[int, int, str]]:
    """First offset, the one after the last, and path of each file, as they are read."""
    found = ((score_range_in(blob.path), blob.path) for blob in blobs.list(scores_prefix(address)))
    return sorted((*at, path) for at, path in found if at is not None)


def _rows(blobs: Blobs, address: PartitionAddress) -> Iterator[dict[str, Any]]:
    """Of each record once, up to the first gap: behind it versions are not known."""
    position = 0
    for first, stop, path in _ranges(blobs, address):
        if first > position:
            return
        if stop <= position:
            continue
        try:
            table = pq.read_table(pa.BufferReader(blobs.read(path)))
        except (pa.ArrowException, OSError) as error:
            raise CorruptFile(f"{path} is damaged: {error}") from error
        yield from (row for row in table.to_pylist() if row["log_offset"] >= position)
        position = stop


def _rows_of(address: PartitionAddress, record: LoggedScore) -> Iterator[dict[str, Any]]:
    event = record.event
    for entry, one in enumerate(event.scores[: None if event.group_id else 1]):
        yield {
            "group_id": event.group_id,
            "rollout_uid": one.rollout_uid,
            "scorer": event.scorer,
            "attempt": event.attempt,
            "reward": one.reward,
            "rewards": sorted(one.rewards.items()),
            "flags": list(one.flags),
            "expect_version": event.expect_version,
            "logged_ts": record.logged_ts,
            "scored_ts": event.scored_ts,
            "log_generation": address.generation,
            "log_partition": address.partition,
            "log_offset": record.offset,
            "log_entry": entry,
        }


def _with_versions(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    versions = NewestVersions()
    for row in rows:
        rewards, flags = dict(row["rewards"]), tuple(row["flags"])
        score = RolloutScore(row["rollout_uid"], row["reward"], rewards, flags)
        event = Scored(
            scorer=row["scorer"],
            attempt=row["attempt"],
            group_id=row["group_id"],
            scored_ts=0,
            scores=(score,),
            expect_version=row["expect_version"],
        )
        yield {**row, "version": versions.add(event, score)}
