"""Reads a run from the files under the store's root: each manifest once, and each batch once for
each time that it was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from rollstream.folds.group.known import TRAIN
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.history.batch_files import DAMAGED, groups_in, standing_files
from rollstream.sampler.history.ranking import RankedRows
from rollstream.sampler.history.report_fold import unsealed_in
from rollstream.sampler.history.run.columns import NO_STEP, Ended, RunColumns, joined
from rollstream.sampler.history.scored_rewards import ScoredRewards
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, CorruptFile, NewerFile
from rollstream.store.layout import (
    MANIFESTS,
    SCORES,
    address_in,
    batch_in,
    batches_prefix,
    offset_in,
)
from rollstream.store.manifests import FlushColumns, read_columns
from rollstream.store.rollups import VisibleFile

# Groups of an open batch may give way to others. Each look reads a few of the newest batches again,
# and one of so many before, so that a file that was written anew with the same size is seen, too.
OPEN = 4
REREAD = 64
_SEGMENTS = ("uids", "segment_idxs", "weight_steps", "token_counts", "rewards", "created_ts")


class _Flush(NamedTuple):
    """What is kept of a flush; columns have a row a rollout, or a group."""

    address: PartitionAddress
    offset: int
    ts: int
    uids: bytes
    files: list[VisibleFile]
    examples: list[str]
    policies: list[str]
    is_eval: NDArray[np.bool_]
    group_ids: list[str]
    group_of: NDArray[np.int64]
    rewards: NDArray[np.float64]  # Of the last segment of each, as published; and of those before.
    earlier: NDArray[np.float64]
    tokens: NDArray[np.int64]
    weight_steps: NDArray[np.int64]
    made_ts: NDArray[np.int64]
    rows: NDArray[np.int64]  # The first one of each rollout, in its group.
    ended: list[Ended]


class _Masked(NamedTuple):
    """A group of which a batch has some rows; ``group`` is one of the batch."""

    group: int
    rows: NDArray[np.bool_]


class _Batch(NamedTuple):
    """A batch by its file of ``size`` bytes. ``refs``: int64 [groups, 2], the number of its flush
    and the index there."""

    size: int
    ts: int
    clock: int
    groups: int
    refs: NDArray[np.int64]
    masked: list[_Masked]


class RunFiles:
    """What files know of a sampler's run. A run that is over, crashed, or has lost its logs is read
    like one that goes on.

    What cannot be read is passed over and named in ``RunColumns.unreadable``.

    Args:
        name: of the sampler; if it is configured, its environments alone count.
    """

    def __init__(self, store: Blobs, config: RollstreamConfig, name: str) -> None:
        self._store, self._config, self._name = store, config, name
        section = config.samplers.get(name)
        self._environments = None if section is None else set(section.environments)
        self._flushes: dict[str, _Flush] = {}
        self._batches: dict[str, _Batch] = {}
        self._named: dict[tuple[object, ...], int] = {}  # Flushes that batches name: log, offset.
        self._scores: list[str] | None = None
        self._scored: ScoredRewards | None = None
        self._unreadable: dict[str, str] = {}
        self._unread = 0
        self._looks = 0

    def refresh(self, deadline: Deadline | None = None) -> bool:
        """Reads what came since the last call; returns whether anything did.

        Args:
            deadline: then the oldest manifests and batches are left for the next call; how many,
                ``RunColumns.unread`` says. One of each is read whenever. None: all are read.

        Raises:
            StoreError: the store does not answer.
        """
        before, self._unreadable = self._unreadable, {}
        # A batch is listed before the manifests of its groups, which were there before it.
        half_s = 0.0 if deadline is None else deadline.left_s() / 2
        batches = self._read_batches(lambda: deadline is None or deadline.left_s() > half_s)
        flushes = self._read_flushes(lambda: deadline is None or deadline.left_s() > 0)
        scores = self._list_scores()
        return batches or flushes or scores or self._unreadable != before

    def columns(self) -> RunColumns:
        """All that was read so far."""
        flushes = sorted(self._flushes.values(), key=lambda one: one.ts)
        rollouts = np.array([len(one.group_of) for one in flushes], np.int64)
        groups = np.array([len(one.examples) for one in flushes], np.int64)
        first_groups = np.cumsum(groups) - groups
        environments = sorted({one.address.environment for one in flushes})
        number_of = {name: number for number, name in enumerate(environments)}
        policies: dict[str, int] = {}
        policy_of = [
            policies.setdefault(name, len(policies)) for one in flushes for name in one.policies
        ]
        group_of = _joined([one.group_of for one in flushes], np.int64)
        group_of += np.repeat(first_groups, rollouts)
        standing = self._standing()
        steps, taken = self._steps(flushes, first_groups, group_of, standing)
        batches = [self._batches[path] for path in standing.values()]
        return RunColumns(
            environments=environments,
            policies=list(policies),
            uids=[one.uids for one in flushes],
            flush_starts=np.cumsum(rollouts) - rollouts,
            files=[file for one in flushes for file in one.files],
            examples=[example for one in flushes for example in one.examples],
            group_environment=np.repeat(
                np.array([number_of[one.address.environment] for one in flushes], np.int32), groups
            ),
            group_policy=np.array(policy_of, np.int32),
            group_is_eval=_joined([one.is_eval for one in flushes], np.bool_),
            group_sealed_ts=np.repeat(np.array([one.ts for one in flushes], np.int64), groups),
            group_of=group_of.astype(np.int32),
            rewards=self._rewards(flushes),
            tokens=_joined([one.tokens for one in flushes], np.int64),
            weight_steps=_joined([one.weight_steps for one in flushes], np.int64),
            made_ts=_joined([one.made_ts for one in flushes], np.int64),
            steps=steps,
            batch_steps=np.array([*standing], np.int64),
            batch_ts=np.array([one.ts for one in batches], np.int64),
            batch_clock=np.array([one.clock for one in batches], np.int64),
            batch_groups=np.array([one.groups for one in batches], np.int64),
            taken=taken,
            ended=[ended for one in flushes for ended in one.ended],
            unread=self._unread,
            unreadable=dict(self._unreadable),
        )

    # Reading.

    def _read_flushes(self, go_on: Callable[[], bool]) -> bool:
        left: list[tuple[int, str, PartitionAddress]] = []
        for path, _ in self._store.list(f"{MANIFESTS}/"):
            address, offset = address_in(path), offset_in(path)
            if path in self._flushes or address is None or offset is None:
                continue
            if self._environments is None or address.environment in self._environments:
                left.append((offset, path, address))
        left.sort()
        new, before = False, len(left)
        while left and (len(left) == before or go_on()):
            offset, path, address = left.pop()
            try:
                event = read_columns(self._store, path, _SEGMENTS)
                self._flushes[path] = _flush_of(address, offset, event)
                new = True
            except (BlobMissing, CorruptFile, NewerFile) as error:
                self._unreadable[path] = str(error)
            except DAMAGED as error:
                self._unreadable[path] = f"it is damaged: {error!r}"
        self._unread += len(left)
        return new

    def _read_batches(self, go_on: Callable[[], bool]) -> bool:
        sizes = dict(self._store.list(batches_prefix(self._name)))
        listed = [path for path in sizes if batch_in(path) is not None]
        for path in self._batches.keys() - {*listed}:
            del self._batches[path]
        known = {path: one.size for path, one in self._batches.items()}
        newest = listed[-REREAD:]
        again = {*newest[-OPEN:], *newest[self._looks % max(1, len(newest)) :][:1]}
        self._looks += 1
        changed = [path for path in listed if known.get(path) != sizes[path]]
        left = [*sorted(again.difference(changed)), *changed]  # From the end.
        new, before = False, len(left)
        while left and (len(left) == before or go_on()):
            new |= self._read_batch(left.pop())
        self._unread = sum(path not in self._batches for path in left)
        return new

    def _read_batch(self, path: str) -> bool:
        """Whether it says something new."""
        try:
            batch = self._batch_of(self._store.read(path))
        except BlobMissing:
            return False  # It was deleted since it was listed.
        except DAMAGED as error:
            self._unreadable[path] = f"it is damaged: {error!r}"
            return False
        before = self._batches.get(path)
        self._batches[path] = batch
        return before is None or before.refs.tobytes() != batch.refs.tobytes()

    def _batch_of(self, data: bytes) -> _Batch:
        content: dict[str, Any] = orjson.loads(data)
        refs: list[tuple[int, int]] = []
        masked = []
        for ref, rows, _ in groups_in(content):
            if rows is not None:
                masked.append(_Masked(len(refs), np.array(rows, np.bool_)))
            flush = self._named.setdefault(ref[:4], len(self._named))
            refs.append((flush, ref.index_in_flush))
        current = content.get("current_step")
        clock = content["step"] if current is None or current < 0 else current
        return _Batch(
            len(data),
            int(content["ts"]),
            max(clock, content["policy_step"]),
            len(content["groups"]),
            np.array(refs, np.int64).reshape(-1, 2),
            masked,
        )

    def _list_scores(self) -> bool:
        listed = [blob.path for blob in self._store.list(f"{SCORES}/")]
        if listed == self._scores:
            return False
        self._scores = listed
        self._scored = ScoredRewards(self._store, self._config, self._name) if listed else None
        return True

    # Joining.

    def _rewards(self, flushes: Sequence[_Flush]) -> NDArray[np.float64]:
        """float64 [rollouts]."""
        parts, damaged = [], set[tuple[str, int]]()  # Whose scores cannot be read.
        for one in flushes:
            of = one.address.environment, one.address.generation
            if self._scored is None or of in damaged:
                parts.append(one.earlier + one.rewards)
                continue
            columns: Mapping[str, Any] = {
                "reward": one.rewards,
                "segment_idx": np.zeros(len(one.rewards), np.int32),
            }

            def names(flush: _Flush = one) -> tuple[Sequence[str], Sequence[str]]:
                ids = [flush.group_ids[group] for group in flush.group_of.tolist()]
                return ids, flush.uids.decode(errors="replace").split("\n")

            try:
                last = self._scored.rewards(one.address, columns, names)
            except CorruptFile as error:
                self._unreadable[f"{SCORES}/"] = str(error)
                damaged.add(of)
                last = one.rewards
            parts.append(one.earlier + last)
        return _joined(parts, np.float64)

    def _standing(self) -> dict[int, str]:
        """By step, the path of the batch that no rewind has undone."""
        paths = {batch_in(path): path for path in self._batches}
        named = standing_files(cast(list[tuple[int, int]], [*paths]))
        return {step: paths[epoch, step] for step, epoch in sorted(named.items())}

    def _steps(
        self,
        flushes: Sequence[_Flush],
        first_groups: NDArray[np.int64],
        group_of: NDArray[np.int64],
        standing: Mapping[int, str],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64 [rollouts] the step of each, and ``RunColumns.taken``."""
        batches = [(step, self._batches[path]) for step, path in standing.items()]
        counts = np.array([len(one.refs) for _, one in batches], np.int64)
        refs = _joined([one.refs for _, one in batches], np.int64).reshape(-1, 2)
        numbers = self._numbers(refs, flushes, first_groups)
        step_of = np.repeat(np.array([*standing], np.int64), counts)
        whole = numbers >= 0
        masked = [
            (step, start + one.group, one.rows)
            for (step, batch), start in zip(batches, np.cumsum(counts) - counts, strict=True)
            for one in batch.masked
        ]
        whole[[at for _, at, _ in masked]] = False
        group_steps = np.full(int(sum(len(one.examples) for one in flushes)), NO_STEP)
        group_steps[numbers[whole]] = step_of[whole]
        steps = group_steps[group_of] if len(group_of) else np.zeros(0, np.int64)
        rows = _joined([one.rows for one in flushes], np.int64)
        for step, at, mask in masked:
            number = int(numbers[at])
            if number >= 0:
                first, stop = np.searchsorted(group_of, [number, number + 1]).tolist()
                kept = first + np.flatnonzero(mask[rows[first:stop]])
                steps[kept] = step
        known = numbers >= 0
        return steps, np.stack([numbers[known], step_of[known]], axis=1)

    def _numbers(
        self,
        refs: NDArray[np.int64],
        flushes: Sequence[_Flush],
        first_groups: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """int64 [refs] the number of each group; -1: its manifest is not there."""
        flush_of = np.full(len(self._named), len(flushes))  # By number: its index here.
        for at, one in enumerate(flushes):
            if (number := self._named.get((*one.address, one.offset))) is not None:
                flush_of[number] = at
        counts = np.array([*(len(one.examples) for one in flushes), 0])
        at_flush, indexes = flush_of[refs[:, 0]], refs[:, 1]
        there = (indexes >= 0) & (indexes < counts[at_flush])
        return np.where(there, np.append(first_groups, 0)[at_flush] + indexes, -1)


def _flush_of(address: PartitionAddress, offset: int, event: FlushColumns) -> _Flush:
    segments, groups = event.segments, event.groups
    counts = np.array([group["rows"] for group in groups], np.int64)
    ranked = RankedRows.of(segments["segment_idxs"], segments["rewards"], segments["token_counts"])
    starts, uids = ranked.starts, segments["uids"]
    if len(starts) != len(uids):
        uids = [uids[row] for row in starts.tolist()]
    lasts = segments["rewards"][starts + ranked.rows - 1]
    firsts = np.cumsum(counts) - counts
    group_of = np.searchsorted(firsts, starts, side="right") - 1
    steps = segments["weight_steps"]
    files = [VisibleFile(address, offset, path) for path in event.paths]
    return _Flush(
        address=address,
        offset=offset,
        ts=int(event.now_ts),
        uids=joined(uids),
        files=[files[group["file"]] for group in groups],
        examples=[group["example_id"] for group in groups],
        policies=[group["policy_version"] for group in groups],
        is_eval=np.array([group["split"] != TRAIN for group in groups], np.bool_),
        group_ids=[group["group_id"] for group in groups],
        group_of=group_of,
        rewards=lasts,
        earlier=_sums(segments["rewards"], starts) - np.nan_to_num(lasts),
        tokens=ranked.tokens,
        weight_steps=np.minimum.reduceat(steps, starts) if len(starts) else steps,
        made_ts=segments["created_ts"][starts + ranked.rows - 1],
        rows=starts - firsts[group_of],
        ended=_ended(address.environment, event),
    )


def _ended(environment: str, event: FlushColumns) -> list[Ended]:
    """Members without a row."""
    ended = partial(Ended, environment=environment, ts=event.now_ts)
    unsealed = unsealed_in(event.settled, event.unread).items()
    failed = [(one.reason, int(one.members.sum())) for one in event.failed]
    return [
        *(ended(reason=reason, members=members, failed=False) for reason, members in unsealed),
        *(ended(reason=reason, members=members, failed=True) for reason, members in failed),
    ]


def _sums(rewards: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.add.reduceat(np.nan_to_num(rewards), starts) if len(starts) else rewards


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros((0, *parts[0].shape[1:]) if parts else 0, dtype), *parts])
