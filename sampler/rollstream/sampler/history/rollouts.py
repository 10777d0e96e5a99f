"""Single rollouts with all that is known of them: found among the files, by uid, by step, or as the
worst and the longest; their rows; and what became of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.errors import InvalidRequest, UnknownRollout
from rollstream.sampler.history.ranking import Order, RankedRows, rank_of
from rollstream.sampler.history.recorded import Decided, Recorded, decided_about
from rollstream.sampler.history.replay import if_retired
from rollstream.sampler.history.scored_rewards import ScoredRewards
from rollstream.sampler.history.uses import RELEASED, Use
from rollstream.schemas.columns import Columns
from rollstream.schemas.events import ServedScore
from rollstream.schemas.ids import MIXED_POLICY, PartitionAddress
from rollstream.schemas.records import RolloutRecord, records_from
from rollstream.store.blobs import Blobs, size_of
from rollstream.store.errors import BlobMissing
from rollstream.store.file_rows import StoredGroup
from rollstream.store.group_file import GroupFile
from rollstream.store.layout import manifest_path, policy_version_in
from rollstream.store.manifests import Manifest, load_manifest
from rollstream.store.retired import NamedFile, retired_of
from rollstream.store.rollups import VisibleFile, named_files
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.tracing import GroupOrigin, group_origin

T = TypeVar("T")
WAITING, EVAL, DROPPED, IN_NO_BATCH = "waiting", "eval", "dropped", "in_no_batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRollouts:
    """Which rollouts. A uid, a step, or an order with a count; the others leave some of them out.

    Attributes:
        uid: of one rollout, or of the trajectories that writers of steps gave it; empty: of any.
        file: the one that has it, where that is known; None: all are searched.
        sampler, step, trainer_epoch: those of the newest batch of a sampler's step, or of that
            trainer epoch; None: of none.
        order, count: those that come first, so many; None: all, as they stand.
        environment, policy_version: these alone; None: any.
    """

    uid: str = ""
    file: VisibleFile | None = None
    sampler: str | None = None
    step: int | None = None
    trainer_epoch: int | None = None
    order: Order | None = None
    count: int = 0
    environment: str | None = None
    policy_version: str | None = None

    def __post_init__(self) -> None:
        if self.step is not None and self.sampler is None:
            raise InvalidRequest(f"step {self.step} of which sampler? name it")
        if self.uid and (self.step is not None or self.order is not None):
            raise InvalidRequest("a uid names one rollout; leave the step and the order out")
        if not self.uid and self.step is None and self.order is None:
            raise InvalidRequest("give a uid, a sampler's step, or what comes first and how many")
        if self.order is not None and self.count < 1:
            raise InvalidRequest(f"count is {self.count}; give 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Became:
    """What became of a rollout in one sampler.

    Attributes:
        state: of a use in a batch as in ``Use``; ``dropped``, ``waiting``, ``eval`` (never served
            for training); ``in_no_batch``: no file of a batch has it, and more is not known.
        detail: why.
        step, slot, batch_id, trainer_epoch: of the batch; None where there is none.
        acked: as what the batch was acked, where it is not final.
        carried: whether the step before was served with it and kept it for this one.
    """

    sampler: str
    state: str
    detail: str = ""
    step: int | None = None
    slot: int | None = None
    batch_id: str | None = None
    trainer_epoch: int | None = None
    acked: str | None = None
    carried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRollout:
    """A rollout of a sealed group.

    Attributes:
        reward: the sum over its segments, by the score in effect; None: it is awaited.
        published_reward: the same as it was published.
        score: the late one in effect; None: there is none, or it does not count.
        token_count: output tokens of all segments.
        segments: its rows, in their order.
        origin: of its group: file, and of its own rows alone the places in the ingest log.
        became: what samplers did with it.
    """

    rollout_uid: str
    reward: float | None
    published_reward: float | None
    score: ServedScore | None
    token_count: int
    segments: tuple[RolloutRecord, ...]
    origin: GroupOrigin
    became: tuple[Became, ...]


class _Candidate(NamedTuple):
    file: VisibleFile
    row: int
    rows: int
    reward: float
    tokens: int


class _Part(NamedTuple):
    """A file of which rollouts are looked at.

    Attributes:
        rows: those of a group, without those that a batch left out; None: all.
    """

    file: VisibleFile
    rows: NDArray[np.int64] | None = None


def find_rollouts(
    asked: AskedRollouts, *, config: RollstreamConfig, store: Blobs, recorded: Recorded
) -> list[FoundRollout]:
    """The rollouts, from files; of those that are ranked the first one first, of a step in the
    order of its batch. Of each file only the columns that choose are read, and of those chosen
    every field, compared with the digest of their group.

    Args:
        config: whose samplers are asked what became of them.
        recorded: what these decided.

    Raises:
        UnknownRollout: there is none. UnknownSampler, UnknownStep: no such batch was decided.
        BlobMissing: a file is gone. CorruptFile: one is damaged. BrokerUnavailable: the logs were
            not read in time.
    """
    flushes = _Flushes(store)
    if asked.step is None:
        files = named_files(store) if asked.file is None else [asked.file]
        if asked.environment is not None:
            files = [one for one in files if one.address.environment == asked.environment]
        parts: Sequence[_Part] = [_Part(file) for file in files]
    else:
        assert asked.sampler is not None
        uses = recorded.of_step(asked.sampler, asked.step, asked.trainer_epoch)
        parts = _parts_of(uses, asked.environment, flushes)
    version = asked.policy_version
    if version is not None:
        parts = [
            one for one in parts if policy_version_in(one.file.path) in (version, MIXED_POLICY)
        ]
    scored = ScoredRewards(store, config, asked.sampler)
    chosen = _chosen(asked, parts, store, scored)
    if not chosen:
        raise UnknownRollout(_nothing(asked, config))
    found = [flushes.found(one) for one in chosen]
    ids = {origin.ref: origin.group_id for origin, _ in found}
    decided = decided_about(ids, recorded, asked.sampler, config.samplers)
    otherwise = WAITING if recorded.whole else IN_NO_BATCH
    return [
        FoundRollout(
            rollout_uid=segments[0].rollout_uid,
            reward=None if np.isnan(one.reward) else one.reward,
            published_reward=_published(segments),
            score=scored.of(
                origin.ref.log,
                origin.group_id,
                segments[0].rollout_uid,
                is_late=segments[-1].reward is None,
            ),
            token_count=one.tokens,
            segments=tuple(segments),
            origin=origin,
            became=tuple(_became(origin, decided, config, otherwise)),
        )
        for one, (origin, segments) in zip(chosen, found, strict=True)
    ]


# Chosen: of each file the columns that choose.


def _chosen(
    asked: AskedRollouts, parts: Sequence[_Part], store: Blobs, scored: ScoredRewards
) -> list[_Candidate]:
    # One after the other: of a file so little is read that threads wait for each other's turn.
    each = (one for part in parts for one in _candidates(store, asked, part, scored))
    order = asked.order
    if order is None:
        return list(each)
    # Equal ones stay in the order of files and rows.
    return heapq.nsmallest(
        asked.count, each, key=lambda one: rank_of(order, one.reward, one.tokens)
    )


def _candidates(
    store: Blobs, asked: AskedRollouts, part: _Part, scored: ScoredRewards
) -> list[_Candidate]:
    """Of one file those that may be chosen."""
    version = asked.policy_version
    names = ["segment_idx", "reward", "token_count"]
    names += ["rollout_uid", "trajectory_uid"] if asked.uid else []
    mixed = version is not None and policy_version_in(part.file.path) == MIXED_POLICY
    names += ["policy_version"] if mixed else []
    columns = _read(store, part.file, methodcaller("scalars", names))
    rewards = scored.rewards(part.file.address, columns, partial(_read, store, part.file, _names))
    segments, tokens = (np.asarray(columns[name]) for name in ("segment_idx", "token_count"))
    ranked = RankedRows.of(segments, rewards, tokens)
    among = np.ones(len(ranked.starts), np.bool_)
    if part.rows is not None:
        among &= np.isin(ranked.starts, part.rows)
    if asked.uid:
        named = zip(columns["rollout_uid"], columns["trajectory_uid"], strict=True)
        rows = [asked.uid in uids for uids in named]
        among &= [rows[row] for row in ranked.starts.tolist()]
    if mixed:
        versions = columns["policy_version"]
        among &= [versions[row] == version for row in ranked.starts.tolist()]
    if asked.order is None:
        indexes = np.flatnonzero(among)
    else:
        indexes = ranked.first(asked.order, asked.count, among)
    return [
        _Candidate(
            part.file,
            int(ranked.starts[index]),
            int(ranked.rows[index]),
            float(ranked.rewards[index]),
            int(ranked.tokens[index]),
        )
        for index in indexes.tolist()
    ]


def _names(file: GroupFile) -> tuple[Sequence[str], Sequence[str]]:
    """Of each row the id of its group, and the rollout's uid."""
    return file.group_ids(), cast(Sequence[str], file.scalars(["rollout_uid"])["rollout_uid"])


