"""Many segments as columns: the form in which payloads move from codec to Parquet to batch.

A token is never touched by Python code: arrays are joined and sliced as buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import Segment
from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.wire_schemas import packed_dtype

Packed = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Ragged:
    """One array a row.

    Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: [total], the dtype that the schema names.
        offsets: int64 [rows + 1], starting at 0, rising.
        present: bool [rows], or None where every row has the array. An absent row is empty.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    present: NDArray[np.bool_] | None = None

    def row(self, index: int) -> NDArray[Any] | None:
        """A view of one row; None where it is absent."""
        if self.present is not None and not self.present[index]:
            return None
        return self.values[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns; the names are those of the ``rollout`` schema, extras among them.

    Attributes:
        rows: how many.
        scalars: one value a row: every field that is no packed array.
        arrays: the packed arrays that at least one row has (``prompt_tokens`` and
            ``output_tokens`` always).
    """

    rows: int
    scalars: Mapping[str, Sequence[Any]]
    arrays: Mapping[str, Ragged]

    @classmethod
    def from_segments(cls, segments: Sequence[Segment]) -> Columns:
        """The segments' fields, in their order; one copy of the payload."""
        bodies = [segment.body for segment in segments]
        extras = [body["extras"] for body in bodies]
        no_extras = all(extra is None for extra in extras)

        def column(name: str) -> list[Any]:
            if name not in rare_fields():
                return [body[name] for body in bodies]
            default = _fields()[name]["default"]
            if no_extras:
                return [default] * len(bodies)
            return [default if extra is None else extra[name] for extra in extras]

        headers = [segment.header for segment in segments]
        by_field = list(zip(*headers, strict=True)) or [()] * len(RolloutHeader._fields)
        scalars: dict[str, Sequence[Any]] = dict(zip(RolloutHeader._fields, by_field, strict=True))
        scalars |= {name: column(name) for name in scalar_fields().keys() - scalars.keys()}
        arrays: dict[str, Ragged] = {}
        for name, dtype in array_fields().items():
            if no_extras and name in rare_fields():
                continue
            packed = column(name)
            if name in REQUIRED_ARRAYS or any(p is not None for p in packed):
                arrays[name] = _join(packed, dtype)
        return cls(len(segments), scalars, arrays)


REQUIRED_ARRAYS = ("prompt_tokens", "output_tokens")


def _join(packed: list[Packed | None], dtype: str) -> Ragged:
    width = np.dtype(dtype).itemsize
    offsets = np.zeros(len(packed) + 1, np.int64)
    present = None
    if NoneType in set(map(type, packed)):  # `None in packed` would compare bytes.
        present = np.fromiter((p is not None for p in packed), np.bool_, len(packed))
        packed = [p or b"" for p in packed]
    np.cumsum([len(p) // width for p in packed if p is not None], out=offsets[1:])
    return Ragged(np.frombuffer(b"".join(packed), dtype), offsets, present)  # type: ignore[arg-type]


@cache
def _fields() -> dict[str, Any]:
    """The fields of the ``rollout`` schema by name, those of the extras last."""
    *fields, extras = wire_schemas.newest("rollout").fields
    return {field["name"]: field for field in (*fields, *extras["type"][1]["fields"])}


@cache
def array_fields() -> dict[str, str]:
    """The packed arrays of the ``rollout`` schema: name to dtype."""
    packed = {name: packed_dtype(field["type"]) for name, field in _fields().items()}
    return {name: found[0] for name, found in packed.items() if found is not None}


@cache
def scalar_fields() -> dict[str, Any]:
    """Every other field: name to Avro type."""
    return {name: f["type"] for name, f in _fields().items() if packed_dtype(f["type"]) is None}


@cache
def rare_fields() -> frozenset[str]:
    """The fields that travel in ``extras``."""
    return frozenset(_fields()) - {field["name"] for field in wire_schemas.newest("rollout").fields}


@cache
def collection_fields() -> dict[str, type[dict[str, Any]] | type[list[Any]]]:
    """The scalar fields that hold a map or a list a row, and what makes an empty one."""
    kinds = {name: kind["type"] for name, kind in scalar_fields().items() if isinstance(kind, dict)}
    empty: Mapping[str, Any] = {"map": dict, "array": list}
    return {name: empty[kind] for name, kind in kinds.items() if kind in empty}
