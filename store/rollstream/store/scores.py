"""Reads the set of late scores: each record once, with the version that it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rollstream.schemas.events import RolloutScore, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import NewestVersions
from rollstream.store.blobs import Blobs
from rollstream.store.layout import score_partition_in, scores_of
from rollstream.store.open import open_store
from rollstream.store.score_files import SCHEMA, score_tables

_READ_SCHEMA = SCHEMA.append(pa.field("version", pa.int32()))


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
        CorruptFile: a file is damaged, and no other one has what it had. StoreError: the root
            cannot be read.
    """
    blobs = open_store(str(root)) if isinstance(root, str | Path) else root
    tables = [_READ_SCHEMA.empty_table()]
    for partition in _partitions(blobs, environment, generation):
        versions = NewestVersions()
        for table in score_tables(blobs, PartitionAddress(environment, generation, partition)):
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
        CorruptFile: a file is damaged, and no other one has what it had.
    """
    partitions = _partitions(blobs, environment, generation)
    versions = NewestVersions(wanted)
    for partition in partitions:  # Those of a group are in one, and so those of a uid alone.
        for table in score_tables(blobs, PartitionAddress(environment, generation, partition)):
            for one in _scores_in(table):
                versions.add(*one)
    return versions if partitions else None


def _partitions(blobs: Blobs, environment: str, generation: int) -> list[int]:
    listed = (
        score_partition_in(blob.path) for blob in blobs.list(scores_of(environment, generation))
    )
    return sorted({number for number in listed if number is not None})


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
