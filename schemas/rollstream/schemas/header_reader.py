"""Reads the header of a rollout segment: what fastavro would read, in less than half of its time.

A sealer reads one for every rollout, and most of it comes again and again: the fields that stay the
same between two policies of one process are looked up together.

Source: Avro 1.12 specification, "Binary encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.varint import read_number

_TYPES_BEFORE = ("string", "string", "string", "int", "string")  # To rollout_uid.
_TYPES_STEADY = (  # segment_idx to worker_id.
    *("int", "boolean", "string", "string", "string"),
    *("string", "int", "long", "string", "string"),
)
_TYPES_BEHIND = ("long", "int", "int", ["null", "double"], "string", "string")
_STEADY_KEPT = 1_024
_SIZES_KEPT = 4
_WORDS_KEPT = 1_024
_LONG_OR_NEGATIVE = 0x81  # Bits of a length's first byte that short lengths have not.
_NULL, _DOUBLE = 0, 2  # Branches of a union.
_FALSE, _TRUE = 0, 1
_double = Struct("<d")
_word = lru_cache(_WORDS_KEPT)(bytes.decode)  # Of at most 63 bytes.


class HeaderReader:
    """Reads the headers of one schema. What it keeps is bounded."""

    def __init__(self, fields: Sequence[Mapping[str, Any]]) -> None:
        layout = (*_TYPES_BEFORE, *_TYPES_STEADY, *_TYPES_BEHIND)
        assert tuple(field["name"] for field in fields) == RolloutHeader._fields
        assert tuple(field["type"] for field in fields) == layout, "another layout, another reader"
        self._steady: dict[bytes, tuple[Any, ...]] = {}
        self._sizes: list[int] = []  # Of what is kept, as they were met last, the newest first.

    def read(self, value: bytes, at: int) -> tuple[RolloutHeader, int]:
        """The header that begins at ``at``, and where it ends.

        Raises:
            IndexError, ValueError: it ends too early, or is nothing that Avro writes.
        """
        environment, at = _kept_text(value, at)
        example_id, at = _text(value, at)
        group_uid, at = _text(value, at)
        group_size, at = read_number(value, at)
        rollout_uid, at = _text(value, at)
        for size in self._sizes:
            steady = self._steady.get(value[at : at + size])
            if steady is not None:
                at += size
                break
        else:
            steady, at = self._read_steady(value, at)
        created_ts, at = read_number(value, at)
        prompt_count, at = read_number(value, at)
        token_count, at = read_number(value, at)
        reward, at = _reward(value, at)
        split, at = _kept_text(value, at)
        stop_reason, at = _kept_text(value, at)
        header = RolloutHeader._make(
            (
                *(environment, example_id, group_uid, group_size, rollout_uid),
                *steady,
                *(created_ts, prompt_count, token_count, reward, split, stop_reason),
            )
        )
        return header, at

    def _read_steady(self, value: bytes, begin: int) -> tuple[tuple[Any, ...], int]:
        values: list[Any] = []
        at = begin
        for kind in _TYPES_STEADY:
            found, at = _READERS[kind](value, at)
            values.append(found)
        size = at - begin
        if at > len(value):
            raise IndexError(f"a text goes on behind the record's end, at byte {at}")
        if len(self._steady) >= _STEADY_KEPT:
            self._steady.clear()
        self._steady[value[begin:at]] = steady = tuple(values)
        self._sizes = [size, *(other for other in self._sizes if other != size)][:_SIZES_KEPT]
        return steady, at


def _text(value: bytes, at: int) -> tuple[str, int]:
    size = value[at]
    if size & _LONG_OR_NEGATIVE:
        return _long_text(value, at)
    end = at + 1 + (size >> 1)
    return value[at + 1 : end].decode(), end


def _kept_text(value: bytes, at: int) -> tuple[str, int]:
    size = value[at]
    if size & _LONG_OR_NEGATIVE:
        return _long_text(value, at)
    end = at + 1 + (size >> 1)
    return _word(value[at + 1 : end]), end


def _long_text(value: bytes, at: int) -> tuple[str, int]:
    size, at = read_number(value, at)
    if size < 0:
        raise ValueError(f"a text of {size} bytes at byte {at}")
    return value[at : at + size].decode(), at + size


def _flag(value: bytes, at: int) -> tuple[bool, int]:
    if value[at] not in (_FALSE, _TRUE):
        raise ValueError(f"a boolean of {value[at]} at byte {at}")
    return value[at] == _TRUE, at + 1


def _reward(value: bytes, at: int) -> tuple[float | None, int]:
    branch = value[at]
    if branch == _NULL:
        return None, at + 1
    if branch != _DOUBLE:
        raise ValueError(f"branch {branch} of a union of two at byte {at}")
    return _double.unpack(value[at + 1 : at + 1 + _double.size])[0], at + 1 + _double.size


_READERS: Mapping[str, Callable[[bytes, int], tuple[Any, int]]] = {
    "string": _kept_text,
    "int": read_number,
    "long": read_number,
    "boolean": _flag,
}
