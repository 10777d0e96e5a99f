"""Runs of entries to columns: one copy of each token, none touched by Python. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Columns, Components, Ragged
from rollstream.schemas.fields import REQUIRED_ARRAYS, array_fields, scalar_fields
from rollstream.schemas.ingest.record import ArrayRun, IngestRecord

_DTYPES = {"int": "<i4", "long": "<i8"}


class Run(NamedTuple):
    """Entries ``first`` to ``stop`` of one record, all of them segments."""

    record: IngestRecord
    first: int
    stop: int


def gather(runs: Sequence[Run]) -> Columns:
    """The entries of these runs as columns, one row each, in their order.

    Named arrays of one name must agree in dtype and trailing shape (``signatures``).
    """
    scalars: dict[str, Any] = {}
    for field in scalar_fields():
        if field.dtype:
            joined = b"".join([_packed(field.name, run) for run in runs])
            scalars[field.name] = np.frombuffer(joined, field.dtype)
        else:
            values = [run.record.values(field.name)[run.first : run.stop] for run in runs]
            listed = values[0] if len(values) == 1 else list(chain.from_iterable(values))
            dtype = _DTYPES.get(field.row_type) if isinstance(field.row_type, str) else None
            scalars[field.name] = listed if dtype is None else np.array(listed, dtype)
    prompts, outputs = (_offsets(scalars[name]) for name in ("prompt_count", "token_count"))
    arrays = {}
    for name, dtype in array_fields().items():
        offsets = prompts if name == "prompt_tokens" else outputs
        of = [run.record.arrays.get(name) for run in runs]
        if name in REQUIRED_ARRAYS or any(of):
            arrays[name] = _ragged(runs, of, ArraySignature(dtype, ()), offsets)
    token_arrays = {}
    for name, signature in sorted(signatures(runs).items()):
        of = [run.record.token_arrays.get(name) for run in runs]
        ragged = _ragged(runs, of, signature, outputs)
        if ragged.present is None or ragged.present.any():
            token_arrays[name] = ragged
    return Columns(
        len(prompts) - 1,
        scalars,
        {name: ragged for name, ragged in arrays.items() if _in_some_row(name, ragged)},
        token_arrays,
        _components(runs),
        _attachments(runs),
    )


def signatures(runs: Sequence[Run]) -> Mapping[str, ArraySignature]:
    """Name to dtype and trailing shape, of the named arrays in these records; the first counts."""
    found: dict[str, ArraySignature] = {}
    for run in runs:
        for name, of in run.record.token_arrays.items():
            found.setdefault(name, of.signature)
    return found


def _in_some_row(name: str, ragged: Ragged) -> bool:
    return name in REQUIRED_ARRAYS or ragged.present is None or bool(ragged.present.any())


def _packed(name: str, run: Run) -> bytes:
    record, first, stop = run
    packed = record.packed(name)
    width = len(packed) // record.count
    return packed[width * first : width * stop]


def _offsets(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _ragged(
    runs: Sequence[Run],
    of: Sequence[ArrayRun | None],
    signature: ArraySignature,
    offsets: NDArray[np.int64],
) -> Ragged:
    pieces = [
        run.record.bytes_of(array, run.first, run.stop)
        for run, array in zip(runs, of, strict=True)
        if array is not None
    ]
    present = None
    if not all([array is not None and array.present is None for array in of]):
        marks = [_presence(run, array) for run, array in zip(runs, of, strict=True)]
        present = np.frombuffer(b"".join(marks), np.bool_)
        if present.all():
            present = None
        else:
            offsets = _offsets(np.where(present, np.diff(offsets), 0))
    values = np.frombuffer(b"".join(pieces), signature.dtype)
    return Ragged(values.reshape(int(offsets[-1]), *signature.shape), offsets, present)


def _presence(run: Run, array: ArrayRun | None) -> bytes:
    if array is None:
        return bytes(run.stop - run.first)
    if array.present is None:
        return b"\x01" * (run.stop - run.first)
    return array.present[run.first : run.stop]


def _components(runs: Sequence[Run]) -> Components | None:
    if all([_extra(run, "rewards") is None for run in runs]):
        return None
    rows = list(chain.from_iterable(run.record.components()[run.first : run.stop] for run in runs))
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
    if not any([_extra(run, "attachments") for run in runs]):
        return None
    found: list[Mapping[str, bytes]] = []
    for record, first, stop in runs:
        of = record.attachments()
        found += [of.get(index, {}) for index in range(first, stop)]
    return found if any(found) else None


def _extra(run: Run, name: str) -> Any:
    extras = run.record.header["extras"]
    return None if extras is None else extras[name]
