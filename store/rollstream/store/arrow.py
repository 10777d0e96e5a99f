"""The schema of row files, derived from the ``.avsc``, and Arrow's columns as ours.

Token arrays are not copied: they are views of Arrow's buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas.columns import ArraySignature, Columns, Components, Ragged, offsets_of
from rollstream.schemas.fields import REQUIRED_ARRAYS, SCHEMA, RowField, fields_of
from rollstream.schemas.wire_schemas import WireSchema, shipped

# A file's path names its environment and its groups' policy version, as hive partitions. A column
# of either name in the file would clash with the one that readers derive from the path, so the
# row's own version has another name, and the environment is in the file's metadata.
ENVIRONMENT = "environment"
RENAMED = {"policy_version": "rollout_policy_version"}
TOKEN_ARRAY_PREFIX = "token_array_"
SCALARS = ("once", "shared", "text", "number")  # Fields with one text or number a row.

_PRIMITIVES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "bytes": pa.binary(),
}
# Parquet has no narrower numbers: a list of bytes would take four times their size.
_LISTED = frozenset({"<i4", "<u4", "<f4", "<i8", "<u8", "<f8"})
SCHEMAS_KEPT = 64  # Of sets of named arrays; what depends on them alone is made once.
_PROVENANCE = {
    "group_id": pa.string(),
    "log_generation": pa.int32(),
    "log_partition": pa.int32(),
    "log_offset": pa.int64(),
    "log_entry": pa.int32(),
    "log_epoch": pa.int64(),
}

Signatures = tuple[tuple[str, ArraySignature], ...]
"""The named arrays of a file: name and signature, by name."""


def stored_name(field: RowField) -> str:
    """The name of the column for a field of a segment, in files of the field's version."""
    return RENAMED.get(field.written, field.written)


def count_of(column: str) -> str:
    """The column with the number of tokens that a row of an array has where it has the array."""
    return "prompt_count" if column == "prompt_tokens" else "token_count"


def signatures_of(columns: Columns) -> Signatures:
    """The named arrays of these rows."""
    return tuple((name, ragged.signature) for name, ragged in sorted(columns.token_arrays.items()))


def is_list(signature: ArraySignature) -> bool:
    """Whether a named array is a list column; else it is one binary a row."""
    return not signature.shape and signature.dtype in _LISTED


@lru_cache(SCHEMAS_KEPT)
def rows_schema(token_arrays: Signatures = (), rows: WireSchema | None = None) -> pa.Schema:
    """Columns of a file under ``groups/`` or ``incomplete/``, whose rows have the fields of this
    version of ``ingest_record``; None: the newest.

    A named array's field has its dtype and trailing shape as metadata.
    """
    of_rows = fields_of(rows or shipped().newest(SCHEMA)).values()
    stored = [field for field in of_rows if field.column in SCALARS]
    stored += [field for field in of_rows if field.column in ("components", "attachments")]
    fields = [
        *(_field(field) for field in stored if field.name != ENVIRONMENT),
        *(
            pa.field(
                stored_name(field),
                list_type(field.dtype),
                nullable=field.name not in REQUIRED_ARRAYS,
            )
            for field in of_rows
            if field.column == "array"
        ),
        *(token_array_field(name, signature) for name, signature in token_arrays),
        *(pa.field(name, kind, nullable=False) for name, kind in _PROVENANCE.items()),
    ]
    return pa.schema(fields)


def list_type(dtype: str) -> pa.DataType:
    """The type of a list a row."""
    return pa.list_(pa.field("element", pa.from_numpy_dtype(np.dtype(dtype)), nullable=False))


def token_array_field(name: str, signature: ArraySignature) -> pa.Field:
    """The column of a named array."""
    dtype, shape = signature
    kind = list_type(dtype) if is_list(signature) else pa.binary()
    metadata = {"dtype": dtype, "shape": ",".join(map(str, shape))}
    return pa.field(TOKEN_ARRAY_PREFIX + name, kind, nullable=True, metadata=metadata)


