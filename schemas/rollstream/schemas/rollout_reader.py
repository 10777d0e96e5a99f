"""Reads rollout segments; arrays become views of the record's bytes.

The header's counts determine how long each array is, so the length in front of an array is compared
and not parsed, and the array is not copied. Records that differ are left to fastavro. Measured at
1,024 tokens, header and arrays: 6.1 µs a rollout, 9.9 with fastavro.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from struct import error as StructError
from typing import Any

import fastavro

from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.header_reader import HeaderReader
from rollstream.schemas.varint import small_number
from rollstream.schemas.wire_schemas import PREFIX_BYTES, WireSchema

_ARRAYS = ("prompt_tokens", "output_tokens", "logprobs", "loss_mask")
_COMMON: Mapping[str, Any] = {"rewards": {}, "metadata": "{}", "extras": None}
_ABSENT = 0  # The first branch of a union: null.
_LENGTHS_MEMOISED = 4_096


class RolloutReader:
    """Reads the records of one version of the ``rollout`` schema."""

    def __init__(self, schema: WireSchema) -> None:
        fields = schema.parsed["fields"]
        header_end = len(RolloutHeader._fields)
        arrays_end = header_end + len(_ARRAYS)
        names = tuple(field["name"] for field in fields)
        assert names[header_end:arrays_end] == _ARRAYS, names
        self._headers = HeaderReader(fields[:header_end])
        self._ending = fastavro.parse_schema(
            {"type": "record", "name": "RolloutEnding", "fields": fields[arrays_end:]}
        )
        stream = BytesIO()
        fastavro.schemaless_writer(stream, self._ending, _COMMON)
        self._common = stream.getvalue()

    def read(self, value: bytes) -> tuple[RolloutHeader, dict[str, Any]] | None:
        """The header and the other fields; arrays are views of ``value``, as long as the header
        says. None where the record has another layout: fastavro reads it.

        Raises:
            What fastavro raises: the ending is torn.
        """
        try:
            header, begin = self._headers.read(value, PREFIX_BYTES)
        except (IndexError, ValueError, StructError):
            return None
        prompt_size, size = 4 * header.prompt_count, 4 * header.token_count
        if prompt_size < 0 or size < 0:
            return None
        view = memoryview(value)
        mark = small_number(prompt_size)
        start = begin + len(mark)
        if value[begin:start] != mark:
            return None
        begin = start + prompt_size
        prompt = view[start:begin]
        mark = small_number(size)
        start = begin + len(mark)
        if value[begin:start] != mark:
            return None
        begin = start + size
        output = view[start:begin]
        optional: list[memoryview | None] = []
        for expected in (size, header.token_count):
            mark = _present(expected)
            start = begin + len(mark)
            if value[begin:start] == mark:
                begin = start + expected
                optional.append(view[start:begin])
            elif begin < len(value) and value[begin] == _ABSENT:
                begin += 1
                optional.append(None)
            else:
                return None
        if value[begin:] == self._common:
            ending: Any = {"rewards": {}, "metadata": "{}", "extras": None}
        else:
            stream = BytesIO(value)
            stream.seek(begin)
            ending = fastavro.schemaless_reader(stream, self._ending, None)
            if stream.tell() != len(value):
                return None
        ending["prompt_tokens"], ending["output_tokens"] = prompt, output
        ending["logprobs"], ending["loss_mask"] = optional
        return header, ending


@lru_cache(_LENGTHS_MEMOISED)
def _present(size: int) -> bytes:
    """The bytes in front of an optional array that is there: the union's branch and the length."""
    return b"\x02" + small_number(size)
