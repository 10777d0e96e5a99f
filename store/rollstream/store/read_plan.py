"""How fields are read of a file whose arrays lie there as they were written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.fields import RowField, fields_of, row_fields
from rollstream.schemas.wire_schemas import WireSchema
from rollstream.store import arrow
from rollstream.store.footer import Stated
from rollstream.store.plain.rows import chunk_indexes


class StoredArray(NamedTuple):
    """An array that every row has.

    Attributes:
        named: whether producers named it; ``field`` is that name then.
        width: bytes a token; -1: a bit.
        counts: the column with each row's number of tokens.
    """

    field: str
    named: bool
    leaf: int
    signature: ArraySignature
    width: int
    counts: str


class ReadPlan(NamedTuple):
    """How fields are read.

    Attributes:
        scalars: fields with one value a row. added: such that the file's version does not have.
        loaded: those that must be there first. arrays: that every row has. counts: of these.
        others: fields that are read for the whole file; a named array by its column.
    """

    scalars: Sequence[RowField]
    added: Sequence[RowField]
    loaded: Sequence[RowField]
    arrays: Sequence[StoredArray]
    counts: Sequence[str]
    others: Sequence[str]


@lru_cache(arrow.SCHEMAS_KEPT)  # Most files have the same.
def plan_of(
    stated: Stated, version: WireSchema, names: tuple[str, ...], token_arrays: tuple[str, ...]
) -> ReadPlan:
    """How these fields and named arrays are read of files whose footer says so."""
    of_version, chunks = fields_of(version), chunk_indexes(stated.token_arrays, version)
    fields = [of_version[name] for name in names if name in of_version]
    fields = [field for field in fields if field.written not in stated.absent]
    added = [row_fields()[name] for name in names if name not in of_version]
    of_schema = {f.written: f.name for f in fields if f.column == "array"}
    signatures = {f.written: ArraySignature(f.dtype, ()) for f in fields if f.column == "array"}
    for name, signature in stated.token_arrays:
        if name in token_arrays:
            signatures[arrow.TOKEN_ARRAY_PREFIX + name] = signature
    arrays = [
        _array_of(column, of_schema.get(column), signature, chunks[column][-1])
        for column, signature in signatures.items()
        if column in stated.in_place
    ]
    others = [of_schema.get(name, name) for name in signatures if name not in stated.in_place]
    others += [field.name for field in fields if field.column in ("components", "attachments")]
    scalars = [field for field in fields if field.column in arrow.SCALARS]
    counts = {of.counts for of in arrays}
    return ReadPlan(
        scalars,
        [field for field in added if field.column in arrow.SCALARS],
        [*scalars, *(of_version[name] for name in counts)],
        arrays,
        list(counts),
        others,
    )


def _array_of(
    column: str, of_schema: str | None, signature: ArraySignature, leaf: int
) -> StoredArray:
    named = of_schema is None
    width = arrow.stored_bytes(signature, binary=named and not arrow.is_list(signature))
    field = of_schema or column.removeprefix(arrow.TOKEN_ARRAY_PREFIX)
    return StoredArray(field, named, leaf, signature, width, arrow.count_of(column))
