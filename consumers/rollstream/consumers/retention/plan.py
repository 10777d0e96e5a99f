"""Which files are retired: those whose groups every sampler is done with. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rollstream.schemas.events import Flushed, RetiredFile
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.known import TRAIN

EVENT_BYTES_MAX = 1024 * 1024  # Far below a message's limit, and one blob that readers open.
_FILE_BYTES = 24  # At most, of an event, beside the path.


class FileGroups(NamedTuple):
    """A file that is not retired.

    Attributes:
        groups: their indexes in the flush, but for those of split ``eval``, which nobody trains on.
    """

    path: str
    size: int
    groups: tuple[int, ...]


class FlushFiles(NamedTuple):
    """A flush with those of its files that are not retired; ``sealed_ts`` is log time in
    microseconds, and rises with the offset."""

    offset: int
    sealed_ts: int
    files: tuple[FileGroups, ...]


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
    """

    files: tuple[RetiredFile, ...] = ()
    held_files: int = 0
    held_bytes: int = 0
    held: Mapping[str, HeldGroups] = field(default_factory=dict)


def plan_retention(
    address: PartitionAddress,
    flushes: Iterable[FlushFiles],
    samplers: Mapping[str, Decisions],
    sealed_until_us: int,
) -> RetentionPlan:
    """Plans for one partition. A file is retired where its flush is as old as ``sealed_until_us``,
    and every sampler is done with all of its groups. Without a sampler nothing is.

    What is done stays done, since final batches are never released: no decision that is made
    between this and the ``Retired`` event contradicts it.

    Args:
        flushes: by rising offset; read up to the first that is too young.
        samplers: every one that is registered, by name.
    """
    if not samplers:
        return RetentionPlan()
    retire: list[RetiredFile] = []
    held_files = held_bytes = 0
    held: Counter[tuple[str, bool]] = Counter()  # By sampler, and whether in an open batch.
    for flush in flushes:
        if flush.sealed_ts > sealed_until_us:
            break
        for file in flush.files:
            refs = [GroupRef(*address, flush.offset, index) for index in file.groups]
            holding = [
                (name, decisions.is_open(ref))
                for name, decisions in samplers.items()
                for ref in refs
                if not decisions.is_done(ref)
            ]
            held.update(holding)
            if holding:
                held_files += 1
                held_bytes += file.size
            else:
                retire.append(RetiredFile(offset=flush.offset, path=file.path, size=file.size))
    names = sorted({name for name, _ in held})
    return RetentionPlan(
        files=tuple(retire),
        held_files=held_files,
        held_bytes=held_bytes,
        held={name: HeldGroups(held[name, True], held[name, False]) for name in names},
    )


class Held(Protocol):
    """Old files that are not retired, and by what."""

    @property
    def held_files(self) -> int: ...

    @property
    def held(self) -> Mapping[str, HeldGroups]: ...


def describe_held(plan: Held) -> str:
    """What holds old files back, in a sentence; empty: nothing does."""
    if not plan.held_files:
        return ""
    by_sampler = [
        f"sampler {name!r} (groups ready or waiting: {groups.undecided:,}, in open batches: "
        f"{groups.open:,})"
        for name, groups in plan.held.items()
    ]
    files = f"{plan.held_files:,} file{'s'[: plan.held_files > 1]}"
    return f"{files} held back by {' and by '.join(by_sampler)}"


def files_of_flush(offset: int, event: Flushed, retired: Iterable[str] = ()) -> FlushFiles:
    """A flush with its files, but for the retired ones."""
    gone = {*retired}
    trained = [
        (index, group.file) for index, group in enumerate(event.groups) if group.split == TRAIN
    ]
    files = [
        FileGroups(file.path, file.size, tuple(index for index, of in trained if of == number))
        for number, file in enumerate(event.files)
    ]
    files += [FileGroups(file.path, file.size, ()) for file in event.incomplete]
    return FlushFiles(offset, event.now_ts, tuple(file for file in files if file.path not in gone))


def parts(files: Sequence[RetiredFile]) -> Iterator[tuple[RetiredFile, ...]]:
    """The files as one event each holds them."""
    part: list[RetiredFile] = []
    size = 0
    for file in files:
        needs = len(file.path.encode()) + _FILE_BYTES
        if part and size + needs > EVENT_BYTES_MAX:
            yield tuple(part)
            part, size = [], 0
        part.append(file)
        size += needs
    if part:
        yield tuple(part)
