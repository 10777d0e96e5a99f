"""Groups' rows from the store, through a byte-bounded cache of decoded files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollstream.sampler.shaping.assembled import FIELDS, GroupRows
from rollstream.schemas.columns import Columns
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import SealedFile
from rollstream.store.blobs import Blobs
from rollstream.store.dataset import read_rows
from rollstream.store.errors import CorruptFile
from rollstream.store.page_cache import drop_cached_pages
from rollstream.streams.folds.sampler.known import KnownGroup

SCALAR_BYTES_PER_ROW = 512  # A row's reward components as Python objects, about.


@dataclass(slots=True)
class _File:
    columns: Columns
    size: int
    rows_left: int
    served: set[int] = field(default_factory=set)  # First rows of groups.


class Payloads:
    """Reads rows. Files stay decoded in a cache of ``cache_bytes``, least recently used out first.

    A file whose groups were all served leaves the cache when another step is asked for: until then
    several ranks may ask for the same one. A request after that reads it again.

    Attributes:
        files_read: number of reads since the start; further requests were answered by the cache.
        cached_bytes: size of the files that the cache holds.
    """

    def __init__(self, blobs: Blobs, cache_bytes: int) -> None:
        self._blobs = blobs
        self._cache_bytes = cache_bytes
        self._files: OrderedDict[str, _File] = OrderedDict()
        # Files that left the cache during this step; the step's last batch may still hold them.
        self._left: set[str] = set()
        self._step = -1
        self.files_read = 0
        self.cached_bytes = 0

    def parts(self, step: int, groups: Sequence[tuple[int, KnownGroup]]) -> list[GroupRows]:
        """The rows that the batch of a step is made of; ``groups`` are pairs of slot and group.

        Raises:
            BlobMissing, CorruptFile: a file is not what its event names.
        """
        if step != self._step:
            self._step = step
            self._drop_served()
        held: dict[str, Columns] = {}  # A batch's files stay until it is made, whatever the bound.
        parts = []
        for slot, group in groups:
            columns = held.get(group.file.path)
            if columns is None:
                columns = held[group.file.path] = self._columns(group.file)
            parts.append(GroupRows(slot, group, columns))
            file, first = self._files.get(group.file.path), group.group.row_start
            if file is not None and first not in file.served:
                file.served.add(first)
                file.rows_left -= group.group.rows
        return parts

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

    def _columns(self, file: SealedFile) -> Columns:
        cached = self._files.get(file.path)
        if cached is not None:
            self._files.move_to_end(file.path)
            return cached.columns
        columns = read_rows(self._blobs, file.path, checksum=file.checksum, fields=FIELDS)
        self.files_read += 1
        self._keep(file, columns)
        return columns

    def _drop_served(self) -> None:
        for path in [path for path, file in self._files.items() if not file.rows_left]:
            self._drop(path)
        while self._left:
            drop_cached_pages(self._blobs, self._left.pop())

    def _drop(self, path: str) -> None:
        self.cached_bytes -= self._files.pop(path).size
        self._left.add(path)

    def _keep(self, file: SealedFile, columns: Columns) -> None:
        size = sum(a.values.nbytes + a.offsets.nbytes for a in columns.arrays.values())
        size += columns.rows * SCALAR_BYTES_PER_ROW
        if size > self._cache_bytes:
            self._left.add(file.path)
            return
        self._files[file.path] = _File(columns, size, file.rows)
        self.cached_bytes += size
        while self.cached_bytes > self._cache_bytes:
            self._drop(next(iter(self._files)))
