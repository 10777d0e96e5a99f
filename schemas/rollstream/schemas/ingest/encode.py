"""Entries to the bytes of one record. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from itertools import chain
from math import nan
from operator import itemgetter
from typing import Any

from rollstream.schemas.fields import RowField, named
from rollstream.schemas.ingest.entry import ENTRIES_MAX, Entry, EntryKind, NamedArray
from rollstream.schemas.ingest.wire import Bytes, write_record

_TYPECODES = {"<i4": "i", "<i8": "q", "<f8": "d", "|b1": "b"}
NONE, ALL, SOME = range(3)  # Which entries have an array.


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
    assert 0 < len(entries) <= ENTRIES_MAX, len(entries)
    rows = [entry.fields for entry in entries]
    payload: list[Bytes] = []
    shared, shared_indexes = _shared(rows)
    plain = all([entry.kind is EntryKind.SEGMENT for entry in entries])
    header: dict[str, Any] = {
        "environment": environment,
        "worker_id": worker_id,
        "partitions": partitions,
        "count": len(entries),
        "kinds": b"" if plain else bytes(entry.kind for entry in entries),
        "shared": shared,
        "shared_indexes": shared_indexes,
    }
    for field in _columns(extra=False):
        header[field.name] = _column(field, list(map(itemgetter(field.name), rows)), payload)
    header["extras"] = _extras(entries, payload)
    return write_record(header, payload)


@cache
def _columns(*, extra: bool) -> tuple[RowField, ...]:
    return tuple(f for f in named("text", "number", "array") if f.extra is extra)


@cache
def _extra_names() -> frozenset[str]:
    return frozenset(
        field.name
        for field in named("text", "number", "array", "components", "attachments", "token_arrays")
        if field.extra
    )


def _shared(rows: Sequence[Any]) -> tuple[list[dict[str, Any]], bytes]:
    """The distinct combinations in the order of their first use, and the index of each row's."""
    names = tuple(field.name for field in named("shared"))
    found: dict[tuple[Any, ...], int] = {}
    of = itemgetter(*names)
    indexes = [found.setdefault(of(row), len(found)) for row in rows]
    shared = [dict(zip(names, values, strict=True)) for values in found]
    return shared, b"" if len(shared) == 1 else array("i", indexes).tobytes()


def _column(field: RowField, values: list[Any], payload: list[Bytes]) -> Any:
    """What the header has of a column; what has a varying length is added to ``payload``."""
    if field.column == "array":
        return _array(values, payload)
    if values.count(field.default) == len(values):
        return b""
    if field.column == "text":
        joined = "".join(values)
        raw = joined.encode()
        if len(raw) != len(joined):
            values = [value.encode() for value in values]
        payload.append(raw)
        return array("i", map(len, values)).tobytes()
    if field.default is None:
        values = [nan if value is None else value for value in values]
    return array(_TYPECODES[field.dtype], values).tobytes()


def _array(values: Sequence[bytes | None], payload: list[Bytes]) -> int:
    present = [value for value in values if value is not None]
    if not present:
        return NONE
    if len(present) < len(values):
        payload.append(bytes([value is not None for value in values]))
    payload += present
    return ALL if len(present) == len(values) else SOME


def _extras(entries: Sequence[Entry], payload: list[Bytes]) -> dict[str, Any] | None:
    rows = [entry.fields for entry in entries]
    names = _extra_names()
    used = set().union(*(names & row.keys() for row in rows))
    failures = [
        {"entry": index, "count": entry.failure.count, "reason": entry.failure.reason}
        for index, entry in enumerate(entries)
        if entry.failure is not None
    ]
    if not used and not failures:
        return None
    extras: dict[str, Any] = {"failures": failures, "rewards": None}
    for field in _columns(extra=True):
        values = [row.get(field.name, field.default) for row in rows]
        extras[field.name] = _column(field, values, payload)
    if "rewards" in used:
        extras["rewards"] = _components([row.get("rewards") or {} for row in rows])
    extras["attachments"] = [
        {"entry": index, "name": name, "data": data}
        for index, row in enumerate(rows)
        for name, data in row.get("attachments", {}).items()
    ]
    extras["token_arrays"] = _token_arrays([row.get("token_arrays", {}) for row in rows], payload)
    return extras


def _components(rows: Sequence[Any]) -> dict[str, Any]:
    names = {name: index for index, name in enumerate(dict.fromkeys(chain.from_iterable(rows)))}
    return {
        "names": list(names),
        "counts": array("i", map(len, rows)).tobytes(),
        "indexes": array("i", [names[name] for row in rows for name in row]).tobytes(),
        "values": array("d", [value for row in rows for value in row.values()]).tobytes(),
    }


def _token_arrays(rows: Sequence[Any], payload: list[Bytes]) -> list[dict[str, Any]]:
    found = []
    for name in dict.fromkeys(chain.from_iterable(rows)):
        carried: list[NamedArray | None] = [row.get(name) for row in rows]
        signatures = {(one.dtype, one.shape) for one in carried if one is not None}
        assert len(signatures) == 1, (name, signatures)
        dtype, shape = signatures.pop()
        presence = _array([None if one is None else one.data for one in carried], payload)
        found.append({"name": name, "dtype": dtype, "shape": list(shape), "presence": presence})
    return found
