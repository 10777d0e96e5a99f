"""Converts columns to Arrow tables and back. The schema is derived from ``rollout.v1.avsc``.

Token arrays are not copied: Arrow's lists are views of the columns' buffers, and the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollstream.schemas.columns import REQUIRED_ARRAYS, Columns, Ragged, array_fields, scalar_fields

# A file's path names its environment and its groups' policy version, as hive partitions. A column
# of either name in the file would clash with the one that readers derive from the path, so the
# row's own version has another name, and the environment is in the file's metadata.
ENVIRONMENT = "environment"
RENAMED = {"policy_version": "rollout_policy_version"}
LIST_VALUES_MAX = 2**31 - 1  # Arrow's list offsets are int32, so that every reader opens them.

_PRIMITIVES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "bytes": pa.binary(),
}


def stored_name(field: str) -> str:
    """The name of the column for a field of the ``rollout`` schema."""
    return RENAMED.get(field, field)


@cache
def rows_schema() -> pa.Schema:
    """Columns of a file under ``groups/`` or ``incomplete/``, in the order of the ``.avsc``."""
    stored = {name: kind for name, kind in scalar_fields().items() if name != ENVIRONMENT}
    fields = [_field(stored_name(name), avro_type) for name, avro_type in stored.items()]
    for name, dtype in array_fields().items():
        kind = pa.list_(pa.field("element", pa.from_numpy_dtype(np.dtype(dtype)), nullable=False))
        fields.append(pa.field(name, kind, nullable=name not in REQUIRED_ARRAYS))
    fields += [
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("log_generation", pa.int32(), nullable=False),
        pa.field("log_partition", pa.int32(), nullable=False),
        pa.field("log_offset", pa.int64(), nullable=False),
        pa.field("log_epoch", pa.int64(), nullable=False),
    ]
    return pa.schema(fields)


@cache
def leaf_index(name: str) -> int:
    """Index of a numeric (or list-of-numeric) column among the file's leaf columns."""
    schema = rows_schema()
    return sum(_leaves(schema.field(i).type) for i in range(schema.get_field_index(name)))


def _leaves(kind: pa.DataType) -> int:
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields)) or 1


def _field(name: str, avro_type: Any) -> pa.Field:
    if isinstance(avro_type, list):
        (inner,) = (branch for branch in avro_type if branch != "null")
        return pa.field(name, _type(inner), nullable=True)
    return pa.field(name, _type(avro_type), nullable=False)


def _type(avro_type: Any) -> pa.DataType:
    if isinstance(avro_type, str):
        return _PRIMITIVES[avro_type]
    match avro_type:
        case {"logicalType": "timestamp-micros"}:
            return pa.timestamp("us", tz="UTC")
        case {"type": "map", "values": values}:
            return pa.map_(pa.string(), pa.field("value", _type(values), nullable=False))
        case {"type": "array", "items": items}:
            return pa.list_(_field("element", items))
        case {"type": "record", "fields": fields}:
            return pa.struct([_field(field["name"], field["type"]) for field in fields])
    raise AssertionError(f"rollout.avsc has a type that has no column yet: {avro_type!r}")


def list_column(ragged: Ragged | None, kind: pa.DataType, rows: int) -> pa.Array:
    """An Arrow list column over the buffers of ``ragged``; None gives a null in each row."""
    if ragged is None:
        return pa.nulls(rows, kind)
    assert len(ragged.values) <= LIST_VALUES_MAX, len(ragged.values)
    present = ragged.present
    bitmap = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    offsets = pa.py_buffer(ragged.offsets.astype(np.int32))
    values = pa.array(ragged.values, kind.value_type)
    return pa.ListArray.from_buffers(kind, rows, [bitmap, offsets], children=[values])


def ragged_of(column: pa.ListArray) -> Ragged:
    """The column's rows; ``values`` is a view of Arrow's buffer (booleans are copied)."""
    ends = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(ends[0], ends[-1] - ends[0])
    present = None
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False)
    bits = pa.types.is_boolean(values.type)
    return Ragged(values.to_numpy(zero_copy_only=not bits), ends - ends[0], present)


def scalars_of(column: pa.Array) -> list[Any]:
    """One Python value a row, of the types in ``Columns.scalars``."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
        kind = column.type
    if pa.types.is_primitive(kind) and not column.null_count:
        plain: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return plain
    values: list[Any] = column.to_pylist()
    return [dict(value) for value in values] if pa.types.is_map(kind) else values


def to_table(columns: Columns, provenance: Mapping[str, Sequence[Any]]) -> pa.Table:
    """The rows as an Arrow table, with the provenance columns."""
    schema = rows_schema()
    stored: dict[str, pa.Array] = {}
    for name in scalar_fields():
        if name != ENVIRONMENT:
            column, values = stored_name(name), columns.scalars[name]
            kind = schema.field(column).type
            if pa.types.is_map(kind):
                values = [list(value.items()) for value in values]
            stored[column] = pa.array(values, kind)
    for name in array_fields():
        kind = schema.field(name).type
        stored[name] = list_column(columns.arrays.get(name), kind, columns.rows)
    for name, values in provenance.items():
        stored[name] = pa.array(values, schema.field(name).type)
    return pa.table([stored[name] for name in schema.names], schema=schema)


def rows_of(ragged: Ragged, ranges: Sequence[tuple[int, int]]) -> Ragged:
    """The rows of the (first row, number of rows) ranges, in that order: a view for one range, else
    a copy."""
    return rows_taken(ragged.offsets, lambda a, z: ragged.values[a:z], ranges, ragged.present)


def rows_taken(
    offsets: NDArray[np.int64],
    take: Callable[[int, int], NDArray[Any]],
    ranges: Sequence[tuple[int, int]],
    present: NDArray[np.bool_] | None = None,
) -> Ragged:
    """As ``rows_of``, with the values from ``take(first value, end of values)``."""
    parts = [(first, first + rows) for first, rows in ranges] or [(0, 0)]
    ends = np.zeros(sum(rows for _, rows in ranges) + 1, np.int64)
    np.cumsum(_joined([np.diff(offsets[first : stop + 1]) for first, stop in parts]), out=ends[1:])
    values = _joined([take(int(offsets[first]), int(offsets[stop])) for first, stop in parts])
    if present is not None:
        present = _joined([present[first:stop] for first, stop in parts])
        present = None if present.all() else present
    return Ragged(values, ends, present)


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
