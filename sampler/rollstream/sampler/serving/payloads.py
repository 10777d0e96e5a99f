"""Groups' rows from the store, through a byte-bounded cache of decoded files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from rollstream.sampler.errors import GroupsUnreadable
from rollstream.sampler.shaping.packing import GroupRows
from rollstream.sampler.shaping.requested import FIELDS, ON_REQUEST, token_array_names
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import SealedFile
from rollstream.store.blobs import Blobs
from rollstream.store.dataset import read_rows, token_array_signatures
from rollstream.store.errors import BlobMissing, CorruptFile, StoreError
from rollstream.store.page_cache import drop_cached_pages
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.served import ServedBatch

SHOWN = 5  # Groups that a message names.
BATCHES_KEPT = 1_024  # More than are open by default; others are opened once more.
TEXT_BYTES = 64  # A text as a Python object, besides its characters, about.
_Asked = tuple[str, frozenset[str]]  # A file, and the columns of it that a batch has besides.


@dataclass(slots=True)
class _File:
    columns: Columns
    size: int
    served: set[int]  # The first rows of groups.
    rows_left: int


class Payloads:
    """Reads rows. Files stay decoded in a cache of ``cache_bytes``, least recently used out first.

    Of a file those columns are read that a batch asks for; who asks for others reads it again. A
    file whose groups were all served leaves the cache when another step is asked for: until then
    several ranks may ask for the same one. May be shared between threads, which read in turn.

    Attributes:
        files_read: number of reads since the start; further requests were answered by the cache.
        cached_bytes: size of the files that the cache holds.
        undelivered: by step, the digest of a batch that was decided in this process and of which no
            share was handed out; such a one may still change.
    """

    def __init__(self, blobs: Blobs, cache_bytes: int) -> None:
        self._blobs = blobs
        self._cache_bytes = cache_bytes
        self._files: OrderedDict[_Asked, _File] = OrderedDict()
        # Files that left the cache during this step; the step's last batch may still hold them.
        self._left: set[str] = set()
        self._step = -1
        self._readable: dict[int, bytes] = {}  # By step: the digest of a batch that was opened.
        self._failed: dict[int, bytes] = {}  # The same, of one that could not be read since.
        self.undelivered: dict[int, bytes] = {}
        self._reading = threading.Lock()  # Nobody who decides waits for it.
        self.files_read = 0
        self.cached_bytes = 0

    def parts(
        self, step: int, groups: Sequence[tuple[int, KnownGroup]], columns: Collection[str] = ()
    ) -> list[GroupRows]:
        """The rows that the batch of a step is made of; ``groups`` are pairs of slot and group.

        Raises:
            BlobMissing, CorruptFile: a file is not what its event names.
        """
        asked = frozenset(columns)
        held: dict[str, _File] = {}  # A batch's files stay until it is made, whatever the bound.
        parts = []
        with self._reading:
            self._begin(step)
            for slot, group in groups:
                path, first = group.file.path, group.group.row_start
                file = held.get(path)
                if file is None:
                    file = held[path] = self._file(group.file, asked)
                if first not in file.served:
                    file.served.add(first)
                    file.rows_left -= group.group.rows
                parts.append(GroupRows(slot, group, file.columns, first))
        return parts

    def parts_of_batch(
        self,
        served: ServedBatch,
        groups: Sequence[KnownGroup],
        slots: Sequence[int],
        columns: Collection[str] = (),
    ) -> list[GroupRows]:
        """The rows of these slots of a batch, once the files of all its groups could be read: all
        are opened when it is asked for first, and again after one could not be read.

        Raises:
            GroupsUnreadable: files are missing or damaged; it names the groups of the whole batch.
        """
        step, asked = served.event.step, frozenset(columns)
        slotted = [(slot, groups[slot]) for slot in slots]
        files = {group.file.path: group.file for group in groups}
        own = {group.file.path for _, group in slotted}
        opened = self._readable.get(step) == served.digest
        try:
            for path in [] if opened else files.keys() - own:
                self._open(step, files[path], asked)
            parts = self.parts(step, slotted, columns)
        except (BlobMissing, CorruptFile):
            self._readable.pop(step, None)
            failed = self.failing(step, files.values(), asked)
            if failed:
                self._failed[step] = served.digest
                while len(self._failed) > BATCHES_KEPT:
                    self._failed.pop(next(iter(self._failed)), None)
                raise _unreadable(served, dict(enumerate(groups)), failed) from None
            parts = self.parts(step, slotted, columns)
        self._note_readable(served)
        return parts

    def check_files(
        self, served: ServedBatch, groups: Sequence[KnownGroup], columns: Collection[str] = ()
    ) -> None:
        """Returns when the files of a batch's groups are there and of their size, so that somebody
        else may read and check them. Once groups of the batch could not be read all are read here,
        until they can be.

        Raises:
            GroupsUnreadable: as ``parts_of_batch``.
        """
        step = served.event.step
        if self._readable.get(step) != served.digest:
            files = {group.file.path: group.file for group in groups}
            failed = self._failed.get(step) == served.digest
            if failed or not all(map(self._is_there, files.values())):
                self.parts_of_batch(served, groups, (), columns)
        self._note_readable(served)

    def _is_there(self, sealed: SealedFile) -> bool:
        info = self._blobs.info(sealed.path)
        return info is not None and info.size == sealed.size

    def _note_readable(self, served: ServedBatch) -> None:
        """A share is handed out."""
        step = served.event.step
        self._failed.pop(step, None)
        self._readable[step] = served.digest
        self.undelivered.pop(step, None)
        while len(self._readable) > BATCHES_KEPT:
            self._readable.pop(next(iter(self._readable)), None)

    def _open(self, step: int, sealed: SealedFile, asked: frozenset[str]) -> None:
        with self._reading:
            self._begin(step)
            self._file(sealed, asked)

    def failing(
        self, step: int, files: Iterable[SealedFile], columns: Collection[str] = ()
    ) -> dict[str, StoreError]:
        """Which of these files cannot be read, by path, and why."""
        asked = frozenset(columns)
        failed: dict[str, StoreError] = {}
        for sealed in files:
            try:
                self._open(step, sealed, asked)
            except (BlobMissing, CorruptFile) as error:
                failed[sealed.path] = error
        return failed

    def token_arrays(self, path: str) -> Mapping[str, ArraySignature]:
        """Dtype and trailing shape of a file's named arrays, by name, from its footer.

        Raises:
            BlobMissing, CorruptFile: there is no such file, or it is damaged.
        """
        return token_array_signatures(self._blobs, path)

    def all_fields(self, group: KnownGroup) -> Columns:
        """Every field of a group's rows, checked against the group's digest."""
        span = (group.group.row_start, group.group.rows)
        columns = read_rows(self._blobs, group.file.path, ranges=[span])
        if row_digests(columns, [0])[0] != group.group.digest:
            raise CorruptFile(
                f"{group.file.path}: rows {span[0]} to {sum(span) - 1} are not group "
                f"{group.group.group_id} as it was sealed; restore the file from a copy"
            )
        return columns

    def _file(self, sealed: SealedFile, asked: frozenset[str]) -> _File:
        key = (sealed.path, asked)
        if key in self._files:
            self._files.move_to_end(key)
            return self._files[key]
        columns = read_rows(
            self._blobs,
            sealed.path,
            checksum=sealed.checksum,
            fields=[*FIELDS, *(ON_REQUEST[name] for name in asked if name in ON_REQUEST)],
            token_arrays=token_array_names(asked),
        )
        self.files_read += 1
        file = self._files[key] = _File(columns, _size(columns), set(), sealed.rows)
        self.cached_bytes += file.size
        if file.size > self._cache_bytes:
            self._drop(key)
        while self.cached_bytes > self._cache_bytes:
            self._drop(next(iter(self._files)))
        return file

    def _begin(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._drop_served()

    def _drop_served(self) -> None:
        for key in [key for key, file in self._files.items() if not file.rows_left]:
            self._drop(key)
        while self._left:
            drop_cached_pages(self._blobs, self._left.pop())

    def _drop(self, key: _Asked) -> None:
        self.cached_bytes -= self._files.pop(key).size
        self._left.add(key[0])


def describe_unreadable(
    step: int, groups: Mapping[int, KnownGroup], failed: Mapping[str, str]
) -> str:
    """Which groups cannot be read, by slot, and why each of their files cannot."""
    named = ", ".join(f"{slot} ({groups[slot].group.group_id})" for slot in sorted(groups)[:SHOWN])
    more = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    why = "; ".join(failed[path] for path in sorted(failed)[:SHOWN])
    return f"groups {named}{more} of the batch of step {step} cannot be read: {why}"


def _unreadable(
    served: ServedBatch, groups: Mapping[int, KnownGroup], failed: Mapping[str, StoreError]
) -> GroupsUnreadable:
    step = served.event.step
    lost = {slot: group for slot, group in groups.items() if group.file.path in failed}
    why = {path: str(error) for path, error in failed.items()}
    return GroupsUnreadable(
        f"{describe_unreadable(step, lost, why)}; restore the files, or "
        f"replace({step}, {sorted(lost)[:SHOWN]}, reason) on one rank, then ask for the step again",
        step=step,
        digest=served.digest,
        groups={slot: group.group.group_id for slot, group in lost.items()},
    )


def _size(columns: Columns) -> int:
    arrays = [*columns.arrays.values(), *columns.token_arrays.values()]
    size = sum(ragged.values.nbytes + ragged.offsets.nbytes for ragged in arrays)
    if columns.rewards is not None:
        size += columns.rewards.offsets.nbytes + columns.rewards.values.nbytes * 3 // 2
    scalars = columns.scalars.values()
    size += sum(values.nbytes for values in scalars if isinstance(values, np.ndarray))
    texts = chain.from_iterable(v for v in scalars if not isinstance(v, np.ndarray))
    return size + sum(len(text) + TEXT_BYTES for text in texts)
