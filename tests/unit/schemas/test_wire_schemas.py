"""The ``.avsc`` files are the only list of fields; everything else is held to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import fastavro
import numpy as np
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from numpy.typing import NDArray

from harness.events import KINDS, kind_of
from rollstream.schemas import events, wire_schemas
from rollstream.schemas.fields import (
    REQUIRED_ARRAYS,
    RowField,
    row_fields,
)
from rollstream.schemas.records import RolloutRecord
from rollstream.schemas.wire_schemas import WireSchema, packed_dtype

SAME_SHAPE = {
    "IncompleteFile": "SealedFile",
    "ReplacingGroup": "ChosenGroup",
    "ReplacingScore": "ServedScore",
    "ReplacedPosition": "LogPosition",
}
EVENTS = [schema for schema in wire_schemas.shipped().schemas if schema.name != "ingest_record"]
PLAIN: Mapping[str, Any] = {
    "string": str,
    "int": int,
    "long": int,
    "double": float,
    "boolean": bool,
    "bytes": bytes,
}


def is_newest(schema: wire_schemas.WireSchema) -> bool:
    """A class has the fields of the newest version."""
    return schema is wire_schemas.shipped().newest(schema.name)


ARRAYS: Mapping[str, Any] = {
    "<i4": NDArray[np.int32],
    "<i8": NDArray[np.int64],
    "<f4": NDArray[np.float32],
    "<f8": NDArray[np.float64],
    "|b1": NDArray[np.bool_],
}


def python_type(avro: Any) -> Any:
    """The type that a class must give a field of this Avro type."""
    packed = packed_dtype(avro)
    if packed is not None:
        array = ARRAYS[packed[0]]
        return array | None if packed[1] else array
    if isinstance(avro, list):
        (inner,) = [branch for branch in avro if branch != "null"]
        return python_type(inner) | None
    if isinstance(avro, str):
        return PLAIN[avro] if avro in PLAIN else getattr(events, avro)
    if avro["type"] == "record":
        return getattr(events, SAME_SHAPE.get(avro["name"], avro["name"]))
    if avro["type"] == "array":
        return tuple[python_type(avro["items"]), ...]  # type: ignore[misc]
    if avro["type"] == "map":
        return Mapping[str, python_type(avro["values"])]  # type: ignore[misc]
    return PLAIN[avro["type"]]


def records(avro: Any) -> list[Mapping[str, Any]]:
    """A record schema and every record within it."""
    if isinstance(avro, list):
        return [found for branch in avro for found in records(branch)]
    if not isinstance(avro, dict):
        return []
    if avro["type"] == "record":
        return [avro, *(r for field in avro["fields"] for r in records(field["type"]))]
    return records(avro.get("items"))


def defaults_of(kind: type[Any]) -> dict[str, Any]:
    if issubclass(kind, tuple):
        return dict(getattr(kind, "_field_defaults"))  # noqa: B009
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def plain_default(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes().decode("latin-1")
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize(
    "record",
    [r for s in EVENTS if is_newest(s) for r in records(s.source)],
    ids=lambda record: str(record["name"]),
)
def test_each_record_has_a_class_with_its_names_types_and_defaults(
    record: Mapping[str, Any],
) -> None:
    kind = getattr(events, SAME_SHAPE.get(record["name"], record["name"]))
    fields = record["fields"]
    hints = get_type_hints(kind)
    assert list(hints) == [f["name"] for f in fields]
    assert hints == {f["name"]: python_type(f["type"]) for f in fields}
    wire_defaults = {f["name"]: plain_default(f["default"]) for f in fields if "default" in f}
    defaults = {name: plain_default(value) for name, value in defaults_of(kind).items()}
    assert defaults == wire_defaults


def test_every_event_has_a_schema() -> None:
    assert {kind_of(schema) for schema in EVENTS} == set(KINDS)


# A record shows these as values; a row holds them as JSON text, or folded into another field.
SHOWN = {"metadata", "messages", "token_arrays", "old_logprob_sum"}


def row_type(field: RowField) -> Any:
    """The type that ``RolloutRecord`` must give a field."""
    if field.column == "array":
        array = ARRAYS[field.dtype]
        return array | None if isinstance(field.row_type, list) else array
    return python_type(field.row_type)


@pytest.mark.proves("A1")
def test_a_record_has_the_names_types_and_defaults_of_the_schema() -> None:
    hints = get_type_hints(RolloutRecord)
    assert set(hints) == set(row_fields()) - {"old_logprob_sum"}
    defaults = defaults_of(RolloutRecord)
    for name, field in row_fields().items():
        if name in SHOWN:
            continue
        if name == "old_logprobs":  # Or their sum.
            assert set(get_args(hints[name])) == {*get_args(row_type(field)), float}
        else:
            assert hints[name] == row_type(field), name
        if name == "rollout_uid":  # Users may build a record before it has an identity.
            assert defaults[name] == ""
        elif name in REQUIRED_ARRAYS:
            assert (defaults[name].tolist(), field.default) == ([], [])
        elif field.required:
            assert name not in defaults
        else:
            assert defaults[name] == field.default, name


def test_what_is_empty_on_the_wire_stands_for_the_default() -> None:
    """A number or text that says nothing has no bytes, an array that no entry has is 0."""
    *plain, extras, _, payload = wire_schemas.shipped().newest("ingest_record").fields
    assert (extras["name"], payload["name"]) == ("extras", "payload")
    for field in (*plain, *extras["type"][1]["fields"]):
        if field.get("column") in ("text", "number"):
            assert (field["type"], field["default"]) == ("bytes", "")
        elif field.get("column") == "array":
            assert (field["type"], field["default"]) == (
                "int",
                int(field["name"] in REQUIRED_ARRAYS),
            )


def test_fingerprint_follows_the_avro_specification() -> None:
    # Avro 1.12 specification, CRC-64-AVRO of the canonical form "int", as its test vectors give it.
    assert fingerprint(to_parsing_canonical_form("int"), "CRC-64-AVRO") == "8f5c393f1ad57572"


@pytest.mark.parametrize("schema", wire_schemas.shipped().schemas, ids=lambda s: str(s.name))
def test_prefix_is_marker_and_little_endian_fingerprint(schema: WireSchema) -> None:
    canonical = to_parsing_canonical_form(dict(schema.source))
    start = 0xC15D213AA4D7A795  # The specification's algorithm, bit by bit.
    crc = start
    for byte in canonical.encode():
        value = (crc ^ byte) & 0xFF
        for _ in range(8):
            value = (value >> 1) ^ (start if value & 1 else 0)
        crc = (crc >> 8) ^ value
    assert schema.prefix == b"\xc3\x01" + crc.to_bytes(8, "little")


@pytest.mark.parametrize("schema", wire_schemas.shipped().schemas, ids=lambda s: str(s.name))
def test_a_foreign_avro_library_can_use_the_file_as_it_is(schema: WireSchema) -> None:
    assert fastavro.parse_schema(dict(schema.source))


def test_prefixes_tell_all_schemas_apart() -> None:
    schemas = wire_schemas.shipped().schemas
    assert len({schema.prefix for schema in schemas}) == len(schemas)
