"""Which files are retired: those over a limit whose groups every sampler is done with. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from rollstream.consumers.assembling.fitting import that_fit
from rollstream.consumers.retention.limits import OverLimits
from rollstream.folds.group.known import TRAIN
from rollstream.schemas.events import Flushed, RetiredFile
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.layout import policy_version_in
from rollstream.streams.folds.refs import GroupRef

RETIRED_BYTES_MAX = 1024 * 1024  # Far below a message's limit, and one blob that readers open.
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

    def count_groups(self) -> Counter[str]:
        """How many groups the files have, by policy version."""
        counts: Counter[str] = Counter()
        for file in self.files:
            counts[file.policy_version] += file.stored
        return counts


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
        held: by sampler.
        finished: False: time was over before all old files were looked at.
    """

    files: tuple[RetiredFile, ...] = ()
    held_files: int = 0
    held: Mapping[str, HeldGroups] = field(default_factory=dict)
    finished: bool = True


def plan_retention(
    address: PartitionAddress,
    flushes: Iterable[FlushFiles],
    samplers: Mapping[str, Decisions],
    over: OverLimits,
) -> RetentionPlan:
    """Plans for one partition. A file is retired where it is over a limit and every sampler is done
    with all of its groups: the oldest first, until nothing is over. Without a sampler nothing is.

    What is done stays done, since final batches are never released: no decision that is made
    between this and the ``Retired`` event contradicts it.

    Args:
        flushes: by rising offset; read until nothing is over a limit.
        samplers: every one that is registered, by name.
    """
    if not samplers:
        return RetentionPlan()
    retire: list[RetiredFile] = []
    held_files = 0
    held: Counter[tuple[str, bool]] = Counter()  # By sampler, and whether in an open batch.
    for flush in flushes:
        if over.end_at(flush.sealed_ts):
            break
        for file in flush.files:
            if not over.has(flush.sealed_ts, file.policy_version):
                continue
            holding = _holding(address, flush.offset, file, samplers)
            if holding:
                held_files += 1
                held.update(holding)
            else:
                retire.append(RetiredFile(offset=flush.offset, path=file.path, size=file.size))
                over.retire(file.policy_version, file.stored)
    names = sorted({name for name, _ in held})
    return RetentionPlan(
        files=tuple(retire),
        held_files=held_files,
        held={name: HeldGroups(held[name, True], held[name, False]) for name in names},
    )


def _holding(
    address: PartitionAddress, offset: int, file: FileGroups, samplers: Mapping[str, Decisions]
) -> Counter[tuple[str, bool]]:
    """Of a file of the flush at this offset: how many groups samplers are not done with."""
    refs = [GroupRef(*address, offset, index) for index in file.groups]
    return Counter(
        (name, decisions.is_open(ref))
        for name, decisions in samplers.items()
        for ref in refs
        if not decisions.is_done(ref)
    )


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


def files_of_flush(offset: int, event: Flushed) -> FlushFiles:
    """A flush with all of its files."""
    files, groups = [], event.groups
    splits, versions = groups.column("split"), groups.column("policy_version")
    for number, file in enumerate(event.files):
        own = np.flatnonzero(groups.files == number).tolist()
        trained = tuple(index for index in own if splits[index] == TRAIN)
        files.append(FileGroups(file.path, file.size, trained, versions[own[0]], len(own)))
    files += [
        FileGroups(file.path, file.size, (), policy_version_in(file.path), 0)
        for file in event.incomplete
    ]
    return FlushFiles(offset, event.now_ts, tuple(files))


def parts(files: Sequence[RetiredFile]) -> Iterator[tuple[RetiredFile, ...]]:
    """The files as one event each holds them."""
    start = 0
    while part := that_fit(files[start:], _event_bytes, RETIRED_BYTES_MAX):
        yield tuple(part)
        start += len(part)


def _event_bytes(file: RetiredFile) -> int:
    return len(file.path.encode()) + _FILE_BYTES
