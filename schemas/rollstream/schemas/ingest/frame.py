"""The frame of a record: where its columns lie, that their lengths agree, and what they hold.

Counts are compared with the bytes that there are before anything is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import isnan, prod
from operator import mul, sub
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.errors import InvalidRollout, UnreadableEvent
from rollstream.schemas.fields import REQUIRED_ARRAYS, RowField, row_fields
from rollstream.schemas.ingest.entry import ENTRIES_MAX, Failure
from rollstream.schemas.ingest.wire import ALL, COUNTS, SOME, PayloadFields, unpacked
from rollstream.schemas.rules import check_key, check_name, check_token_arrays, check_token_rows

LONG_TEXTS = ("metadata", "messages")  # Texts that are no names, so that they may be of any size.
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
    """A record whose lengths agree.

    Attributes:
        header: the Avro record, without its payload.
        payload: what has a varying length.
        count: how many entries.
        kinds: uint8 [count], of ``EntryKind``.
        shared_indexes: of each entry, the index of its combination in ``header["shared"]``.
        failures: of each ``FAILED`` entry, by its number.
        texts: those that at least one entry has, by name; U+FFFD in place of what is no UTF-8. Once
            the payload was moved, only ``values`` has those of ``LONG_TEXTS``.
        no_utf8: the bytes of such a text, by name and entry.
        arrays: the schema's arrays that at least one entry has, by name.
        token_arrays: the same of those that the producer named.
    """

    __slots__ = (
        *("header", "payload", "count", "kinds", "shared_indexes", "failures", "texts", "no_utf8"),
        *("arrays", "token_arrays", "_listed", "_at", "_long", "_long_ends"),
    )

    def __init__(
        self, header: Mapping[str, Any], payload: memoryview, fields: PayloadFields
    ) -> None:
        """Reads the record with this header.

        Raises:
            UnreadableEvent: no entries, lengths that disagree, or several segments of which none
                has a ``rollout_uid``.
            InvalidRollout: a name that is the whole record's.
        """
        self.header, self.payload = header, payload
        self.count: int = header["count"]
        if not 0 < self.count <= ENTRIES_MAX:
            raise _inconsistent(f"count is {self.count}; a record has 1 to {ENTRIES_MAX} entries")
        check_name("worker_id", header["worker_id"])  # In each row of its files.
        self._check_size("kinds", header["kinds"], 1)
        self.kinds: bytes = header["kinds"] or bytes(self.count)
        self.shared_indexes = self._counts(header, "shared_indexes")
        combinations = len(header["shared"])
        if max(self.shared_indexes) >= combinations:
            raise _inconsistent(f"shared_indexes names others than the {combinations} of shared")
        self.failures: dict[int, Failure] = {}
        self.texts: dict[str, list[str]] = {}
        self.no_utf8: dict[tuple[str, int], bytes] = {}
        self.arrays: dict[str, ArrayRun] = {}
        self.token_arrays: dict[str, ArrayRun] = {}
        counts = [self._counts(header, name) for name in ("prompt_count", "token_count")]
        self._listed: dict[str, list[Any]] = {"prompt_count": counts[0], "token_count": counts[1]}
        prompt_ends, ends = [0, *accumulate(counts[0])], [0, *accumulate(counts[1])]
        self._at = 0
        self._long: dict[str, int] = {}  # Where these texts begin in the payload.
        self._long_ends: dict[str, list[int]] = {}  # Of each entry, where it was asked for.
        self._lay_out(fields.plain, header, {"prompt_tokens": prompt_ends}, ends)
        extras = header["extras"]
        if extras is not None:
            self._lay_out(fields.extras, extras, {}, ends)
            self._lay_out_named(extras["token_arrays"], ends)
            self._check_extras(extras)
        for name in fields.removed:
            self.texts.pop(name, None)
            self.arrays.pop(name, None)
        named = any(self.kinds) or any(self.texts.get("rollout_uid", ()))
        if self.count > 1 and not named:  # Any number of them may take no bytes at all.
            raise _inconsistent(f"{self.count} segments, none with a rollout_uid: give each one")
        if self._at != len(payload):
            raise _inconsistent(f"payload has {len(payload)} bytes; its columns have {self._at}")

    def values(self, name: str) -> list[Any]:
        """One value an entry, of a text or a number (None where it may be null and is)."""
        found = self.texts.get(name) or self._listed.get(name)
        if found is None:
            found = self._values(row_fields()[name])
            if name not in self._long:  # Else it was moved: it is not kept in memory.
                self._listed[name] = found
        return found

    def value(self, name: str, index: int) -> Any:
        """One entry's. Of a text that was moved, nothing else is read."""
        if name not in self._long or name in self.texts:
            return self.values(name)[index]
        ends = self._long_ends.get(name)
        if ends is None:
            sizes = unpacked(COUNTS, self.raw(row_fields()[name]))
            ends = self._long_ends[name] = [*accumulate(sizes, initial=self._long[name])]
        return bytes(self.payload[ends[index] : ends[index + 1]]).decode(errors="replace")

    def raw(self, field: RowField) -> bytes:
        """A column of texts (their sizes) or of numbers; empty where each has the default."""
        raw: bytes = self.extra(field.name) if field.extra else self.header[field.name]
        return raw or b""

    def extra(self, name: str) -> Any:
        """What the header has of a field of its extras; None without these."""
        extras = self.header["extras"]
        return extras and extras[name]

    def signatures(self, index: int) -> Mapping[str, ArraySignature]:
        """Name to dtype and trailing shape, of the named arrays that an entry has."""
        return {
            name: run.signature
            for name, run in self.token_arrays.items()
            if run.present is None or run.present[index]
        }

    def bytes_of(self, run: ArrayRun, first: int, stop: int) -> memoryview:
        """The values of an array of entries ``first`` to ``stop``: a view."""
        start, width, ends, _, _ = run
        return self.payload[start + width * ends[first] : start + width * ends[stop]]

    def _values(self, field: RowField) -> list[Any]:
        if field.column == "once":
            return [self.header[field.name]] * self.count
        if field.column == "shared":
            of = [one[field.name] for one in self.header["shared"]]
            return [of[index] for index in self.shared_indexes]
        raw = self.raw(field)
        if not raw:
            return [field.default] * self.count
        if field.name in self._long:
            return self._text(field.name, self._long[field.name], unpacked(COUNTS, raw))
        listed = unpacked(field.dtype, raw)
        if field.default is None:
            return [None if isnan(value) else value for value in listed]
        if field.row_type == "boolean":
            return [value == 1 if value < 2 else value for value in listed]
        return listed

    def _check_size(self, name: str, raw: bytes, width: int) -> None:
        due = self.count * width
        if raw and len(raw) != due:
            raise _inconsistent(f"{name} has {len(raw)} bytes; the entries have {due}, or none")

    def _counts(self, wire: Mapping[str, Any], name: str) -> list[int]:
        """Lengths or indexes, one an entry."""
        raw = wire[name]
        if not raw:
            return [0] * self.count
        self._check_size(name, raw, 4)
        return unpacked(COUNTS, raw)

    def _take(self, name: str, size: int) -> int:
        """Where the next bytes of the payload begin."""
        start = self._at
        self._at = stop = start + size
        if stop > len(self.payload):
            left = len(self.payload) - start
            raise _inconsistent(f"{name} has {size} bytes in the payload, and {left} are left")
        return start

    def _lay_out(
        self,
        fields: Iterable[RowField],
        wire: Mapping[str, Any],
        own_ends: Mapping[str, list[int]],
        ends: list[int],
    ) -> None:
        for field in fields:
            name = field.name
            found = wire[name]
            if field.column == "array":
                if found != ALL and name in REQUIRED_ARRAYS:
                    raise _inconsistent(f"{name} is {found}; every entry has it, give {ALL}")
                if found:
                    of = own_ends.get(name, ends)
                    signature = ArraySignature(field.dtype, ())
                    self.arrays[name] = self._array(name, found, signature, field.width, of)
            elif found:
                self._check_size(name, found, field.width)
                if field.column == "text":
                    sizes = unpacked(COUNTS, found)
                    start = self._take(name, sum(sizes))
                    self.texts[name] = self._text(name, start, sizes)
                    if name in LONG_TEXTS:
                        self._long[name] = start

    def _text(self, name: str, start: int, sizes: list[int]) -> list[str]:
        raw = bytes(self.payload[start : start + sum(sizes)])
        ascii_only = raw.isascii()
        if ascii_only and len(sizes) == 1:
            return [raw.decode()]
        bounds = pairwise(accumulate(sizes, initial=0))
        if ascii_only:
            whole = raw.decode()
            return [whole[begin:stop] for begin, stop in bounds]
        texts = []
        for index, (begin, stop) in enumerate(bounds):
            one = raw[begin:stop]
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
            start = self._take(name, self.count)
            present = bytes(self.payload[start : self._at])
            if present.translate(None, b"\x00\x01"):
                raise _inconsistent(f"{name}: its presence has bytes other than 0 and 1")
            lengths = map(sub, ends[1:], ends)
            ends = [0, *accumulate(map(mul, lengths, present))]
        elif presence != ALL:
            raise _inconsistent(f"{name} is {presence}; give 0, 1 or 2")
        return ArrayRun(self._take(name, width * ends[-1]), width, ends, present, signature)

    def _lay_out_named(self, arrays: Collection[Mapping[str, Any]], ends: list[int]) -> None:
        names = set()
        for one in arrays:
            name = one["name"]
            if name in names:
                raise _inconsistent(f"token_arrays has {name!r} twice")
            names.add(name)
        check_token_arrays(names)
        for one in arrays:
            name, presence = one["name"], one["presence"]
            signature, width = _signature(name, one["dtype"], tuple(one["shape"]))
            if presence:
                self.token_arrays[name] = self._array(name, presence, signature, width, ends)

    def _check_extras(self, extras: Mapping[str, Any]) -> None:
        for one in extras["attachments"]:
            if not 0 <= one["entry"] < self.count:
                raise _inconsistent(f"an attachment of entry {one['entry']} of {self.count}")
        for one in extras["failures"]:
            entry = one["entry"]
            if not 0 <= entry < self.count or entry in self.failures:
                raise _inconsistent(f"a second failure, or none, is entry {entry} of {self.count}")
            self.failures[entry] = Failure(one["count"], one["reason"])
        rewards = extras["rewards"]
        if rewards is not None:
            total = sum(self._counts(rewards, "counts"))
            for name in rewards["names"]:  # In each row too.
                check_key("rewards", name, check_name)
            indexes, names = rewards["indexes"], len(rewards["names"])
            if (len(indexes), len(rewards["values"])) != (4 * total, 8 * total):
                raise _inconsistent("rewards: counts, indexes and values disagree")
            if total and max(unpacked(COUNTS, indexes)) >= names:
                raise _inconsistent(f"rewards: indexes names others than the {names} names")


@lru_cache(_SIGNATURES_KEPT)
def _signature(name: str, text: str, shape: tuple[int, ...]) -> tuple[ArraySignature, int]:
    """Dtype and trailing shape of a named array, and the bytes of one token."""
    try:
        if not _DTYPE.fullmatch(text):
            raise TypeError("name it as NumPy does, little-endian, for example |u1 or <f4")
        dtype = np.dtype(text)
        check_token_rows(name, dtype, shape)
    except (TypeError, InvalidRollout) as error:
        raise _inconsistent(f"token_arrays[{name!r}]: dtype {text!r}: {error}") from error
    return ArraySignature(dtype.str, shape), dtype.itemsize * prod(shape)


def _inconsistent(detail: str) -> UnreadableEvent:
    return UnreadableEvent("inconsistent", detail)
