"""Entries to the bytes of one record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import nan
from operator import itemgetter
from types import NoneType
from typing import Any

from rollstream.schemas.fields import RowField, columns, named
from rollstream.schemas.ingest.entry import ENTRIES_MAX, Entry, Failure, NamedArray, Producer
from rollstream.schemas.ingest.wire import (
    ALL,
    COUNTS,
    NONE,
    SOME,
    avro_array,
    avro_bytes,
    avro_long,
    default_of,
    extra_names,
    header_names,
    packed,
    prefix,
)

_ORIGINS_KEPT = 16
_SHARED_KEPT = 1_024
_SHARED_CHARS_MAX = 1_024  # Of a combination that is remembered: together a few MiB.
_texts_of = itemgetter(*(at for at, one in enumerate(named("shared")) if not one.dtype))
_NOT_ASCII = "…"
_ABSENT, _PRESENT = avro_long(0), avro_long(1)  # The branches of a union with null.

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
    found = {values: index for index, values in enumerate(dict.fromkeys(shared))}
    payload: list[bytes] = []
    header = _origin(environment, worker_id, partitions) | {
        "count": avro_long(count),
        "kinds": avro_bytes(bytes(kinds) if any(kinds) else b""),
        "shared": avro_array(map(_known_shared, found)),
        "shared_indexes": avro_bytes(
            packed(COUNTS, map(found.__getitem__, shared)) if len(found) > 1 else b""
        ),
    }
    for field, values in zip(columns(extra=False), zip(*plain, strict=True), strict=True):
        header[field.name] = _column(field, values, payload)
    some = any(extras) or any(failures)
    header["extras"] = _present(_extras(extras, failures, payload)) if some else _ABSENT
    header["producer"] = _producer(producer)
    ordered = [header[name] if name in header else default_of(name) for name in header_names()]
    size = avro_long(sum(map(len, payload)))
    return b"".join([prefix(), *ordered, size, *payload])


@lru_cache(_ORIGINS_KEPT)
def _origin(environment: str, worker_id: str, partitions: int) -> dict[str, bytes]:
    return {
        "environment": _text(environment),
        "worker_id": _text(worker_id),
        "partitions": avro_long(partitions),
    }


def _present(parts: Iterable[bytes]) -> bytes:
    """What is there, of a union with null."""
    return b"".join([_PRESENT, *parts])


def _producer(stands: Producer | None) -> bytes:
    if stands is None:
        return _ABSENT
    numbers = map(avro_long, (stands.begun, stands.waiting))
    return _present([_text(stands.producer_id), *numbers])


def _known_shared(values: tuple[Any, ...]) -> bytes:
    is_short = sum(map(len, _texts_of(values))) <= _SHARED_CHARS_MAX
    return (_shared if is_short else _shared.__wrapped__)(values)


@lru_cache(_SHARED_KEPT)
def _shared(values: tuple[Any, ...]) -> bytes:
    each = zip(named("shared"), values, strict=True)
    return b"".join([avro_long(one) if field.dtype else _text(one) for field, one in each])


def _text(text: str) -> bytes:
    return avro_bytes(text.encode())


def _column(field: RowField, values: Sequence[Any], payload: list[bytes]) -> bytes:
    """What the header has of a column; what has a varying length is added to ``payload``."""
    if field.column == "array":
        return _array(values, payload)
    if values.count(field.default) == len(values):
        return _ABSENT
    if field.column == "text":
        return avro_bytes(packed(COUNTS, _lengths(values, payload)))
    if field.default is None and None in values:
        values = [nan if value is None else value for value in values]
    return avro_bytes(packed(field.dtype, values))


def _lengths(values: Sequence[Any], payload: list[bytes]) -> Iterable[int]:
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


def _array(values: Sequence[Any], payload: list[bytes]) -> bytes:
    kinds = {*map(type, values)}  # A view takes long to be told from None.
    if NoneType not in kinds:
        payload += values
        return avro_long(ALL)
    if len(kinds) == 1:
        return avro_long(NONE)
    payload.append(bytes([value is not None for value in values]))
    payload += [value for value in values if value is not None]
    return avro_long(SOME)


def _extras(
    rows: _Rows, failures: Sequence[Failure | None], payload: list[bytes]
) -> Iterable[bytes]:
    """What few entries have, in the order of the schema."""
    used = set(chain.from_iterable(rows))
    found = {
        field.name: _column(field, [row.get(field.name, field.default) for row in rows], payload)
        if field.name in used
        else _ABSENT
        for field in columns(extra=True)
    }
    found["rewards"] = _components([row.get("rewards", {}) for row in rows])
    found["attachments"] = avro_array(
        avro_long(index) + _text(name) + avro_bytes(data)
        for index, row in enumerate(rows)
        for name, data in sorted(row.get("attachments", {}).items())
    )
    found["failures"] = avro_array(
        avro_long(index) + avro_long(one.count) + _text(one.reason)
        for index, one in enumerate(failures)
        if one is not None
    )
    found["token_arrays"] = _token_arrays([row.get("token_arrays", {}) for row in rows], payload)
    return map(found.__getitem__, extra_names())


def _components(rows: Sequence[Mapping[str, float]]) -> bytes:
    names = _names(rows)
    if not names:
        return _ABSENT
    numbers = {name: index for index, name in enumerate(names)}
    components = [component for row in rows for component in sorted(row.items())]
    pieces = (
        packed(COUNTS, map(len, rows)),
        packed(COUNTS, (numbers[name] for name, _ in components)),
        packed("<f8", (value for _, value in components)),
    )
    return _PRESENT + avro_array(map(_text, names)) + b"".join(map(avro_bytes, pieces))


def _token_arrays(rows: Sequence[Mapping[str, NamedArray]], payload: list[bytes]) -> bytes:
    found = []
    for name in _names(rows):
        arrays = [row.get(name) for row in rows]
        signatures = {(one.dtype, one.shape) for one in arrays if one is not None}
        assert len(signatures) == 1, (name, signatures)
        dtype, shape = signatures.pop()
        presence = _array([None if one is None else one.data for one in arrays], payload)
        sides = avro_array(map(avro_long, shape))
        found.append(_text(name) + _text(dtype) + sides + presence)
    return avro_array(found)


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All keys, sorted, so that the order in which a producer names them changes nothing."""
    return sorted(set(chain.from_iterable(rows)))
