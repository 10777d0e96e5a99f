"""The fields of a rollout segment, from ``ingest_record.vN.avsc``, the only list of them.

Each is a column of a record of the ingest log, of ``Columns``, of the Parquet files, and an
attribute of ``RolloutRecord``. A version has its own; those of the newest are meant where none is
named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rollstream.schemas.wire_schemas import WireSchema, shipped

SCHEMA = "ingest_record"

REQUIRED_ARRAYS = ("prompt_tokens", "output_tokens")
"""Arrays that every segment has."""


@dataclass(frozen=True, slots=True)
class RowField:
    """One field.

    Attributes:
        name: in the newest version, under which it is read.
        written: its name in records and files of this version.
        aliases: its earlier names, the first one last.
        column: how a record of the ingest log holds it: ``once``, ``shared``, ``text``, ``number``,
            ``array``, ``components``, ``attachments`` or ``token_arrays``.
        row_type: the Avro type of one segment's value, with logical types.
        dtype: of a number or an array, as NumPy names it, little-endian; else empty.
        width: bytes of a number, or of one value of an array; 4 of a text, which has its size.
        extra: whether it is among the ``extras``.
        doc: one sentence, for people.
        required: whether a producer must give it; all such are texts.
        default: the value of a segment for which none was given.
    """

    name: str
    written: str
    aliases: tuple[str, ...]
    column: str
    row_type: Any
    dtype: str
    width: int
    extra: bool
    doc: str
    required: bool
    default: Any


@cache
def fields_of(schema: WireSchema) -> Mapping[str, RowField]:
    """Every field of one version by name, in its order."""
    names = {} if schema is shipped().newest(SCHEMA) else renamed()
    return {field.name: field for field in _walk(schema.fields, names)}


@cache
def row_fields() -> Mapping[str, RowField]:
    """Every field by name, in the order of the schema."""
    return fields_of(shipped().newest(SCHEMA))


@cache
def first_names() -> Mapping[str, str]:
    """The name that a field had first, by each later one, of the fields that were renamed: digests
    cover them under it in every version."""
    found = (fields_of(schema).values() for schema in shipped().versions(SCHEMA))
    return {one.written: one.aliases[-1] for of in found for one in of if one.aliases}


@cache
def removed_fields() -> Mapping[str, RowField]:
    """Fields that only older versions have, by name: rows that were sealed with them have them
    still, and their digests cover them."""
    found: dict[str, RowField] = {}
    for schema in shipped().versions(SCHEMA):
        found |= fields_of(schema)
    return {name: field for name, field in found.items() if name not in row_fields()}


@cache
def named(*columns: str) -> tuple[RowField, ...]:
    """The fields that a record of the ingest log holds in one of these ways."""
    return tuple(field for field in row_fields().values() if field.column in columns)


@cache
def scalar_fields() -> tuple[RowField, ...]:
    """The fields with one text or number a segment."""
    return named("once", "shared", "text", "number")


@cache
def array_fields() -> Mapping[str, str]:
    """The arrays that the schema names: name to dtype."""
    return {field.name: field.dtype for field in named("array")}


@cache
def columns(*, extra: bool) -> tuple[RowField, ...]:
    """Texts, numbers and arrays, with one value an entry: those of ``extras``, or the others. Their
    order is that in which a record's payload holds them."""
    return tuple(field for field in named("text", "number", "array") if field.extra == extra)


@cache
def renamed() -> Mapping[str, str]:
    """The name in the newest version, by each earlier one."""
    return {alias: one.name for one in row_fields().values() for alias in one.aliases}


def _inner(field: Mapping[str, Any]) -> Any:
    """The columns that one field of a record holds."""
    if field["name"] == "shared":
        return field["type"]["items"]["fields"]
    return field["type"][1]["fields"] if field["name"] == "extras" else ()


def _walk(
    fields: Sequence[Mapping[str, Any]], renamed: Mapping[str, str], *, extra: bool = False
) -> Iterator[RowField]:
    for field in fields:
        if "column" in field:
            row = field["row"]
            dtype = field.get("dtype", "")
            yield RowField(
                renamed.get(field["name"], field["name"]),
                field["name"],
                tuple(field.get("aliases", ())),
                field["column"],
                row["type"],
                dtype,
                int(dtype[2:] or 4),
                extra,
                field["doc"],
                "default" not in row,
                row.get("default", ""),
            )
        else:
            yield from _walk(_inner(field), renamed, extra=field["name"] == "extras")
