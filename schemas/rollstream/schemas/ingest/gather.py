"""Runs of entries to columns: one copy of each token, none touched by Python. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Columns, Components, Ragged
from rollstream.schemas.fields import RowField, array_fields, columns, named
from rollstream.schemas.ingest.frame import ArrayRun
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.ingest.wire import packed

_Wire = Mapping[str, Any]


class Run(NamedTuple):
    """Entries ``first`` to ``stop`` of one record, all of them segments."""

    record: IngestRecord
    first: int
    stop: int


def gather(runs: Sequence[Run]) -> Columns:
    """The entries of these runs as columns, one row each, in their order.

    Named arrays of one name must agree in dtype and trailing shape (``signatures``).
    """
    records = [record for record, _, _ in runs]
    headers = [record.header for record in records]
    lengths = [stop - first for _, first, stop in runs]
    rows = sum(lengths)
    scalars = _shared(runs)
    for name in ("environment", "worker_id"):
        scalars[name] = _repeated([header[name] for header in headers], lengths)
    extras = [header["extras"] for header in headers]
    for fields, wires in ((columns(extra=False), headers), (columns(extra=True), extras)):
        some = any(wires)
        for field in fields:
            if field.column == "text":
                scalars[field.name] = _texts(runs, field, rows)
            elif field.column == "number":
                raws = [wire[field.name] if wire else b"" for wire in wires] if some else ()
                scalars[field.name] = _numbers(runs, field, raws, rows)
    outputs = _offsets(scalars["token_count"])
    arrays = {}
    for name, dtype in array_fields().items():
        of = [record.arrays.get(name) for record in records]
        if any(of):
            by = _offsets(scalars["prompt_count"]) if name == "prompt_tokens" else outputs
            arrays[name] = _ragged(runs, of, ArraySignature(dtype, ()), by)
    token_arrays = {}
    for name, signature in sorted(signatures(runs).items()):
        of = [record.token_arrays.get(name) for record in records]
        token_arrays[name] = _ragged(runs, of, signature, outputs)
    return Columns(
        rows,
        scalars,
        {name: ragged for name, ragged in arrays.items() if _in_some_row(ragged)},
        {name: ragged for name, ragged in token_arrays.items() if _in_some_row(ragged)},
        _components(runs) if any(of and of["rewards"] for of in extras) else None,
        _attachments(runs) if any(of and of["attachments"] for of in extras) else None,
    )


def signatures(runs: Sequence[Run]) -> Mapping[str, ArraySignature]:
    """Name to dtype and trailing shape, of the named arrays of these entries; the first counts."""
    found: dict[str, ArraySignature] = {}
    for record, first, stop in runs:
        for name, of in record.token_arrays.items():
            if of.present is None or any(of.present[first:stop]):
                found.setdefault(name, of.signature)
    return found


def _in_some_row(ragged: Ragged) -> bool:
    return ragged.present is None or bool(ragged.present.any())


def _shared(runs: Sequence[Run]) -> dict[str, Any]:
    """What several entries have in common; each combination is looked at once."""
    numbers: dict[tuple[Any, ...], int] = {}
    indexes: list[int] = []
    for record, first, stop in runs:
        own = [tuple(one.values()) for one in record.header["shared"]]
        used = record.shared_indexes[first:stop]
        if len(own) == 1:
            indexes += [numbers.setdefault(own[0], len(numbers))] * len(used)
        else:
            indexes += [numbers.setdefault(own[index], len(numbers)) for index in used]
    found: dict[str, Any] = {}
    for field, values in zip(named("shared"), zip(*numbers, strict=True), strict=True):
        if field.dtype:
            found[field.name] = np.array(values, field.dtype)[indexes]
        else:
            found[field.name] = [values[index] for index in indexes]
    return found


def _repeated(values: Sequence[str], lengths: Sequence[int]) -> list[str]:
    if values.count(values[0]) == len(values):
        return [values[0]] * sum(lengths)
    return [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]


def _texts(runs: Sequence[Run], field: RowField, rows: int) -> list[str]:
    name, default = field.name, field.default
    of = [record.texts.get(name) for record, _, _ in runs]
    if not any(of):
        return [default] * rows
    found: list[str] = []
    for texts, (_, first, stop) in zip(of, runs, strict=True):
        found += texts[first:stop] if texts is not None else [default] * (stop - first)
    return found


def _numbers(
    runs: Sequence[Run], field: RowField, raws: Sequence[bytes], rows: int
) -> NDArray[Any]:
    dtype, width = field.dtype, field.width
    default = packed(dtype, [nan if field.default is None else field.default])
    if not any(raws):
        return np.frombuffer(default * rows, dtype)
    pieces = [
        raw[width * first : width * stop] if raw else default * (stop - first)
        for raw, (_, first, stop) in zip(raws, runs, strict=True)
    ]
    return np.frombuffer(b"".join(pieces), dtype)


def _offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _ragged(
    runs: Sequence[Run],
    of: Sequence[ArrayRun | None],
    signature: ArraySignature,
    offsets: NDArray[np.int64],
) -> Ragged:
    pieces = []
    everywhere = True
    for (record, first, stop), array in zip(runs, of, strict=True):
        if array is None:
            everywhere = False
            continue
        start, width, ends, marks, _ = array
        everywhere = everywhere and marks is None
        pieces.append(record.payload[start + width * ends[first] : start + width * ends[stop]])
    present = None
    if not everywhere:
        of_runs = [_presence(run, array) for run, array in zip(runs, of, strict=True)]
        found = np.frombuffer(b"".join(of_runs), np.bool_)
        if not found.all():
            present = found
            offsets = _offsets(np.where(found, np.diff(offsets), 0))
    values = np.frombuffer(b"".join(pieces), signature.dtype)
    return Ragged(values.reshape(int(offsets[-1]), *signature.shape), offsets, present)


def _presence(run: Run, array: ArrayRun | None) -> bytes:
    if array is None:
        return bytes(run.stop - run.first)
    if array.present is None:
        return b"\x01" * (run.stop - run.first)
    return array.present[run.first : run.stop]


def _components(runs: Sequence[Run]) -> Components | None:
    rows = list(chain.from_iterable(r.components()[first:stop] for r, first, stop in runs))
    names = {name: index for index, name in enumerate(dict.fromkeys(chain.from_iterable(rows)))}
    if not names:
        return None
    return Components(
        tuple(names),
        _offsets(np.fromiter(map(len, rows), np.int32, len(rows))),
        np.array([names[name] for row in rows for name in row], np.int32),
        np.array([value for row in rows for value in row.values()], np.float64),
    )


def _attachments(runs: Sequence[Run]) -> Sequence[Mapping[str, bytes]] | None:
    found: list[Mapping[str, bytes]] = []
    for record, first, stop in runs:
        of = record.attachments()
        found += [of.get(index, {}) for index in range(first, stop)]
    return found if any(found) else None
