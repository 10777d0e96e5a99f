"""The frame of a record: where its columns lie, and that their lengths agree.

Counts are compared with the bytes that there are before anything is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.fields import REQUIRED_ARRAYS
from rollstream.schemas.ingest.entry import ENTRIES_MAX, Failure
from rollstream.schemas.ingest.layout import (
    ALL,
    ARRAY,
    NONE,
    NUMBER,
    SOME,
    Column,
    extra_columns,
    plain_columns,
    unpackers,
)
from rollstream.schemas.rules import BrokenRule, check_token_rows

_SIGNATURES_KEPT = 256
# What NumPy makes a dtype of and has no big-endian order; text goes to no parser of NumPy's.
_DTYPE = re.compile(r"[<|=]?[biufc][0-9]{1,2}|bool|u?int[0-9]{1,2}|(float|complex)[0-9]{2,3}")


class ArrayRun(NamedTuple):
    """Where one array lies in a record's payload.

    Attributes:
        start: index of its first byte.
        width: bytes a token.
        ends: in tokens: entry i has those from ``ends[i]`` to ``ends[i + 1]``; count + 1 of them.
            Arrays of which each entry has one share it.
        present: uint8 [count], 1 where the entry has it; None where each has it.
        signature: its dtype and trailing shape.
    """

    start: int
    width: int
    ends: Sequence[int]
    present: bytes | None
    signature: ArraySignature


class Frame(NamedTuple):
    """Where a record's columns lie, and its texts.

    Attributes:
        kinds: uint8, one an entry.
        shared_indexes: of the combination of each entry.
        failures: by entry.
        numbers: ``prompt_count`` and ``token_count`` of each entry.
        texts: those that an entry has; U+FFFD for what is no UTF-8.
        no_utf8: the bytes of a text that is none, by name and entry.
        arrays: the schema's arrays that an entry has.
        token_arrays: those that the producer named.
    """

    kinds: bytes
    shared_indexes: Sequence[int]
    failures: dict[int, Failure]
    numbers: dict[str, list[Any]]
    texts: dict[str, list[str]]
    no_utf8: dict[tuple[str, int], bytes]
    arrays: dict[str, ArrayRun]
    token_arrays: dict[str, ArrayRun]


def read_frame(header: Mapping[str, Any], payload: memoryview) -> Frame:
    """The frame of the record with this header.

    Raises:
        UnreadableEvent: no entries, or lengths that disagree.
    """
    count = header["count"]
    if not 0 < count <= ENTRIES_MAX:
        raise _inconsistent(f"count is {count}; a record has 1 to {ENTRIES_MAX} entries")
    kinds = _sized(header, "kinds", count, 1) or bytes(count)
    shared = _shared_indexes(header, count)
    frame = Frame(kinds, shared, {}, {}, {}, {}, {}, {})
    numbers = frame.numbers
    for name in ("prompt_count", "token_count"):
        numbers[name] = _counts(header, name, count)
    ends = [0, *accumulate(numbers["token_count"])]
    prompt_ends = [0, *accumulate(numbers["prompt_count"])]
    at = _lay_out(plain_columns(), header, frame, payload, (ends, prompt_ends), 0)
    for name in REQUIRED_ARRAYS:
        if header[name] != ALL:
            raise _inconsistent(f"{name} is {header[name]}; every entry has it, give {ALL}")
    extras = header["extras"]
    if extras is not None:
        at = _lay_out(extra_columns(), extras, frame, payload, (ends, prompt_ends), at)
        _check_components(extras["rewards"], count)
        _check_collections(extras, frame)
        at = _lay_out_token_arrays(extras["token_arrays"], frame, payload, ends, at)
    if at != len(payload):
        raise _inconsistent(f"payload has {len(payload)} bytes; its columns have {at}")
    return frame


def _inconsistent(detail: str) -> UnreadableEvent:
    return UnreadableEvent("inconsistent", detail)


def _lay_out(
    columns: Sequence[Column],
    wire: Mapping[str, Any],
    frame: Frame,
    payload: memoryview,
    ends: tuple[list[int], list[int]],
    at: int,
) -> int:
    """Finds these columns; returns the index in the payload behind them."""
    count = len(frame.kinds)
    for name, kind, _, signature, width, _ in columns:
        found = wire[name]
        if kind == ARRAY:
            if found == NONE:
                continue
            own = ends[name == "prompt_tokens"]
            run, at = _array(name, found, signature, width, own, payload, at)
            frame.arrays[name] = run
        elif not found:
            continue
        elif len(found) != count * width:
            raise _wrong_size(name, len(found), count * width)
        elif kind != NUMBER:
            sizes = unpackers(count)["<i4"](found)
            stop = at + sum(sizes)
            if min(sizes) < 0 or stop > len(payload):
                raise _inconsistent(f"{name} has texts of {stop - at} bytes")
            frame.texts[name] = _texts(name, payload[at:stop], sizes, frame.no_utf8)
            at = stop
    return at


def _texts(
    name: str, raw: memoryview, sizes: Sequence[int], no_utf8: dict[tuple[str, int], bytes]
) -> list[str]:
    try:
        whole = str(raw, "utf-8")
    except UnicodeDecodeError:
        whole = ""
    if len(sizes) == 1 and whole:
        return [whole]
    ends = [0, *accumulate(sizes)]
    if len(whole) == len(raw):
        return [whole[start:stop] for start, stop in pairwise(ends)]
    texts = []
    for index, (start, stop) in enumerate(pairwise(ends)):
        one = bytes(raw[start:stop])
        try:
            texts.append(one.decode())
        except UnicodeDecodeError:
            texts.append(one.decode(errors="replace"))
            no_utf8[name, index] = one
    return texts


def _array(
    name: str,
    presence: int,
    signature: ArraySignature,
    width: int,
    ends: list[int],
    payload: memoryview,
    at: int,
) -> tuple[ArrayRun, int]:
    """One array, and the index in the payload behind it."""
    present = None
    if presence == SOME:
        count = len(ends) - 1
        present = bytes(payload[at : at + count])
        at += count
        if len(present) < count or present.translate(None, b"\x00\x01"):
            raise _inconsistent(f"{name}: its presence has other bytes than {count} of 0 and 1")
        lengths = (stop - start for start, stop in pairwise(ends))
        ends = [0, *accumulate(map(int.__mul__, lengths, present))]
    elif presence != ALL:
        raise _inconsistent(f"{name} is {presence}; give 0, 1 or 2")
    stop = at + width * ends[-1]
    if stop > len(payload):
        raise _inconsistent(f"{name} has {ends[-1]} values, more than the payload holds")
    return ArrayRun(at, width, ends, present, signature), stop


def _lay_out_token_arrays(
    wires: Sequence[Mapping[str, Any]],
    frame: Frame,
    payload: memoryview,
    ends: list[int],
    at: int,
) -> int:
    names = set()
    for wire in wires:
        name, presence = wire["name"], wire["presence"]
        if name in names:
            raise _inconsistent(f"token_arrays has {name!r} twice")
        names.add(name)
        try:
            signature, width = _signature(name, wire["dtype"], tuple(wire["shape"]))
        except BrokenRule as broken:
            raise _inconsistent(str(broken)) from broken
        if presence != NONE:
            run, at = _array(name, presence, signature, width, ends, payload, at)
            frame.token_arrays[name] = run
    return at


@lru_cache(_SIGNATURES_KEPT)
def _signature(name: str, text: str, shape: tuple[int, ...]) -> tuple[ArraySignature, int]:
    """Dtype and trailing shape of a named array, and the bytes of one token."""
    remedy = "name it as NumPy does, little-endian, for example |u1 or <f4"
    wrong = BrokenRule(f"token_arrays[{name!r}]", f"has dtype {text!r}", remedy)
    if not _DTYPE.fullmatch(text):
        raise wrong
    try:
        dtype = np.dtype(text)
    except TypeError as error:
        raise wrong from error
    check_token_rows(name, dtype, shape)
    width = dtype.itemsize
    for side in shape:
        width *= side
    return ArraySignature(dtype.str, shape), width


def _sized(wire: Mapping[str, Any], name: str, count: int, width: int) -> bytes:
    raw: bytes = wire[name]
    if raw and len(raw) != count * width:
        raise _wrong_size(name, len(raw), count * width)
    return raw


def _wrong_size(name: str, size: int, due: int) -> UnreadableEvent:
    return _inconsistent(f"{name} has {size} bytes; the entries have {due}, or none")


def _numbers(wire: Mapping[str, Any], name: str, count: int) -> Sequence[int]:
    raw = _sized(wire, name, count, 4)
    return unpackers(count)["<i4"](raw) if raw else (0,) * count


def _counts(wire: Mapping[str, Any], name: str, count: int) -> list[int]:
    listed = list(_numbers(wire, name, count))
    if min(listed) < 0:
        raise _inconsistent(f"{name} has {min(listed)}")
    return listed


def _shared_indexes(header: Mapping[str, Any], count: int) -> Sequence[int]:
    combinations = len(header["shared"])
    indexes = _numbers(header, "shared_indexes", count)
    if min(indexes) < 0 or max(indexes) >= combinations:
        raise _inconsistent(f"shared_indexes names others than the {combinations} of shared")
    return indexes


def _check_components(wire: Mapping[str, Any] | None, count: int) -> None:
    if wire is None:
        return
    total = sum(_counts(wire, "counts", count))
    indexes, values = wire["indexes"], wire["values"]
    if (len(indexes), len(values)) != (4 * total, 8 * total):
        raise _inconsistent("rewards: counts, indexes and values disagree")
    listed = unpackers(total)["<i4"](indexes)
    if listed and (min(listed) < 0 or max(listed) >= len(wire["names"])):
        raise _inconsistent(f"rewards: indexes names others than the {len(wire['names'])} names")


def _check_collections(extras: Mapping[str, Any], frame: Frame) -> None:
    count = len(frame.kinds)
    for one in extras["attachments"]:
        if not 0 <= one["entry"] < count:
            raise _inconsistent(f"an attachment of entry {one['entry']} of {count}")
    for one in extras["failures"]:
        entry = one["entry"]
        if not 0 <= entry < count or entry in frame.failures:
            raise _inconsistent(f"a second failure, or none, is entry {entry} of {count}")
        frame.failures[entry] = Failure(one["count"], one["reason"])
