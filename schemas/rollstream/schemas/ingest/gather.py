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
    headers = [record.header for record, _, _ in runs]
    extras = [header["extras"] for header in headers]
    scalars = _shared(runs)
    for field in named("text"):
        scalars[field.name] = _texts(runs, field)
    for field in named("number"):
        scalars[field.name] = _numbers(runs, field, extras if field.extra else headers)
    outputs = _offsets(scalars["token_count"])
    prompts = {"prompt_tokens": _offsets(scalars["prompt_count"])}
    return Columns(
        len(outputs) - 1,
        scalars,
        _arrays(runs, [record.arrays for record, _, _ in runs], prompts, outputs),
        _arrays(runs, [record.token_arrays for record, _, _ in runs], {}, outputs),
        _components(runs) if any(of and of["rewards"] for of in extras) else None,
        _attachments(runs) if any(of and of["attachments"] for of in extras) else None,
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


def _shared(runs: Sequence[Run]) -> dict[str, Any]:
    """What several entries have in common; each combination is looked at once."""
    numbers: dict[tuple[Any, ...], int] = {}
    indexes: list[int] = []
    for record, first, stop in runs:
        shared, used = record.header["shared"], record.shared_indexes[first:stop]
        of_record = (record.environment, record.worker_id)
        found = {
            index: numbers.setdefault((*of_record, *shared[index].values()), len(numbers))
            for index in set(used)
        }
        indexes += map(found.__getitem__, used)
    return {
        field.name: np.array(values, field.dtype)[indexes]
        if field.dtype
        else [values[index] for index in indexes]
        for field, values in zip(named("once", "shared"), zip(*numbers, strict=True), strict=True)
    }


def _texts(runs: Sequence[Run], field: RowField) -> list[str]:
    found: list[str] = []
    for record, first, stop in runs:
        texts = record.texts.get(field.name)
        found += texts[first:stop] if texts is not None else [field.default] * (stop - first)
    return found


def _numbers(
    runs: Sequence[Run], field: RowField, wires: Sequence[Mapping[str, Any] | None]
) -> NDArray[Any]:
    width = field.width
    default = packed(field.dtype, [nan if field.default is None else field.default])
    pieces = [
        raw[width * first : width * stop]
        if (raw := wire and wire[field.name])
        else default * (stop - first)
        for wire, (_, first, stop) in zip(wires, runs, strict=True)
    ]
    return np.frombuffer(b"".join(pieces), field.dtype)


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
        pieces.append(record.bytes_of(array, first, stop))
        present = array.present
        marks.append(b"\x01" * (stop - first) if present is None else present[first:stop])
    found = np.frombuffer(b"".join(marks), np.bool_)
    everywhere = bool(found.all())
    if not everywhere:
        offsets = _offsets(np.diff(offsets) * found)
    values = np.frombuffer(b"".join(pieces), signature.dtype)
    return Ragged(
        values.reshape(int(offsets[-1]), *signature.shape), offsets, None if everywhere else found
    )


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
