"""The Arrow table that a row file holds, made value by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rollstream.schemas.columns import Columns
from rollstream.schemas.fields import array_fields, row_fields
from rollstream.store import arrow


def to_table(columns: Columns, provenance: Mapping[str, Any]) -> pa.Table:
    """The rows, with their provenance columns."""
    schema = arrow.rows_schema(arrow.signatures_of(columns))
    rows = range(columns.rows)
    scalars = {
        arrow.stored_name(row_fields()[name]): values for name, values in columns.scalars.items()
    }
    stored: dict[str, list[Any]] = {
        name: values.tolist() if isinstance(values, np.ndarray) else list(values)
        for name, values in {**scalars, **provenance}.items()
    }
    for name in ("reward", "logprob_sum", "old_logprob_sum"):
        stored[name] = [None if np.isnan(value) else value for value in stored[name]]
    of_rows = columns.rewards
    stored["rewards"] = [
        _pairs("value", of_rows.row(row)) if of_rows is not None else [] for row in rows
    ]
    files = columns.attachments or [{}] * columns.rows
    stored["attachments"] = [_pairs("data", row) for row in files]
    for name in array_fields():
        ragged = columns.arrays.get(name)
        stored[name] = [None if ragged is None else ragged.row(row) for row in rows]
    for name, ragged in columns.token_arrays.items():
        values = [ragged.row(row) for row in rows]
        if not arrow.is_list(ragged.signature):
            values = [None if value is None else value.tobytes() for value in values]  # type: ignore[misc]
        stored[arrow.TOKEN_ARRAY_PREFIX + name] = values
    return pa.table([pa.array(stored[f.name], f.type) for f in schema], schema=schema)


def _pairs(second: str, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, second: value} for name, value in row.items()]
