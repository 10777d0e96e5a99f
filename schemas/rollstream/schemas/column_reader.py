"""Reads Avro records that hold columns.

fastavro asks its stream for each byte of the length of each text. Here the texts of an array are
cut out of the bytes at once if they are equally long, as ids are, and made when they are needed.

Source: Avro 1.12 specification, "Binary encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollstream.schemas.text_run import TextRun

_NUMBER_BITS = 64

# Returns the value that begins at this offset of the bytes, and the offset after it. If the bytes
# end too early, or are no such value, it raises what ``wire_schemas.read_avro`` expects.
Read = Callable[[bytes, int], tuple[Any, int]]


def has_columns(avro_type: Any) -> bool:
    """Returns whether a field of the record is a record of arrays."""
    types = [field["type"] for field in avro_type["fields"]]
    records = [one["fields"] for one in types if isinstance(one, dict) and "fields" in one]
    return any(isinstance(field["type"], dict) for fields in records for field in fields)


def reader_of(avro_type: Any) -> Read:
    """Returns what reads a value of this type, as ``wire_schemas.parse`` has it, and makes of it
    what fastavro makes. Columns need no other types than these."""
    match avro_type:
        case "int" | "long":
            return _read_long
        case "bytes":
            return _read_bytes
        case "string":
            return _read_text
        case {"type": "record", "fields": fields}:
            return _record_reader([(one["name"], reader_of(one["type"])) for one in fields])
        case {"type": "array", "items": "bytes"}:
            return _array_reader(_slices)
        case {"type": "array", "items": "string"}:
            return _array_reader(_texts)
        case {"type": "array", "items": items}:
            return _array_reader(_each(reader_of(items)))
    raise TypeError(f"no column is of the Avro type {avro_type}")


def _read_long(value: bytes, at: int) -> tuple[int, int]:
    byte = value[at]
    number, bits = byte & 0x7F, 7
    while byte & 0x80:
        at += 1
        byte = value[at]
        number |= (byte & 0x7F) << bits
        bits += 7
        if bits > _NUMBER_BITS + 7:
            raise ValueError(f"a number of more than {_NUMBER_BITS} bits")
    return number >> 1 ^ -(number & 1), at + 1


def _read_size(value: bytes, at: int) -> tuple[int, int]:
    size, at = _read_long(value, at)
    if not 0 <= size <= len(value) - at:
        raise EOFError(f"{size} bytes where {len(value) - at} are left")
    return size, at


def _read_bytes(value: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_size(value, at)
    return value[at : at + size], at + size


def _read_text(value: bytes, at: int) -> tuple[str, int]:
    size, at = _read_size(value, at)
    return value[at : at + size].decode(), at + size


def _record_reader(fields: list[tuple[str, Read]]) -> Read:
    def read(value: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, read_field in fields:
            found[name], at = read_field(value, at)
        return found, at

    return read


# Returns so many items that begin at this offset, and the offset after them.
_ReadItems = Callable[[bytes, int, int], tuple[Sequence[Any], int]]


def _array_reader(read_items: _ReadItems) -> Read:
    def read(value: bytes, at: int) -> tuple[Sequence[Any], int]:
        items: Sequence[Any] = []
        while True:
            count, at = _read_long(value, at)
            if not count:
                return items, at
            if count < 0:  # The size of the block in bytes follows.
                count, (_, at) = -count, _read_long(value, at)
            if count > len(value) - at:  # Each takes a byte at least.
                raise EOFError(f"{count} items where {len(value) - at} bytes are left")
            found, at = read_items(value, at, count)
            items = [*items, *found] if items else found

    return read


def _each(read_item: Read) -> _ReadItems:
    def read(value: bytes, at: int, count: int) -> tuple[list[Any], int]:
        items = []
        for _ in range(count):
            item, at = read_item(value, at)
            items.append(item)
        return items, at

    return read


def _run(value: bytes, at: int, count: int) -> tuple[range, int] | None:
    """Where each of these items begins, with its size before it, and how many bytes that takes, if
    all are equally long; else None."""
    size, first = _read_size(value, at)
    step = first - at + size
    stop = at + count * step
    # The next one begins a step behind one that is as long as the first.
    if stop <= len(value) and all(
        value[place:stop:step] == value[place : place + 1] * count for place in range(at, first)
    ):
        return range(at, stop, step), first - at
    return None


def _slices(value: bytes, at: int, count: int) -> tuple[Sequence[bytes], int]:
    found = _run(value, at, count)
    if found is None:
        return _each(_read_bytes)(value, at, count)
    starts, head = found
    return [value[start + head : start + starts.step] for start in starts], starts.stop


def _texts(value: bytes, at: int, count: int) -> tuple[Sequence[str], int]:
    found = _run(value, at, count)
    if found is None:
        return _each(_read_text)(value, at, count)
    starts, head = found
    run = value[at : starts.stop]
    if run.isascii():
        return TextRun(run.decode(), starts.step, head), starts.stop
    return [value[start + head : start + starts.step].decode() for start in starts], starts.stop
