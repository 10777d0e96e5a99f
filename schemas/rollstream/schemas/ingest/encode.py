"""Entries to the bytes of one record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import nan
from typing import Any

from rollstream.schemas.fields import RowField, columns
from rollstream.schemas.ingest.entry import (
    ENTRIES_MAX,
    SHARED,
    Entry,
    Failure,
    NamedArray,
    Producer,
)
from rollstream.schemas.ingest.wire import ALL, COUNTS, NONE, SOME, packed, write_record

# A union's branch is named: fastavro would take none that a broken entry's numbers do not fit.
_EXTRAS = "rollstream.rollouts.v1.Extras"
_PRODUCER = "rollstream.rollouts.v1.Producer"
_NOT_ASCII = "…"

_Rows = Sequence[Mapping[str, Any]]


def encode_entries(
    entries: Sequence[Entry],
    *,
    environment: str,
    worker_id: str,
    partitions: int,
    producer: Producer | None = None,
) -> bytes:
    """The bytes of one record with these entries, in their order. Equal arguments give equal bytes.

    Args:
        entries: 1 to ``ENTRIES_MAX``, all of one partition, whose ``token_arrays`` agree in dtype
            and trailing shape by name.
        environment, worker_id: of all entries.
        partitions: of the topic, as the producer knows it.
        producer: how it stands; None: it does not tell.

    Raises:
        UnicodeEncodeError: a text that UTF-8 cannot encode.
    """
    count = len(entries)
    assert 0 < count <= ENTRIES_MAX, count
    shared, plain, extras, kinds, failures = zip(*entries, strict=True)
    payload: list[bytes] = []
    header = {
        "environment": environment,
        "worker_id": worker_id,
        "partitions": partitions,
        "count": count,
        "kinds": bytes(kinds) if any(kinds) else b"",
        **_shared(shared),
    }
    for field, values in zip(columns(extra=False), zip(*plain, strict=True), strict=True):
        header[field.name] = _column(field, values, payload)
    some = any(extras) or any(failures)
    header["extras"] = (_EXTRAS, _extras(extras, failures, payload)) if some else None
    header["producer"] = producer and (_PRODUCER, producer._asdict())
    return write_record(header, payload)


def _shared(rows: Sequence[tuple[Any, ...]]) -> Mapping[str, Any]:
    """The distinct combinations in the order of their first use, and the index of each row's."""
    found = {values: index for index, values in enumerate(dict.fromkeys(rows))}
    return {
        "shared": [dict(zip(SHARED, values, strict=True)) for values in found],
        "shared_indexes": packed(COUNTS, map(found.__getitem__, rows)) if len(found) > 1 else b"",
    }


def _column(field: RowField, values: Sequence[Any], payload: list[bytes]) -> bytes | int:
    """What the header has of a column; what has a varying length is added to ``payload``."""
    if field.column == "array":
        return _array(values, payload)
    if values.count(field.default) == len(values):
        return b""
    if field.column == "text":
        return packed(COUNTS, _texts(values, payload))
    if field.default is None:
        values = [nan if value is None else value for value in values]
    return packed(field.dtype, values)


def _texts(values: Sequence[Any], payload: list[bytes]) -> Iterable[int]:
    """Adds the UTF-8 of the texts to ``payload``; how many bytes each has."""
    try:
        joined = "".join(values)
    except TypeError:  # Bytes came from a record and are no UTF-8.
        joined = _NOT_ASCII
    if joined.isascii():  # As many bytes as characters.
        payload.append(joined.encode())
        return map(len, values)
    raws = [value if isinstance(value, bytes) else value.encode() for value in values]
    payload += raws
    return map(len, raws)


def _array(values: Sequence[Any], payload: list[bytes]) -> int:
    if None not in values:
        payload += values
        return ALL
    some = [value for value in values if value is not None]
    if not some:
        return NONE
    payload.append(bytes([value is not None for value in values]))
    payload += some
    return SOME


def _extras(
    rows: _Rows, failures: Sequence[Failure | None], payload: list[bytes]
) -> Mapping[str, Any]:
    """What few entries have."""
    failed = [(index, one) for index, one in enumerate(failures) if one is not None]
    extras: dict[str, Any] = {
        "failures": [{"entry": i, "count": one.count, "reason": one.reason} for i, one in failed]
    }
    used = set(chain.from_iterable(rows))
    for field in columns(extra=True):
        extras[field.name] = NONE if field.column == "array" else b""
        if field.name in used:
            values = [row.get(field.name, field.default) for row in rows]
            extras[field.name] = _column(field, values, payload)
    extras["rewards"] = _components([row.get("rewards", {}) for row in rows])
    extras["attachments"] = [
        {"entry": index, "name": name, "data": data}
        for index, row in enumerate(rows)
        for name, data in sorted(row.get("attachments", {}).items())
    ]
    extras["token_arrays"] = _token_arrays([row.get("token_arrays", {}) for row in rows], payload)
    return extras


def _components(rows: Sequence[Mapping[str, float]]) -> Mapping[str, Any] | None:
    names = _names(rows)
    if not names:
        return None
    numbers = {name: index for index, name in enumerate(names)}
    components = [component for row in rows for component in sorted(row.items())]
    return {
        "names": names,
        "counts": packed(COUNTS, map(len, rows)),
        "indexes": packed(COUNTS, (numbers[name] for name, _ in components)),
        "values": packed("<f8", (value for _, value in components)),
    }


def _token_arrays(
    rows: Sequence[Mapping[str, NamedArray]], payload: list[bytes]
) -> Sequence[Mapping[str, Any]]:
    found = []
    for name in _names(rows):
        arrays = [row.get(name) for row in rows]
        signatures = {(one.dtype, one.shape) for one in arrays if one is not None}
        assert len(signatures) == 1, (name, signatures)
        dtype, shape = signatures.pop()
        presence = _array([None if one is None else one.data for one in arrays], payload)
        found.append({"name": name, "dtype": dtype, "shape": list(shape), "presence": presence})
    return found


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All keys, sorted, so that the order in which a producer names them changes nothing."""
    return sorted(set(chain.from_iterable(rows)))