def _read(store: Blobs, file: VisibleFile, read: Callable[[GroupFile], T]) -> T:
    try:
        return read(GroupFile(store, file.path, size_of(store, file.path)))
    except BlobMissing as error:
        named = NamedFile(file.offset, file.path)
        raise if_retired(error, store, file.address, named) from error


def _published(segments: Sequence[RolloutRecord]) -> float | None:
    """What a rollout earned, as its segments say; None: the last one does not say it."""
    if segments[-1].reward is None:
        return None
    return sum(one.reward or 0.0 for one in segments)


# What a step had.


def _parts_of(uses: Iterable[Use], environment: str | None, flushes: _Flushes) -> list[_Part]:
    """The groups of a batch that no other took the place of, in the order of its slots."""
    held = [use for use in uses if not use.replaced]
    return [
        flushes.part(use)
        for use in sorted(held, key=lambda use: use.slot)
        if environment in (None, use.group.environment)
    ]


class _Flushes:
    """The manifests and files of what was chosen, each read once."""

    def __init__(self, store: Blobs) -> None:
        self._store = store
        self._manifests: dict[str, Manifest] = {}
        self._files: dict[str, GroupFile] = {}
        self._groups: dict[GroupRef, Columns] = {}

    def part(self, use: Use) -> _Part:
        """Of the file of a group its rows that the batch had."""
        ref = use.group
        event = self._manifest(ref.log, ref.offset).event
        group = event.groups[ref.index_in_flush]
        rows = np.arange(group.rows) if use.row_mask is None else np.flatnonzero(use.row_mask)
        file = VisibleFile(ref.log, ref.offset, event.files[group.file].path)
        return _Part(file, group.row_start + rows)

    def found(self, one: _Candidate) -> tuple[GroupOrigin, list[RolloutRecord]]:
        """Where a rollout is from, and its rows."""
        address, offset, path = one.file
        event = self._manifest(address, offset).event
        (index,) = (
            index
            for index, group in enumerate(event.groups)
            if event.files[group.file].path == path
            and group.row_start <= one.row < group.row_start + group.rows
        )
        group = event.groups[index]
        origin = group_origin(address, offset, event, index)
        rows = [row for row in origin.segments if one.row <= row.row < one.row + one.rows]
        stored = StoredGroup(group.row_start, group.rows, group.digest)
        columns = self._columns(origin.ref, path, stored)
        start = one.row - group.row_start
        records = records_from(columns.part(start, start + one.rows))
        return replace(origin, segments=tuple(rows)), records

    def _columns(self, ref: GroupRef, path: str, group: StoredGroup) -> Columns:
        if ref not in self._groups:
            if path not in self._files:
                self._files[path] = GroupFile(self._store, path, size_of(self._store, path))
            self._groups[ref] = self._files[path].all_fields(group)
        return self._groups[ref]

    def _manifest(self, address: PartitionAddress, offset: int) -> Manifest:
        path = manifest_path(address, offset)
        if path not in self._manifests:
            try:
                self._manifests[path] = load_manifest(self._store, path)
            except BlobMissing as error:
                raise _if_flush_retired(error, self._store, address, offset) from error
        return self._manifests[path]