def _field(field: RowField) -> pa.Field:
    name = stored_name(field)
    match field.row_type:
        case ["null", inner]:
            return pa.field(name, _PRIMITIVES[inner], nullable=True)
        case {"logicalType": "timestamp-micros"}:
            return pa.field(name, pa.timestamp("us", tz="UTC"), nullable=False)
        case {"type": "map", "values": values}:
            # Not as a map, which Hugging Face datasets cannot read.
            value = "value" if field.column == "components" else "data"
            kinds = {"name": pa.string(), value: _PRIMITIVES[values]}
            pair = [pa.field(key, kind, nullable=False) for key, kind in kinds.items()]
            element = pa.field("element", pa.struct(pair), nullable=False)
            return pa.field(name, pa.list_(element), nullable=False)
    return pa.field(name, _PRIMITIVES[field.row_type], nullable=False)


def token_bytes(signature: ArraySignature) -> int:
    """Bytes of one token's values."""
    return np.dtype(signature.dtype).itemsize * math.prod(signature.shape)


def stored_bytes(signature: ArraySignature, *, binary: bool) -> int:
    """Bytes of one token's values in a file; -1: eight tokens are one byte."""
    return -1 if signature.dtype == "|b1" and not binary else token_bytes(signature)


def scalars_of(column: pa.Array) -> list[str] | NDArray[Any]:
    """One value a row, as in ``Columns.scalars``."""
    if pa.types.is_string(column.type):
        texts: list[str] = column.to_pylist()
        return texts
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    # Booleans are unpacked, and nulls become NaN.
    numbers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers


def ragged_of(column: pa.ListArray) -> Ragged:
    """The column's rows; ``values`` is a view of Arrow's buffer (booleans are copied)."""
    ends = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(ends[0], ends[-1] - ends[0])
    bits = pa.types.is_boolean(values.type)
    return Ragged(values.to_numpy(zero_copy_only=not bits), ends - ends[0], _present(column))


def ragged_of_binary(
    column: pa.BinaryArray, signature: ArraySignature, token_counts: NDArray[np.int32]
) -> Ragged:
    """The same of one binary a row; ``token_counts`` is int32 [rows].

    Raises:
        ValueError: a row has other than its ``token_counts`` tokens.
    """
    width, present = token_bytes(signature), _present(column)
    offsets = offsets_of(token_counts if present is None else np.where(present, token_counts, 0))
    total = int(offsets[-1])
    _, starts, data = column.buffers()
    found = np.frombuffer(starts, np.int32)[column.offset :][: len(column) + 1]
    if not np.array_equal(found - found[:1], offsets * width):
        raise ValueError(f"a row of a named array has other than its {width} bytes a token")
    nothing = not total * width
    raw = np.empty(0, np.uint8) if nothing else np.frombuffer(data, np.uint8)[int(found[0]) :]
    return Ragged(tokens_of(raw[: total * width], signature, total), offsets, present)


def tokens_of(raw: NDArray[np.uint8], signature: ArraySignature, tokens: int) -> NDArray[Any]:
    """Bytes as [tokens, *shape], a view."""
    return raw.view(signature.dtype).reshape(tokens, *signature.shape)


def components_of(column: pa.ListArray) -> Components | None:
    """The rows of ``rewards``; None where no row has any."""
    ends = column.offsets.to_numpy().astype(np.int64)
    if ends[0] == ends[-1]:
        return None
    names, values = column.flatten().flatten()
    coded = names.dictionary_encode()
    return Components(
        tuple(coded.dictionary.to_pylist()),
        ends - ends[0],
        coded.indices.to_numpy(),
        values.to_numpy(),
    )


def attachments_of(column: pa.ListArray) -> Sequence[Mapping[str, bytes]] | None:
    """Name to bytes, one mapping a row; None where no row has any."""
    rows = [{pair["name"]: pair["data"] for pair in pairs} for pairs in column.to_pylist()]
    return rows if any(rows) else None


def _present(column: pa.Array) -> NDArray[np.bool_] | None:
    if not column.null_count:
        return None
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def whole_table(data: bytes | memoryview, columns: list[str] | None = None) -> pa.Table:
    """The columns of a Parquet file that is in memory; all of them where none are named.

    It reads on the caller's thread: after ``pq.read_table``, whose threads outlive the call, a
    process that ends soon aborts now and then (apache/arrow issue 34314).
    """
    return pq.ParquetFile(pa.BufferReader(data)).read(columns=columns, use_threads=False)
