"""Reads rollout segments; arrays become views of the record's bytes.

The header's counts say how long each array must be, so the bytes in front of an array are compared
and not parsed, and nothing of its content is copied. Whatever looks otherwise is left to fastavro.
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
_LENGTHS_KEPT = 4_096


class RolloutReader:
    """Reads the records of one version of the ``rollout`` schema."""

    def __init__(self, schema: WireSchema) -> None:
        fields = schema.parsed["fields"]
        behind_header = len(RolloutHeader._fields)
        behind_arrays = behind_header + len(_ARRAYS)
        names = tuple(field["name"] for field in fields)
        assert names[behind_header:behind_arrays] == _ARRAYS, names
        self._headers = HeaderReader(fields[:behind_header])
        self._ending = fastavro.parse_schema(
            {"type": "record", "name": "RolloutEnding", "fields": fields[behind_arrays:]}
        )
        stream = BytesIO()
        fastavro.schemaless_writer(stream, self._ending, _COMMON)
        self._common = stream.getvalue()

    def read(self, value: bytes) -> tuple[RolloutHeader, dict[str, Any]] | None:
        """The header and the fields behind it; arrays are views of ``value``, as long as the header
        says. None: it is not laid out like that.

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
            mark = _some(expected)
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


@lru_cache(_LENGTHS_KEPT)
def _some(size: int) -> bytes:
    """In front of a value of a union's second branch, after null."""
    return b"\x02" + small_number(size)
