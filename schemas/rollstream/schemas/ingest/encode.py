"""Entries to the bytes of one record. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from math import nan
from operator import itemgetter
from typing import Any

from rollstream.schemas.fields import named
from rollstream.schemas.ingest.entry import ENTRIES_MAX, Entry, EntryKind, NamedArray
from rollstream.schemas.ingest.layout import (
    ALL,
    ARRAY,
    NONE,
    SOME,
    TEXT,
    Column,
    extra_columns,
    packers,
    plain_columns,
    shared_fields,
)
from rollstream.schemas.ingest.wire import (
    END_OF_ARRAY,
    NULL,
    avro_extras,
    avro_long,
    avro_text,
    record_schema,
)

_SHARED_KEPT = 4_096
_SEGMENT = EntryKind.SEGMENT


def encode_entries(
    entries: Sequence[Entry], *, environment: str, worker_id: str, partitions: int
) -> bytes:
    """The bytes of one record with these entries, in their order. Equal arguments give equal bytes.

    Args:
        entries: 1 to ``ENTRIES_MAX``, all of one partition, whose ``token_arrays`` agree in dtype
            and trailing shape by name.
        environment, worker_id: of all entries.
        partitions: of the topic, as the producer knows it.

    Raises:
        UnicodeEncodeError: a text that UTF-8 cannot encode.
    """
    count = len(entries)
    assert 0 < count <= ENTRIES_MAX, count
    rows = [entry.fields for entry in entries]
    kinds = [entry.kind for entry in entries]
    written = [
        _of_record(environment, worker_id, partitions),
        avro_long(count),
        NULL if kinds.count(_SEGMENT) == count else avro_long(count) + bytes(kinds),
        _shared(rows),
    ]
    payload: list[bytes] = []
    columns, of_row = _plain()
    for column, values in zip(columns, zip(*map(of_row, rows), strict=True), strict=True):
        found = _column(column, values, payload)
        if column.kind == ARRAY:
            written.append(avro_long(found))
        elif found:
            written.append(avro_long(len(found)))
            written.append(found)
        else:
            written.append(NULL)
    written.append(_extras(entries, rows, payload))
    written.append(avro_long(sum(map(len, payload))))
    return b"".join(written + payload)


@cache
def _plain() -> tuple[tuple[Column, ...], Callable[[Mapping[str, Any]], tuple[Any, ...]]]:
    """The columns that stand in the header, and what picks their values out of a row."""
    columns = plain_columns()
    return columns, itemgetter(*(column.name for column in columns))


@cache
def _of_shared() -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    return itemgetter(*(field.name for field in shared_fields()))


@cache
def _extra_names() -> frozenset[str]:
    collections = {field.name for field in named("components", "attachments", "token_arrays")}
    return frozenset(collections.union(column.name for column in extra_columns()))


@cache
def _empty_extras() -> Mapping[str, Any]:
    return {column.name: NONE if column.kind == ARRAY else b"" for column in extra_columns()}


@lru_cache
def _of_record(environment: str, worker_id: str, partitions: int) -> bytes:
    names = avro_text(environment) + avro_text(worker_id)
    return record_schema().prefix + names + avro_long(partitions)


def _shared(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The distinct combinations in the order of their first use, and the index of each row's."""
    found: dict[tuple[Any, ...], int] = {}
    of_row = _of_shared()
    if len(rows) == 1:
        return avro_long(1) + _combination(of_row(rows[0])) + END_OF_ARRAY + NULL
    indexes = [found.setdefault(of_row(row), len(found)) for row in rows]
    written = avro_long(len(found)) + b"".join(map(_combination, found)) + END_OF_ARRAY
    if len(found) == 1:
        return written + NULL
    return written + avro_long(4 * len(rows)) + packers(len(rows))["<i4"](*indexes)


@lru_cache(_SHARED_KEPT)
def _combination(values: tuple[Any, ...]) -> bytes:
    fields = zip(shared_fields(), values, strict=True)
    return b"".join([avro_long(v) if field.dtype else avro_text(v) for field, v in fields])


