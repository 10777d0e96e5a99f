"""Groups' rows from the store, through a byte-bounded cache of decoded files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rollstream.sampler.shaping.assembled import GroupRows
from rollstream.sampler.shaping.requested import FIELDS, TOKEN_ARRAY, source_of
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import SealedFile
from rollstream.store.blobs import Blobs
from rollstream.store.dataset import read_rows, token_array_signatures
from rollstream.store.errors import CorruptFile
from rollstream.store.page_cache import drop_cached_pages
from rollstream.streams.folds.sampler.known import KnownGroup

TEXT_BYTES = 64  # A text as a Python object, besides its characters, about.


@dataclass(slots=True)
class _File:
    columns: Columns
    sources: frozenset[str]  # What was read of it.
    size: int
    rows_left: int
    served: set[int] = field(default_factory=set)  # First rows of groups.


class Payloads:
    """Reads rows. Files stay decoded in a cache of ``cache_bytes``, least recently used out first.

    Of a file those columns are read that a batch asks for; what another asks for besides is added
    then. A file whose groups were all served leaves the cache when another step is asked for: until
    then several ranks may ask for the same one. A request after that reads it again.

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
        self._token_arrays: dict[str, Mapping[str, ArraySignature]] = {}  # Of this step's files.
        self._step = -1
        self.files_read = 0
        self.cached_bytes = 0

    def parts(
        self, step: int, groups: Sequence[tuple[int, KnownGroup]], columns: Collection[str] = ()
    ) -> list[GroupRows]:
        """The rows that the batch of a step is made of; ``groups`` are pairs of slot and group.

        Raises:
            BlobMissing, CorruptFile: a file is not what its event names.
        """
        self._begin(step)
        sources = frozenset((*FIELDS, *map(source_of, columns)))
        held: dict[str, Columns] = {}  # A batch's files stay until it is made, whatever the bound.
        parts = []
        for slot, group in groups:
            of_file = held.get(group.file.path)
            if of_file is None:
                of_file = held[group.file.path] = self._columns(group.file, sources)
            parts.append(GroupRows(slot, group, of_file))
            file, first = self._files.get(group.file.path), group.group.row_start
            if file is not None and first not in file.served:
                file.served.add(first)
                file.rows_left -= group.group.rows
        return parts

    def token_arrays(self, step: int, path: str) -> Mapping[str, ArraySignature]:
        """Dtype and trailing shape of a file's named arrays, by name, from its footer.

        Raises:
            BlobMissing, CorruptFile: there is no such file, or it is damaged.
        """
        self._begin(step)
        if path not in self._token_arrays:
            self._token_arrays[path] = token_array_signatures(self._blobs, path)
        return self._token_arrays[path]

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

    def _begin(self, step: int) -> None:
        """Drops what only the step before needed."""
        if step == self._step:
            return
        self._step = step
        self._token_arrays.clear()
        for path in [path for path, file in self._files.items() if not file.rows_left]:
            self._drop(path)
        while self._left:
            drop_cached_pages(self._blobs, self._left.pop())

    def _columns(self, file: SealedFile, sources: frozenset[str]) -> Columns:
        cached = self._files.get(file.path)
        if cached is not None:
            self._files.move_to_end(file.path)
            if sources <= cached.sources:
                return cached.columns
            sources |= cached.sources
        columns = read_rows(
            self._blobs,
            file.path,
            checksum=file.checksum,
            fields=[name for name in sources if not name.startswith(TOKEN_ARRAY)],
            token_arrays=[
                name.removeprefix(TOKEN_ARRAY) for name in sources if name.startswith(TOKEN_ARRAY)
            ],
        )
        self.files_read += 1
        if cached is None:
            cached = self._files[file.path] = _File(columns, sources, 0, file.rows)
        self.cached_bytes -= cached.size
        cached.columns, cached.sources, cached.size = columns, sources, _size(columns)
        self.cached_bytes += cached.size
        if cached.size > self._cache_bytes:
            self._drop(file.path)
        while self.cached_bytes > self._cache_bytes:
            self._drop(next(iter(self._files)))
        return columns

    def _drop(self, path: str) -> None:
        self.cached_bytes -= self._files.pop(path).size
        self._left.add(path)


def _size(columns: Columns) -> int:
    arrays = [*columns.arrays.values(), *columns.token_arrays.values()]
    size = sum(ragged.values.nbytes + ragged.offsets.nbytes for ragged in arrays)
    if columns.rewards is not None:
        size += columns.rewards.offsets.nbytes + columns.rewards.values.nbytes * 3 // 2
    texts = columns.scalars.get("metadata", ())
    return size + sum(len(text) + TEXT_BYTES for text in texts)
