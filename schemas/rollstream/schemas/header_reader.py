"""Reads the header of a rollout segment, as fastavro would.

A sealer reads one for every rollout. The fields that stay the same between two policies of one
process are looked up together, by their bytes (``rollout_reader`` has what that saves).

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
_TYPES_MEMOISED = (  # segment_idx to worker_id.
    *("int", "boolean", "string", "string", "string"),
    *("string", "int", "long", "string", "string"),
)
_TYPES_AFTER = ("long", "int", "int", ["null", "double"], "string", "string")
_RUNS_MEMOISED = 1_024
_SIZES_TRIED = 4
_TEXTS_MEMOISED = 1_024
_LONG_OR_NEGATIVE = 0x81  # Bits that are not set in the first byte of a short length.
_NULL, _DOUBLE = 0, 2  # Branches of a union.
_FALSE, _TRUE = 0, 1
_double = Struct("<d")
_memoised_decode = lru_cache(_TEXTS_MEMOISED)(bytes.decode)  # Of at most 63 bytes.


class HeaderReader:
    """Reads the headers of one schema. What it memoises is bounded."""

    def __init__(self, fields: Sequence[Mapping[str, Any]]) -> None:
        layout = (*_TYPES_BEFORE, *_TYPES_MEMOISED, *_TYPES_AFTER)
        assert tuple(field["name"] for field in fields) == RolloutHeader._fields
        assert tuple(field["type"] for field in fields) == layout, "another layout, another reader"
        self._memoised: dict[bytes, tuple[Any, ...]] = {}
        self._sizes: list[int] = []  # Bytes of the memoised runs, the latest first.

    def read(self, value: bytes, at: int) -> tuple[RolloutHeader, int]:
        """The header that begins at ``at``, and the index after it.

        Raises:
            IndexError, ValueError: it ends too early, or no Avro writer wrote it.
        """
        environment, at = _memoised_text(value, at)
        example_id, at = _text(value, at)
        group_uid, at = _text(value, at)
        group_size, at = read_number(value, at)
        rollout_uid, at = _text(value, at)
        for size in self._sizes:
            run = self._memoised.get(value[at : at + size])
            if run is not None:
                at += size
                break
        else:
            run, at = self._read_run(value, at)
        created_ts, at = read_number(value, at)
        prompt_count, at = read_number(value, at)
        token_count, at = read_number(value, at)
        reward, at = _reward(value, at)
        split, at = _memoised_text(value, at)
        stop_reason, at = _memoised_text(value, at)
        header = RolloutHeader._make(
            (
                *(environment, example_id, group_uid, group_size, rollout_uid),
                *run,
                *(created_ts, prompt_count, token_count, reward, split, stop_reason),
            )
        )
        return header, at

    def _read_run(self, value: bytes, begin: int) -> tuple[tuple[Any, ...], int]:
        values: list[Any] = []
        at = begin
        for kind in _TYPES_MEMOISED:
            found, at = _READERS[kind](value, at)
            values.append(found)
        size = at - begin
        if at > len(value):
            raise IndexError(f"a text goes on after the record's end, at byte {at}")
        if len(self._memoised) >= _RUNS_MEMOISED:
            self._memoised.clear()
        self._memoised[value[begin:at]] = run = tuple(values)
        self._sizes = [size, *(other for other in self._sizes if other != size)][:_SIZES_TRIED]
        return run, at


def _text(value: bytes, at: int) -> tuple[str, int]:
    size = value[at]
    if size & _LONG_OR_NEGATIVE:
        return _long_text(value, at)
    end = at + 1 + (size >> 1)
    return value[at + 1 : end].decode(), end


def _memoised_text(value: bytes, at: int) -> tuple[str, int]:
    size = value[at]
    if size & _LONG_OR_NEGATIVE:
        return _long_text(value, at)
    end = at + 1 + (size >> 1)
    return _memoised_decode(value[at + 1 : end]), end


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
    "string": _memoised_text,
    "int": read_number,
    "long": read_number,
    "boolean": _flag,
}