def _column(column: Column, values: Sequence[Any], payload: list[bytes]) -> Any:
    """What the header has of a column; what has a varying length is added to ``payload``."""
    if column.kind == ARRAY:
        return _array(values, payload)
    count = len(values)
    if values.count(column.default) == count:
        return b""
    if column.kind == TEXT:
        return packers(count)["<i4"](*_texts(values, payload))
    if column.default is None:
        values = [nan if value is None else value for value in values]
    return packers(count)[column.signature.dtype](*values)


def _texts(values: Sequence[str | bytes], payload: list[bytes]) -> Sequence[int]:
    """Adds the UTF-8 of the texts to ``payload``; how many bytes each has."""
    try:
        joined = "".join(values)  # type: ignore[arg-type]
    except TypeError:  # Some are bytes, which are no UTF-8 (see ``Entry``).
        pieces = [value if isinstance(value, bytes) else value.encode() for value in values]
        payload += pieces
        return list(map(len, pieces))
    raw = joined.encode()
    payload.append(raw)
    if len(raw) == len(joined):
        return list(map(len, values))
    return [len(value.encode()) for value in values]  # type: ignore[union-attr]


def _array(values: Sequence[bytes | None], payload: list[bytes]) -> int:
    absent = values.count(None)
    if not absent:
        payload += values  # type: ignore[arg-type]
        return ALL
    if absent == len(values):
        return NONE
    payload.append(bytes([value is not None for value in values]))
    payload += [value for value in values if value is not None]
    return SOME


def _extras(
    entries: Sequence[Entry], rows: Sequence[Mapping[str, Any]], payload: list[bytes]
) -> bytes:
    """Null where no entry has any."""
    failures = [
        {"entry": index, "count": entry.failure.count, "reason": entry.failure.reason}
        for index, entry in enumerate(entries)
        if entry.failure is not None
    ]
    longest = max(map(len, rows))
    some = longest > len(plain_columns()) + len(shared_fields())  # The least that a row has.
    used = _extra_names().intersection(chain.from_iterable(rows)) if some else ()
    if not used and not failures:
        return NULL
    extras: dict[str, Any] = {**_empty_extras(), "failures": failures, "rewards": None}
    for column in extra_columns():
        if column.name in used:
            values = [row.get(column.name, column.default) for row in rows]
            extras[column.name] = _column(column, values, payload)
    if "rewards" in used:
        extras["rewards"] = _components([row.get("rewards") or {} for row in rows])
    extras["attachments"] = [
        {"entry": index, "name": name, "data": data}
        for index, row in enumerate(rows)
        for name, data in sorted(row.get("attachments", {}).items())
    ]
    extras["token_arrays"] = _token_arrays([row.get("token_arrays", {}) for row in rows], payload)
    return avro_extras(extras)


def _components(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    names = {name: index for index, name in enumerate(sorted({*chain.from_iterable(rows)}))}
    indexes = [names[name] for row in rows for name in sorted(row)]
    values = [row[name] for row in rows for name in sorted(row)]
    return {
        "names": list(names),
        "counts": packers(len(rows))["<i4"](*map(len, rows)),
        "indexes": packers(len(values))["<i4"](*indexes),
        "values": packers(len(values))["<f8"](*values),
    }


def _token_arrays(
    rows: Sequence[Mapping[str, NamedArray]], payload: list[bytes]
) -> list[dict[str, Any]]:
    found = []
    for name in sorted({*chain.from_iterable(rows)}):
        carried = [row.get(name) for row in rows]
        signatures = {(one.dtype, one.shape) for one in carried if one is not None}
        assert len(signatures) == 1, (name, signatures)
        dtype, shape = signatures.pop()
        presence = _array([None if one is None else one.data for one in carried], payload)
        found.append({"name": name, "dtype": dtype, "shape": list(shape), "presence": presence})
    return found
