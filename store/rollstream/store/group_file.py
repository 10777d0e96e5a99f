"""Reads groups of one row file where they lie."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from rollstream.schemas import digest
from rollstream.schemas.columns import ArraySignature, Columns, Ragged, offsets_of
from rollstream.schemas.digest import row_digests
from rollstream.schemas.fields import RowField, fields_of, row_fields
from rollstream.store import arrow
from rollstream.store.blobs import Blobs, size_of
from rollstream.store.dataset import as_corrupt, read_rows
from rollstream.store.errors import CorruptFile
from rollstream.store.file_rows import FileRows, GroupColumns, StoredGroup, index_of
from rollstream.store.footer import Stated, read_footer
from rollstream.store.plain.decoding import numbers_of, text_ends, texts_of
from rollstream.store.plain.file import CODECS, MAGIC, Layout, Page, footer_bytes
from rollstream.store.plain.rows import chunk_indexes
from rollstream.store.plain.sums import Sums, chunk_sum, seed_of, value_span
from rollstream.store.read_plan import ReadPlan, StoredArray, plan_of
from rollstream.store.row_file import RowFile, defaults_of, unpacked_bits, version_of

LAYOUT_BYTES = 8_192  # What the footer of a file comes to in memory, about.
LIST_ITEM_BYTES = 40  # A number of a list, with its place in it.
GAP_BYTES = 262_144  # Between groups: reading as much costs about what another read does.
_Span = tuple[int, int]


class _Extent(NamedTuple):
    """Rows ``start`` to ``stop`` of a file, and the groups among them that are wanted, with their
    numbers."""

    start: int
    stop: int
    groups: Sequence[StoredGroup]
    numbers: Sequence[int]


class GroupFile:
    """The layout of a row file, kept, and what its rows have besides arrays, once it was asked for.

    What it returns is what its sealer wrote: every byte was compared with a sum after it was read
    into memory of this process, those of a group with one that its digest seeds, or all of them at
    once with the checksum of the file.

    Attributes:
        path: of the file.
        held_bytes: what this keeps, about.
    """

    def __init__(self, blobs: Blobs, path: str, size: int, *, whole: bool = False) -> None:
        """Reads the footer of a file of this size; ``whole``: and all else, at once, from which
        everything is then read until ``drop_whole``.

        Raises:
            BlobMissing, CorruptFile, NewerFile.
        """
        self._blobs, self.path, self._size = blobs, path, size
        self.held_bytes = LAYOUT_BYTES
        self._whole = self._read_all() if whole else None
        with as_corrupt(path):
            layout = Layout.of(self._read_tail())
            # Another tool that wrote the file anew kept neither the layout of pages nor the sums.
            self._layout = layout if layout is not None and layout.sums else None
            if self._layout is None:
                return
            self._sums = Sums.of_text(self._layout.sums)
            self._stated = stated = Stated.of(self._layout.metadata)
            self._version = version = version_of(path, stated)
        self.held_bytes += self._sums.nbytes
        self._fields = fields_of(version)
        self.token_arrays: Mapping[str, ArraySignature] = dict(stated.token_arrays)
        self._chunks = chunk_indexes(stated.token_arrays, version)
        self._pages = self._layout.page_ends or self._layout.ends
        _, codec = CODECS[stated.compression]
        self._codec = None if codec is None else pa.Codec(codec)
        self._numbers: dict[str, NDArray[Any]] = {}
        self._texts: dict[str, tuple[memoryview, NDArray[np.int64]]] = {}
        self._ends: dict[str, NDArray[np.int64]] = {}
        self._others: dict[str, Columns] = {}
        self._group_bounds: dict[str, list[int]] = {}
        self._group_sums: dict[int, list[int]] = {}
        self._plans: dict[tuple[str, ...], ReadPlan] = {}
        self._image: memoryview | None = None  # All of the file, which was compared as a whole.

    def read(
        self, groups: Sequence[StoredGroup], names: Sequence[str], token_arrays: Sequence[str]
    ) -> list[GroupColumns]:
        """The fields of these names, and these named arrays, of each of the groups, which are in
        the order of their rows. Those that lie together share their columns.

        Raises:
            BlobMissing.
            CorruptFile: damaged, or the file has no such group.
        """
        if self._layout is None:
            parts = (self._some_fields(group, names, token_arrays) for group in groups)
            return [GroupColumns(columns, 0) for columns in parts]
        with as_corrupt(self.path):
            return self._read(groups, self._planned(names, token_arrays))

    def read_whole(
        self, checksum: str, names: Sequence[str], token_arrays: Sequence[str]
    ) -> FileRows | None:
        """The same of all rows, from the whole file at once: for those who will ask for most
        groups. None where each group is read alone: the file is compressed, another tool wrote it,
        or it has another checksum, so that some group is damaged.

        Raises:
            BlobMissing.
            CorruptFile: it ends too early.
        """
        if self._layout is None or self._codec is not None:
            return None
        image = self._whole or self._read_all()
        if digest.checksum(image) != checksum:
            self._whole = None  # What is kept of groups would be views of all of it.
            return None
        with as_corrupt(self.path):
            self._image = image
            try:
                plan = self._planned(names, token_arrays)
                whole = _Extent(0, self._rows, (), range(len(self._sums.starts) - 1))
                spans = ((of, *self._span(of, whole)) for of in plan.arrays)
                values = (
                    _values_of(of, image[start:stop], 0, self._bounds(of.counts)[-1])
                    for of, start, stop in spans
                )
                columns = self._columns(plan, whole, values)
                return FileRows.of(self.path, columns, self._sums.starts, image)
            finally:
                self._image = None  # What is read later is compared by itself.

    def drop_whole(self) -> None:
        """Keeps no more than the layout, and what rows have besides arrays."""
        self._whole = None

    def scalars(self, names: Sequence[str]) -> Mapping[str, Sequence[str] | NDArray[Any]]:
        """These fields, which have one value a row, of all rows; no other bytes are read.

        Raises:
            BlobMissing.
            CorruptFile: damaged.
        """
        if self._layout is None:
            return read_rows(self._blobs, self.path, fields=names).scalars
        with as_corrupt(self.path):
            plan = self._planned(names, ())
            found = {field.name: self._scalar(field, 0, self._rows) for field in plan.scalars}
            return found | {field.name: defaults_of(field, self._rows) for field in plan.added}

    def group_ids(self) -> list[str]:
        """The id of the group of each row; no other bytes are read of a file of our own layout.

        Raises:
            BlobMissing.
            CorruptFile: damaged.
        """
        with as_corrupt(self.path):
            if self._layout is None:
                whole = arrow.whole_table(self._read_all(), ["group_id"])
                found: list[str] = whole["group_id"].to_pylist()
                return found
            leaf = self._chunks["group_id"][0]
            (chunk,) = self._read_chunks([leaf])
            body = self._checked_body(leaf, chunk)
            return texts_of(body, text_ends(body, self._rows))

    def all_fields(self, group: StoredGroup) -> Columns:
        """Every field of a group's rows, checked against the group's digest; also those that the
        newest version does not have.

        Raises:
            BlobMissing.
            CorruptFile: damaged, or these rows are not that group.
        """
        if self._layout is None:
            ranges = [(group.row_start, group.rows)]
            columns = read_rows(self._blobs, self.path, ranges=ranges)
        else:
            names = {**row_fields(), **fields_of(self._version)}
            ((shared, start),) = self.read([group], list(names), list(self.token_arrays))
            columns = shared.part(start, start + group.rows)
        if row_digests(columns, [0])[0] != group.digest:
            raise CorruptFile(
                f"{self.path}: the {group.rows} rows from {group.row_start} on are not what was "
                "sealed; restore the file from a copy"
            )
        return columns

    def _some_fields(
        self, group: StoredGroup, names: Sequence[str], token_arrays: Sequence[str]
    ) -> Columns:
        """The same where there are no sums: all fields are read, and their digest compared."""
        columns = self.all_fields(group)
        return Columns(
            columns.rows,
            {name: values for name, values in columns.scalars.items() if name in names},
            {name: ragged for name, ragged in columns.arrays.items() if name in names},
            {name: ragged for name, ragged in columns.token_arrays.items() if name in token_arrays},
            columns.rewards if "rewards" in names else None,
            columns.attachments if "attachments" in names else None,
        )

    def _planned(self, names: Sequence[str], token_arrays: Sequence[str]) -> ReadPlan:
        key = (*names, "", *token_arrays)
        plan = self._plans.get(key)
        if plan is None:
            asked = tuple(names), tuple(token_arrays)
            plan = self._plans[key] = plan_of(self._stated, self._version, *asked)
            self._load(plan.loaded)
        return plan

    def _read(self, groups: Sequence[StoredGroup], plan: ReadPlan) -> list[GroupColumns]:
        extents = self._extents(groups)
        values = self._values(plan.arrays, extents)
        found = []
        for extent in extents:
            columns, start = self._columns(plan, extent, values), extent.start
            found += [GroupColumns(columns, group.row_start - start) for group in extent.groups]
        return found

    def _columns(self, plan: ReadPlan, extent: _Extent, values: Iterator[NDArray[Any]]) -> Columns:
        """The rows of an extent, the next of ``values`` being those of its arrays."""
        start, stop = extent.start, extent.stop
        scalars = {field.name: self._scalar(field, start, stop) for field in plan.scalars}
        scalars |= {field.name: defaults_of(field, stop - start) for field in plan.added}
        offsets = {counts: self._offsets(counts, start, stop) for counts in plan.counts}
        arrays: dict[str, Ragged] = {}
        named: dict[str, Ragged] = {}
        for of in plan.arrays:
            into = named if of.named else arrays
            into[of.field] = Ragged(next(values), offsets[of.counts])
        columns = Columns(stop - start, scalars, arrays, named)
        return self._with_others(columns, plan.others, start, stop) if plan.others else columns

    def _extents(self, groups: Sequence[StoredGroup]) -> list[_Extent]:
        """The groups, those together that lie together: what is between them is read too, where
        that costs less than another read. Of a compressed file, each alone."""
        gap = -1 if self._codec is not None else GAP_BYTES * self._rows // self._size
        extents: list[_Extent] = []
        for group in groups:
            number = index_of(self.path, self._sums.starts, group)
            stop = group.row_start + group.rows
            if extents and 0 <= group.row_start - extents[-1].stop <= gap:
                last = extents[-1]
                together = [*last.groups, group], [*last.numbers, number]
                extents[-1] = _Extent(last.start, stop, *together)
            else:
                extents.append(_Extent(group.row_start, stop, [group], [number]))
        return extents

    def _read_all(self) -> memoryview:
        (data,) = self._blobs.read_ranges(self.path, [(0, self._size)])
        return data

    def _read_tail(self) -> memoryview:
        if self._whole is not None:
            return self._whole[-footer_bytes(self._whole) :]
        return read_footer(self._blobs, self.path, self._size)

    # What rows have besides arrays: read for the whole file, once.

    def _load(self, fields: Sequence[RowField]) -> None:
        wanted = {arrow.stored_name(f): f for f in fields if f.name != arrow.ENVIRONMENT}
        held = self._numbers.keys() | self._texts.keys()
        missing = [column for column in wanted if column not in held]
        if not missing:
            return
        leaves = sorted((self._chunks[column][0], column) for column in missing)
        chunks = self._read_chunks([leaf for leaf, _ in leaves])
        for (leaf, column), chunk in zip(leaves, chunks, strict=True):
            body = self._checked_body(leaf, chunk)
            field, rows = wanted[column], self._rows
            if field.dtype:
                optional = isinstance(field.row_type, list)
                kept = self._numbers[column] = numbers_of(
                    body, field.dtype, rows, optional=optional
                )
                self.held_bytes += kept.nbytes
            else:
                ends = text_ends(body, rows)
                self._texts[column] = body, ends
                self.held_bytes += len(body) + ends.nbytes

    def _scalar(self, field: RowField, start: int, stop: int) -> list[str] | NDArray[Any]:
        if field.name == arrow.ENVIRONMENT:
            return [self._stated.environment] * (stop - start)
        column = arrow.stored_name(field)
        if field.dtype:
            return self._numbers[column][start:stop]
        body, ends = self._texts[column]
        return texts_of(body, ends[start : stop + 1])

    def _ends_of(self, counts: str) -> NDArray[np.int64]:
        """int64 [rows + 1]: the tokens of row ``i`` are those from ``[i]`` to ``[i + 1]``."""
        if counts not in self._ends:
            self._ends[counts] = offsets_of(self._numbers[counts])
            self.held_bytes += self._ends[counts].nbytes
        return self._ends[counts]

    def _offsets(self, counts: str, start: int, stop: int) -> NDArray[np.int64]:
        ends = self._ends_of(counts)[start : stop + 1]
        offsets: NDArray[np.int64] = ends - ends[0]
        return offsets

    # Arrays that every row has: of the groups alone.

    def _values(
        self, arrays: Sequence[StoredArray], extents: Sequence[_Extent]
    ) -> Iterator[NDArray[Any]]:
        """Extent by extent, the values of each of these arrays."""
        spans = [self._span(of, extent) for of in arrays for extent in extents]
        read = self._read_ranges(spans)
        for at, extent in enumerate(extents):
            seeds = [seed_of(group.digest) for group in extent.groups]
            for of, raw in zip(arrays, read[at :: len(extents)], strict=True):
                bounds = self._bounds(of.counts)
                first = bounds[extent.numbers[0]]
                tokens = bounds[extent.numbers[-1] + 1] - first
                data = raw
                if self._codec is not None:  # Its page has the one group.
                    body = self._body(raw)
                    data, first = body[len(body) - value_span(0, tokens, of.width)[1] :], 0
                    bounds = [0] * extent.numbers[0] + [0, tokens]
                self._check(of, data, first, bounds, extent.numbers, seeds)
                yield _values_of(of, data, first, tokens)

    def _check(
        self,
        of: StoredArray,
        data: memoryview,
        first: int,
        bounds: Sequence[int],
        numbers: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        """Compares groups in an array's values, which begin with token ``first``, with their
        sums."""
        base, _ = value_span(first, first, of.width)
        expected, width = self._expected(of.leaf), of.width
        for number, seed in zip(numbers, seeds, strict=True):
            low, high = bounds[number], bounds[number + 1]
            if width >= 0:
                values = data[low * width - base : high * width - base]
            else:
                low, high = value_span(low, high, width)
                values = data[low - base : high - base]
            if xxh3_64_intdigest(values, seed) != expected[number]:
                row = self._sums.starts[number]
                raise self._damaged(f"{of.field} of the rows from {row} on")

    def _bounds(self, counts: str) -> list[int]:
        """Where each group begins in tokens, then where the last one ends."""
        if counts not in self._group_bounds:
            bounds = self._ends_of(counts)[self._sums.starts].tolist()
            self._group_bounds[counts] = bounds
            self.held_bytes += LIST_ITEM_BYTES * len(bounds)
        return self._group_bounds[counts]

    def _expected(self, leaf: int) -> list[int]:
        """The sum of each group in an array."""
        if leaf not in self._group_sums:
            sums = self._group_sums[leaf] = self._sums.of_leaf(leaf)
            self.held_bytes += LIST_ITEM_BYTES * len(sums)
        return self._group_sums[leaf]

    def _span(self, of: StoredArray, extent: _Extent) -> _Span:
        """Where the extent's values are in the file, or the page that they are."""
        if self._codec is not None:
            page = self._sums.ends[of.leaf] + extent.numbers[0]
            return self._pages[page - 1], self._pages[page]
        bounds = self._bounds(of.counts)
        _, end = self._chunk_span(of.leaf)
        _, total = value_span(0, bounds[-1], of.width)
        tokens = bounds[extent.numbers[0]], bounds[extent.numbers[-1] + 1]
        start, stop = value_span(*tokens, of.width)
        return end - total + start, end - total + stop

    # Everything else: by pyarrow, for the whole file.

    def _with_others(
        self, columns: Columns, others: Sequence[str], start: int, stop: int
    ) -> Columns:
        arrays, named = dict(columns.arrays), dict(columns.token_arrays)
        rewards, attachments = None, None
        for column in others:
            part = self._other(column).part(start, stop)
            arrays |= part.arrays
            named |= part.token_arrays
            rewards, attachments = part.rewards or rewards, part.attachments or attachments
        return Columns(columns.rows, columns.scalars, arrays, named, rewards, attachments)

    def _other(self, column: str) -> Columns:
        if column not in self._others:
            # Some arrays have their rows by its counts.
            field = self._fields.get(column)
            stored = column if field is None else field.written
            leaves = [*self._chunks["token_count"], *self._chunks[stored]]
            # What is not read stays zero, and takes no memory.
            image = memoryview(mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE))
            tail = self._read_tail()
            image[self._size - len(tail) :] = tail
            for leaf, chunk in zip(leaves, self._read_chunks(leaves), strict=True):
                self._checked_body(leaf, chunk)
                start, stop = self._chunk_span(leaf)
                image[start:stop] = chunk
            name = column.removeprefix(arrow.TOKEN_ARRAY_PREFIX)
            names, arrays = ([], [name]) if field is None else ([column], [])
            file = RowFile(self.path, pa.py_buffer(image))
            self._others[column] = file.read(names, arrays, [(0, self._rows)])
            self.held_bytes += sum(stop - start for start, stop in map(self._chunk_span, leaves))
        return self._others[column]

    @property
    def _rows(self) -> int:
        return self._sums.starts[-1]

    def _read_chunks(self, leaves: Sequence[int]) -> list[memoryview]:
        spans = list(map(self._chunk_span, leaves))
        if self._image is not None:
            return [self._image[start:stop] for start, stop in spans]
        return self._read_ranges(spans)

    def _read_ranges(self, spans: Sequence[_Span]) -> list[memoryview]:
        if self._whole is None:
            return self._blobs.read_ranges(self.path, spans)
        return [self._whole[start:stop] for start, stop in spans]

    def _chunk_span(self, leaf: int) -> _Span:
        assert self._layout is not None
        ends = self._layout.ends
        return ends[leaf - 1] if leaf else len(MAGIC), ends[leaf]

    def _checked_body(self, leaf: int, chunk: memoryview) -> memoryview:
        """The body of a chunk of one page."""
        body = self._body(chunk)
        if self._image is None and [chunk_sum([body])] != self._sums.of_leaf(leaf):
            raise self._damaged(f"a column, {len(chunk)} bytes")
        return body

    def _body(self, page: memoryview) -> memoryview:
        """The body of a page, as it was before compression."""
        size, start = Page.of(page)
        body = page[start:]
        if self._codec is not None:
            body = memoryview(self._codec.decompress(body, size, asbytes=True))
        if len(body) != size:
            raise self._damaged("a page")
        return body

    def _damaged(self, what: str) -> CorruptFile:
        return CorruptFile(
            f"{self.path}: {what} is not what was sealed; restore the file from a copy"
        )


def _values_of(of: StoredArray, data: memoryview, first: int, tokens: int) -> NDArray[Any]:
    """This many values of an array, from bytes that have token ``first`` in their first one."""
    values = np.frombuffer(data, np.uint8)
    if of.width >= 0:
        return arrow.tokens_of(values, of.signature, tokens)
    return unpacked_bits(values, first % 8, first % 8 + tokens)


def read_group(blobs: Blobs, path: str, group: StoredGroup) -> Columns:
    """Every field of a group's rows, checked against the group's digest.

    Raises:
        BlobMissing, NewerFile.
        CorruptFile: damaged, or these rows are not that group.
    """
    return GroupFile(blobs, path, size_of(blobs, path)).all_fields(group)
