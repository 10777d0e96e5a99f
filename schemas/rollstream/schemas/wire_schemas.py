"""The schemas under ``avsc/``, parsed once, found by name or by fingerprint.

The ``.avsc`` files are the only list of fields. The newest version of a name is the one that is
written; what older ones wrote is resolved to it, by field name and with defaults.

Source: Avro 1.12 specification, "Single-object encoding", "Parsing Canonical Form" and "Schema
Resolution".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from rollstream.schemas.errors import UnreadableEvent

MARKER = b"\xc3\x01"  # Avro single-object encoding, version 1.
PREFIX_BYTES = 10  # The marker and the 8-byte little-endian fingerprint.


@dataclass(frozen=True, slots=True, eq=False)
class WireSchema:
    """One version of one schema.

    Attributes:
        name: the file's name without version, for example ``batch_served``.
        version: 1, 2, …
        source: the parsed JSON of the file, with docs and logical types.
        parsed: the same for fastavro, without logical types: times stay integers of microseconds
            and arrays stay bytes.
        prefix: the ten bytes in front of each event of this schema.
    """

    name: str
    version: int
    source: Mapping[str, Any]
    parsed: Any
    prefix: bytes

    @property
    def fields(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.source["fields"])


def _without_logical_types(node: Any) -> Any:
    if isinstance(node, dict):
        if "logicalType" in node:
            return node["type"]
        return {key: _without_logical_types(value) for key, value in node.items() if key != "doc"}
    if isinstance(node, list):
        return [_without_logical_types(item) for item in node]
    return node


class SchemaRegistry:
    """Every version of some schemas. A value: what is shipped is ``shipped()``.

    Attributes:
        schemas: by name, then version.

    Args:
        files: text of each file, by the file's name, ``NAME.vN.avsc``.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        loaded = [_load(name, text) for name, text in files.items()]
        self.schemas = tuple(sorted(loaded, key=lambda schema: (schema.name, schema.version)))
        self._newest = {schema.name: schema for schema in self.schemas}
        self._by_prefix = {schema.prefix: schema for schema in self.schemas}

    def newest(self, name: str) -> WireSchema:
        """The version of ``name`` that is written today."""
        return self._newest[name]

    def versions(self, name: str) -> Sequence[WireSchema]:
        """All versions of ``name``, the newest last."""
        return [schema for schema in self.schemas if schema.name == name]

    def schema_of(self, value: bytes) -> WireSchema:
        """The schema under which the bytes were written, by their prefix.

        Raises:
            UnreadableEvent: no marker, or an unknown fingerprint.
        """
        found = self._by_prefix.get(value[:PREFIX_BYTES])
        if found is not None:
            return found
        if not value:
            raise UnreadableEvent("not_an_event", "empty record")
        if value[:2] != MARKER:
            raise UnreadableEvent("not_an_event", f"begins with {value[:PREFIX_BYTES].hex()!r}")
        raise UnreadableEvent("unknown_schema", f"fingerprint {value[2:PREFIX_BYTES].hex()!r}")


@cache
def shipped() -> SchemaRegistry:
    """The schemas that this version of Rollstream reads and writes."""
    folder = resources.files("rollstream.schemas") / "avsc"
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".avsc")]
    return SchemaRegistry({file.name: file.read_text(encoding="utf-8") for file in files})


def _load(file_name: str, text: str) -> WireSchema:
    name, version, _ = file_name.split(".")
    source = json.loads(text)
    canonical = to_parsing_canonical_form(_without_logical_types(source))
    prefix = MARKER + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    return WireSchema(name, int(version.removeprefix("v")), source, parse(source), prefix)


def parse(source: Mapping[str, Any]) -> Any:
    """A record's schema for fastavro, without logical types."""
    parsed = fastavro.parse_schema(_without_logical_types(source))
    _encode_defaults(parsed)
    return parsed


def _encode_defaults(avro_type: Any) -> None:
    """Default bytes are a text in JSON; fastavro gives a default to readers as it is."""
    match avro_type:
        case list():
            for branch in avro_type:
                _encode_defaults(branch)
        case {"type": "record", "fields": fields}:
            for field in fields:
                _encode_defaults(field["type"])
                if "default" in field:
                    field["default"] = _encoded(field["default"], field["type"])
        case {"items": inner} | {"values": inner}:
            _encode_defaults(inner)


def _encoded(default: Any, avro_type: Any) -> Any:
    match avro_type:
        case "bytes" | {"type": "bytes"}:
            return default.encode("latin-1")
        case [first, *_]:  # The default of a union is of its first branch.
            return _encoded(default, first)
        case {"type": "record", "fields": fields}:
            return {f["name"]: _encoded(default[f["name"]], f["type"]) for f in fields}
        case {"type": "array", "items": items}:
            return [_encoded(item, items) for item in default]
    return default


def in_rows(newest: WireSchema, older: WireSchema) -> Mapping[str, Any]:
    """The newest version, but with rows where it has columns and an older one had rows."""
    rows = {field["name"]: field for field in older.fields if _has_rows(field)}
    fields = [one if _has_rows(one) else rows.get(one["name"], one) for one in newest.fields]
    return {**newest.source, "fields": fields}


def _has_rows(field: Mapping[str, Any]) -> bool:
    match field["type"]:
        case {"type": "array", "items": {"type": "record"}}:
            return True
    return False


def read_avro(
    schema: WireSchema, parsed: Any, value: bytes, resolved_to: Any = None
) -> tuple[dict[str, Any], int]:
    """The record behind the prefix, as ``parsed`` has it (of ``schema``), and where it ends.

    What is made is bounded by the bytes that there are, whatever counts they name.

    Args:
        resolved_to: parsed; the record has its fields instead of those that were written.

    Raises:
        UnreadableEvent: the bytes end too early.
    """
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    try:
        fields: Any = fastavro.schemaless_reader(stream, parsed, resolved_to)
    except (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {error!r}") from error
    return fields, stream.tell()


def packed_dtype(avro_type: Any) -> tuple[str, bool] | None:
    """The dtype of a packed array's Avro type and whether null is allowed; None for other types."""
    if isinstance(avro_type, list):
        inner = [packed_dtype(branch) for branch in avro_type if branch != "null"]
        return (inner[0][0], True) if len(inner) == 1 and inner[0] else None
    if isinstance(avro_type, dict) and avro_type.get("logicalType") == "packed-array":
        return str(avro_type["dtype"]), False
    return None
