"""How Avro holds a record: a header, and the payload behind it.

The content of the last field, ``payload``, is joined behind the header when a record is written,
and is a view when it is read: a rollout's tokens are copied once on either side. fastavro writes
and reads what is rare; plain fields are written and read here, in a third of fastavro's time.

Source: Avro 1.12 specification, "Binary encoding".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from io import BytesIO
from typing import Any

import fastavro

from rollstream.schemas import wire_schemas
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.wire_schemas import PREFIX_BYTES, WireSchema

NULL = b"\x00"
END_OF_ARRAY = b"\x00"
_SECOND_BRANCH = b"\x02"
_SHORT = 0x7F  # The last byte of a number, or the only one.
_LONG_BITS = 64
_HEADS_KEPT = 1_024
_HEAD_BYTES_KEPT = 1_024
_SIZES_TRIED = 4
_LONGS_KEPT = 8_192
_TEXTS_KEPT = 1_024


def record_schema() -> WireSchema:
    """The schema of the records that are written."""
    return wire_schemas.newest("ingest_record")


@lru_cache(_LONGS_KEPT)
def avro_long(number: int) -> bytes:
    """An int or a long: zigzag, then seven bits a byte, the lowest first."""
    rest = number << 1 ^ number >> 63
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


@lru_cache(_TEXTS_KEPT)
def avro_text(text: str) -> bytes:
    """A string."""
    raw = text.encode()
    return avro_long(len(raw)) + raw


def avro_extras(extras: Mapping[str, Any]) -> bytes:
    """The field ``extras``, where it is not null."""
    stream = BytesIO()
    stream.write(_SECOND_BRANCH)
    fastavro.schemaless_writer(stream, _extras_schema(), extras)
    return stream.getvalue()


def read_record(schema: WireSchema, value: bytes) -> tuple[dict[str, Any], memoryview]:
    """The fields but the last, and a view of the last one's content.

    Raises:
        UnreadableEvent: the bytes end before the payload does, or after. EOFError and what else
            fastavro raises, IndexError: the header is torn. What is made is bounded by the bytes
            that there are, whatever counts they name.
    """
    reader = _reader(schema.prefix)
    header, at = reader.head(value)
    size = len(value)
    for name, empty in reader.columns:
        found = value[at]
        at += 1
        if found == 0:
            header[name] = empty
            continue
        if found > _SHORT:
            found, at = _long(value, at - 1)
        else:
            found = found >> 1 ^ -(found & 1)
        if empty == 0:
            header[name] = found
        elif not 0 <= found <= size - at:
            raise EOFError(f"{name} has {found} bytes, and {size - at} are left")
        else:
            header[name] = value[at : at + found]
            at += found
    if value[at : at + 1] == NULL:
        header["extras"] = None
        at += 1
    else:
        header["extras"], at = _read(reader.extras, value, at)
    found, at = _long(value, at)
    if size - at != found:
        raise UnreadableEvent("torn", f"payload of {found} bytes, and {size - at} are left")
    return header, memoryview(value)[at:]


class _Reader:
    """Reads the records of one version of the schema. What it keeps is bounded.

    The fields before the columns are the same in most records of a process with as many entries, so
    they are looked up together, by their bytes. Avro's bytes say where they end: if those of known
    fields begin a record, it has these fields.

    Attributes:
        columns: name, and 0 for a number or b"" for bytes; those between ``shared_indexes`` and
            ``extras``.
        extras: for fastavro.
    """

    def __init__(self, fields: Sequence[Mapping[str, Any]]) -> None:
        names = [field["name"] for field in fields]
        first = names.index("shared_indexes") + 1
        assert names[-2:] == ["extras", "payload"], names
        self.columns = [(f["name"], 0 if f["type"] == "int" else b"") for f in fields[first:-2]]
        self.extras = fastavro.parse_schema(fields[-2]["type"])
        self._head = fastavro.parse_schema(
            {"type": "record", "name": "IngestRecordHead", "fields": fields[:first]}
        )
        self._kept: dict[bytes, dict[str, Any]] = {}
        self._sizes: list[int] = []  # Bytes of what is kept, the latest first.

    def head(self, value: bytes) -> tuple[dict[str, Any], int]:
        """The fields before the columns, and the index behind them."""
        for size in self._sizes:
            kept = self._kept.get(value[PREFIX_BYTES : PREFIX_BYTES + size])
            if kept is not None:
                return kept.copy(), PREFIX_BYTES + size
        head, at = _read(self._head, value, PREFIX_BYTES)
        size = at - PREFIX_BYTES
        if size <= _HEAD_BYTES_KEPT:
            if len(self._kept) >= _HEADS_KEPT:
                self._kept.clear()
            self._kept[value[PREFIX_BYTES:at]] = head
            self._sizes = [size, *(other for other in self._sizes if other != size)][:_SIZES_TRIED]
        return head.copy(), at


@cache
def _reader(prefix: bytes) -> _Reader:
    return _Reader(wire_schemas.by_prefix()[prefix].parsed["fields"])


def _read(parsed: Any, value: bytes, at: int) -> tuple[Any, int]:
    stream = BytesIO(value)
    stream.seek(at)
    found = fastavro.schemaless_reader(stream, parsed, None)
    return found, stream.tell()


def _long(value: bytes, at: int) -> tuple[int, int]:
    bits = 0
    for shift in range(0, _LONG_BITS, 7):
        byte = value[at]
        at += 1
        bits |= (byte & _SHORT) << shift
        if byte <= _SHORT:
            if bits >> _LONG_BITS:
                break
            return bits >> 1 ^ -(bits & 1), at
    raise ValueError(f"a number of more than {_LONG_BITS} bits ends before byte {at}")


@cache
def _extras_schema() -> Any:
    *_, extras, _ = record_schema().source["fields"]
    assert extras["name"] == "extras", extras
    return fastavro.parse_schema(extras["type"][1])
