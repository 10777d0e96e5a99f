"""Which files are retired: those over a limit whose groups every sampler is done with. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from rollstream.consumers.assembling.fitting import that_fit
from rollstream.consumers.retention.limits import OverLimits, StoredGroups
from rollstream.folds.group.known import TRAIN
from rollstream.schemas.events import Flushed, RetiredFile
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.layout import policy_version_in
from rollstream.streams.folds.refs import GroupRef

RETIRED_BYTES_MAX = 1024 * 1024  # Far below a message's limit, and one blob that readers open.
REMEMBERED_MAX = 1 << 19  # Flushes of a partition that are held back, of about 300 bytes each.
_FILE_BYTES = 24  # At most, of an event, beside the path.


class FileGroups(NamedTuple):
    """A file that is not retired.

    Attributes:
        groups: their indexes in the flush, but for those of split ``eval``, which nobody trains on.
        policy_version: of all its groups.
        stored: how many groups it has, those of split ``eval`` too; of incomplete rows none.
    """

    path: str
    size: int
    groups: tuple[int, ...]
    policy_version: str
    stored: int


class FlushFiles(NamedTuple):
    """A flush with those of its files that are not retired; ``sealed_ts`` is log time in
    microseconds, and rises with the offset."""

    offset: int
    sealed_ts: int
    files: tuple[FileGroups, ...]

    def stored_groups(self) -> StoredGroups:
        """How many groups the files have."""
        counts: Counter[str] = Counter()
        for file in self.files:
            counts[file.policy_version] += file.stored
        return StoredGroups(self.sealed_ts, *_shared(tuple(counts.items())))


class HeldFlush(NamedTuple):
    """A flush all of whose files that are not retired were held back when it was looked at.

    Attributes:
        held: how many groups, by sampler and whether in an open batch, as they were then.
        holding: of each file a sampler and the index of a group that it was not done with.
    """

    offset: int
    sealed_ts: int
    files: int
    bytes: int
    held: tuple[tuple[tuple[str, bool], int], ...]
    holding: tuple[tuple[str, int], ...]

    def is_held(self, address: PartitionAddress, samplers: Mapping[str, Decisions]) -> bool:
        """Whether all of the files still are: each by the group that was named."""
        return all(
            name in samplers and not samplers[name].is_done(GroupRef(*address, self.offset, index))
            for name, index in self.holding
        )


class Decisions(Protocol):
    """What a sampler decided (``SamplerState``)."""

    def is_done(self, ref: GroupRef) -> bool: ...

    def is_open(self, ref: GroupRef) -> bool: ...


@dataclass(frozen=True, slots=True)
class HeldGroups:
    """Groups that hold files back, of one sampler.

    Attributes:
        open: in batches that are not final.
        undecided: ready, or waiting.
    """

    open: int
    undecided: int

    def plus(self, other: HeldGroups) -> HeldGroups:
        """Of several partitions."""
        return HeldGroups(self.open + other.open, self.undecided + other.undecided)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """What is retired, and what old files are held back by.

    Attributes:
        files: to be retired, in the order of flushes.
        held: by sampler; of files that were held before, as it was then.
        finished: False: time was over before all old files were looked at.
    """

    files: tuple[RetiredFile, ...] = ()
    held_files: int = 0
    held_bytes: int = 0
    held: Mapping[str, HeldGroups] = field(default_factory=dict)
    finished: bool = True


def plan_retention(
    address: PartitionAddress,
    flushes: Iterable[FlushFiles | HeldFlush | StoredGroups],
    samplers: Mapping[str, Decisions],
    over: OverLimits,
    remembered: MutableMapping[int, HeldFlush] | None = None,
    time_left: Callable[[], bool] = lambda: True,
) -> RetentionPlan:
    """Plans for one partition. A file is retired where it is over a limit and every sampler is done
    with all of its groups: the oldest first, until nothing is over. Without a sampler nothing is.

    What is done stays done, since final batches are never released: no decision that is made
    between this and the ``Retired`` event contradicts it.

    Args:
        flushes: by rising offset; read until nothing is over a limit. One that is known to be held
            still, or whose groups are known to be within the limits, is not looked at.
        samplers: every one that is registered, by name.
        remembered: takes the flushes that are held, by offset, up to ``REMEMBERED_MAX``.
        time_left: asked after each flush that was looked at, so that each plan gets further than
            the one before.
    """
    if not samplers:
        return RetentionPlan()
    retire: list[RetiredFile] = []
    held_files = held_bytes = 0
    held: Counter[tuple[str, bool]] = Counter()  # By sampler, and whether in an open batch.
    finished = True
    for flush in flushes:
        if over.end_at(flush.sealed_ts):
            break
        if isinstance(flush, StoredGroups):
            continue
        if isinstance(flush, HeldFlush):
            still = flush
        else:
            done, still = _looked_at(address, flush, samplers, over)
            retire += done
            all_held = still.files == len(flush.files)
            if remembered is not None and all_held and len(remembered) < REMEMBERED_MAX:
                remembered[flush.offset] = still
        held_files += still.files
        held_bytes += still.bytes
        held.update(dict(still.held))
        if flush is not still and not time_left():
            finished = False
            break
    names = sorted({name for name, _ in held})
    return RetentionPlan(
        files=tuple(retire),
        held_files=held_files,
        held_bytes=held_bytes,
        held={name: HeldGroups(held[name, True], held[name, False]) for name in names},
        finished=finished,
    )


def _looked_at(
    address: PartitionAddress,
    flush: FlushFiles,
    samplers: Mapping[str, Decisions],
    over: OverLimits,
) -> tuple[list[RetiredFile], HeldFlush]:
    """Of the files that are over a limit, those that every sampler is done with, and what holds the
    others."""
    done: list[RetiredFile] = []
    held: Counter[tuple[str, bool]] = Counter()
    by: list[tuple[str, int]] = []
    held_bytes = 0
    for file in flush.files:
        if not over.has(flush.sealed_ts, file.policy_version):
            continue
        refs = [GroupRef(*address, flush.offset, index) for index in file.groups]
        holding = [
            (name, ref)
            for name, decisions in samplers.items()
            for ref in refs
            if not decisions.is_done(ref)
        ]
        if not holding:
            done.append(RetiredFile(offset=flush.offset, path=file.path, size=file.size))
            over.retire(file.policy_version, file.stored)
            continue
        held.update((name, samplers[name].is_open(ref)) for name, ref in holding)
        by.append((holding[0][0], holding[0][1].index_in_flush))
        held_bytes += file.size
    still = HeldFlush(
        flush.offset, flush.sealed_ts, len(by), held_bytes, *_shared(tuple(held.items()), tuple(by))
    )
    return done, still


@lru_cache(maxsize=1024)
def _shared(*values: Any) -> tuple[Any, ...]:
    """The same objects for equal ones: of most flushes these are alike."""
    return values


def describe_held(files: int, held: Mapping[str, HeldGroups]) -> str:
    """What holds old files back, in a sentence; empty: nothing does."""
    if not files:
        return ""
    by_sampler = [
        f"sampler {name!r} (groups ready or waiting: {groups.undecided:,}, in open batches: "
        f"{groups.open:,})"
        for name, groups in held.items()
    ]
    return f"{files:,} file{'s'[: files > 1]} held back by {' and by '.join(by_sampler)}"


def files_of_flush(offset: int, event: Flushed, retired: Iterable[str] = ()) -> FlushFiles:
    """A flush with its files, but for the retired ones."""
    gone = {*retired}
    files = []
    for number, file in enumerate(event.files):
        own = [index for index, group in enumerate(event.groups) if group.file == number]
        trained = tuple(index for index in own if event.groups[index].split == TRAIN)
        version = event.groups[own[0]].policy_version
        files.append(FileGroups(file.path, file.size, trained, version, len(own)))
    files += [
        FileGroups(file.path, file.size, (), policy_version_in(file.path), 0)
        for file in event.incomplete
    ]
    return FlushFiles(offset, event.now_ts, tuple(file for file in files if file.path not in gone))


def parts(files: Sequence[RetiredFile]) -> Iterator[tuple[RetiredFile, ...]]:
    """The files as one event each holds them."""
    start = 0
    while part := that_fit(files[start:], _event_bytes, RETIRED_BYTES_MAX):
        yield tuple(part)
        start += len(part)


def _event_bytes(file: RetiredFile) -> int:
    return len(file.path.encode()) + _FILE_BYTES
