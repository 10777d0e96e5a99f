"""The digest of a run of rows as its format says, value by value; slow."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import xxhash
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns
from rollstream.schemas.fields import first_names, removed_fields, scalar_fields

_Value = tuple[bool, bytes, bytes]  # Whether it is no default, its number, and its bytes.


def reference_digest(columns: Columns, start: int, stop: int) -> bytes:
    """The digest of rows ``start`` to ``stop``."""
    rows, fields = range(start, stop), dict[str, list[_Value]]()
    for field in (*scalar_fields(), *removed_fields().values()):
        if field.name in columns.scalars:
            values = columns.scalars[field.name]
            fields[_name(field.name)] = [_scalar(values[row], field.default) for row in rows]
    for name, array in columns.arrays.items():
        fields[_name(name)] = [_array(array.row(row)) for row in rows]
    for name, array in columns.token_arrays.items():
        kind = f"{array.values.dtype.str}/{array.values.shape[1:]}"
        fields[f"token_arrays/{name}/{kind}"] = [_array(array.row(row)) for row in rows]
    if columns.rewards is not None:
        found = [sorted(columns.rewards.row(row).items()) for row in rows]
        fields["rewards"] = [_scalar(repr(items) if items else "", "") for items in found]
    if columns.attachments is not None:
        named = [{name: data.hex() for name, data in columns.attachments[r].items()} for r in rows]
        texts = [json.dumps(one, sort_keys=True) if one else "" for one in named]
        fields["attachments"] = [_scalar(text, "") for text in texts]
    used = {
        f"{len(name)} {name}".encode(): values
        for name, values in fields.items()
        if any(is_set for is_set, _, _ in values)
    }
    ordered = [used[name] for name in sorted(used)]
    numbers = [values[row][1] for row in range(len(rows)) for values in ordered]
    pieces = [piece for values in ordered for _, _, piece in values]
    parts = [*sorted(used), struct.pack("<q", len(rows)), *numbers, *pieces]
    return xxhash.xxh3_128_digest(b"".join(parts))


def _name(field: str) -> str:
    return first_names().get(field, field)


def _scalar(value: Any, default: Any) -> _Value:
    if isinstance(value, str):
        data = value.encode()
        return value != default, struct.pack("<q", len(data)), data
    if isinstance(value, float):
        is_null = math.isnan(value)
        return not is_null, struct.pack("<d", math.nan if is_null else value), b""
    return value != default, struct.pack("<q", int(value)), b""


def _array(tokens: NDArray[Any] | None) -> _Value:
    if tokens is None:
        return False, struct.pack("<q", -1), b""
    return True, struct.pack("<q", len(tokens)), tokens.tobytes()