def _if_flush_retired(
    error: BlobMissing, store: Blobs, address: PartitionAddress, offset: int
) -> BlobMissing:
    """The error, where all files of the flush were retired as one that says so."""
    retired = retired_of(store, address)
    if offset >= retired.below or any(file.offset == offset for file in retired.kept):
        return error
    return BlobMissing(
        f"the files of the flush at {offset} of {address} were retired and deleted: every sampler "
        "was done with them and they were over a limit; replay_step recomputes what was chosen"
    )


# What became of them.


def _became(
    origin: GroupOrigin, decided: Decided, config: RollstreamConfig, otherwise: str
) -> Iterator[Became]:
    """What samplers did with a rollout, which has these rows of its group; ``otherwise``: what it
    is where they did nothing."""
    rows = [row.index for row in origin.segments]
    for name, (uses, drops) in decided.items():
        section = config.samplers.get(name)
        if section is not None and origin.environment not in section.environments:
            continue
        of_rows = [use.of_rows(rows) for use in uses if use.group == origin.ref]
        mine = [use for use in of_rows if use is not None]
        for use in mine:
            yield Became(
                sampler=name,
                state=use.state,
                detail=use.detail,
                step=use.step,
                slot=use.slot,
                batch_id=use.batch_id,
                trainer_epoch=use.trainer_epoch,
                acked=use.acked,
                carried=use.carried,
            )
        drop = drops.get(origin.ref)
        if drop is not None:
            detail = f"{drop.reason}{drop.detail and f': {drop.detail}'}"
            yield Became(sampler=name, state=DROPPED, detail=detail)
        elif origin.split == EVAL:
            yield Became(sampler=name, state=EVAL)
        elif all(use.state == RELEASED for use in mine):
            yield Became(sampler=name, state=otherwise)


def _nothing(asked: AskedRollouts, config: RollstreamConfig) -> str:
    wanted = [f"of environment {asked.environment}"] if asked.environment is not None else []
    wanted += [f"of policy {asked.policy_version}"] if asked.policy_version is not None else []
    wanted += [f"in step {asked.step} of {asked.sampler}"] if asked.step is not None else []
    wanted += ["with a reward"] if asked.order not in (None, "longest") else []
    root = f"in the files under {config.store.root}"
    if asked.uid:
        return (
            f"no sealed rollout {asked.uid!r} {root}; `rollstream lineage --uid` searches the logs "
            "for it, pending and dropped ones too"
        )
    late = "; late rewards are in files about a minute after they were published"
    return (
        f"no sealed rollout {' '.join(wanted)}{' ' if wanted else ''}{root}; `rollstream files` "
        f"lists these{late if 'with a reward' in wanted else ''}"
    )
