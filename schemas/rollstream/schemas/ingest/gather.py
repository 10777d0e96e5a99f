"""Entries to columns: one copy of each token, none touched by Python. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Components, Ragged, offsets_of
from rollstream.schemas.fields import RowField, named
from rollstream.schemas.ingest.frame import ArrayRun
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.ingest.wire import packed


def gather(records: Sequence[IngestRecord], indexes: Sequence[int]) -> Columns:
    """Segments as columns: row ``i`` is entry ``indexes[i]`` of ``records[i]``.

    Named arrays of one name must agree in dtype and trailing shape (``Frame.signatures``).
    """
    return _Gathering(records, indexes).columns()


class _Tokens(NamedTuple):
    """Where each entry's tokens stand among those of all entries of the records, and each row's
    among those of the rows; int64, one more than there are."""

    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]


class _Gathering:
    """Columns of whole records are joined, and rows taken by their places in these: entries of one
    group stand in several records where its members come from several producers."""

    def __init__(self, records: Sequence[IngestRecord], indexes: Sequence[int]) -> None:
        self._of = records
        self._records = list(dict.fromkeys(records))
        counts = [record.count for record in self._records]
        starts = dict(zip(self._records, accumulate(counts, initial=0), strict=False))
        self._entries = sum(counts)
        self._rows = len(indexes)
        self._starts = np.fromiter(map(starts.__getitem__, records), np.intp, self._rows)
        self._at = self._starts + np.array(indexes, np.intp)
        self._places = self._at.tolist()
        # Rows that stand together in one record: their bytes are taken in one piece.
        apart = (np.diff(self._at) != 1) | (np.diff(self._starts) != 0)
        self._heads = np.flatnonzero(np.append(True, apart))
        self._tails = np.flatnonzero(np.append(apart, True))
        self._payloads = [records[row].payload for row in self._heads.tolist()]
        self._headers = [record.header for record in self._records]
        self._extras = [header["extras"] for header in self._headers]

    def columns(self) -> Columns:
        """The rows."""
        scalars = self._shared()
        scalars |= {field.name: self._texts(field) for field in named("text")}
        ends = {}
        for field in named("number"):
            values = self._numbers(field)
            scalars[field.name] = values[self._at]
            if field.name.endswith("_count"):
                ends[field.name] = offsets_of(values)
        prompts, outputs = (
            _Tokens(ends[name], offsets_of(scalars[name]))
            for name in ("prompt_count", "token_count")
        )
        return Columns(
            self._rows,
            scalars,
            self._arrays(lambda record: record.arrays, {"prompt_tokens": prompts}, outputs),
            self._arrays(lambda record: record.token_arrays, {}, outputs),
            self._components(),
            self._attachments(),
        )

    def _of_rows(self, values: Sequence[Any]) -> list[Any]:
        return list(map(values.__getitem__, self._places))

    def _shared(self) -> dict[str, Any]:
        """What several entries have in common."""
        shared: list[list[dict[str, Any]]] = [header["shared"] for header in self._headers]
        counted = zip(accumulate(map(len, shared), initial=0), self._records, strict=False)
        indexes = [first + index for first, record in counted for index in record.shared_indexes]
        used = self._of_rows(indexes)
        columns: list[Sequence[Any]] = [
            [header[field.name] for header in self._headers for _ in header["shared"]]
            for field in named("once")
        ]
        columns += zip(*map(dict.values, chain.from_iterable(shared)), strict=True)
        found: dict[str, Any] = {}
        for field, values in zip((*named("once"), *named("shared")), columns, strict=True):
            if values.count(values[0]) == len(values):
                of_rows = [values[0]] * self._rows
            else:
                of_rows = list(map(values.__getitem__, used))
            # Of these rows alone: a number of a broken entry may be beyond its column's.
            found[field.name] = np.array(of_rows, field.dtype) if field.dtype else of_rows
        return found

    def _lacks(self, field: RowField) -> bool:
        """Whether it is among the extras, which no record has."""
        return field.extra and not any(self._extras)

    def _texts(self, field: RowField) -> list[str]:
        records, name = self._records, field.name
        if self._lacks(field) or not any(r.texts.get(name) or r.raw(field) for r in records):
            return [field.default] * self._rows
        return self._of_rows(list(chain.from_iterable(record.values(name) for record in records)))

    def _numbers(self, field: RowField) -> NDArray[Any]:
        """Of all entries of these records."""
        pieces = [] if self._lacks(field) else [record.raw(field) for record in self._records]
        default = nan if field.default is None else field.default
        if not any(pieces):
            return np.full(self._entries, default, field.dtype)
        one = packed(field.dtype, [default])
        counted = zip(pieces, self._records, strict=True)
        joined = b"".join([piece or one * record.count for piece, record in counted])
        return np.frombuffer(joined, field.dtype)

    def _arrays(
        self,
        of_record: Callable[[IngestRecord], Mapping[str, ArrayRun]],
        own: Mapping[str, _Tokens],
        tokens: _Tokens,
    ) -> Mapping[str, Ragged]:
        """The arrays that at least one row has."""
        arrays = [of_record(record) for record in self._records]
        found = {}
        for name in sorted(set(chain.from_iterable(arrays))):
            ragged = self._ragged([of.get(name) for of in arrays], own.get(name, tokens))
            if ragged is not None:
                found[name] = ragged
        return found

    def _ragged(self, of: Sequence[ArrayRun | None], tokens: _Tokens) -> Ragged | None:
        ends, offsets, present, first = tokens.ends, tokens.offsets, None, 0
        counted = list(zip(of, self._records, strict=True))
        if any(run is None or run.present is not None for run in of):
            marks = b"".join(
                [
                    bytes(record.count) if run is None else run.present or b"\x01" * record.count
                    for run, record in counted
                ]
            )
            every = np.frombuffer(marks, np.bool_)
            present = every[self._at]
            first = int(present.argmax())
            if not present[first]:
                return None
            ends = offsets_of(np.diff(ends) * every)
            if present.all():
                present = None
            else:
                offsets = offsets_of(np.diff(offsets) * present)
        some = of[self._records.index(self._of[first])]
        assert some is not None, "a row has the array, so its record has"
        # Where the first token of a record stands in its payload, repeated for its entries.
        starts = [0 if run is None else run.start for run in of]
        heads, tails, width = self._heads, self._tails, some.width
        begins = np.repeat(starts, [record.count for record in self._records])[self._at[heads]]
        begins -= width * ends[self._starts[heads]]
        firsts = (begins + width * ends[self._at[heads]]).tolist()
        stops = (begins + width * ends[self._at[tails] + 1]).tolist()
        pieces = zip(self._payloads, firsts, stops, strict=True)
        joined = b"".join([payload[first:stop] for payload, first, stop in pieces])
        values = np.frombuffer(joined, some.signature.dtype)
        return Ragged(values.reshape(int(offsets[-1]), *some.signature.shape), offsets, present)

    def _components(self) -> Components | None:
        if not any(extras and extras["rewards"] for extras in self._extras):
            return None
        every: Iterable[Any] = chain.from_iterable(map(IngestRecord.components, self._records))
        found = self._of_rows(list(every))
        names = {name: number for number, name in enumerate(dict.fromkeys(chain(*found)))}
        if not names:
            return None
        return Components(
            tuple(names),
            offsets_of(list(map(len, found))),
            np.array([names[name] for row in found for name in row], np.int32),
            np.array([value for row in found for value in row.values()], np.float64),
        )

    def _attachments(self) -> Sequence[Mapping[str, bytes]] | None:
        if not any(extras and extras["attachments"] for extras in self._extras):
            return None
        found: list[Mapping[str, bytes]] = []
        for record in self._records:
            of = record.attachments()
            found += [of.get(index, {}) for index in range(record.count)]
        used = self._of_rows(found)
        return used if any(used) else None
