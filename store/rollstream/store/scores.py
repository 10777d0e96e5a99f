"""The set of late scores: Parquet files that hold what the logs of scores hold, and their reader.

A file is a function of the records of one partition from the first offset in its name up to the
last one, so that writers may repeat one another, and two of them overlap: the reader takes each
record once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
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
from rollstream.store.rollups import ROLLED_TOGETHER

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
FILE_RECORDS_MAX = 65_536  # Of one file that is written: some 10 MB.
_READ_SCHEMA = SCHEMA.append(pa.field("version", pa.int32()))


class LoggedScore(NamedTuple):
    """A record of a log of scores."""

    offset: int
    logged_ts: int
    event: Scored


class ScoreOrigin(NamedTuple):
    """What sets a record apart from one at the same offset of another log."""

    logged_ts: int
    scored_ts: int
    scorer: str
    attempt: str
    group_id: str

    @classmethod
    def of(cls, record: LoggedScore) -> ScoreOrigin:
        """Of a record."""
        event = record.event
        return cls(record.logged_ts, event.scored_ts, event.scorer, event.attempt, event.group_id)


def written_up_to(blobs: Blobs, address: PartitionAddress) -> int:
    """The first offset of the partition's log that no file covers; the one before it is that of a
    record that can be used."""
    files = _read_in_turn(blobs, address)
    return files[-1].stop if files else 0


def last_written(blobs: Blobs, address: PartitionAddress) -> ScoreOrigin | None:
    """The last record before ``written_up_to``; None: there is none, or its file is damaged, which
    says nothing of the log."""
    files = _read_in_turn(blobs, address)
    try:
        table = _table(blobs, files[-1].path) if files else SCHEMA.empty_table()
    except CorruptFile:
        return None
    if not table.num_rows:
        return None
    columns = [table[name][-1:] for name in ScoreOrigin._fields]
    return ScoreOrigin(
        *(column.cast(pa.int64())[0].as_py() for column in columns[:2]),
        *(column[0].as_py() for column in columns[2:]),
    )


def write_scores(
    blobs: Blobs, address: PartitionAddress, first: int, stop: int, records: Sequence[LoggedScore]
) -> None:
    """Writes the records of [first, stop), all that can be used of them; a file that is there
    already stays."""
    rows = [row for record in records for row in _rows_of(address, record)]
    _write(blobs, address, first, stop, pa.Table.from_pylist(rows, SCHEMA))


def roll_up_scores(blobs: Blobs, address: PartitionAddress) -> None:
    """Joins the newest files where ``ROLLED_TOGETHER`` or more of them are smaller than one may be.
    They stay, and are opened no more: readers take the longest file at each offset. So what is
    opened is a file for each ``FILE_RECORDS_MAX`` records, and fewer than ``ROLLED_TOGETHER`` more.

    Raises:
        CorruptFile: one is damaged. StoreError.
    """
    small: list[_ScoreFile] = []
    for file in _read_in_turn(blobs, address):
        small = [*small, file] if file.stop - file.first < FILE_RECORDS_MAX else []
    if len(small) < ROLLED_TOGETHER:
        return
    first, tables = small[0].first, list[pa.Table]()
    position = first
    for file in small:
        if position - first >= FILE_RECORDS_MAX:
            break
        tables.append(_table(blobs, file.path, position))
        position = file.stop
    _write(blobs, address, first, position, pa.concat_tables(tables))


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
    tables = [_READ_SCHEMA.empty_table()]
    for partition in _partitions(blobs, environment, generation):
        versions = NewestVersions()
        for table in _tables(blobs, PartitionAddress(environment, generation, partition)):
            counted = pa.array([versions.add(*one) for one in _scores_in(table)], pa.int32())
            tables.append(table.append_column("version", counted))
    return pa.concat_tables(tables)


def newest_scores(
    blobs: Blobs, environment: str, generation: int, *, wanted: int | None = None
) -> NewestVersions | None:
    """The newest versions of the scores that are in files; None: there are no files.

    Args:
        wanted: as ``NewestVersions`` has it.

    Raises:
        CorruptFile: a file is damaged.
    """
    partitions = _partitions(blobs, environment, generation)
    versions = NewestVersions(wanted)
    for partition in partitions:  # Those of a group are in one, and so those of a uid alone.
        for table in _tables(blobs, PartitionAddress(environment, generation, partition)):
            for one in _scores_in(table):
                versions.add(*one)
    return versions if partitions else None


def _partitions(blobs: Blobs, environment: str, generation: int) -> list[int]:
    listed = (
        score_partition_in(blob.path) for blob in blobs.list(scores_of(environment, generation))
    )
    return sorted({number for number in listed if number is not None})


class _ScoreFile(NamedTuple):
    """Of the offsets [first, stop)."""

    first: int
    stop: int
    path: str


def _read_in_turn(blobs: Blobs, address: PartitionAddress) -> list[_ScoreFile]:
    """The files that readers open, one after the other, up to the first gap: behind it versions are
    not known."""
    found = ((score_range_in(blob.path), blob.path) for blob in blobs.list(scores_prefix(address)))
    files = [_ScoreFile(*at, path) for at, path in found if at is not None]
    chosen: list[_ScoreFile] = []
    position = 0
    for file in sorted(files, key=lambda file: (file.first, -file.stop)):
        if file.first > position:
            break
        if file.stop > position:
            chosen.append(file)
            position = file.stop
    return chosen


def _table(blobs: Blobs, path: str, position: int = 0) -> pa.Table:
    """The rows of a file from an offset on."""
    try:
        table = pq.read_table(pa.BufferReader(blobs.read(path)))
        return table.filter(pc.greater_equal(table["log_offset"], position))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptFile(f"{path} is damaged: {error}") from error


def _write(blobs: Blobs, address: PartitionAddress, first: int, stop: int, table: pa.Table) -> None:
    out = BytesIO()
    pq.write_table(table, out, compression="zstd")
    blobs.replace(scores_path(address, first, stop), out.getvalue())


def _tables(blobs: Blobs, address: PartitionAddress) -> Iterator[pa.Table]:
    """The rows of each record once, in order."""
    position = 0
    for file in _read_in_turn(blobs, address):
        yield _table(blobs, file.path, position)
        position = file.stop


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


def _scores_in(table: pa.Table) -> Iterator[tuple[Scored, RolloutScore, int]]:
    """The score of each row, of a record of its own, and its log time."""
    times = (table[name].cast(pa.int64()) for name in ("logged_ts", "scored_ts"))
    names = ("group_id", "rollout_uid", "scorer", "attempt", "reward", "rewards", "flags")
    columns = [*times, *(table[name] for name in (*names, "expect_version"))]
    for (
        logged_ts,
        scored_ts,
        group_id,
        uid,
        scorer,
        attempt,
        reward,
        rewards,
        flags,
        expected,
    ) in zip(*(column.to_pylist() for column in columns), strict=True):
        score = RolloutScore(uid, reward, dict(rewards), tuple(flags))
        event = Scored(
            scorer=scorer,
            attempt=attempt,
            group_id=group_id,
            scored_ts=scored_ts,
            scores=(score,),
            expect_version=expected,
        )
        yield event, score, logged_ts
