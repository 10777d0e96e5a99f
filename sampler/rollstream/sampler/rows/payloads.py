"""Groups' rows from the store, through a cache of groups that is bounded in bytes."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from rollstream.folds.group.known import KnownGroup
from rollstream.runtime.clock import SystemClock
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.joining import GroupRows
from rollstream.sampler.batch.requested import FIELDS, MIXED_FIELDS, ON_REQUEST, token_array_names
from rollstream.sampler.batch.share import Share
from rollstream.sampler.errors import GroupsUnreadable
from rollstream.sampler.rows.handed_out import HandedOut
from rollstream.sampler.rows.reading import Reading, Wanted, stored
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.events import SealedFile
from rollstream.schemas.ids import MIXED_POLICY
from rollstream.store import BlobMissing, Blobs, CorruptFile, StoreError, token_array_signatures
from rollstream.store.bounded import bounded
from rollstream.store.file_rows import FileRows, GroupColumns
from rollstream.store.group_file import GroupFile, read_group
from rollstream.store.layout import ROOT_ID
from rollstream.store.page_cache import drop_cached_pages
from rollstream.streams.folds.refs import GroupRef

SHOWN = 5  # Groups that a message names.
SOON_BATCHES = 16  # What is asked for within as many is read with what is asked for now.
FILE_BYTES_MAX = 128 * 1024 * 1024  # Of what is kept of files: footers, and texts and numbers of
# rows, some 140 bytes a row; beyond it the least recently used are read again. Where batches are
# drawn from more files than fit, most of each batch's are.
FILES_SERVED_MAX = 4_096  # Of which it is remembered what was served; beyond it, pages stay cached.
HANGS_S = 30.0  # A mounted store that does not answer for so long hangs.
TEXT_BYTES = 64  # A text as a Python object, besides its characters, about.
_Asked = tuple[GroupRef, frozenset[str]]  # A group, and the columns that a batch has besides.
_AskedFile = tuple[str, frozenset[str]]


@dataclass(slots=True)
class _Held:
    columns: GroupColumns
    size: int
    step: int  # The newest batch that has the group.


class _HeldFile(NamedTuple):
    rows: FileRows
    size: int


@dataclass(slots=True)
class _Serving:
    """What was served of a file."""

    first_rows: set[int]
    rows_left: int


class Payloads:
    """Reads rows: of a file the groups that are asked for, each checked by its digest, or all of
    them, checked by the file's checksum. Both stay in a cache of ``cache_bytes``, of groups those
    of the oldest step out first.

    Of a group those columns are read that a batch asks for; who asks for others reads it again. A
    batch's groups leave the cache when another step is asked for that does not carry them: until
    then several ranks may ask for the same one. May be shared between threads, which read in turn.

    Attributes:
        groups_read: number of groups read since the start; others were answered by the cache.
        cached_bytes: what the cache holds of files in memory, and what was made of it ahead.
        local: whether the store is on this machine.
        handed_out: of which batches a share was.

    Args:
        timeout_s: a mounted store that does not answer for so long hangs: ``StoreHangs``.
    """

    def __init__(self, blobs: Blobs, cache_bytes: int, timeout_s: float = HANGS_S) -> None:
        self.timeout_s = timeout_s
        self._blobs = bounded(blobs, timeout_s, SystemClock())  # What is rarely read besides.
        self._cache_bytes = cache_bytes
        self._groups: OrderedDict[_Asked, _Held] = OrderedDict()
        self._whole: OrderedDict[_AskedFile, _HeldFile] = OrderedDict()
        self._files: OrderedDict[str, GroupFile] = OrderedDict()
        self._file_bytes = 0
        self._serving: OrderedDict[str, _Serving] = OrderedDict()
        self._finished: set[str] = set()  # Files all of whose groups were served.
        self._step = -1
        self.handed_out = HandedOut()
        self.local = blobs.local_path(ROOT_ID) is not None
        self._files_read = Reading(blobs, timeout_s)
        self._reading = threading.Lock()  # Nobody who decides waits for it.
        self.groups_read = 0
        self.cached_bytes = 0

    def parts(
        self,
        step: int,
        groups: Sequence[tuple[int, KnownGroup]],
        columns: Collection[str] = (),
        of_batch: Sequence[KnownGroup] = (),
        *,
        whole: bool = False,
    ) -> list[GroupRows]:
        """The rows that the batch of a step is made of.

        Args:
            groups: pairs of slot and group.
            of_batch: all groups of the batch, which are read with these.
            whole: whether their files are read whole.

        Raises:
            BlobMissing, CorruptFile: rows are not those that were sealed.
        """
        with self._reading:
            wanted = of_batch or [group for _, group in groups]
            self._begin(step, wanted)
            found = self._columns(step, wanted, frozenset(columns), whole=whole)
            self._note_served(groups)
        return [GroupRows(slot, group, *found[group.ref]) for slot, group in groups]

    def parts_of_batch(
        self,
        batch: Decided,
        groups: Sequence[KnownGroup],
        slots: Sequence[int],
        columns: Collection[str] = (),
        ready: int | None = None,
    ) -> list[GroupRows]:
        """The rows of these slots of a batch, once all its groups could be read: all are read when
        it is asked for first, and again after one could not be. Where few other groups are
        ``ready``, files are read whole: batches that follow soon ask for the rest.

        Raises:
            GroupsUnreadable: files are missing or damaged; it names the groups of the whole batch.
        """
        step = batch.step
        slotted = [(slot, groups[slot]) for slot in slots]
        others = [] if self.handed_out.is_readable(batch) else groups
        try:
            whole = ready is not None and bool(others) and self._soon_served(groups, ready)
            parts = self.parts(step, slotted, columns, others, whole=whole)
        except (BlobMissing, CorruptFile):
            self.handed_out.add_failed(batch)
            failed = self.failing(step, groups, columns)
            if failed:
                raise _unreadable(batch, dict(enumerate(groups)), failed) from None
            parts = self.parts(step, slotted, columns)
        self.handed_out.add(batch)
        return parts

    def read_early(
        self, step: int, groups: Sequence[KnownGroup], columns: Collection[str], ready: int
    ) -> None:
        """Has the cache hold the rows that the batch of a step will be made of, as far as they can
        be read: ``parts_of_batch`` raises."""
        with self._reading, suppress(StoreError):
            whole = self._soon_served(groups, ready)
            self._columns(step, groups, frozenset(columns), whole=whole)

    def read_ahead(
        self, step: int, groups: Sequence[tuple[int, KnownGroup]], columns: Collection[str]
    ) -> list[GroupRows] | None:
        """As ``parts``, for a step that was not asked for yet: others may read meanwhile. None as
        soon as it is asked for, and where there is no room.

        Raises:
            BlobMissing, CorruptFile: rows are not those that were sealed.
        """
        asked = frozenset(columns)
        found: dict[GroupRef, GroupColumns] = {}
        by_file: dict[str, list[KnownGroup]] = {}
        for _, group in groups:
            if (group.ref, asked) not in self._groups:
                by_file.setdefault(group.file.path, []).append(group)
        for of_file in by_file.values():
            sealed = of_file[0].file
            size = sealed.size * sum(group.group.rows for group in of_file) // sealed.rows
            with self._reading:
                if self._step >= step or self.cached_bytes + size > self._cache_bytes:
                    return None
                found |= self._columns(step, of_file, asked)
        with self._reading:
            if self._step >= step:
                return None
            others = [group for _, group in groups if group.ref not in found]
            found |= self._columns(step, others, asked)
        return [GroupRows(slot, group, *found[group.ref]) for slot, group in groups]

    def hold_beside(self, size: int) -> bool:
        """Whether there is room for as many bytes more, which then count as held until
        ``note_served``."""
        with self._reading:
            if self.cached_bytes + size > self._cache_bytes:
                return False
            self.cached_bytes += size
            return True

    def note_served(self, shares: Sequence[Share], released: int) -> None:
        """These shares were handed out by who had read them ahead; so many bytes of
        ``hold_beside`` are held no more."""
        with self._reading:
            self.cached_bytes -= released
            for share in shares:
                self._begin(share.decided.step, [group for _, group in share.groups])
                self._note_served(share.groups)

    def check_files(
        self, batch: Decided, groups: Sequence[KnownGroup], columns: Collection[str] = ()
    ) -> None:
        """Returns when the files of a batch's groups are there and of their size, so that somebody
        else may read and check them. Once groups of the batch could not be read all are read here,
        until they can be.

        Raises:
            GroupsUnreadable: as ``parts_of_batch``.
        """
        if not self.handed_out.is_readable(batch):
            files = {group.file.path: group.file for group in groups}
            if self.handed_out.has_failed(batch) or not all(
                self._files_read.for_each(self._is_there, files.values())
            ):
                self.parts_of_batch(batch, groups, (), columns)
        self.handed_out.add(batch)

    def _is_there(self, sealed: SealedFile) -> bool:
        info = self._blobs.info(sealed.path)
        return info is not None and info.size == sealed.size

    def failing(
        self, step: int, groups: Iterable[KnownGroup], columns: Collection[str] = ()
    ) -> dict[GroupRef, StoreError]:
        """Which of these groups cannot be read, and why."""
        asked = frozenset(columns)
        failed: dict[GroupRef, StoreError] = {}
        for group in groups:
            try:
                with self._reading:
                    self._columns(step, [group], asked)
            except (BlobMissing, CorruptFile) as error:
                failed[group.ref] = error
        return failed

    def token_arrays(self, path: str) -> Mapping[str, ArraySignature]:
        """Dtype and trailing shape of a file's named arrays, by name, from its footer.

        Raises:
            BlobMissing, CorruptFile: there is no such file, or it is damaged.
        """
        return token_array_signatures(self._blobs, path)

    def all_fields(self, group: KnownGroup) -> Columns:
        """Every field of a group's rows, checked against the group's digest."""
        return read_group(self._blobs, group.file.path, stored(group))

    def _soon_served(self, groups: Sequence[KnownGroup], ready: int) -> bool:
        """Whether the files of a batch's groups, held until those that are ready were served too,
        cost less than reading group by group."""
        if not groups:
            return False
        files = {group.file.path: group.file for group in groups}.values()
        rows = sum([group.group.rows for group in groups])
        if max(ready / len(groups), sum([file.rows for file in files]) / rows) > SOON_BATCHES:
            return False
        size = sum([group.file.size * group.group.rows // group.file.rows for group in groups])
        held = sum([file.size for file in files]) + size * ready // len(groups)
        return held <= self._cache_bytes

    def _columns(
        self,
        step: int,
        groups: Iterable[KnownGroup],
        asked: frozenset[str],
        *,
        whole: bool = False,
    ) -> dict[GroupRef, GroupColumns]:
        """The rows of each group, which the cache holds from now on as far as there is room."""
        found: dict[GroupRef, GroupColumns] = {}
        by_file: dict[str, list[KnownGroup]] = {}
        for group in groups:
            by_file.setdefault(group.file.path, []).append(group)
        wanted: list[Wanted] = []
        for path, of_file in by_file.items():
            if (held := self._whole.get((path, asked))) is None:
                if missing := self._missing(step, of_file, asked, found):
                    names = _names(missing[0], asked)
                    wanted.append(Wanted(missing, names, self._taken_out(path), whole))
                continue
            self._whole.move_to_end((path, asked))
            try:
                read = held.rows.groups(list(map(stored, of_file)))
            except CorruptFile:  # Once restored, the file may be another one.
                self._drop_whole((path, asked))
                self._taken_out(path)
                raise
            found.update(zip([group.ref for group in of_file], read, strict=True))
        # A file that cannot be read is not kept: once restored, it may be another one.
        for one, (file, rows, parts) in zip(wanted, self._files_read.read(wanted), strict=True):
            found.update(zip([group.ref for group in one.groups], parts, strict=True))
            if rows is not None:  # What the file keeps are views of the whole of it.
                self._hold_whole((file.path, asked), rows)
                continue
            self._keep(file)
            self.groups_read += len(parts)
            for group, columns, size in zip(one.groups, parts, _sizes(parts), strict=True):
                self._hold((group.ref, asked), _Held(columns, size, step))
        return found

    def _missing(
        self,
        step: int,
        of_file: Iterable[KnownGroup],
        asked: frozenset[str],
        found: dict[GroupRef, GroupColumns],
    ) -> list[KnownGroup]:
        """Adds what the cache has of a file to what was found; returns the other groups in the
        order of rows: what lies together is read together."""
        missing: dict[GroupRef, KnownGroup] = {}
        for group in of_file:
            held = self._groups.get((group.ref, asked))
            if held is None:
                missing[group.ref] = group
            else:
                held.step = max(step, held.step)
                self._groups.move_to_end((group.ref, asked))
                found[group.ref] = held.columns
        return sorted(missing.values(), key=lambda group: group.group.row_start)

    def _hold_whole(self, key: _AskedFile, rows: FileRows) -> None:
        self.groups_read += len(rows.starts) - 1
        size = _size(rows.columns) + rows.other_bytes
        if size <= self._cache_bytes:
            self._whole[key] = _HeldFile(rows, size)
            self.cached_bytes += size
            self._make_room()

    def _keep(self, file: GroupFile) -> None:
        self._files[file.path] = file
        self._file_bytes += file.held_bytes
        while self._file_bytes > FILE_BYTES_MAX:
            self._taken_out(next(iter(self._files)))

    def _taken_out(self, path: str) -> GroupFile | None:
        """The file, if it was kept, which is not from now on."""
        file = self._files.pop(path, None)
        if file is not None:
            self._file_bytes -= file.held_bytes
        return file

    def _hold(self, key: _Asked, held: _Held) -> None:
        if held.size > self._cache_bytes:
            return
        self._groups[key] = held
        self.cached_bytes += held.size
        self._make_room()

    def _make_room(self) -> None:
        while self.cached_bytes > self._cache_bytes:
            if self._whole:
                self._drop_whole(next(iter(self._whole)))
            else:
                self._drop(next(iter(self._groups)))

    def _begin(self, step: int, groups: Sequence[KnownGroup]) -> None:
        """A batch with these groups is asked for: what is held of others, and of files all of whose
        groups were served, is held no longer."""
        if step == self._step:
            return
        self._step = step
        refs = {group.ref for group in groups}
        for key in [key for key, held in self._groups.items() if held.step < step]:
            if key[0] not in refs:  # A step may carry groups of the one before.
                self._drop(key)
        finished = self._finished.difference(group.file.path for group in groups)
        for asked in [asked for asked in self._whole if asked[0] in finished]:
            self._drop_whole(asked)
        self._finished -= finished
        for path in finished:
            drop_cached_pages(self._blobs, path)

    def _drop(self, key: _Asked) -> None:
        self.cached_bytes -= self._groups.pop(key).size

    def _drop_whole(self, key: _AskedFile) -> None:
        self.cached_bytes -= self._whole.pop(key).size

    def _note_served(self, groups: Iterable[tuple[int, KnownGroup]]) -> None:
        for _, group in groups:
            path, header = group.file.path, group.group
            serving = self._serving.get(path)
            if serving is None:
                serving = self._serving[path] = _Serving(set(), group.file.rows)
                if len(self._serving) > FILES_SERVED_MAX:
                    self._serving.popitem(last=False)
            if header.row_start not in serving.first_rows:
                serving.first_rows.add(header.row_start)
                serving.rows_left -= header.rows
            if not serving.rows_left:
                del self._serving[path]
                self._finished.add(path)
                self._taken_out(path)


def _names(group: KnownGroup, asked: frozenset[str]) -> tuple[list[str], list[str]]:
    """Fields and named arrays of a group that a batch with these columns has."""
    names = [*FIELDS, *(ON_REQUEST[name] for name in asked if name in ON_REQUEST)]
    if group.group.policy_version == MIXED_POLICY:  # All of a file are, or none.
        names += MIXED_FIELDS
    return names, token_array_names(asked)


def describe_unreadable(
    step: int, groups: Mapping[int, KnownGroup], failed: Mapping[str, str]
) -> str:
    """Which groups cannot be read, by slot, and why each of their files cannot."""
    named = ", ".join(f"{slot} ({groups[slot].group.group_id})" for slot in sorted(groups)[:SHOWN])
    more = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    why = "; ".join(failed[path] for path in sorted(failed)[:SHOWN])
    return f"groups {named}{more} of the batch of step {step} cannot be read: {why}"


def _unreadable(
    batch: Decided, groups: Mapping[int, KnownGroup], failed: Mapping[GroupRef, StoreError]
) -> GroupsUnreadable:
    step = batch.step
    lost = {slot: group for slot, group in groups.items() if group.ref in failed}
    why = {group.file.path: str(failed[group.ref]) for group in lost.values()}
    finding = describe_unreadable(step, lost, why)
    return GroupsUnreadable(
        f"{finding}; restore the files, or "
        f"replace({step}, {sorted(lost)[:SHOWN]}, reason) on one rank, then ask for the step again",
        step=step,
        digest=batch.digest,
        groups={slot: group.group.group_id for slot, group in lost.items()},
        finding=finding,
        reasons={slot: why[group.file.path] for slot, group in lost.items()},
    )


def _sizes(read: Sequence[GroupColumns]) -> list[int]:
    """Of each group; those that share columns share their size."""
    shared = Counter(id(columns) for columns, _ in read)
    sizes: dict[int, int] = {}
    for columns, _ in read:
        if id(columns) not in sizes:
            sizes[id(columns)] = _size(columns) // shared[id(columns)]
    return [sizes[id(columns)] for columns, _ in read]


def _size(columns: Columns) -> int:
    arrays = [*columns.arrays.values(), *columns.token_arrays.values()]
    size = sum([ragged.values.nbytes + ragged.offsets.nbytes for ragged in arrays])
    if columns.rewards is not None:
        size += columns.rewards.offsets.nbytes + columns.rewards.values.nbytes * 3 // 2
    scalars = columns.scalars.values()
    size += sum([values.nbytes for values in scalars if isinstance(values, np.ndarray)])
    texts = [values for values in scalars if not isinstance(values, np.ndarray)]
    return size + sum(map(len, chain(*texts))) + TEXT_BYTES * columns.rows * len(texts)
