"""Runs of entries to columns: one copy of each token, none touched by Python. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Columns, Components, Ragged
from rollstream.schemas.fields import RowField, named
from rollstream.schemas.ingest.frame import ArrayRun
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.ingest.wire import packed


class Run(NamedTuple):
    """Entries ``first`` to ``stop`` of one record, all of them segments."""

    record: IngestRecord
    first: int
    stop: int


def gather(runs: Sequence[Run]) -> Columns:
    """The entries of these runs as columns, one row each, in their order.

    Named arrays of one name must agree in dtype and trailing shape (``signatures``).
    """
    # Columns of whole records are joined, and rows taken by index: runs are short where the members
    # of a group come from several producers.
    starts: dict[IngestRecord, int] = {}
    rows: list[int] = []
    entries = 0
    for record, first, stop in runs:
        if record not in starts:
            starts[record] = entries
            entries += record.count
        rows += range(starts[record] + first, starts[record] + stop)
    records = list(starts)
    scalars = _shared(records, rows)
    for field in named("text"):
        scalars[field.name] = _texts(records, rows, field)
    for field in named("number"):
        scalars[field.name] = _numbers(records, rows, field)
    outputs = _offsets(scalars["token_count"])
    prompts = {"prompt_tokens": _offsets(scalars["prompt_count"])}
    return Columns(
        len(rows),
        scalars,
        _arrays(runs, [record.arrays for record, _, _ in runs], prompts, outputs),
        _arrays(runs, [record.token_arrays for record, _, _ in runs], {}, outputs),
        _components(records, rows),
        _attachments(records, rows),
    )


def signatures(runs: Sequence[Run]) -> Mapping[str, ArraySignature]:
    """Name to dtype and trailing shape, of the named arrays of these entries; the first counts."""
    return _signatures(runs, [record.token_arrays for record, _, _ in runs])


def _signatures(
    runs: Sequence[Run], of_runs: Iterable[Mapping[str, ArrayRun]]
) -> Mapping[str, ArraySignature]:
    found: dict[str, ArraySignature] = {}
    for (_, first, stop), arrays in zip(runs, of_runs, strict=True):
        for name, of in arrays.items():
            if of.present is None or any(of.present[first:stop]):
                found.setdefault(name, of.signature)
    return found


def _shared(records: Sequence[IngestRecord], rows: Sequence[int]) -> dict[str, Any]:
    """What several entries have in common; each combination is looked at once."""
    numbers: dict[tuple[Any, ...], int] = {}
    indexes: list[int] = []
    for record in records:
        of_record = (record.environment, record.worker_id)
        of_combinations = [
            numbers.setdefault((*of_record, *shared.values()), len(numbers))
            for shared in record.header["shared"]
        ]
        indexes += map(of_combinations.__getitem__, record.shared_indexes)
    used = _at(indexes, rows)
    found: dict[str, Any] = {}
    for field, values in zip(named("once", "shared"), zip(*numbers, strict=True), strict=True):
        # Of these rows alone: a number of a broken entry may be beyond its column's.
        of_rows = _at(values, used)
        found[field.name] = np.array(of_rows, field.dtype) if field.dtype else of_rows
    return found


def _at(values: Sequence[Any], indexes: Sequence[int]) -> list[Any]:
    return list(map(values.__getitem__, indexes))


def _texts(records: Sequence[IngestRecord], rows: Sequence[int], field: RowField) -> list[str]:
    if not any(field.name in record.texts for record in records):
        return [field.default] * len(rows)
    found: list[str] = []
    for record in records:
        found += record.texts.get(field.name) or [field.default] * record.count
    return _at(found, rows)


def _numbers(records: Sequence[IngestRecord], rows: Sequence[int], field: RowField) -> NDArray[Any]:
    default = packed(field.dtype, [nan if field.default is None else field.default])
    pieces = [_wire(record, field) or default * record.count for record in records]
    return np.frombuffer(b"".join(pieces), field.dtype)[rows]


def _wire(record: IngestRecord, field: RowField) -> Any:
    wire = record.header["extras"] if field.extra else record.header
    return wire and wire[field.name]


def _offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _arrays(
    runs: Sequence[Run],
    of_runs: Sequence[Mapping[str, ArrayRun]],
    own_offsets: Mapping[str, NDArray[np.int64]],
    offsets: NDArray[np.int64],
) -> Mapping[str, Ragged]:
    """The arrays that at least one entry has."""
    found = {}
    for name, signature in sorted(_signatures(runs, of_runs).items()):
        of = [arrays.get(name) for arrays in of_runs]
        found[name] = _ragged(runs, of, signature, own_offsets.get(name, offsets))
    return found


def _ragged(
    runs: Sequence[Run],
    of: Sequence[ArrayRun | None],
    signature: ArraySignature,
    offsets: NDArray[np.int64],
) -> Ragged:
    pieces, marks = [], []
    for (record, first, stop), array in zip(runs, of, strict=True):
        if array is None:
            marks.append(bytes(stop - first))
            continue
        start, width, ends, present, _ = array
        pieces.append(record.payload[start + width * ends[first] : start + width * ends[stop]])
        marks.append(b"\x01" * (stop - first) if present is None else present[first:stop])
    found = np.frombuffer(b"".join(marks), np.bool_)
    everywhere = bool(found.all())
    if not everywhere:
        offsets = _offsets(np.diff(offsets) * found)
    values = np.frombuffer(b"".join(pieces), signature.dtype)
    return Ragged(
        values.reshape(int(offsets[-1]), *signature.shape), offsets, None if everywhere else found
    )


def _components(records: Sequence[IngestRecord], rows: Sequence[int]) -> Components | None:
    if not any(_extra(record, "rewards") for record in records):
        return None
    found = _at(list(chain.from_iterable(record.components() for record in records)), rows)
    names = {name: index for index, name in enumerate(dict.fromkeys(chain.from_iterable(found)))}
    if not names:
        return None
    return Components(
        tuple(names),
        _offsets(np.fromiter(map(len, found), np.int32, len(found))),
        np.array([names[name] for row in found for name in row], np.int32),
        np.array([value for row in found for value in row.values()], np.float64),
    )


def _attachments(
    records: Sequence[IngestRecord], rows: Sequence[int]
) -> Sequence[Mapping[str, bytes]] | None:
    if not any(_extra(record, "attachments") for record in records):
        return None
    found: list[Mapping[str, bytes]] = []
    for record in records:
        of = record.attachments()
        found += [of.get(index, {}) for index in range(record.count)]
    used = _at(found, rows)
    return used if any(used) else None


def _extra(record: IngestRecord, name: str) -> Any:
    extras = record.header["extras"]
    return extras and extras[name]
