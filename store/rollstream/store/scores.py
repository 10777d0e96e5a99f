"""Reads the set of late scores: each record once, with the version that it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollstream.schemas.events import RolloutScore, Scored, ServedScore
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import BY_TIME, NO_VERSION, NewestVersions, next_version
from rollstream.store.blobs import Blobs
from rollstream.store.layout import score_partition_in, scores_of
from rollstream.store.open import open_store
from rollstream.store.score_files import SCHEMA, score_tables

_READ_SCHEMA = SCHEMA.append(pa.field("version", pa.int32()))


def open_scores(root: str | Path | Blobs, environment: str, *, generation: int = 1) -> pa.Table:
    """Returns all scores of an environment that are in files, each once, as a pyarrow table.

    A row is the score of one rollout; without ``rollout_uid`` it is the score of a whole group.
    Rows are in the order of partitions and offsets. Scores that came too early or too late for
    their group are in it, too.

    Column ``version`` counts, from 1, the scores of one rollout by one scorer, as samplers count
    them. Null: the row changes nothing, since it repeats the version before, or expected another
    version (``expect_version``). Scores by uid alone count apart from scores with the group's id. A
    row of a whole group has the greatest version that it is for any rollout.

    Args:
        root: ``store.root``, or the blobs below it.
        environment: whose scores.
        generation: of the topics.

    Raises:
        CorruptFile: a file is damaged, and no other one has its scores.
        StoreError: the root cannot be read.
    """
    blobs = open_store(str(root)) if isinstance(root, str | Path) else root
    tables = [_READ_SCHEMA.empty_table()]
    for partition in _partitions(blobs, environment, generation):
        versions = NewestVersions()
        for table in score_tables(blobs, PartitionAddress(environment, generation, partition)):
            counted = pa.array([versions.add(*one) for one in _scores_in(table)], pa.int32())
            tables.append(table.append_column("version", counted))
    return pa.concat_tables(tables)


class FiledScores:
    """The newest versions of an environment's scores, as ``NewestVersions`` gives them.

    Where one row alone speaks of a rollout, and no score of the rollout's whole group was found,
    that row is version 1: such rows stay columns, found by the hash of the uid. Of the other rows
    versions are counted, one after the other.

    Args:
        tables: of all scores, in order.
        wanted: as ``NewestVersions`` has it.
    """

    def __init__(self, tables: Sequence[pa.Table], wanted: int | None = None) -> None:
        table = pa.concat_tables([SCHEMA.empty_table(), *tables]).combine_chunks()
        uids, groups = table["rollout_uid"], table["group_id"]
        hashes = _hashes(uids.to_pylist())
        _, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
        once = np.zeros(len(hashes), np.bool_)
        once[firsts[counts == 1]] = True
        of_group = pc.unique(groups.filter(pc.equal(uids, "")))
        once &= _bools(pc.equal(pc.fill_null(table["expect_version"], NO_VERSION), NO_VERSION))
        once &= ~_bools(pc.is_in(groups, value_set=of_group)) & _bools(pc.not_equal(uids, ""))

        self._scored_once = wanted in (None, 1)
        self._once = table if once.all() else table.filter(pa.array(once)).combine_chunks()
        self._rewards = self._once["reward"].to_numpy()
        self._order = np.argsort(hashes[once])
        self._hashes = hashes[once][self._order]

        others = table.filter(pa.array(~once))
        self._newest = NewestVersions(wanted)
        for one in _scores_in(others):
            self._newest.add(*one)
        self._counted = frozenset(others["rollout_uid"].to_pylist())
        self._of_group = frozenset(of_group.to_pylist())

    def in_effect(
        self, group_id: str, uid: str, scorer: str, *, is_late: bool
    ) -> ServedScore | None:
        """As ``NewestVersions.in_effect``."""
        found = [self._newest.in_effect(group_id, uid, scorer, is_late=is_late)]
        for row in self._rows([group_id], [uid], scorer, np.array([is_late])).tolist():
            for one in _scores_in(self._once[row : row + 1] if row >= 0 else self._once[:0]):
                found.append(next_version(None, 0, *one))
        return max((one for one in found if one), key=BY_TIME, default=None)

    def rewards(
        self,
        group_ids: Sequence[str],
        uids: Sequence[str],
        scorer: str,
        are_late: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """float64 [rollouts]: the rewards of the scores ``in_effect``; NaN: there is none."""
        rows = self._rows(group_ids, uids, scorer, are_late)
        rewards = np.full(len(rows), np.nan)
        rewards[rows >= 0] = self._rewards[rows[rows >= 0]]
        if self._counted:
            for at, (group, uid) in enumerate(zip(group_ids, uids, strict=True)):
                if uid in self._counted or group in self._of_group:
                    newest = self._newest if rows[at] < 0 else self
                    score = newest.in_effect(group, uid, scorer, is_late=bool(are_late[at]))
                    rewards[at] = np.nan if score is None else score.reward
        return rewards

    def _rows(
        self,
        group_ids: Sequence[str],
        uids: Sequence[str],
        scorer: str,
        are_late: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """int64 [rollouts]: the row that alone speaks of each and counts; -1: none does."""
        rows = np.full(len(uids), -1)
        if not self._scored_once or not len(self._hashes):
            return rows
        hashes = _hashes(uids)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        hits = np.flatnonzero((self._hashes[at] == hashes) & (are_late | bool(scorer)))
        found = self._order[at[hits]]
        said = self._once.select(["group_id", "rollout_uid", "scorer"]).take(pa.array(found))
        # Hashes of two uids may be the same.
        fits = _bools(pc.equal(said["rollout_uid"], pa.array(uids, pa.string()).take(hits)))
        same_group = pc.equal(said["group_id"], pa.array(group_ids, pa.string()).take(hits))
        fits &= _bools(pc.or_(pc.equal(said["group_id"], ""), same_group))
        if scorer:
            fits &= _bools(pc.equal(said["scorer"], scorer))
        rows[hits[fits]] = found[fits]
        return rows


def filed_scores(
    blobs: Blobs, environment: str, generation: int, *, wanted: int | None = None
) -> FiledScores | None:
    """The scores that are in files; None: there are no files.

    Args:
        wanted: as ``NewestVersions`` has it.

    Raises:
        CorruptFile: a file is damaged, and no other one has what it had.
    """
    partitions = _partitions(blobs, environment, generation)
    tables = [  # Scores of a group are in one partition, and so those of a uid alone.
        table
        for partition in partitions
        for table in score_tables(blobs, PartitionAddress(environment, generation, partition))
    ]
    return FiledScores(tables, wanted) if partitions else None


def _hashes(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(hash, texts), np.int64, len(texts))


def _bools(values: pa.ChunkedArray | pa.Array) -> NDArray[np.bool_]:
    return np.asarray(values, np.bool_)


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
