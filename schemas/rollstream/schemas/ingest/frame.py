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
    COUNTS,
    SOME,
    TEXT,
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


class Frame:
    """Where a record's columns lie, and its texts.

    Attributes:
        count: how many entries.
        kinds: uint8 [count].
        shared_indexes: of the combination of each entry.
        failures: by entry.
        numbers: ``prompt_count`` and ``token_count`` of each entry.
        texts: those that an entry has; U+FFFD for what is no UTF-8.
        no_utf8: the bytes of a text that is none, by name and entry.
        arrays: the schema's arrays that an entry has.
        token_arrays: those that the producer named.
    """

    __slots__ = (
        *("count", "kinds", "shared_indexes", "failures", "numbers", "texts", "no_utf8"),
        *("arrays", "token_arrays", "_payload", "_at", "_end", "_ends"),
    )

    def __init__(self, header: Mapping[str, Any], payload: memoryview) -> None:
        """Reads the record with this header.

        Raises:
            UnreadableEvent: no entries, or lengths that disagree.
        """
        self.count = count = header["count"]
        if not 0 < count <= ENTRIES_MAX:
            raise _inconsistent(f"count is {count}; a record has 1 to {ENTRIES_MAX} entries")
        self.kinds: bytes = _sized(header, "kinds", count, 1) or bytes(count)
        self.shared_indexes = _counts(header, "shared_indexes", count)
        combinations = len(header["shared"])
        if max(self.shared_indexes) >= combinations:
            raise _inconsistent(f"shared_indexes names others than the {combinations} of shared")
        prompts = list(_counts(header, "prompt_count", count))
        outputs = list(_counts(header, "token_count", count))
        self.numbers: dict[str, list[Any]] = {"prompt_count": prompts, "token_count": outputs}
        self.texts: dict[str, list[str]] = {}
        self.no_utf8: dict[tuple[str, int], bytes] = {}
        self.arrays: dict[str, ArrayRun] = {}
        self.token_arrays: dict[str, ArrayRun] = {}
        self.failures: dict[int, Failure] = {}
        self._payload, self._at, self._end = payload, 0, len(payload)
        self._ends = [0, *accumulate(outputs)]
        self._lay_out(plain_columns(), header, [0, *accumulate(prompts)])
        if header["extras"] is not None:
            self._lay_out_extras(header["extras"])
        if self._at != self._end:
            raise _inconsistent(f"payload has {self._end} bytes; its columns have {self._at}")

    def _lay_out(
        self, columns: Sequence[Column], wire: Mapping[str, Any], prompt_ends: list[int]
    ) -> None:
        count = self.count
        sizes_of = unpackers(count)[COUNTS]
        for name, kind, _, signature, width, _ in columns:
            found = wire[name]
            if kind == ARRAY:
                if name in REQUIRED_ARRAYS and found != ALL:
                    raise _inconsistent(f"{name} is {found}; every entry has it, give {ALL}")
                if found:
                    ends = prompt_ends if name == "prompt_tokens" else self._ends
                    self.arrays[name] = self._array(name, found, signature, width, ends)
            elif found:
                if len(found) != count * width:
                    raise _wrong_size(name, len(found), count * width)
                if kind == TEXT:
                    self.texts[name] = self._text(name, sizes_of(found))

    def _text(self, name: str, sizes: Sequence[int]) -> list[str]:
        at = self._at
        self._at = stop = at + sum(sizes)
        if stop > self._end:
            raise _inconsistent(f"{name} has texts of {stop - at} bytes")
        raw = self._payload[at:stop]
        try:
            whole = str(raw, "utf-8")
        except UnicodeDecodeError:
            whole = ""
        if whole and len(sizes) == 1:
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
                self.no_utf8[name, index] = one
        return texts

    def _array(
        self, name: str, presence: int, signature: ArraySignature, width: int, ends: list[int]
    ) -> ArrayRun:
        present = None
        if presence == SOME:
            present = bytes(self._payload[self._at : self._at + self.count])
            self._at += self.count
            if len(present) < self.count or present.translate(None, b"\x00\x01"):
                raise _inconsistent(f"{name}: its presence has no {self.count} bytes of 0 and 1")
            lengths = (stop - start for start, stop in pairwise(ends))
            ends = [0, *accumulate(map(int.__mul__, lengths, present))]
        elif presence != ALL:
            raise _inconsistent(f"{name} is {presence}; give 0, 1 or 2")
        start = self._at
        self._at = stop = start + width * ends[-1]
        if stop > self._end:
            raise _inconsistent(f"{name} has {ends[-1]} values, more than the payload holds")
        return ArrayRun(start, width, ends, present, signature)

    def _lay_out_extras(self, extras: Mapping[str, Any]) -> None:
        self._lay_out(extra_columns(), extras, [])
        _check_components(extras["rewards"], self.count)
        for one in extras["attachments"]:
            if not 0 <= one["entry"] < self.count:
                raise _inconsistent(f"an attachment of entry {one['entry']} of {self.count}")
        for one in extras["failures"]:
            entry = one["entry"]
            if not 0 <= entry < self.count or entry in self.failures:
                raise _inconsistent(f"a second failure, or none, is entry {entry} of {self.count}")
            self.failures[entry] = Failure(one["count"], one["reason"])
        names = set()
        for one in extras["token_arrays"]:
            name, presence = one["name"], one["presence"]
            if name in names:
                raise _inconsistent(f"token_arrays has {name!r} twice")
            names.add(name)
            signature, width = _signature(name, one["dtype"], tuple(one["shape"]))
            if presence:
                run = self._array(name, presence, signature, width, self._ends)
                self.token_arrays[name] = run


@lru_cache(_SIGNATURES_KEPT)
def _signature(name: str, text: str, shape: tuple[int, ...]) -> tuple[ArraySignature, int]:
    """Dtype and trailing shape of a named array, and the bytes of one token."""
    try:
        if not _DTYPE.fullmatch(text):
            raise TypeError("name it as NumPy does, little-endian, for example |u1 or <f4")
        dtype = np.dtype(text)
        check_token_rows(name, dtype, shape)
    except (TypeError, BrokenRule) as error:
        raise _inconsistent(f"token_arrays[{name!r}]: dtype {text!r}: {error}") from error
    width = dtype.itemsize
    for side in shape:
        width *= side
    return ArraySignature(dtype.str, shape), width


def _inconsistent(detail: str) -> UnreadableEvent:
    return UnreadableEvent("inconsistent", detail)


def _sized(wire: Mapping[str, Any], name: str, count: int, width: int) -> bytes:
    raw: bytes = wire[name]
    if raw and len(raw) != count * width:
        raise _wrong_size(name, len(raw), count * width)
    return raw


def _wrong_size(name: str, size: int, due: int) -> UnreadableEvent:
    return _inconsistent(f"{name} has {size} bytes; the entries have {due}, or none")


def _counts(wire: Mapping[str, Any], name: str, count: int) -> Sequence[int]:
    raw = _sized(wire, name, count, 4)
    return unpackers(count)[COUNTS](raw) if raw else (0,) * count


def _check_components(wire: Mapping[str, Any] | None, count: int) -> None:
    if wire is None:
        return
    total = sum(_counts(wire, "counts", count))
    indexes, values = wire["indexes"], wire["values"]
    if (len(indexes), len(values)) != (4 * total, 8 * total):
        raise _inconsistent("rewards: counts, indexes and values disagree")
    if total and max(unpackers(total)[COUNTS](indexes)) >= len(wire["names"]):
        raise _inconsistent(f"rewards: indexes names others than the {len(wire['names'])} names")
